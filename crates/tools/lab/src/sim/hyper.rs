//! Hyper-Switch: the sender switches in its own context, the receiver or an idle CPU copies. The decisions are those of
//! `lasthop-sched`.

use lasthop_sched::{
    Notification, Notify, PendingCopies, Transmit, notify, offload, place, spread, transmit,
};

use super::{Event, Simulation, Step, Work};
use crate::copies::CopyQueue;
use crate::machine::ThreadState;

impl Simulation {
    /// Work of a guest's vCPU inside the hypervisor: copies that are due, then a visit that is due. With `blocks` the
    /// guest is about to sleep, and all is due.
    pub(super) fn hypervisor_step(&mut self, nic: u16, blocks: bool) -> Option<Step> {
        let number = usize::from(nic);
        let cpu = self.ports[number].cpu;
        if self.ports[number].copies.is_due || blocks {
            let step = self.copies_step(nic, cpu, CopyQueue::take_own);
            self.ports[number].copies.is_due = self.ports[number].copies.has_own();
            if let Some(step) = step {
                return Some(Step { cost_ns: step.cost_ns + self.costs.kick_ns, ..step });
            }
        }
        if !blocks && !self.ports[number].must_visit {
            return None;
        }
        self.ports[number].must_visit = !self.ports[number].staged.is_empty();
        let step = self.visit_step(nic, cpu)?;
        Some(Step { cost_ns: step.cost_ns + self.costs.kick_ns, ..step })
    }

    /// A sender has published frames: it enters the hypervisor now, or a timer does it later.
    pub(super) fn decide_transmit(&mut self, nic: u16) {
        let number = usize::from(nic);
        let view = self.view(self.ports[number].guest);
        match transmit(self.ports[number].transmit, Some(&view), self.now_ns) {
            Transmit::Arm | Transmit::Visit => self.ports[number].must_visit = true,
            Transmit::VisitBy(at_ns) => {
                if self.ports[number].transmit_alarm_ns.is_none_or(|alarm_ns| alarm_ns > at_ns) {
                    self.ports[number].transmit_alarm_ns = Some(at_ns);
                    self.events.push(at_ns, Event::TransmitDue { nic });
                }
            }
        }
    }

    /// The timer interrupts the sender, which visits its ring.
    pub(super) fn transmit_due(&mut self, nic: u16) {
        let number = usize::from(nic);
        if self.ports[number].transmit_alarm_ns != Some(self.now_ns) {
            return;
        }
        self.ports[number].transmit_alarm_ns = None;
        if !self.switch.nics[number].published.is_empty() {
            self.ports[number].must_visit = true;
            self.wake(self.guest_thread(nic), None);
        }
    }

    /// Divides packets that were switched to a receiver.
    pub(super) fn divide_copies(&mut self, nic: u16, thread: usize) {
        let number = usize::from(nic);
        let (packets, bytes) = self.ports[number].copies.unassigned(self.switch.nics[number].delivered());
        if packets == 0 {
            return;
        }
        let pending = PendingCopies { packets, bytes, is_receiver_blocked: self.is_asleep(nic) };
        let criteria = self.choices.offload;
        let wanted = criteria.is_some_and(|criteria| offload(&pending, u32::MAX, criteria).helper > 0);
        let helper_cpu = wanted.then(|| self.choose_helper(nic)).flatten();
        let criteria = criteria.unwrap_or_default();
        let room = |cpu: usize| criteria.helper_packets_max.saturating_sub(self.orders[cpu].len() as u32);
        let shares = offload(&pending, helper_cpu.map_or(0, room), criteria);
        for _ in 0..shares.receiver {
            self.ports[number].copies.assign_own();
        }
        for _ in 0..shares.helper {
            let job = self.ports[number].copies.assign();
            self.orders[helper_cpu.unwrap_or(0)].push_back((nic, job));
        }
        if let Some(cpu) = helper_cpu.filter(|_| shares.helper > 0) {
            self.wake(self.helpers[cpu], Some(thread));
        }
        if shares.receiver > 0 {
            self.notify(nic, thread);
        }
    }

    fn choose_helper(&mut self, nic: u16) -> Option<usize> {
        let port = &mut self.ports[usize::from(nic)];
        port.copies.turn += 1;
        let (hash, receiver) = (spread(nic, port.copies.turn), port.cpu);
        place(
            &self.machine.places,
            |_| true,
            |cpu| self.machine.is_idle(cpu),
            receiver,
            hash,
            self.choices.place,
        )
    }

    /// Signals a receiver, now or later, as `sched::notify` decides. With the signal it copies its share.
    pub(super) fn notify(&mut self, nic: u16, thread: usize) {
        let number = usize::from(nic);
        let view = self.view(self.ports[number].guest);
        let port = &mut self.ports[number];
        let first_ns = *port.unsignalled_ns.get_or_insert(self.now_ns);
        let pending = Notification {
            is_wanted: true,
            first_ns,
            signalled_ns: port.signalled_ns,
            has_progressed: true,
            is_full: false,
        };
        match notify(&pending, Some(&view), self.now_ns) {
            Notify::Now | Notify::Unwanted => self.signal_own_copies(nic, thread),
            Notify::At(at_ns) => self.events.push(at_ns, Event::NotifyDue { nic }),
        }
    }

    fn signal_own_copies(&mut self, nic: u16, thread: usize) {
        let port = &mut self.ports[usize::from(nic)];
        port.copies.is_due = port.copies.has_own();
        self.interrupt(nic, thread);
    }

    /// A delayed signal is due, unless it was sent meanwhile.
    pub(super) fn notify_due(&mut self, nic: u16) {
        if self.ports[usize::from(nic)].unsignalled_ns.is_some() {
            let thread = self.guest_thread(nic);
            self.signal_own_copies(nic, thread);
        }
    }

    /// The next step of a helper: one copy, so that it gives way after each packet. Without copies it switches.
    pub(super) fn helper_step(&mut self, cpu: usize) -> Option<Step> {
        if let Some(order) = self.orders[cpu].pop_front() {
            let (cost_ns, bytes) = self.copy_cost(order, cpu);
            return Some(Step { cost_ns, bytes, work: Work::Copy(vec![order]) });
        }
        let nics = self.ports.len();
        for _ in 0..nics {
            self.next_swept += 1;
            let nic = (self.next_swept % nics) as u16;
            // A sender that works in the hypervisor takes its packets itself.
            if self.ports[usize::from(nic)].must_visit {
                continue;
            }
            if let Some(step) = self.visit_step(nic, cpu) {
                return Some(step);
            }
        }
        None
    }

    /// Another thread takes a helper's CPU: the receivers copy the rest.
    pub(super) fn abandon_orders(&mut self, cpu: usize) {
        for (nic, job) in std::mem::take(&mut self.orders[cpu]) {
            self.ports[usize::from(nic)].copies.give_back(job);
            let thread = self.guest_thread(nic);
            self.notify(nic, thread);
        }
    }

    /// Wakes helpers that poll, when a sender publishes: they look at all rings.
    pub(super) fn stir_helpers(&mut self, nic: u16) {
        let cpu = self.ports[usize::from(nic)].cpu;
        let polls = |thread: &&usize| self.machine.threads[**thread].state == ThreadState::Polling;
        let nearest = self
            .helpers
            .iter()
            .filter(polls)
            .min_by_key(|thread| self.machine.distance(cpu, self.machine.threads[**thread].cpu));
        if let Some(&helper) = nearest {
            self.wake(helper, None);
        }
    }
}
