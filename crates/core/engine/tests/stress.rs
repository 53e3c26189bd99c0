//! Guests with real threads that send to each other, to all and to one slow receiver, while others attach and leave.

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_engine::{EngineError, Gathering, PortState};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use support::{IdleView, TestSwitch, TestWorkers, config, eventually, frame};

const WORKERS: usize = 3;
const TALKERS: u8 = 5;
const FRAMES: u32 = 6000;
/// The guest that keeps stopping and starting its rings.
const RESTLESS: u8 = TALKERS + 1;

fn len_of(number: u32) -> usize {
    64 + (number as usize * 97) % 4000
}

/// A guest's number, and its receptions: the last number of each sender, and the number of frames.
struct Talker {
    me: u8,
    guest: Guest,
    last: HashMap<u8, u32>,
    received: u64,
}

impl Talker {
    fn new(me: u8, guest: Guest) -> Self {
        Self { me, guest, last: HashMap::new(), received: 0 }
    }

    fn hear(&mut self) {
        let mut bytes = Vec::new();
        while self.guest.recv(0, &mut bytes).unwrap().is_some() {
            let (to, from) = (bytes[5], bytes[11]);
            let number = u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]]);
            assert_eq!(bytes, frame(to, from, number, len_of(number)), "every byte");
            let last = self.last.insert(from, number);
            assert!(last.is_none_or(|last| last < number), "from {from} to {}: {last:?}, {number}", self.me);
            self.received += 1;
        }
    }

    /// Sends frame `number`, mostly to the common receiver, else to a neighbour or to all.
    fn say(&mut self, number: u32) {
        let to = match number % 16 {
            0 => 0xff,
            1..=4 => 1 + (self.me + (number % 5) as u8) % RESTLESS,
            _ => 1,
        };
        let bytes = frame(to, self.me, number, len_of(number));
        while !self.guest.send(0, &bytes, Offload::default()).unwrap() {
            self.guest.flush(0).unwrap();
            self.hear();
            self.guest.reclaim(0).unwrap();
            self.guest.wait_sent(0, Some(Duration::from_millis(1))).unwrap();
        }
        self.guest.flush(0).unwrap();
        self.guest.reclaim(0).unwrap();
    }

    fn talk(mut self) -> Self {
        for number in 1..=FRAMES {
            self.say(number);
            self.hear();
        }
        self
    }

    /// Sends a little, then stops and starts its rings, until told to end.
    fn come_and_go(mut self, end: &AtomicBool) -> Self {
        let mut number = 0;
        while !end.load(Ordering::Relaxed) {
            for _ in 0..20 {
                number += 1;
                self.say(number);
                self.hear();
            }
            let bases = self.guest.stop().unwrap();
            self.hear();
            self.guest.start(&bases).unwrap();
        }
        self
    }
}

/// A guest with two queue pairs that attaches, sends to all on both, and leaves.
fn visit(switch: &mut TestSwitch, port: PortId, visits: u32) {
    let options = GuestOptions { queue_pairs: 2, ..GuestOptions::default() };
    let mut guest = Guest::over(switch.serve(port), options).unwrap();
    let mut bytes = Vec::new();
    for number in 1..=50 {
        let number = visits * 50 + number;
        for queue in 0..2 {
            let frame = frame(0xff, RESTLESS + 1 + queue as u8, number, len_of(number));
            let _ = guest.send(queue, &frame, Offload::default()).unwrap();
            guest.flush(queue).unwrap();
            guest.reclaim(queue).unwrap();
            while guest.recv(queue, &mut bytes).unwrap().is_some() {}
        }
    }
    drop(guest);
    eventually("the visitor has left", || switch.port(port).state == PortState::Waiting);
}

/// Moves queue pairs to other workers; returns how often that was done.
struct Mover {
    state: u32,
    moves: u32,
}

