//! Steps of the switch's threads: workers that switch and copy (Lasthop), and threads that switch for senders and copy for
//! receivers (Xen, KVM). And the effects of visits and copies.

use lasthop_sched::{Look, LookRound, look};

use super::{Architecture, CopyOrder, STEP_NS, Simulation, Step, Work};
use crate::copies::{CopyJob, CopyQueue};
use crate::frame::FrameHead;
use crate::machine::Role;
use crate::switch::ring_of;

/// Bytes of a page that is mapped.
const PAGE_BYTES: u64 = 4096;

impl Simulation {
    /// The next step of a thread of the switch: copies first, then the next ring with frames.
    pub(super) fn backend_step(&mut self, backend: usize) -> Option<Step> {
        let cpu = self.machine.threads[self.backends[backend].thread].cpu;
        let nics = self.backends[backend].nics.len();
        if std::mem::take(&mut self.backends[backend].is_armed) {
            self.suppress(backend);
        }
        if self.helping.is_some() {
            return self.home_step(backend);
        }
        if std::mem::take(&mut self.has_new_buffers) {
            return Some(Step { cost_ns: self.costs.visit_ns, bytes: 0, work: Work::Drain });
        }
        for _ in 0..nics {
            let entry = &mut self.backends[backend];
            let nic = entry.nics[entry.next % nics];
            entry.next += 1;
            if self.architecture != Architecture::Lasthop
                && let Some(step) = self.copy_step(nic, cpu)
            {
                return Some(step);
            }
            if let Some(step) = self.visit_step(nic, cpu) {
                return Some(step);
            }
        }
        None
    }

    /// Switching of a ring with frames, on `cpu`.
    pub(super) fn visit_step(&mut self, nic: u16, cpu: usize) -> Option<Step> {
        if self.architecture != Architecture::Lasthop {
            return self.switch_step(nic, cpu);
        }
        let port = &self.ports[usize::from(nic)];
        if port.is_stalled || self.switch.nics[usize::from(nic)].published.is_empty() {
            return None;
        }
        let distance = self.machine.distance(cpu, port.cpu);
        let (mut cost_ns, mut bytes) = (self.costs.visit_ns, 0);
        let stages = &mut self.totals.stages;
        stages.visit_ns += cost_ns;
        for head in self.switch.next_batch(nic) {
            let frame_bytes = u64::from(head.frame_bytes());
            let copy_ns = self.costs.copy_packet_ns
                + self.model.copy_ns(distance, frame_bytes)
                + self.model.cut_ns(head.packets(), false)
                + self.model.sum_ns(head.summed_bytes());
            stages.packets_ns += self.costs.packet_ns;
            stages.own_ns += copy_ns;
            cost_ns += self.costs.packet_ns + copy_ns;
            bytes += 2 * frame_bytes;
        }
        Some(Step { cost_ns, bytes, work: Work::Visit(nic) })
    }

    /// Switching without the copies for receivers. The fabric decides on a batch at once; the cost of each packet is paid
    /// one by one, and then its copy can begin.
    fn switch_step(&mut self, nic: u16, cpu: usize) -> Option<Step> {
        let number = usize::from(nic);
        let port = &mut self.ports[number];
        let is_new = port.staged.is_empty();
        if port.is_switching || port.is_stalled || (is_new && self.switch.nics[number].published.is_empty()) {
            return None;
        }
        if is_new {
            let taken = &mut self.taken;
            self.switch.visit(nic, self.now_ns, taken);
            port.staged.extend(taken.drain(..));
            self.switch.fabrics[0].signals().clear();
            self.totals.visits += 1;
            port.transmit.visited_ns = self.now_ns;
        }
        port.is_stalled = port.staged.is_empty();
        port.is_switching = !port.is_stalled;
        let costs = &self.costs;
        let distance = self.machine.distance(cpu, port.cpu);
        let (mut cost_ns, mut bytes) = (u64::from(is_new) * costs.visit_ns, 0);
        let mut heads = Vec::new();
        while cost_ns < STEP_NS
            && let Some(head) = port.staged.pop_front()
        {
            let frame_bytes = u64::from(head.frame_bytes());
            cost_ns += costs.packet_ns + costs.page_ns * frame_bytes.div_ceil(PAGE_BYTES);
            if costs.copies_out {
                cost_ns += self.model.copy_ns(distance, frame_bytes);
                bytes += 2 * frame_bytes;
            }
            heads.push(head);
        }
        Some(Step { cost_ns, bytes, work: Work::Switch(nic, heads) })
    }

