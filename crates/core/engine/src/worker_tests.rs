//! A worker that stops a ring while another one uses it, one whose transmit rings have timers, and one that goes to sleep.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lasthop_fabric::RingId;
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_guestmem::{Mapping, memfd};
use lasthop_module_api::PortId;
use lasthop_modules::{BridgeSettings, by_name};
use lasthop_ring::AdaptivePoll;
use lasthop_sched::bounds::TRANSMIT_DELAY_MAX_NS;
use lasthop_sched::{CpuState, GuestView, Mode, Modes, Policy};
use lasthop_vhost::Session;
use lasthop_wire::Offload;
use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::now_ns;
use crate::events::EventList;
use crate::offences::Offence;
use crate::saved_counters::PORT_COUNTERS_BYTES;
use crate::worker::Worker;
use crate::{Engine, EngineSettings, Gathering, PortConfig, PortState, SchedulerView};

/// Long enough for the slowest machine; nothing is asserted about time.
const PATIENCE: Duration = Duration::from_secs(120);
const RECEIVE_RING: u16 = 0;

/// A port and its guest; the session is served until the guest is gone.
fn attach(engine: &Engine) -> (PortId, Guest) {
    let port = engine.add_port(PortConfig { name: "bad".into(), ..PortConfig::default() }).unwrap();
    let (front, back) = UnixStream::pair().unwrap();
    let mut session = Session::new(back.into(), engine.device(port).unwrap()).unwrap();
    std::thread::spawn(move || {
        while session.ready().is_ok() {
            poll(&mut [PollFd::new(&session.fd(), PollFlags::IN)], None).unwrap();
        }
    });
    (port, Guest::over(front, GuestOptions::default()).unwrap())
}

#[test]
fn a_ring_that_another_worker_is_slow_to_leave_is_stopped_in_the_end() {
    let settings = EngineSettings { workers: 2, gathering: Gathering::Never, ..EngineSettings::default() };
    let engine =
        Engine::start(by_name("dummy", &BridgeSettings::default()).unwrap().into(), &settings).unwrap();
    let (port, _guest) = attach(&engine);
    let has_ring =
        |number| engine.pool.call(number, move |worker| worker.is_home(port, RECEIVE_RING)).unwrap();
    let home = usize::from(!has_ring(0));
    let (tell, is_there) = sync_channel(1);
    let (end, is_over) = sync_channel::<()>(1);
    engine.pool.mailbox(1 - home).post(Box::new(move |worker| {
        let stay = || {
            tell.send(()).unwrap();
            is_over.recv().unwrap();
        };
        while worker.fabric.while_serving(RingId { port, queue: RECEIVE_RING / 2 }, stay).is_none() {}
    }));
    is_there.recv().unwrap();
    // It waits for the other worker for a limited time.
    engine.pool.call(home, move |worker| worker.stop_for(port, "a fault")).unwrap();
    assert!(has_ring(home), "the other worker is at it");
    end.send(()).unwrap();
    let until = Instant::now() + PATIENCE;
    while has_ring(home) {
        assert!(Instant::now() < until, "it is not stopped");
        std::thread::yield_now();
    }
}

#[test]
fn a_pair_does_not_escape_a_stop_by_a_move() {
    let settings = EngineSettings { workers: 2, gathering: Gathering::Never, ..EngineSettings::default() };
    let engine =
        Engine::start(by_name("dummy", &BridgeSettings::default()).unwrap().into(), &settings).unwrap();
    let (port, _guest) = attach(&engine);
    let rings = |number| {
        let count = move |worker: &mut Worker| (0..2).filter(|index| worker.is_home(port, *index)).count();
        engine.pool.call(number, count).unwrap()
    };
    let home = usize::from(rings(0) == 0);
    engine.move_pair(port, 0, 1 - home).unwrap();
    engine.move_pair(port, 0, home).unwrap();
    let (tell, is_there) = sync_channel(1);
    let (end, is_over) = sync_channel::<()>(1);
    engine.pool.mailbox(home).post(Box::new(move |_| {
        tell.send(()).unwrap();
        is_over.recv().unwrap();
    }));
    is_there.recv().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| engine.move_pair(port, 0, 1 - home).unwrap());
        while engine.pool.mailbox(home).len() == 0 {
            std::thread::yield_now();
        }
        // The new home hears of it before it gets the pair, the old one after it gave the pair away.
        engine.pool.quarantine(port, Offence::MemoryFilled);
        engine.pool.call(1 - home, |_| ()).unwrap();
        assert_eq!(rings(1 - home), 0);
        end.send(()).unwrap();
    });
    engine.pool.call_all(|_| ()).unwrap();
    assert_eq!((rings(0), rings(1)), (0, 0), "both rings have stopped");
    assert!(matches!(engine.stats().unwrap().ports[1].state, PortState::Stopped(_)));
}

/// A view with one state for each guest, which a test sets.
#[derive(Debug, Default)]
struct SetView(Mutex<GuestView>);

impl SchedulerView for SetView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        Some(*self.0.lock().unwrap())
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        None
    }
}

/// A sender whose packets a worker takes, by a simulated clock.
struct Simulation<'a> {
    worker: &'a mut Worker,
    view: Arc<SetView>,
    port: PortId,
    guest: Guest,
    now_ns: u64,
    /// When the oldest packet was posted whose ring is not polled, and the longest such wait.
    posted_ns: Option<u64>,
    waited_max_ns: u64,
}

