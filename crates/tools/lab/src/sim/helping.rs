//! The product's helpers: a worker and a helper on an idle CPU copy large frames of one receive ring by turns. Fabric,
//! orders and turns are the product's; a frame is a step of virtual time.
//!
//! ```text
//!   home:    Fetch: begin_visit ──> Share: own copies ──> reserve, Share: copy, publish, reserve ... ──> finish_visit
//!   helper:            └─order─> wake-up ──────────────────> reserve, Help: copy, publish, reserve ...  until its CPU is wanted
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lasthop_fabric::bounds::HELP_FRAMES_MAX;
use lasthop_fabric::{Fabric, HelpStep, RingId, SharedStep};
use lasthop_ring::AdaptivePoll;
use lasthop_sched::QueueRow;

use super::{Choices, Simulation, Step, Work};
use crate::copies::CopyJob;
use crate::desk::{DeskCounts, DeskFinder, HelperDesk};
use crate::frame::FrameHead;
use crate::machine::{Machine, Role};
use crate::nic::Arrival;
use crate::switch::Switch;

/// A helper: a fabric without rings, and a thread that stays on its CPU.
struct Seat {
    fabric: usize,
    cpu: usize,
    thread: usize,
    polling: AdaptivePoll,
    /// The frame that it has reserved buffers for, and its sender.
    job: Option<Queued>,
    /// Home of the frame that it copied last.
    last_home: Option<usize>,
    frames: usize,
    /// The ring that it was given as a further helper of a visit, beside the product's orders.
    order: Option<RingId>,
}

impl Seat {
    fn has_orders(&self, fabrics: &[Fabric]) -> bool {
        self.order.is_some() || fabrics[self.fabric].has_orders()
    }

    /// Copies the frame that the last step reserved buffers for.
    fn copy(&self, fabrics: &mut [Fabric]) {
        let fabric = &mut fabrics[self.fabric];
        match self.order {
            Some(ring) => fabric.copy_sharing(ring),
            None => fabric.copy_help(),
        }
    }

    /// A step at the ring of its order. Returns that ring, and the one that it has after the step.
    fn step(&mut self, fabrics: &mut [Fabric], wants_more: bool) -> (HelpStep, [Option<RingId>; 2]) {
        let fabric = &mut fabrics[self.fabric];
        let Some(ring) = self.order else {
            let before = fabric.shared_ring();
            let step = fabric.begin_help(wants_more);
            return (step, [before, fabric.shared_ring()]);
        };
        let shared = fabric.begin_sharing(ring, wants_more);
        fabric.finish_visit();
        self.order = self.order.filter(|_| wants_more && shared != SharedStep::Nothing);
        let step = match shared {
            SharedStep::Reserved => HelpStep::Reserved,
            SharedStep::Done | SharedStep::Nothing => HelpStep::Done,
            SharedStep::Busy => HelpStep::Busy,
        };
        (step, [Some(ring), self.order])
    }
}

/// A frame in a receiver's queue. Only costs depend on it: the frames themselves are in the fabric.
#[derive(Clone, Copy, Debug)]
struct Queued {
    from: u16,
    copy: CopyJob,
    summed_bytes: u32,
    /// Packets that the receiver gets, and those of them that have no buffers yet.
    packets: u32,
    left: u32,
}

/// Frames of one receiver, in the order of its ring.
#[derive(Debug, Default)]
struct Line {
    queued: VecDeque<Queued>,
    /// CPUs that copied the packets with buffers, and whether the copy is paid for.
    copiers: VecDeque<(usize, bool)>,
}

impl Line {
    /// Takes `count` packets of the oldest frame.
    fn take(&mut self, count: u32) -> Option<Queued> {
        let queued = self.queued.front_mut()?;
        queued.left -= count;
        let taken = *queued;
        if taken.left == 0 {
            self.queued.pop_front();
        }
        Some(taken)
    }
}

/// The copies of a visit at its home.
#[derive(Debug, Default)]
struct Session {
    /// Cost and bytes of the frames that the home copied alone.
    own: (u64, u64),
    /// Receivers of the visit.
    receivers: Vec<u16>,
    rings: Vec<RingId>,
    at: Option<RingId>,
    frames: usize,
    is_copying: bool,
}