    /// Copies to a receiver by the thread that its card is bound to.
    fn copy_step(&mut self, nic: u16, cpu: usize) -> Option<Step> {
        let number = usize::from(nic);
        let mut free = self.ports[number].copies.unassigned(self.switch.nics[number].delivered()).0;
        self.copies_step(nic, cpu, |copies| {
            free = free.checked_sub(1)?;
            Some(copies.assign())
        })
    }

    /// As many copies of a card's packets, by `next`, as a step takes on.
    pub(super) fn copies_step(
        &mut self,
        nic: u16,
        cpu: usize,
        mut next: impl FnMut(&mut CopyQueue) -> Option<u64>,
    ) -> Option<Step> {
        let (mut orders, mut cost_ns, mut bytes) = (Vec::new(), 0, 0);
        while cost_ns < STEP_NS
            && let Some(job) = next(&mut self.ports[usize::from(nic)].copies)
        {
            let (one_ns, one_bytes) = self.copy_cost((nic, job), cpu);
            cost_ns += one_ns;
            bytes += one_bytes;
            orders.push((nic, job));
        }
        (!orders.is_empty()).then_some(Step { cost_ns, bytes, work: Work::Copy(orders) })
    }

    /// Cost and bytes of a copy on `cpu`.
    pub(super) fn copy_cost(&self, (nic, number): CopyOrder, cpu: usize) -> (u64, u64) {
        let job = self.ports[usize::from(nic)].copies.job(number);
        let frame_bytes = u64::from(job.frame_bytes);
        let distance = self.machine.distance(cpu, job.sender_cpu);
        let pages_ns = self.costs.copy_page_ns * frame_bytes.div_ceil(PAGE_BYTES);
        let cost_ns = self.costs.copy_packet_ns + pages_ns + self.model.copy_ns(distance, frame_bytes);
        (cost_ns, 2 * frame_bytes)
    }

    /// A worker visits a ring: the fabric moves packets, and their copies are complete.
    pub(super) fn visit(&mut self, nic: u16, thread: usize) {
        let cpu = self.machine.threads[thread].cpu;
        let mut taken = std::mem::take(&mut self.taken);
        self.switch.visit(nic, self.now_ns, &mut taken);
        self.totals.visits += 1;
        self.ports[usize::from(nic)].is_stalled = taken.is_empty();
        for head in taken.drain(..) {
            (0..head.packets()).for_each(|_| self.arrived(head.to, cpu));
        }
        self.taken = taken;
        self.wake_for_room(nic);
        self.signal_receivers(nic, thread);
        self.found(thread, nic);
    }

    /// Packets are switched: their copies can begin.
    pub(super) fn switched(&mut self, nic: u16, mut heads: Vec<FrameHead>, thread: usize) {
        let port = &mut self.ports[usize::from(nic)];
        port.is_switching = false;
        port.transmit.worked_ns = self.now_ns;
        // Bytes that were copied out of the sender's memory are where that was done.
        let sender_cpu = if self.costs.copies_out { self.machine.threads[thread].cpu } else { port.cpu };
        for head in &heads {
            let job = CopyJob { frame_bytes: head.frame_bytes(), sender_cpu };
            self.ports[usize::from(head.to)].copies.push(job);
        }
        self.wake_for_room(nic);
        heads.sort_by_key(|head| head.to);
        heads.dedup_by_key(|head| head.to);
        heads.iter().for_each(|head| self.order_copies(head.to, thread));
    }

    pub(super) fn wake_for_room(&mut self, nic: u16) {
        if self.ports[usize::from(nic)].wants_room {
            self.wake_guest(nic, None);
        }
    }

