//! Steps of a guest's vCPU: in the hypervisor's context first, then reception, then transmission.

use super::{Architecture, Event, STEP_NS, Simulation, Step, Work};
use crate::flow::Talk;
use crate::frame::{FrameHead, FrameKind};
use crate::machine::ThreadState;

/// Packets that a guest takes in one step, as Linux's NAPI.
const RECEIVED_MAX: usize = 64;

impl Simulation {
    /// The guest's next step; `None` if it has nothing to do.
    pub(super) fn guest_step(&mut self, guest: usize) -> Option<Step> {
        let is_hyper = self.architecture == Architecture::HyperSwitch;
        for at in 0..self.guests[guest].nics.len() {
            let nic = self.guests[guest].nics[at];
            let step = match is_hyper {
                true => self.hypervisor_step(nic, false).or_else(|| self.receive_step(guest, nic)),
                false => self.receive_step(guest, nic),
            };
            if step.is_some() {
                return step;
            }
        }
        for at in 0..self.guests[guest].nics.len() {
            let nic = self.guests[guest].nics[at];
            if let Some(step) = self.send_step(guest, nic) {
                return Some(step);
            }
        }
        // The guest is about to sleep: its packets are switched, and those for it are copied (Hyper-Switch, 3.5).
        let mut nics = 0..self.guests[guest].nics.len();
        nics.find_map(|at| {
            is_hyper.then(|| self.hypervisor_step(self.guests[guest].nics[at], true)).flatten()
        })
    }

    /// Takes frames that have arrived.
    fn receive_step(&mut self, guest: usize, nic: u16) -> Option<Step> {
        let number = usize::from(nic);
        let is_interrupted = std::mem::take(&mut self.ports[number].is_interrupted);
        if !is_interrupted && !self.ports[number].is_polled {
            return None;
        }
        let mut cost_ns = 0;
        if is_interrupted && !self.ports[number].is_polled {
            self.ports[number].is_polled = true;
            self.switch.nics[number].rx.suppress_calls();
            cost_ns += self.costs.interrupt_ns;
        }
        let (mut bytes, mut frames) = (0, 0);
        while cost_ns < STEP_NS && frames < RECEIVED_MAX {
            let Some((head, arrival)) = self.switch.nics[number].receive() else { break };
            frames += 1;
            let payload_bytes = u64::from(head.payload_bytes);
            let distance = self.machine.distance(self.ports[number].cpu, arrival.copier_cpu);
            cost_ns += self.model.read.ns(distance, payload_bytes) + self.stack_ns(&head);
            bytes += 2 * payload_bytes;
            self.take(number, &head);
        }
        if frames == 0 {
            self.end_reception(guest, number);
            let has_answers = !self.switch.nics[number].outbox.is_empty();
            return (cost_ns > 0 && !has_answers).then_some(Step { cost_ns, bytes: 0, work: Work::Settle });
        }
        Some(Step { cost_ns, bytes, work: Work::Publish(guest) })
    }

    /// The cost of a received packet in the guest's stack.
    fn stack_ns(&self, head: &FrameHead) -> u64 {
        let costs = &self.model.guest;
        match (head.kind, self.flows[head.flow as usize].talk) {
            (FrameKind::Ack, _) => costs.ack_ns,
            (FrameKind::Data, Talk::Echo { .. }) => costs.receive_ns + costs.turn_ns,
            (FrameKind::Tcp { is_end, is_cut: true, .. }, _) => {
                costs.segment_ns + u64::from(is_end) * costs.receive_ns
            }
            (FrameKind::Data | FrameKind::Tcp { .. }, _) => costs.receive_ns,
        }
    }

    fn take(&mut self, nic: usize, head: &FrameHead) {
        let flow = head.flow as usize;
        let answer = self.flows[flow].receive(head, self.now_ns);
        if self.flows[flow].ready_ns > self.now_ns {
            let guest = self.ports[nic].guest;
            self.events.push(self.flows[flow].ready_ns, Event::PauseEnd { guest });
        }
        if let Some(answer) = answer {
            self.switch.nics[nic].outbox.push_back(answer);
        } else if !self.ports[nic].touched.contains(&flow) {
            self.ports[nic].touched.push(flow);
        }
    }