/// A worker at home.
#[derive(Debug, Default)]
struct Home {
    session: Option<Session>,
    has_returns: bool,
    /// Rings with waiting frames are to be looked at.
    is_due: bool,
    /// The last session was of waiting frames: visits go first.
    has_retried: bool,
}

/// Results of the helpers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HelpCounts {
    pub(crate) desk: DeskCounts,
    /// Orders that were given up since somebody wanted the CPU.
    pub(crate) given_up: u64,
    /// The longest time until a CPU was given back, and the longest step of a helper.
    pub(crate) delay_ns_max: u64,
    pub(crate) step_ns_max: u64,
    /// CPUs that were given back later than after one frame.
    pub(crate) late: u64,
}

/// All helpers.
pub(super) struct Helping {
    desk: Arc<Mutex<HelperDesk>>,
    seats: Vec<Seat>,
    homes: Vec<Home>,
    lines: Vec<Line>,
    /// By CPU: when another thread wanted it from a helper, and the length of the helper's step.
    wanted_ns: Vec<Option<u64>>,
    step_ns: Vec<u64>,
    counts: HelpCounts,
}

impl Helping {
    /// Helpers on `cpus`, for `workers` workers.
    pub(super) fn new(
        machine: &mut Machine,
        switch: &mut Switch,
        (choices, poll_max_ns): (Choices, u64),
        workers: usize,
        cpus: &[usize],
    ) -> Option<Self> {
        let offload = choices.offload.filter(|_| !cpus.is_empty())?;
        let desk = Arc::new(Mutex::new(HelperDesk {
            places: machine.places.clone(),
            is_idle: vec![false; machine.places.len()],
            helper_cpus: cpus.to_vec(),
            first: workers,
            offload,
            place: choices.place,
            visit_helpers: choices.visit_helpers,
            ..HelperDesk::default()
        }));
        for fabric in &mut switch.fabrics[..workers] {
            fabric.begin_offload(offload.bytes_min(), Box::new(DeskFinder(Arc::clone(&desk))));
        }
        let seat = |(number, cpu): (usize, &usize)| Seat {
            fabric: workers + number,
            cpu: *cpu,
            thread: machine.add(Role::Helper, *cpu),
            polling: AdaptivePoll::new(poll_max_ns),
            job: None,
            last_home: None,
            frames: 0,
            order: None,
        };
        let seats = cpus.iter().enumerate().map(seat).collect();
        let count = machine.places.len();
        Some(Self {
            desk,
            seats,
            homes: (0..workers).map(|_| Home::default()).collect(),
            lines: switch.nics.iter().map(|_| Line::default()).collect(),
            wanted_ns: vec![None; count],
            step_ns: vec![0; count],
            counts: HelpCounts::default(),
        })
    }

    /// The results.
    pub(super) fn counts(&self) -> HelpCounts {
        let desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner).counts;
        HelpCounts { desk, ..self.counts }
    }

    /// How long the helper of a CPU polls its mailbox.
    pub(super) fn poll_ns(&self, cpu: usize) -> u64 {
        self.seats.iter().find(|seat| seat.cpu == cpu).map_or(0, |seat| seat.polling.ns())
    }

    /// A step of a helper begins.
    pub(super) fn note_step(&mut self, cpu: usize, duration_ns: u64) {
        self.step_ns[cpu] = duration_ns;
        self.counts.step_ns_max = self.counts.step_ns_max.max(duration_ns);
    }

    /// Another thread wants the CPU on which a helper works.
    pub(super) fn note_wanted(&mut self, cpu: usize, now_ns: u64) {
        self.wanted_ns[cpu].get_or_insert(now_ns);
    }

    /// Another thread has the CPU.
    pub(super) fn note_given_back(&mut self, cpu: usize, now_ns: u64) {
        if let Some(since_ns) = self.wanted_ns[cpu].take() {
            let delay_ns = now_ns - since_ns;
            self.counts.delay_ns_max = self.counts.delay_ns_max.max(delay_ns);
            self.counts.late += u64::from(delay_ns > self.step_ns[cpu]);
        }
    }

    /// All homes look at rings with waiting frames.
    pub(super) fn be_due(&mut self) {
        self.homes.iter_mut().for_each(|home| home.is_due = true);
    }

    /// Nothing waits anywhere: frames that were dropped are not expected any more.
    fn forget_dropped(&mut self) {
        let copies = self.homes.iter().any(|home| home.session.is_some());
        if !copies && self.seats.iter().all(|seat| seat.job.is_none()) {
            self.lines.iter_mut().for_each(|line| line.queued.clear());
        }
    }
}

