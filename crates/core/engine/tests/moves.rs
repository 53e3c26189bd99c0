//! Queue pairs that move to other workers: idle ones, during a conversation, and while their guest leaves.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use lasthop_engine::{EngineError, Gathering, PortState};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use support::{TestSwitch, TestWorkers, config, eventually, frame, receive, send};

const WORKERS: usize = 3;

fn crews() -> [TestWorkers; 3] {
    [Gathering::Never, Gathering::ByLoad, Gathering::Restless]
        .map(|gathering| TestWorkers { workers: WORKERS, gathering })
}

fn two_guests(crew: TestWorkers) -> (TestSwitch, [PortId; 2], [Guest; 2]) {
    let mut switch = TestSwitch::start("bridge", crew);
    let (one, first) = switch.attach(config("one"), GuestOptions::default());
    let (two, second) = switch.attach(config("two"), GuestOptions::default());
    (switch, [one, two], [first, second])
}

/// The homes of the rings of a port.
fn homes(switch: &TestSwitch, port: PortId) -> Vec<usize> {
    switch.engine.inspect(&[port]).unwrap().remove(0).iter().map(|ring| ring.worker).collect()
}

fn moved(result: Result<(), EngineError>) -> bool {
    match result {
        Ok(()) => true,
        Err(EngineError::StillMoving(..)) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_pair_that_sleeps_wakes_at_its_new_home() {
    for crew in crews() {
        let (switch, ports, [mut first, mut second]) = two_guests(crew);
        for number in 0..60 {
            let (one, two) = (number as usize % WORKERS, number as usize / 2 % WORKERS);
            switch.engine.move_pair(ports[0], 0, one).unwrap();
            switch.engine.move_pair(ports[1], 0, two).unwrap();
            assert_eq!((homes(&switch, ports[0]), homes(&switch, ports[1])), (vec![one; 2], vec![two; 2]));
            send(&mut first, &frame(2, 1, number, 100));
            assert_eq!(receive(&mut second), frame(2, 1, number, 100));
            first.reclaim(0).unwrap();
        }
        let states = ports.map(|port| switch.port(port));
        assert!(states.iter().all(|port| port.state == PortState::Running && port.rings.len() == 2));
        assert_eq!(states[0].counters.rx_packets, 60);
        switch.assert_conserved();
    }
}

#[test]
fn no_kick_is_lost_while_pairs_move_during_a_conversation() {
    for crew in crews() {
        let (switch, ports, [mut first, mut second]) = two_guests(crew);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..3000 {
                    send(&mut first, &frame(2, 1, number, 64));
                    assert_eq!(receive(&mut second), frame(2, 1, number, 64));
                    send(&mut second, &frame(1, 2, number, 64));
                    assert_eq!(receive(&mut first), frame(1, 2, number, 64));
                    [&mut first, &mut second].into_iter().for_each(|guest| _ = guest.reclaim(0).unwrap());
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let mut moves = 0;
            while !is_over.load(Ordering::Relaxed) {
                moves += u32::from(moved(switch.engine.move_pair(ports[0], 0, moves as usize % WORKERS)));
                moves += u32::from(moved(switch.engine.move_pair(ports[1], 0, moves as usize % WORKERS)));
                switch.assert_conserved();
            }
            assert!(moves > 0);
        });
    }
}

#[test]
fn a_front_end_may_go_while_its_pairs_move() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let port =
        switch.engine.add_port(lasthop_engine::PortConfig { queue_pairs: 4, ..config("restless") }).unwrap();
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    for round in 0..30 {
        let options = GuestOptions { queue_pairs: 4, ..GuestOptions::default() };
        let mut guest = Guest::over(switch.serve(port), options).unwrap();
        std::thread::scope(|scope| {
            let engine = &switch.engine;
            scope.spawn(move || {
                send(&mut guest, &frame(0xff, 1, round, 64));
                drop(guest);
            });
            let is_there = || engine.stats().unwrap().ports[1].state != PortState::Waiting;
            for number in 0.. {
                match engine.move_pair(port, number % 4, usize::from(number) % WORKERS) {
                    Ok(()) | Err(EngineError::NotRunning(..) | EngineError::StillMoving(..)) => {}
                    Err(error) => panic!("{error}"),
                }
                if !is_there() {
                    break;
                }
            }
        });
        assert_eq!(receive(&mut other), frame(0xff, 1, round, 64));
        switch.assert_conserved();
    }
    eventually("its rings have stopped", || switch.port(port).rings.is_empty());
}

#[test]
fn a_move_that_is_not_possible_is_refused_with_the_remedy() {
    let mut switch = TestSwitch::start("bridge", 2);
    let port = switch.engine.add_port(config("one")).unwrap();
    let refusal = |switch: &TestSwitch, port, pair, worker| {
        switch.engine.move_pair(port, pair, worker).unwrap_err().to_string()
    };
    assert!(refusal(&switch, PortId(9), 0, 0).contains("no port 9"));
    assert!(refusal(&switch, port, 1, 0).contains("it has 1"));
    assert!(refusal(&switch, port, 0, 2).contains("the switch has 2"));
    assert!(refusal(&switch, port, 0, 1).contains("start its guest"));
    let guest = Guest::over(switch.serve(port), GuestOptions::default()).unwrap();
    eventually("it runs", || switch.port(port).state == PortState::Running);
    switch.engine.move_pair(port, 0, 1).unwrap();
    switch.engine.move_pair(port, 0, 1).unwrap();
    switch.engine.quiesce(std::time::Duration::ZERO).unwrap();
    assert!(refusal(&switch, port, 0, 0).contains("once it runs again"));
    switch.engine.resume().unwrap();
    switch.engine.move_pair(port, 0, 0).unwrap();
    drop(guest);
}
