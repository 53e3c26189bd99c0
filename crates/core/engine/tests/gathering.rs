//! Which thread serves which worker: the first one those with little to do, their own threads the others.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lasthop_engine::{Gathering, PolicyCounters, SchedulerView};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use lasthop_sched::{CpuState, GuestView, Mode, Modes, Occupant, Policy};
use lasthop_wire::Offload;
use support::{TestSwitch, TestWorkers, config, eventually, frame, receive, send};

const CREW: TestWorkers = TestWorkers { workers: 2, gathering: Gathering::ByLoad };

/// Two guests on each of `pairs` pairs of ports, joined; each pair's first guest has worker 0 as its home, the other worker 1.
fn start(pairs: u8) -> (TestSwitch, Vec<(Guest, Guest)>) {
    let mut switch = TestSwitch::start("dummy", CREW);
    let mut attach = |name: String| switch.attach(config(&name), GuestOptions::default()).1;
    let guests = (0..pairs).map(|pair| (attach(format!("one{pair}")), attach(format!("other{pair}"))));
    let guests = guests.collect();
    (switch, guests)
}

fn threads(switch: &TestSwitch) -> Vec<usize> {
    switch.engine.stats().unwrap().workers.iter().map(|worker| worker.thread).collect()
}

fn ask(one: &mut Guest, other: &mut Guest) {
    send(one, &frame(2, 1, 0, 64));
    receive(other);
    send(other, &frame(1, 2, 0, 64));
    receive(one);
}

/// Sends as fast as possible until told to end.
fn flood(mut guest: Guest, end: &AtomicBool) -> Guest {
    // Made once, so that the switch has more to do than this thread.
    let frame = frame(2, 1, 0, 1500);
    while !end.load(Ordering::Relaxed) {
        while guest.send(0, &frame, Offload::default()).unwrap() {}
        guest.flush(0).unwrap();
        guest.reclaim(0).unwrap();
    }
    guest
}

/// Takes all frames until told to end.
fn drain(mut guest: Guest, end: &AtomicBool) -> Guest {
    let mut bytes = Vec::new();
    while !end.load(Ordering::Relaxed) {
        while guest.recv(0, &mut bytes).unwrap().is_some() {}
        guest.wait(Some(Duration::from_millis(1))).unwrap();
    }
    while guest.recv(0, &mut bytes).unwrap().is_some() {}
    guest
}

/// Four guests that give both workers much to do: one of the first pair sends, and one of the second.
struct Crowd {
    end: Arc<AtomicBool>,
    guests: [JoinHandle<Guest>; 4],
}

impl Crowd {
    fn gather(pairs: Vec<(Guest, Guest)>) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let run = |work: fn(Guest, &AtomicBool) -> Guest, guest| {
            let end = Arc::clone(&end);
            std::thread::spawn(move || work(guest, &end))
        };
        let mut pairs = pairs.into_iter();
        let ((one, other), (third, fourth)) = (pairs.next().unwrap(), pairs.next().unwrap());
        let guests = [run(flood, one), run(drain, other), run(drain, third), run(flood, fourth)];
        Self { end, guests }
    }

    fn end(self) -> [Guest; 4] {
        self.end.store(true, Ordering::Relaxed);
        self.guests.map(|guest| guest.join().unwrap())
    }
}

#[test]
fn the_first_thread_serves_both_sides_of_a_conversation() {
    let (switch, mut guests) = start(1);
    let (one, other) = &mut guests[0];
    eventually("one thread serves all", || {
        ask(one, other);
        threads(&switch) == [0, 0]
    });
    switch.assert_conserved();
}

#[test]
fn crowded_workers_go_apart_and_come_back_when_it_is_quiet() {
    let (switch, guests) = start(2);
    let crowd = Crowd::gather(guests);
    eventually("the second worker has its own thread", || threads(&switch) == [0, 1]);
    let [mut one, mut other, ..] = crowd.end();
    eventually("one thread serves all again", || {
        ask(&mut one, &mut other);
        threads(&switch) == [0, 0]
    });
    switch.assert_conserved();
}

/// A view in which another thread has each CPU.
#[derive(Debug)]
struct BusyView;

impl SchedulerView for BusyView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        None
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        Some(CpuState { occupant: Occupant::Thread(u32::MAX), waiting: 0 })
    }
}

#[test]
fn crowded_workers_are_held_together_while_no_cpu_is_idle() {
    let (switch, guests) = start(2);
    let mut modes = Modes::default();
    modes.set(Policy::Gathering, Mode::On);
    switch.engine.set_scheduler_view(Some(Arc::new(BusyView)), modes).unwrap();
    let counters = || switch.engine.stats().unwrap().workers[0].policies;
    let crowd = Crowd::gather(guests);
    eventually("the second worker would have its own thread", || counters().separations_held > 0);
    // By load alone again, so it leaves; if the thread was saturated for long, it has left already.
    switch.engine.set_scheduler_view(Some(Arc::new(BusyView)), Modes::default()).unwrap();
    eventually("the second worker has its own thread", || threads(&switch) == [0, 1]);
    crowd.end();
    let PolicyCounters { separations, separations_early, separations_late, .. } = counters();
    assert_eq!((separations, separations_early), (separations_late, 0), "no CPU was idle");
    switch.assert_conserved();
}

#[test]
fn who_stands_still_sleeps_whatever_guests_do() {
    let (switch, mut guests) = start(1);
    let (one, other) = &mut guests[0];
    ask(one, other);
    let polls = || switch.engine.stats().unwrap().workers.iter().map(|worker| worker.polls).sum::<u64>();
    switch.engine.quiesce(Duration::from_secs(1)).unwrap();
    send(one, &frame(2, 1, 7, 64));
    // Packets in flight when it quiesced may still be counted.
    eventually("a while without a look around", || {
        let before = polls();
        std::thread::sleep(Duration::from_millis(100));
        polls() == before
    });
    switch.engine.resume().unwrap();
    assert_eq!(receive(other), frame(2, 1, 7, 64));
    switch.assert_conserved();
}