impl Simulation {
    /// Ends all copies that have begun, so that each frame is accounted for.
    pub(super) fn end_copies(&mut self) {
        let Some(helping) = &mut self.helping else { return };
        for seat in &mut helping.seats {
            if seat.job.take().is_some() {
                seat.copy(&mut self.switch.fabrics);
            }
            while seat.has_orders(&self.switch.fabrics) {
                seat.step(&mut self.switch.fabrics, false);
            }
        }
        for (fabric, home) in self.switch.fabrics.iter_mut().zip(&mut helping.homes) {
            let Some(session) = home.session.take() else { continue };
            if let Some(ring) = session.at {
                if session.is_copying {
                    fabric.copy_sharing(ring);
                }
                fabric.begin_sharing(ring, false);
            }
            fabric.copy_visit();
            fabric.finish_visit();
        }
        for fabric in &mut self.switch.fabrics {
            fabric.take_returns();
        }
    }

    /// The next step of a worker with helpers: the copies of its last visit first, then rings in turn, then waiting frames.
    pub(super) fn home_step(&mut self, backend: usize) -> Option<Step> {
        if std::mem::take(&mut self.home(backend)?.has_returns) {
            self.switch.fabrics[backend].take_returns();
            self.settled(backend);
        }
        if let Some(step) = self.session_step(backend) {
            return Some(step);
        }
        if !std::mem::take(&mut self.home(backend)?.has_retried)
            && let Some(step) = self.waiting_step(backend)
        {
            return Some(step);
        }
        let cpu = self.machine.threads[self.backends[backend].thread].cpu;
        for _ in 0..self.backends[backend].nics.len() {
            let entry = &mut self.backends[backend];
            let nic = entry.nics[entry.next % entry.nics.len()];
            entry.next += 1;
            if let Some(step) = self.fetch_step(nic, cpu) {
                return Some(step);
            }
        }
        self.waiting_step(backend)
    }

    fn home(&mut self, backend: usize) -> Option<&mut Home> {
        self.helping.as_mut().map(|helping| &mut helping.homes[backend])
    }

    /// Frames wait, and buffers may have come.
    fn waiting_step(&mut self, backend: usize) -> Option<Step> {
        let home = self.home(backend)?;
        if !std::mem::take(&mut home.is_due) {
            return None;
        }
        home.has_retried = true;
        let rings = self.switch.fabrics[backend].waiting_rings().to_vec();
        self.home(backend)?.session = Some(Session { rings, ..Session::default() });
        self.session_step(backend)
    }

    /// Frames of a ring are fetched, and their destinations found.
    fn fetch_step(&mut self, nic: u16, cpu: usize) -> Option<Step> {
        let is_stalled = self.ports[usize::from(nic)].is_stalled;
        if is_stalled || self.switch.nics[usize::from(nic)].published.is_empty() {
            return None;
        }
        let Some(offload) = self.choices.offload else { return self.visit_step(nic, cpu) };
        let is_large = |head: &FrameHead| head.frame_bytes() >= offload.bytes_min();
        let count = self.switch.next_batch(nic).count();
        if count < 2 || !self.switch.next_batch(nic).next().is_some_and(is_large) {
            let step = self.visit_step(nic, cpu)?;
            return Some(Step { work: Work::Fetch(nic, true), ..step });
        }
        let packets_ns = count as u64 * self.costs.packet_ns;
        self.totals.stages.visit_ns += self.costs.visit_ns;
        self.totals.stages.packets_ns += packets_ns;
        Some(Step { cost_ns: self.costs.visit_ns + packets_ns, bytes: 0, work: Work::Fetch(nic, false) })
    }