    /// Orders the copies of packets of a receiver.
    pub(super) fn order_copies(&mut self, nic: u16, thread: usize) {
        match self.architecture {
            Architecture::HyperSwitch => self.divide_copies(nic, thread),
            _ => {
                let backend = self.backends[self.ports[usize::from(nic)].backend].thread;
                if backend != thread {
                    self.wake(backend, Some(thread));
                }
            }
        }
    }

    fn signal_receivers(&mut self, nic: u16, thread: usize) {
        let mut signals = std::mem::take(&mut self.signals);
        signals.clear();
        self.switch.take_receive_signals(self.switch.home(nic), &mut signals);
        for receiver in &signals {
            self.interrupt(*receiver, thread);
        }
        self.signals = signals;
    }

    /// Copies are complete.
    pub(super) fn copied(&mut self, orders: &[CopyOrder], thread: usize) {
        let cpu = self.machine.threads[thread].cpu;
        for &(nic, number) in orders {
            let mut visible = Vec::new();
            self.ports[usize::from(nic)].copies.complete(number, cpu, |copier_cpu| visible.push(copier_cpu));
            visible.iter().for_each(|copier_cpu| self.arrived(nic, *copier_cpu));
            if self.machine.threads[thread].role == Role::Helper {
                self.totals.offloaded += 1;
            }
            self.signal_copied(nic, thread);
        }
    }

    /// Signals a receiver of copied frames. One that takes frames anyway needs no signal; one that copied them itself
    /// knows.
    fn signal_copied(&mut self, nic: u16, thread: usize) {
        let number = usize::from(nic);
        let has_frames = !self.switch.nics[number].arrivals.is_empty();
        if !has_frames || self.ports[number].is_polled {
            return;
        }
        if self.guest_thread(nic) == thread {
            self.ports[number].is_interrupted = true;
        } else if self.architecture == Architecture::HyperSwitch {
            self.notify(nic, thread);
        } else {
            self.interrupt(nic, thread);
        }
    }

    /// Packets that waited for buffers were delivered. Their copies are still to be made, but for Lasthop's.
    pub(super) fn drained(&mut self, thread: usize) {
        self.switch.drain();
        self.ports.iter_mut().for_each(|port| port.is_stalled = false);
        if self.architecture == Architecture::Lasthop {
            for nic in 0..self.ports.len() as u16 {
                self.signal_receivers(nic, thread);
            }
            return;
        }
        self.switch.fabrics[0].signals().clear();
        for nic in 0..self.ports.len() as u16 {
            if self.ports[usize::from(nic)].copies.len() > 0 {
                self.order_copies(nic, thread);
            }
        }
    }

    /// A worker found packets: adaptive polling learns.
    pub(super) fn found(&mut self, thread: usize, nic: u16) {
        let now_ns = self.now_ns;
        if let Some(backend) = self.backends.iter_mut().find(|backend| backend.thread == thread) {
            backend.polling.found(usize::from(nic), now_ns);
        }
    }

    /// How long a thread of the switch polls: by `sched::look` without a view, which is the product's default.
    pub(super) fn poll_ns(&self, backend: usize) -> u64 {
        if self.architecture != Architecture::Lasthop {
            return self.costs.poll_max_ns;
        }
        let (learned_ns, max_ns) = (self.backends[backend].polling.ns(), self.costs.poll_max_ns);
        let round = LookRound { idle_ns: 0, learned_ns, max_ns, is_posted: false };
        if look(&round, None) == Look::Poll { learned_ns.min(max_ns) } else { 0 }
    }

    /// Arms the kicks of a worker's rings. False if a ring has frames.
    pub(super) fn arm(&mut self, backend: usize) -> bool {
        let mut may_sleep = true;
        for at in 0..self.backends[backend].nics.len() {
            let nic = self.backends[backend].nics[at];
            let home = self.switch.home(nic);
            if self.switch.fabrics[home].arm(ring_of(nic)) {
                may_sleep = false;
            }
        }
        self.backends[backend].is_armed = true;
        may_sleep
    }

    /// A worker that is awake needs no kicks.
    fn suppress(&mut self, backend: usize) {
        for at in 0..self.backends[backend].nics.len() {
            let nic = self.backends[backend].nics[at];
            let home = self.switch.home(nic);
            self.switch.fabrics[home].suppress_kicks(ring_of(nic));
        }
    }
}
