//! A switch with several workers and its guests, executed one step at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lasthop_fabric::{
    Capabilities, CaptureDirection, Fabric, HelpStep, MovingRing, PortCounters, Release, RingId,
    SettledCopies, Stopping, TapReader, Watch, tap,
};
use lasthop_guestmem::Mapping;
use lasthop_module_api::{Module, PortId};
use lasthop_ring::{DeviceRing, Ledger, RingFormat};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::frames::{check_frame, frame};
use crate::helping::TheHelper;
use crate::support::{TestGuest, memory};
use crate::tagging::{ByLastByte, edit_for};
use crate::tags::untagged;

/// The number of workers, whether a helper is added to them; and of each guest its queue pairs, whether it merges buffers, takes partial checksums, takes
/// GSO, and the size of its buffers.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) workers: usize,
    pub(crate) has_helper: bool,
    pub(crate) guests: Vec<(u16, bool, bool, bool, u8)>,
}

/// The features of a port's guest.
fn capabilities(setup: &Setup, port: PortId) -> Capabilities {
    let (_, mergeable, csum, tso, _) = setup.guests[port.index() - 1];
    Capabilities {
        mergeable,
        csum,
        tso4: csum && tso,
        tso6: false,
        ecn: false,
        uso: false,
        header_bytes: HEADER_BYTES,
        sent_header_bytes: HEADER_BYTES,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Begun(usize),
    Copied(usize),
    /// A helper has buffers for a frame.
    Helping,
}

/// A message to a worker.
enum Letter {
    /// It becomes the home of this pair's transmit ring.
    Adopt(usize, MovingRing),
    Settle(SettledCopies),
}

/// One queue pair: its guest's side, its home, and the positions at which its stopped rings would continue.
struct Pair {
    guest: TestGuest,
    /// The memory that outlives the switch.
    kept: Arc<Mapping>,
    home: usize,
    next_number: u32,
    stopped: [Option<u16>; 2],
    /// Whether a stop of the ring has begun and is to be repeated.
    stopping: [bool; 2],
    /// Whether the transmit ring is on its way to another home.
    is_moving: bool,
}

impl Pair {
    /// The switch's side of a ring: begun at a position, or taken over from a dead switch.
    fn ring(&self, index: u16, position: Option<u16>) -> DeviceRing {
        let ledger =
            Ledger::within(self.guest.format, &self.kept, usize::from(index) * Ledger::BYTES, 64).unwrap();
        let memory = self.guest.ring_memory(index);
        let ring = match (position, index) {
            (Some(position), _) => DeviceRing::begin(memory, ledger, position, true),
            (None, 0) => DeviceRing::take_over_in_order(memory, ledger, true).unwrap(),
            (None, _) => DeviceRing::take_over(memory, ledger, true).unwrap(),
        };
        self.guest.ordered(index, ring)
    }
}

pub(crate) struct ModelSwitch {
    setup: Setup,
    deaths: u32,
    rests: u32,
    pub(crate) moves: u32,
    /// Frames that the helper took.
    pub(crate) helped: u64,
    /// A receive queue was opened while packets waited: packets of one flow may be in two queues.
    is_mixed: bool,
    /// Packets received and delivered by workers that quiesced before they died.
    past: (u64, u64),
    /// `None` while a caller on the stack uses the worker.
    workers: Vec<Option<Fabric>>,
    visits: Vec<Option<Visit>>,
    /// The messages to each worker.
    letters: Vec<VecDeque<Letter>>,
    pairs: Vec<Pair>,
    ports: Vec<PortId>,
    /// Last position by receiving pair and sender.
    seen: HashMap<(usize, [u8; 2]), u32>,
    received: u64,
    now_ns: u64,
    /// A capture of all frames, and the number of frames by port, direction and whether they were dropped.
    taps: Vec<TapReader>,
    sights: HashMap<(u16, bool, bool), u64>,
}

impl ModelSwitch {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut pairs = Vec::new();
        let mut ports = vec![PortId::INTERNAL];
        for (number, &(count, .., size)) in setup.guests.iter().enumerate() {
            let port = PortId(number as u16 + 1);
            ports.push(port);
            let map = memory(usize::from(count));
            for queue in 0..count {
                let rx_bytes = [600, 2048, 4096][usize::from(size)];
                let capabilities = capabilities(setup, port);
                let guest = TestGuest::pair(port, queue, Arc::clone(&map), capabilities, 64, rx_bytes);
                let guest = guest.in_order(!number.is_multiple_of(2));
                // Of four guests each has another kind of rings.
                let is_packed = matches!(number % 4, 1 | 2);
                let guest = guest.of_format(if is_packed { RingFormat::Packed } else { RingFormat::Split });
                let home = pairs.len() % setup.workers;
                let kept = Arc::new(Mapping::anonymous(2 * Ledger::BYTES).unwrap());
                let (stopped, stopping) = ([Some(0), Some(0)], [false; 2]);
                let (next_number, is_moving) = (0, false);
                pairs.push(Pair { guest, kept, home, next_number, stopped, stopping, is_moving });
            }
        }
        let fabrics = setup.workers + usize::from(setup.has_helper);
        let (workers, visits, taps) = (Vec::new(), vec![None; fabrics], Vec::new());
        let letters = Vec::new();
        let (seen, received, now_ns, sights) = (HashMap::new(), 0, 0, HashMap::new());
        let (setup, deaths, rests, moves, is_mixed, past) = (setup.clone(), 0, 0, 0, false, (0, 0));
        let helped = 0;
        let mut crew = Self {
            setup,
            deaths,
            rests,
            moves,
            helped,
            is_mixed,
            past,
            workers,
            visits,
            letters,
            pairs,
            ports,
            seen,
            received,
            now_ns,
            taps,
            sights,
        };
        crew.hire();
        for pair in 0..crew.pairs.len() {
            crew.start(pair, 0);
            crew.start(pair, 1);
        }
        crew
    }

    /// Makes new workers that know the ports and no ring.
    fn hire(&mut self) {
        let module: Arc<dyn Module> = Arc::new(ByLastByte(self.setup.guests.len() as u16));
        let mut fabrics = Fabric::for_workers(&module, self.visits.len()).unwrap();
        let watch = Watch {
            ports: self.ports.clone(), // a port's number is its interface number
            inbound: true,
            outbound: true,
            drops: true,
            snap_len_bytes: 64,
            buffer_bytes: 1 << 16,
        };
        self.taps.clear();
        for fabric in &mut fabrics {
            for Pair { guest, .. } in self.pairs.iter().filter(|pair| pair.guest.queue == 0) {
                let queues = self.pairs.iter().filter(|pair| pair.guest.port == guest.port).count();
                fabric.add_port(guest.port, queues as u16);
                fabric.set_capabilities(guest.port, guest.capabilities);
                fabric.set_memory(guest.port, &guest.map);
                fabric.set_flow_key(7, true);
            }
            let (tap, reader) = tap(1, &watch, &(Arc::new(|| 0_u64) as _)).unwrap();
            fabric.add_tap(tap);
            self.taps.push(reader);
            if let Some(helper) = self.setup.has_helper.then_some(self.visits.len() - 1)
                && fabric.worker() != helper
            {
                fabric.begin_offload(150, Box::new(TheHelper { helper: helper as u8, finds: 0 }));
            }
        }
        self.workers = fabrics.into_iter().map(Some).collect();
        self.letters = self.workers.iter().map(|_| VecDeque::new()).collect();
        self.pairs.iter_mut().for_each(|pair| pair.is_moving = false); // those died on the way
    }

    /// All workers die in any state, and others take over.
    fn die(&mut self) {
        if self.workers.iter().any(Option::is_none) {
            return; // those are on the stack
        }
        self.deaths += 1;
        self.succeed();
    }

    /// All workers quiesce. Then they or others continue; only partly delivered packets are lost.
    fn rest(&mut self, how: u16) {
        if self.workers.iter().any(Option::is_none) {
            return; // those are on the stack
        }
        (0..self.workers.len()).for_each(|worker| self.end_visit(worker));
        self.is_mixed &= self.waiting() > 0;
        if self.is_mixed {
            return;
        }
        self.rests += 1;
        let worker = usize::from(how) % self.workers.len();
        self.deliver_all();
        self.workers[worker].as_mut().unwrap().withdraw();
        self.workers.iter_mut().flatten().for_each(|fabric| _ = fabric.take_returns());
        self.deliver_all();
        self.workers.iter_mut().flatten().for_each(Fabric::postpone);
        self.check();
        assert_eq!(self.waiting(), 0);
        if (how / 4).is_multiple_of(2) && self.pairs.iter().all(|pair| !pair.stopping.contains(&true)) {
            let (taken_in, delivered) = self.sums();
            self.past = (self.past.0 + taken_in, self.past.1 + delivered);
            self.succeed();
        }
    }

    /// Number of copies that wait for receive buffers.
    fn waiting(&self) -> u64 {
        self.ports.iter().map(|port| self.counters(*port).waiting).sum()
    }

    /// Numbers of packets received from guests, and delivered.
    fn sums(&self) -> (u64, u64) {
        let counters = self.ports.iter().map(|port| self.counters(*port));
        counters.fold((0, 0), |sum, counters| (sum.0 + counters.rx_packets, sum.1 + counters.tx_packets))
    }

    /// Other workers take over.
    fn succeed(&mut self) {
        self.sights.clear();
        self.visits.fill(None);
        self.hire();
        for pair in 0..self.pairs.len() {
            for index in 0..2 {
                self.pairs[pair].stopping[usize::from(index)] = false;
                if self.pairs[pair].stopped[usize::from(index)].is_none() {
                    let ring = self.pairs[pair].ring(index, None);
                    self.begin(pair, index, ring);
                }
            }
        }
    }

    fn pick(&self, from: u16) -> usize {
        usize::from(from) % self.pairs.len()
    }

    /// The worker, if it can begin a task: it is not in a visit and has its core.
    fn free(&mut self, worker: usize) -> Option<&mut Fabric> {
        self.visits[worker].is_none().then_some(self.workers[worker].as_mut()).flatten()
    }

    /// Executes one step, which three numbers select.
    pub(crate) fn step(&mut self, [what, which, how]: [u16; 3]) {
        self.read_taps();
        self.collect_letters();
        let pair = self.pick(which);
        let worker = usize::from(which) % self.workers.len();
        match what % 32 {
            0..=7 => self.send(pair, how),
            8 if how % 4 == 0 => self.deliver(worker),
            8 => self.relocate(pair, usize::from(how) % self.workers.len()),
            9..=11 => self.pairs[pair].guest.post(u32::from(how % 24)),
            12..=16 => self.visit(pair, how % 3 == 0),
            17..=18 => self.go_on(worker),
            19..=20 => self.help(how),
            21..=23 => self.lose_core(pair, how),
            24 => {
                self.deliver(worker);
                self.on(worker, |fabric, _| fabric.take_returns());
            }
            25 => self.on(worker, |fabric, _| fabric.drain_waiting()),
            26 => {
                let ring = self.pairs[pair].guest.tx_ring();
                let worker = usize::from(how) % self.workers.len();
                self.on(worker, |fabric, _| fabric.drain(ring));
                // Reading a ring's progress changes nothing, at any worker.
                self.on(worker, |fabric, _| fabric.ring_progress(ring.port, 2 * ring.queue + how % 2));
            }
            27 => self.receive(pair),
            28 if how % 4 == 0 => {
                self.now_ns += 150_000_000;
                self.on(worker, |fabric, now_ns| fabric.expire(now_ns));
            }
            28 if how % 4 == 1 => self.die(),
            28 if how % 4 == 2 => self.rest(how / 4),
            29 => self.stop(pair, how % 2),
            30 => (0..2).for_each(|index| self.start(pair, index)),
            31 => self.enable(pair, how % 2, how / 2 % 4 > 0),
            _ => self.check(),
        }
    }

    fn on<R>(&mut self, worker: usize, work: impl FnOnce(&mut Fabric, u64) -> R) {
        let now_ns = self.now_ns;
        if let Some(fabric) = self.free(worker) {
            work(fabric, now_ns);
        }
    }

    /// The home of a transmit ring releases it to another worker.
    fn relocate(&mut self, pair: usize, to: usize) {
        let Pair { guest, home, stopped, stopping, .. } = &self.pairs[pair];
        let (ring, home) = (guest.tx_ring(), *home);
        let (is_stopped, is_stopping) = (stopped[1].is_some(), stopping[1]);
        if home == to || self.pairs[pair].is_moving {
            return;
        }
        let now_ns = self.now_ns;
        let Some(fabric) = self.free(home) else { return };
        match fabric.release_ring(ring, to, now_ns) {
            Release::Moving(moving) => {
                assert!(!is_stopped && !is_stopping);
                assert!(matches!(fabric.release_ring(ring, to, now_ns), Release::NotHere));
                self.letters[to].push_back(Letter::Adopt(pair, moving));
                self.pairs[pair].is_moving = true;
                self.moves += 1;
            }
            Release::NotHere => assert!(is_stopped),
            Release::Stopping => assert!(is_stopping),
            Release::Unsettled => {}
            Release::Unanswered => unreachable!("there is no control plane"),
        }
    }

    /// Takes the copies that workers want to tell others of. A worker is looked at when it asks for a wake-up.
    fn collect_letters(&mut self) {
        for fabric in self.workers.iter_mut().flatten() {
            if fabric.wakes() == 0 {
                continue;
            }
            while let Some((home, copies)) = fabric.take_settled() {
                self.letters[home].push_back(Letter::Settle(copies));
            }
        }
    }

    /// A worker reads its messages.
    fn deliver(&mut self, worker: usize) {
        self.collect_letters();
        while self.free(worker).is_some()
            && let Some(letter) = self.letters[worker].pop_front()
        {
            let fabric = self.workers[worker].as_mut().unwrap();
            match letter {
                Letter::Settle(copies) => fabric.settle_copies(copies),
                Letter::Adopt(pair, moving) => {
                    fabric.adopt_ring(moving);
                    (self.pairs[pair].home, self.pairs[pair].is_moving) = (worker, false);
                }
            }
        }
    }

    fn deliver_all(&mut self) {
        (0..self.workers.len()).for_each(|worker| self.deliver(worker));
    }

    fn send(&mut self, pair: usize, how: u16) {
        let Pair { guest, next_number, .. } = &mut self.pairs[pair];
        for _ in 0..1 + how % 7 {
            let from = [guest.queue as u8, guest.port.0 as u8];
            let to = match how % 5 {
                0 => 0xff,
                _ => 1 + (how / 5 % (self.ports.len() as u16 - 1)) as u8,
            };
            let len = [10, 200, 1400, 5000, 20_000][usize::from(how / 64 % 5)];
            let (bytes, offload) = frame(to, from, *next_number, len, !how.is_multiple_of(3));
            let cuts: Vec<usize> = (1..usize::from(how / 256 % 8)).map(|cut| cut * 50).collect();
            if guest.queue_cut(&bytes, offload, &cuts) {
                *next_number += 1;
            }
        }
    }

    fn visit(&mut self, pair: usize, whole: bool) {
        let Pair { guest, home, .. } = &self.pairs[pair];
        let (ring, home, now_ns) = (guest.tx_ring(), *home, self.now_ns);
        let Some(fabric) = self.free(home) else { return };
        if whole {
            fabric.visit(ring, now_ns);
        } else {
            let taken = fabric.begin_visit(ring, now_ns);
            self.visits[home] = Some(Visit::Begun(taken));
        }
    }

    /// Executes the next part of the worker's visit.
    fn go_on(&mut self, worker: usize) {
        let (Some(visit), Some(fabric)) = (self.visits[worker], self.workers[worker].as_mut()) else {
            return;
        };
        self.visits[worker] = match visit {
            Visit::Begun(taken) => {
                fabric.copy_visit();
                Some(Visit::Copied(taken))
            }
            Visit::Copied(_) => {
                fabric.finish_visit();
                None
            }
            Visit::Helping => {
                fabric.copy_help();
                fabric.begin_help(false);
                None
            }
        };
    }

    /// The number of the helper, if there is one.
    fn helper(&self) -> Option<usize> {
        self.setup.has_helper.then_some(self.visits.len() - 1)
    }

    /// The helper copies the frame that it has buffers for, and takes another one.
    fn help(&mut self, how: u16) {
        let Some(helper) = self.helper() else { return };
        let Some(fabric) = self.workers[helper].as_mut() else { return };
        match self.visits[helper] {
            Some(Visit::Helping) => fabric.copy_help(),
            Some(_) => return self.go_on(helper),
            None => {}
        }
        let step = fabric.begin_help(!how.is_multiple_of(16));
        self.helped += u64::from(step == HelpStep::Reserved);
        self.visits[helper] = (step == HelpStep::Reserved).then_some(Visit::Helping);
    }

    fn end_visit(&mut self, worker: usize) {
        while self.visits[worker].is_some() {
            self.go_on(worker);
        }
    }

    /// A worker loses its core while it serves a ring; the others continue.
    fn lose_core(&mut self, pair: usize, how: u16) {
        let worker = usize::from(how) % self.workers.len();
        let ring = self.pairs[pair].guest.tx_ring();
        if self.free(worker).is_none() {
            return;
        }
        let Some(mut fabric) = self.workers[worker].take() else { return };
        fabric.while_serving(ring, || {
            for step in 0..how / 8 % 8 {
                let what = [12, 0, 12, 29, 12, 17, 9, 29][usize::from(step)];
                self.step([what, how.wrapping_mul(7919).wrapping_add(step * 13), how.rotate_left(3) ^ step]);
            }
        });
        self.workers[worker] = Some(fabric);
    }

    fn start(&mut self, pair: usize, index: u16) {
        let Some(position) = self.pairs[pair].stopped[usize::from(index)] else { return };
        if self.workers.iter().any(Option::is_none) {
            return; // all workers have to be told
        }
        self.pairs[pair].stopped[usize::from(index)] = None;
        self.is_mixed |= index == 0 && self.waiting() > 0;
        let ring = self.pairs[pair].ring(index, Some(position));
        self.begin(pair, index, ring);
    }

    fn begin(&mut self, pair: usize, index: u16, ring: DeviceRing) {
        let Pair { guest, home, .. } = &self.pairs[pair];
        let (port, index, home) = (guest.port, 2 * guest.queue + index, *home);
        let fabric = self.workers[home].as_mut().unwrap();
        let part = fabric.prepare_ring(port, index, ring).unwrap();
        for (worker, fabric) in self.workers.iter_mut().enumerate() {
            if worker != home {
                fabric.as_mut().unwrap().join_ring(port, index, &part);
            }
        }
        assert!(self.workers[home].as_mut().unwrap().set_ring_enabled(port, index, true));
    }

    fn stop(&mut self, pair: usize, index: u16) {
        let Pair { guest, home, stopped, is_moving, .. } = &self.pairs[pair];
        let (port, queue, home) = (guest.port, guest.queue, *home);
        if stopped[usize::from(index)].is_some() || *is_moving {
            return;
        }
        self.receive(pair);
        let Some(fabric) = self.free(home) else { return };
        match fabric.stop_step(port, 2 * queue + index) {
            Stopping::Busy => self.pairs[pair].stopping[usize::from(index)] = true,
            Stopping::Done(base) => {
                self.pairs[pair].stopping[usize::from(index)] = false;
                let base = base.expect("it was running");
                self.pairs[pair].stopped[usize::from(index)] = Some(base);
                for fabric in self.workers.iter_mut().flatten() {
                    fabric.leave_ring(port, 2 * queue + index);
                }
                self.receive(pair);
                let Pair { guest, .. } = &mut self.pairs[pair];
                if index == 1 {
                    guest.reclaim();
                    // Two laps of a packed ring of 64 are 128 positions.
                    let laps = if guest.format == RingFormat::Packed { 127 } else { u16::MAX };
                    let completed = guest.tx.used_position() & laps;
                    assert_eq!(completed, base & laps, "base = last fetched = last completed");
                }
            }
        }
    }

    fn enable(&mut self, pair: usize, index: u16, enabled: bool) {
        let Pair { guest, home, .. } = &self.pairs[pair];
        let (port, index, home) = (guest.port, 2 * guest.queue + index, *home);
        self.is_mixed |= enabled && index.is_multiple_of(2) && self.waiting() > 0;
        self.on(home, |fabric, _| fabric.set_ring_enabled(port, index, enabled));
    }

    fn receive(&mut self, pair: usize) {
        while let Some(received) = self.pairs[pair].guest.receive() {
            let port = self.pairs[pair].guest.port;
            let plain = edit_for(port).map_or_else(|| received.clone(), |_| untagged(&received, port.0));
            let (from, position) = check_frame(&plain);
            let last = self.seen.insert((pair, from), position);
            assert!(last.is_none_or(|last| last < position), "{last:?} then {position:#x} from {from:?}");
            self.received += 1;
        }
    }

    fn counters(&self, port: PortId) -> PortCounters {
        let mut sum = PortCounters::default();
        let fabrics = self.workers.iter().flatten();
        fabrics.filter_map(|fabric| fabric.counters(port)).for_each(|counters| sum.merge(&counters));
        sum
    }

    fn check(&self) {
        // The counters of a worker are not consistent in the middle of a visit or of a service.
        if self.visits.iter().any(Option::is_some) || self.workers.iter().any(Option::is_none) {
            return;
        }
        let mut totals = (0, 0);
        for &port in &self.ports {
            let counters = self.counters(port);
            assert!(counters.is_conserved(), "port {port}: {counters:?}");
            totals = (totals.0 + counters.forwarded, totals.1 + counters.tx_packets);
        }
        assert_eq!(totals.0, totals.1, "forwarded = delivered");
    }

    fn read_taps(&mut self) {
        let mut frame = Vec::new();
        for reader in &mut self.taps {
            while let Some(captured) = reader.pop(&mut frame) {
                let key = (
                    captured.interface,
                    captured.direction == CaptureDirection::Outbound,
                    captured.dropped.is_some(),
                );
                *self.sights.entry(key).or_default() += 1;
            }
        }
    }

    /// Compares the events of a capture with the counters: every received frame, every drop on both sides, every
    /// delivery (one for a segmented frame).
    fn check_taps(&mut self) {
        self.read_taps();
        let sights = |port: &PortId, outbound, dropped| {
            self.sights.get(&(port.0, outbound, dropped)).copied().unwrap_or_default()
        };
        let mut done = (0, 0);
        for port in &self.ports {
            assert!(self.taps.iter().all(|tap| tap.lost(port.0) == 0));
            let counters = self.counters(*port);
            assert_eq!(sights(port, false, true), counters.rx_drops.total(), "port {port}");
            assert_eq!(sights(port, true, true), counters.tx_drops.total(), "port {port}");
            assert!(sights(port, false, false) <= counters.rx_packets);
            assert!(sights(port, false, false) + sights(port, false, true) >= counters.rx_packets);
            done.0 += sights(port, true, false);
            done.1 += counters.forwarded - counters.segments_added;
        }
        assert_eq!(done.0, done.1, "every frame that was delivered was seen going out, once");
    }

    /// All workers finish their work by their own follow-ups: no packet waits any more.
    pub(crate) fn settle(&mut self) {
        (0..self.workers.len()).for_each(|worker| self.end_visit(worker));
        self.check();
        self.deliver_all();
        for (pair, index) in (0..self.pairs.len()).flat_map(|pair| [(pair, 0), (pair, 1)]) {
            if self.pairs[pair].stopping[usize::from(index)] {
                self.stop(pair, index);
                // Other homes may have to count its packets.
                self.workers.iter_mut().flatten().for_each(|fabric| _ = fabric.take_returns());
                self.deliver_all();
                self.stop(pair, index);
                assert!(!self.pairs[pair].stopping[usize::from(index)], "nobody is at the ring any more");
            }
        }
        for round in 0.. {
            self.read_taps();
            for pair in 0..self.pairs.len() {
                self.receive(pair);
                self.pairs[pair].guest.post(64);
                let ring: RingId = self.pairs[pair].guest.tx_ring();
                let home = self.pairs[pair].home;
                let now_ns = self.now_ns;
                self.workers[home].as_mut().unwrap().visit(ring, now_ns);
            }
            for fabric in self.workers.iter_mut().flatten() {
                fabric.take_returns();
                fabric.drain_waiting();
            }
            self.deliver_all();
            let waiting = self.waiting();
            if round > 3 && waiting == 0 {
                break;
            }
            assert!(round < 1000, "{waiting} packets wait and nobody sees to them");
        }
        for pair in 0..self.pairs.len() {
            self.receive(pair);
            let Pair { guest, stopped, .. } = &mut self.pairs[pair];
            guest.reclaim();
            assert!(stopped[1].is_some() || guest.in_flight() == 0, "every chain comes back");
        }
        self.check();
        if self.deaths > 0 {
            return; // the counters of the dead workers are not known
        }
        if self.rests == 0 {
            self.check_taps();
        }
        let (taken_in, delivered) = self.sums();
        assert_eq!(self.received, self.past.1 + delivered, "what was counted as delivered has arrived, once");
        if self.pairs.iter().all(|pair| pair.stopped[1].is_none()) {
            let sent: u64 = self.pairs.iter().map(|pair| u64::from(pair.next_number)).sum();
            assert_eq!(self.past.0 + taken_in, sent, "every frame counts once, however often it is taken");
        }
    }
}