    /// A worker has fetched frames: small ones are copied by it, large ones wait for it and a helper.
    pub(super) fn fetched(&mut self, nic: u16, thread: usize, is_copied: bool) {
        let backend = self.switch.home(nic);
        let cpu = self.machine.threads[thread].cpu;
        self.update_desk(cpu);
        let mut receivers: Vec<u16> = self.switch.next_batch(nic).map(|head| head.to).collect();
        receivers.sort_unstable();
        receivers.dedup();
        let before: Vec<(u64, u64)> = receivers.iter().map(|to| self.switch.received(backend, *to)).collect();
        let mut taken = std::mem::take(&mut self.taken);
        self.switch.begin_visit(nic, self.now_ns, &mut taken);
        self.totals.visits += 1;
        self.ports[usize::from(nic)].is_stalled = taken.is_empty();
        self.note_deliveries(&receivers, cpu);
        let is_empty = taken.is_empty();
        taken.drain(..).for_each(|head| self.enqueue(&head));
        self.taken = taken;
        if is_empty {
            return;
        }
        let mut own = (0, 0);
        for (to, (delivered, dropped)) in receivers.iter().zip(before) {
            let after = self.switch.received(backend, *to);
            for _ in delivered..after.0 {
                let (cost_ns, bytes) =
                    self.take_queued(*to, cpu, is_copied, 1).map_or((0, 0), |(_, cost)| cost);
                if !is_copied {
                    own = (own.0 + cost_ns.max(1), own.1 + bytes);
                }
            }
            // A frame that is dropped is the last one.
            let Some(helping) = &mut self.helping else { return };
            let line = &mut helping.lines[usize::from(*to)];
            line.queued.truncate(line.queued.len().saturating_sub((after.1 - dropped) as usize));
        }
        let rings = std::iter::from_fn(|| self.switch.fabrics[backend].shared_ring()).collect();
        let session = Session { own, receivers, rings, ..Session::default() };
        if let Some(home) = self.home(backend) {
            home.session = Some(session);
        }
        self.order_further();
        self.wake_ordered(thread);
        self.found(thread, nic);
    }

    /// Updates the rows of the receivers of a visit.
    fn note_deliveries(&self, receivers: &[u16], writer: usize) {
        let Some(helping) = self.helping.as_ref().filter(|_| self.choices.movement) else { return };
        let mut desk = helping.desk.lock().unwrap_or_else(PoisonError::into_inner);
        for receiver in receivers.iter().map(|nic| usize::from(*nic)) {
            let vcpu = self.vcpu(self.ports[receiver].guest);
            desk.rows[receiver].deliver(Some(vcpu), 0, writer as u16);
        }
    }

    fn update_desk(&mut self, own_cpu: usize) {
        let Some(helping) = &self.helping else { return };
        let mut desk = helping.desk.lock().unwrap_or_else(PoisonError::into_inner);
        desk.own_cpu = own_cpu;
        if desk.guest_cpus.len() != self.ports.len() {
            let seen = |nic: usize| (!self.polls(nic as u16)).then_some(self.ports[nic].cpu);
            desk.guest_cpus = (0..self.ports.len()).map(seen).collect();
        }
        if self.choices.movement {
            desk.rows.resize(self.ports.len(), QueueRow::default());
            for (row, port) in desk.rows.iter_mut().zip(&self.ports) {
                row.observe(Some(self.vcpu(port.guest)), 0);
            }
        }
        for (cpu, is_idle) in desk.is_idle.iter_mut().enumerate() {
            *is_idle = self.machine.is_idle(cpu);
        }
    }

    fn enqueue(&mut self, head: &FrameHead) {
        let sender_cpu = self.ports[usize::from(head.from)].cpu;
        let copy = CopyJob { frame_bytes: head.frame_bytes(), sender_cpu };
        let packets = head.packets();
        let Some(helping) = &mut self.helping else { return };
        let queued =
            Queued { from: head.from, copy, summed_bytes: head.summed_bytes(), packets, left: packets };
        helping.lines[usize::from(head.to)].queued.push_back(queued);
    }