impl Mover {
    fn next(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 8) as usize % below
    }

    fn shuffle(&mut self, switch: &TestSwitch, ports: &[PortId]) {
        for _ in 0..100 {
            let (port, worker) = (ports[self.next(ports.len())], self.next(WORKERS));
            match switch.engine.move_pair(port, 0, worker) {
                Ok(()) => self.moves += 1,
                // It was moved just now, or is restless.
                Err(EngineError::StillMoving(..) | EngineError::NotRunning(..)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn crowds_are_conserved_in_order_and_whole_while_guests_come_and_go() {
    crowd(TestWorkers::from(WORKERS), false);
}

#[test]
fn crowds_are_as_well_off_while_workers_go_from_thread_to_thread() {
    crowd(TestWorkers { workers: WORKERS, gathering: Gathering::Restless }, false);
}

#[test]
fn crowds_are_as_well_off_while_their_queue_pairs_go_from_worker_to_worker() {
    crowd(TestWorkers::from(WORKERS), true);
    crowd(TestWorkers { workers: WORKERS, gathering: Gathering::Restless }, true);
}

#[test]
fn crowds_are_as_well_off_while_helpers_copy_their_large_frames() {
    for gathering in [Gathering::Never, Gathering::Restless] {
        let crew = TestWorkers { workers: WORKERS, gathering };
        let switch =
            crowd_of(TestSwitch::with_helpers("bridge", crew, 1000, Arc::new(IdleView::default())), true);
        // A busy machine may leave a helper without CPU; `tests/helpers.rs` shows that helpers copy.
        let (workers, helpers) = switch.shared_frames();
        assert!(workers > 0, "{workers} {helpers}");
    }
}

fn crowd(crew: TestWorkers, moves: bool) {
    crowd_of(TestSwitch::start("bridge", crew), moves);
}

fn crowd_of(mut switch: TestSwitch, moves: bool) -> TestSwitch {
    let mut ports = Vec::new();
    let mut guests = Vec::new();
    for me in 1..=RESTLESS {
        // The common receiver is slow.
        let options = GuestOptions { rx_buffers: if me == 1 { 32 } else { 128 }, ..GuestOptions::default() };
        let (port, guest) = switch.attach(config(&format!("guest{me}")), options);
        ports.push(port);
        guests.push(Talker::new(me, guest));
    }
    let end = Arc::new(AtomicBool::new(false));
    let restless = guests.pop().unwrap();
    let ending = Arc::clone(&end);
    let restless = std::thread::spawn(move || restless.come_and_go(&ending));
    let talkers: Vec<_> = guests.into_iter().map(|talker| std::thread::spawn(|| talker.talk())).collect();
    let two_pairs = lasthop_engine::PortConfig { queue_pairs: 2, ..config("visitor") };
    let visitor = switch.engine.add_port(two_pairs).unwrap();
    let (mut visits, mut mover) = (0, Mover { state: 7, moves: 0 });
    while talkers.iter().any(|talker| !talker.is_finished()) {
        visit(&mut switch, visitor, visits);
        visits += 1;
        switch.assert_conserved(); // at any moment
        if moves {
            mover.shuffle(&switch, &ports);
            switch.assert_conserved();
        }
    }
    assert_eq!(mover.moves > 0, moves);
    end.store(true, Ordering::Relaxed);
    let mut guests: Vec<_> = talkers.into_iter().map(|talker| talker.join().unwrap()).collect();
    guests.push(restless.join().unwrap());
    eventually("nothing waits any more, and all that was delivered has arrived", || {
        guests.iter_mut().for_each(Talker::hear);
        let arrived = |(talker, port): (&Talker, &_)| {
            let counters = switch.port(*port).counters;
            counters.waiting == 0 && counters.tx_packets == talker.received
        };
        guests.iter().zip(&ports).all(arrived)
    });
    for talker in &mut guests {
        eventually("every chain comes back", || {
            talker.guest.reclaim(0).unwrap();
            talker.guest.transmit_ring(0).unwrap().in_flight() == 0
        });
    }
    switch.assert_conserved();
    switch
}