impl Simulation<'_> {
    /// One turn of the worker, and of the guest before it.
    fn turn(&mut self, guest: GuestView, sends: bool) {
        *self.view.0.lock().unwrap() = guest;
        if sends {
            self.guest.reclaim(0).unwrap();
            if self.guest.send(0, &[0; 64], Offload::default()).unwrap() {
                self.guest.flush(0).unwrap();
                self.posted_ns.get_or_insert(self.now_ns);
            }
        }
        let mut events = EventList::new();
        self.worker.events.wait(Some(0), &mut events);
        self.worker.handle_events(events, self.now_ns);
        self.worker.step(self.now_ns, &mut AdaptivePoll::new(0));
        self.worker.arm_idle_rings(self.now_ns, 0);
        // An active ring is polled without a pause. Its port's turn depends on the real time of earlier visits.
        if self.worker.is_active() || !self.is_posted() {
            self.posted_ns = None;
        }
        let waited_ns = self.posted_ns.map_or(0, |posted_ns| self.now_ns - posted_ns);
        self.waited_max_ns = self.waited_max_ns.max(waited_ns);
    }

    /// Whether the worker has not taken all packets of the guest.
    fn is_posted(&mut self) -> bool {
        let progress = self.worker.fabric.ring_progress(self.port, 1).unwrap();
        progress.available != progress.taken
    }
}

/// Runs `simulate` with the only worker of a switch while its thread does nothing else.
fn simulated<R: Send + 'static>(
    policy: Policy,
    simulate: impl FnOnce(&mut Simulation<'_>) -> R + Send + 'static,
) -> R {
    let settings = EngineSettings { workers: 1, ..EngineSettings::default() };
    let engine =
        Engine::start(by_name("dummy", &BridgeSettings::default()).unwrap().into(), &settings).unwrap();
    let (port, guest) = attach(&engine);
    let run = move |worker: &mut Worker| {
        let (view, mut modes) = (Arc::new(SetView::default()), Modes::default());
        modes.set(policy, Mode::On);
        worker.set_scheduler_view(Some(Arc::clone(&view) as _), modes, None);
        // Later than all times that the worker knows, also at the end of a simulation on a busy machine.
        let begin_ns = now_ns(worker.started) + 2_000_000_000;
        let mut run =
            Simulation { worker, view, port, guest, now_ns: begin_ns, posted_ns: None, waited_max_ns: 0 };
        let result = simulate(&mut run);
        // The worker's own clock must not be behind times of the simulation.
        let ahead_ns = run.now_ns.saturating_sub(now_ns(run.worker.started));
        std::thread::sleep(Duration::from_nanos(ahead_ns));
        result
    };
    engine.pool.call(0, run).unwrap()
}

/// States of the view, events, times and packets at random: the bound holds for each packet, also if the view is wrong.
#[test]
fn no_packet_waits_for_a_timer_beyond_its_bound() {
    let runs = GuestView { running: 1, ..GuestView::default() };
    let (waited_max_ns, counters) = simulated(Policy::TransmitTimer, move |run| {
        for step in 0..10_000_u64 {
            let bits = BuildHasherDefault::<DefaultHasher>::default().hash_one(step);
            let guest = match bits >> 32 & 7 {
                0 => GuestView { running: 0, blocked: 1, blocked_for_ns: bits >> 40, ..runs },
                1 => GuestView { blocked: 1, blocked_for_ns: bits & 0xffff, ..runs },
                2 => GuestView { unknown: 1, ..runs },
                _ => runs,
            };
            let end_ns = run.now_ns + (bits & 0x7fff);
            // The worker sleeps until its next deadline at most.
            while let Some(due_ns) = run.worker.timers.due_ns().filter(|due_ns| *due_ns < end_ns) {
                run.now_ns = due_ns.max(run.now_ns);
                run.turn(guest, false);
            }
            run.now_ns = end_ns;
            if bits >> 38 & 3 == 0 {
                run.worker.timers.note_event();
            }
            run.turn(guest, bits >> 36 & 3 == 0);
        }
        (run.waited_max_ns, run.worker.scheduling.counters)
    });
    assert!(waited_max_ns <= TRANSMIT_DELAY_MAX_NS, "{waited_max_ns} ns, {counters:?}");
    assert!(counters.kicks_spared > 0, "{counters:?}");
}

/// Writing them takes longer than a packet.
#[test]
fn copies_of_counters_are_written_before_a_sleep_rather_than_between_packets() {
    const MS: u64 = 1_000_000;
    let dues = simulated(Policy::TransmitTimer, |run| {
        let file = memfd("lasthop-test-copies", PORT_COUNTERS_BYTES as u64).unwrap();
        let memory = Arc::new(Mapping::of_file(file.as_fd(), 0, PORT_COUNTERS_BYTES as u64).unwrap());
        let (worker, begin_ns) = (&mut *run.worker, run.now_ns);
        worker.keep_counters(run.port, &memory);
        worker.persistent_counters.write(begin_ns, &worker.fabric);
        let mut round = |at_ns, sleeps| {
            worker.persistent_counters.note();
            worker.step(at_ns, &mut AdaptivePoll::new(0));
            if sleeps {
                worker.prepare_sleep(at_ns);
                worker.wake(at_ns);
            }
            worker.persistent_counters.due_in_ns(at_ns)
        };
        run.now_ns = begin_ns + 15 * MS;
        [
            round(begin_ns + 4 * MS, true),
            round(begin_ns + 6 * MS, false),
            round(begin_ns + 6 * MS, true),
            round(begin_ns + 15 * MS, false),
        ]
    });
    assert_eq!(dues, [Some(6 * MS), Some(4 * MS), None, None]);
}