    /// The oldest frame of a receiver has buffers for what is left of it, or for the next `packets_max`, and `cpu` copies
    /// them. Returns the frame, and cost and bytes of the copies.
    fn take_queued(
        &mut self,
        to: u16,
        cpu: usize,
        is_paid: bool,
        packets_max: u32,
    ) -> Option<(Queued, (u64, u64))> {
        let line = &mut self.helping.as_mut()?.lines[usize::from(to)];
        let count = line.queued.front().map_or(1, |queued| queued.left.min(packets_max));
        line.copiers.extend((0..count).map(|_| (cpu, is_paid)));
        let queued = line.take(count)?;
        let (cost_ns, bytes) = self.copying(&queued, cpu);
        let part = |whole: u64| whole * u64::from(count) / u64::from(queued.packets);
        Some((queued, (part(cost_ns), part(bytes))))
    }

    /// Cost and bytes of a whole frame's copies on `cpu`.
    fn copying(&self, queued: &Queued, cpu: usize) -> (u64, u64) {
        let distance = self.machine.distance(cpu, queued.copy.sender_cpu);
        let bytes = u64::from(queued.copy.frame_bytes);
        let cut_ns = self.model.cut_ns(queued.packets, self.is_shared());
        let sum_ns = self.model.sum_ns(queued.summed_bytes);
        (self.costs.copy_packet_ns + self.model.copy_ns(distance, bytes) + cut_ns + sum_ns, 2 * bytes)
    }

    /// Whether a helper has orders, so that descriptors and used entries go to and fro.
    fn is_shared(&self) -> bool {
        let mut seats = self.helping.iter().flat_map(|helping| &helping.seats);
        seats.any(|seat| seat.has_orders(&self.switch.fabrics))
    }

    /// Gives the rings of a visit to its further helpers, unless these have orders.
    fn order_further(&mut self) {
        let Some(helping) = &mut self.helping else { return };
        let mut desk = helping.desk.lock().unwrap_or_else(PoisonError::into_inner);
        for (ring, number) in desk.further.drain(..) {
            let seat = &mut helping.seats[number];
            if !seat.has_orders(&self.switch.fabrics) {
                seat.order = Some(ring);
            }
        }
    }

    /// Wakes the helpers that have orders.
    fn wake_ordered(&mut self, by: usize) {
        let seats = self.helping.as_ref().map_or(0, |helping| helping.seats.len());
        for number in 0..seats {
            let Some(seat) = self.helping.as_ref().map(|helping| &helping.seats[number]) else { return };
            if seat.has_orders(&self.switch.fabrics) {
                self.wake(seat.thread, Some(by));
            }
        }
    }

    /// The next copy of a home's visit. At the end both sides are published, and receivers are signalled.
    fn session_step(&mut self, backend: usize) -> Option<Step> {
        let mut session = self.home(backend)?.session.take()?;
        let step = self.next_copy(backend, &mut session);
        if step.is_some() {
            self.home(backend)?.session = Some(session);
            return step;
        }
        self.switch.fabrics[backend].copy_visit();
        self.switch.fabrics[backend].finish_visit();
        let thread = self.backends[backend].thread;
        session.receivers.iter().for_each(|nic| self.show(*nic, thread));
        self.settled(backend);
        self.signal_from(backend, thread);
        session.receivers.iter().for_each(|nic| self.signal_late(*nic, thread));
        if !self.switch.has_waiting() {
            self.helping.as_mut()?.forget_dropped();
        }
        None
    }