    /// No frame is left: the guest acknowledges the rest and arms its interrupt. With the product's fabric it looks once
    /// more; elsewhere frames are not visible before their copies are complete, and a signal follows.
    fn end_reception(&mut self, guest: usize, nic: usize) {
        for flow in std::mem::take(&mut self.ports[nic].touched) {
            let flow = &mut self.flows[flow];
            if usize::from(flow.to) == nic
                && let Some(ack) = flow.answer(1)
            {
                self.switch.nics[nic].outbox.push_back(ack);
            }
        }
        if !self.guests[guest].polls {
            let is_late = self.switch.nics[nic].rx.arm_calls()
                && self.architecture == Architecture::Lasthop
                && (self.helping.is_none() || !self.switch.nics[nic].arrivals.is_empty());
            self.ports[nic].is_polled = is_late;
        }
    }

    /// Makes frames: answers first, then those of flows in turn.
    fn send_step(&mut self, guest: usize, nic: u16) -> Option<Step> {
        let number = usize::from(nic);
        let (mut cost_ns, mut bytes) = (0, 0);
        let mut room = self.switch.nics[number].room();
        self.ports[number].wants_room = false;
        while cost_ns < STEP_NS {
            if room == 0 {
                self.ports[number].wants_room = true;
                break;
            }
            let next = self.switch.nics[number].outbox.pop_front().or_else(|| self.next_data(number));
            let Some(head) = next else { break };
            let costs = &self.model.guest;
            let copied_bytes = u64::from(head.payload_bytes) * u64::from(costs.send_ps_per_byte > 0);
            cost_ns += match head.kind {
                FrameKind::Ack => costs.ack_ns,
                FrameKind::Data | FrameKind::Tcp { .. } => {
                    costs.send_ns + u64::from(head.payload_bytes) * costs.send_ps_per_byte / 1000
                }
            };
            bytes += 2 * copied_bytes;
            room -= usize::from(self.switch.nics[number].add(head));
        }
        (cost_ns > 0).then_some(Step { cost_ns, bytes, work: Work::Publish(guest) })
    }

    fn next_data(&mut self, nic: usize) -> Option<FrameHead> {
        let port = &mut self.ports[nic];
        for _ in 0..port.flows.len() {
            let flow = port.flows[port.next_flow % port.flows.len()];
            port.next_flow += 1;
            if self.flows[flow].sendable(self.now_ns) > 0 {
                self.flows[flow].request_ns = self.now_ns;
                return Some(self.flows[flow].send());
            }
        }
        None
    }

    /// The guest's frames are in its rings, and its buffers are free.
    pub(super) fn publish(&mut self, guest: usize, thread: usize) {
        for at in 0..self.guests[guest].nics.len() {
            let nic = self.guests[guest].nics[at];
            let count = self.switch.nics[usize::from(nic)].publish();
            if self.switch.has_waiting() {
                self.buffers_posted(nic, thread);
            }
            if count > 0 {
                self.ports[usize::from(nic)].is_stalled = false;
                self.published(nic, thread);
            }
        }
    }

    /// Frames are in a transmit ring: its switch is told.
    fn published(&mut self, nic: u16, thread: usize) {
        match self.architecture {
            Architecture::HyperSwitch => {
                self.decide_transmit(nic);
                self.stir_helpers(nic);
            }
            Architecture::Lasthop => {
                let backend = self.backends[self.ports[usize::from(nic)].backend].thread;
                let kicks = self.switch.nics[usize::from(nic)].tx.needs_kick();
                self.machine.threads[thread].debt_ns += u64::from(kicks) * self.costs.kick_ns;
                if kicks || self.machine.threads[backend].state == ThreadState::Polling {
                    self.wake(backend, None);
                }
            }
            Architecture::Xen | Architecture::Kvm => {
                let backend = self.backends[self.ports[usize::from(nic)].backend].thread;
                if self.machine.is_asleep(backend) {
                    self.machine.threads[thread].debt_ns += self.costs.kick_ns;
                    self.wake(backend, Some(thread));
                }
            }
        }
    }

    /// Packets that waited for buffers have some now.
    fn buffers_posted(&mut self, nic: u16, thread: usize) {
        match self.architecture {
            Architecture::HyperSwitch => {
                self.machine.threads[thread].debt_ns += self.costs.kick_ns;
                self.drained(thread);
            }
            _ if let Some(helping) = &mut self.helping => {
                helping.be_due();
                for backend in 0..self.backends.len() {
                    self.wake(self.backends[backend].thread, Some(thread));
                }
            }
            _ => {
                self.has_new_buffers = true;
                let backend = self.backends[self.ports[usize::from(nic)].backend].thread;
                self.wake(backend, Some(thread));
            }
        }
    }
}