    fn next_copy(&mut self, backend: usize, session: &mut Session) -> Option<Step> {
        let thread = self.backends[backend].thread;
        let cpu = self.machine.threads[thread].cpu;
        let (cost_ns, bytes) = std::mem::take(&mut session.own);
        if cost_ns > 0 {
            self.totals.stages.own_ns += cost_ns;
            return Some(Step { cost_ns, bytes, work: Work::Share(backend) });
        }
        loop {
            let ring = session.at.or_else(|| session.rings.pop())?;
            session.at = Some(ring);
            session.frames += 1;
            let wants_more = session.frames <= HELP_FRAMES_MAX;
            let shared = self.switch.fabrics[backend].begin_sharing(ring, wants_more);
            let nic = ring.port.0 - 1;
            self.show(nic, thread);
            if self.choices.early_signals {
                self.signal_from(backend, thread);
            }
            match shared {
                SharedStep::Reserved | SharedStep::Done => {
                    session.is_copying = shared == SharedStep::Reserved;
                    let taken = self.take_queued(nic, cpu, session.is_copying, u32::MAX);
                    let (cost_ns, bytes) = taken.map_or((0, 0), |(_, cost)| cost);
                    session.receivers.push(nic);
                    let cost_ns = cost_ns + self.claim_ns();
                    self.totals.stages.own_ns += cost_ns;
                    return Some(Step { cost_ns: cost_ns.max(1), bytes, work: Work::Share(backend) });
                }
                SharedStep::Nothing | SharedStep::Busy => (session.at, session.frames) = (None, 0),
            }
            if shared == SharedStep::Busy {
                self.home(backend)?.is_due = true;
                let cost_ns = self.costs.visit_ns.max(1);
                return Some(Step { cost_ns, bytes: 0, work: Work::Settle });
            }
        }
    }

    /// The lines of the claim and of the queue come from the other CPU for each frame.
    fn claim_ns(&self) -> u64 {
        2 * self.model.cpu.poll_ns
    }

    /// A home's copies are complete.
    pub(super) fn shared(&mut self, backend: usize, thread: usize) {
        let Some(Some(mut session)) = self.home(backend).map(|home| home.session.take()) else { return };
        if std::mem::take(&mut session.is_copying) {
            session.at.into_iter().for_each(|ring| self.switch.fabrics[backend].copy_sharing(ring));
        }
        let cpu = self.machine.threads[thread].cpu;
        let Some(helping) = &mut self.helping else { return };
        for nic in &session.receivers {
            let copiers = helping.lines[usize::from(*nic)].copiers.iter_mut();
            copiers.filter(|(at, _)| *at == cpu).for_each(|(_, is_paid)| *is_paid = true);
        }
        helping.homes[backend].session = Some(session);
    }

    /// Chains are complete: senders have room, and rings that were blocked are visited again.
    fn settled(&mut self, backend: usize) {
        for at in 0..self.backends[backend].nics.len() {
            let nic = self.backends[backend].nics[at];
            self.ports[usize::from(nic)].is_stalled = false;
            self.wake_for_room(nic);
        }
    }

    /// Packets that the fabric has published and whose copies are paid for become visible. Segments of a frame that has
    /// buffers for a part only are not expected: `thread` pays for them afterwards.
    fn show(&mut self, nic: u16, thread: usize) {
        let number = usize::from(nic);
        let cpu = self.machine.threads[thread].cpu;
        let mut part = None;
        let published = self.switch.nics[number].delivered();
        let Some(helping) = &mut self.helping else { return };
        let (line, arrivals) = (&mut helping.lines[number], &mut self.switch.nics[number].arrivals);
        let before = arrivals.len();
        while arrivals.len() < published {
            match line.copiers.front() {
                Some((_, false)) => break,
                Some((copier_cpu, true)) => arrivals.push_back(Arrival { copier_cpu: *copier_cpu }),
                None => {
                    arrivals.push_back(Arrival { copier_cpu: cpu });
                    if line.queued.front().is_some_and(|queued| queued.packets > 1) {
                        let count = part.map_or(0, |(_, count)| count);
                        part = line.take(1).map(|queued| (queued, count + 1));
                    }
                }
            }
            line.copiers.pop_front();
        }
        let has_more = arrivals.len() > before;
        if let Some((queued, count)) = part {
            let cost_ns = self.copying(&queued, cpu).0;
            self.machine.threads[thread].debt_ns += cost_ns * count / u64::from(queued.packets);
        }
        if has_more && self.polls(nic) {
            self.wake_guest(nic, None);
        }
    }

    /// Signals a guest that went to sleep when frames were in its ring whose copies were not paid for.
    fn signal_late(&mut self, nic: u16, thread: usize) {
        let number = usize::from(nic);
        let port = &self.ports[number];
        let knows = port.is_polled || port.is_interrupted || self.polls(nic);
        if !knows && !self.switch.nics[number].arrivals.is_empty() {
            self.interrupt(nic, thread);
        }
    }

    /// Sends the signals to receivers that a fabric has gathered.
    fn signal_from(&mut self, fabric: usize, thread: usize) {
        let mut signals = std::mem::take(&mut self.signals);
        signals.clear();
        self.switch.take_receive_signals(fabric, &mut signals);
        signals.iter().for_each(|receiver| self.interrupt(*receiver, thread));
        self.signals = signals;
    }

    /// The next frame of a helper.
    pub(super) fn seat_step(&mut self, cpu: usize) -> Option<Step> {
        let number = self.helping.as_ref()?.seats.iter().position(|seat| seat.cpu == cpu)?;
        loop {
            let seat = &self.helping.as_ref()?.seats[number];
            if let Some(queued) = seat.job {
                let (copy_ns, bytes) = self.copying(&queued, cpu);
                let cost_ns = copy_ns + self.claim_ns();
                self.totals.stages.helpers_ns += cost_ns;
                return Some(Step { cost_ns, bytes, work: Work::Help(number) });
            }
            if !seat.has_orders(&self.switch.fabrics) {
                return None;
            }
            match self.help(number, true) {
                HelpStep::Reserved | HelpStep::Done => {}
                HelpStep::Idle => return None,
                HelpStep::Busy => {
                    let cost_ns = self.costs.visit_ns.max(1);
                    return Some(Step { cost_ns, bytes: 0, work: Work::Settle });
                }
            }
        }
    }

    /// A helper has copied a frame. It takes the next one unless another thread wants its CPU.
    pub(super) fn helped(&mut self, number: usize) {
        let Some(helping) = &mut self.helping else { return };
        let seat = &mut helping.seats[number];
        let cpu = seat.cpu;
        seat.last_home = seat.job.take().map(|queued| self.switch.home(queued.from));
        seat.frames += 1;
        let is_wanted = !self.machine.is_idle(cpu);
        let wants_more = seat.frames < HELP_FRAMES_MAX && !is_wanted;
        helping.counts.given_up += u64::from(is_wanted);
        if !wants_more {
            seat.frames = 0;
        }
        self.totals.offloaded += 1;
        helping.seats[number].copy(&mut self.switch.fabrics);
        self.help(number, wants_more);
    }

    /// One step of a helper at the ring of its order, as the loop of `engine/helping.rs`.
    fn help(&mut self, number: usize, wants_more: bool) -> HelpStep {
        let Some(helping) = &mut self.helping else { return HelpStep::Idle };
        let seat = &mut helping.seats[number];
        let (fabric, cpu, thread) = (seat.fabric, seat.cpu, seat.thread);
        seat.polling.found(0, self.now_ns);
        let home = seat.last_home.take();
        let (step, [before, after]) = seat.step(&mut self.switch.fabrics, wants_more);
        before.into_iter().chain(after).for_each(|ring| self.show(ring.port.0 - 1, thread));
        self.signal_from(fabric, thread);
        if let Some(home) = home {
            self.home(home).into_iter().for_each(|home| home.has_returns = true);
            self.wake(self.backends[home].thread, Some(thread));
        }
        let Some(ring) = after.filter(|_| wants_more) else { return step };
        let nic = ring.port.0 - 1;
        match step {
            HelpStep::Reserved => {
                let queued = self.take_queued(nic, cpu, true, u32::MAX).map(|(queued, _)| queued);
                let copy = CopyJob { frame_bytes: 0, sender_cpu: cpu };
                let unknown = || Queued { from: nic, copy, summed_bytes: 0, packets: 1, left: 0 };
                let job = Some(queued.unwrap_or_else(unknown));
                self.helping.as_mut().into_iter().for_each(|helping| helping.seats[number].job = job);
            }
            // Delivered under the claim.
            HelpStep::Done => {
                let taken = self.take_queued(nic, cpu, true, u32::MAX);
                self.machine.threads[thread].debt_ns += taken.map_or(0, |(_, (cost_ns, _))| cost_ns);
                let home = taken.map(|(queued, _)| self.switch.home(queued.from));
                self.helping.as_mut().into_iter().for_each(|helping| helping.seats[number].last_home = home);
            }
            HelpStep::Busy | HelpStep::Idle => {}
        }
        step
    }
}
