//! Packets to the control plane and from it, with the userspace actions of executed packets.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lasthop_dpif::datapath::{DatapathId, Execute};
use lasthop_dpif::family::PacketMessage;
use lasthop_dpif::server::{DatapathUpcall, UpcallKind};
use lasthop_dpif::{Errno, Refusal};
use lasthop_engine::{InjectedPacket, UpcallRecord};
use lasthop_fabric::bounds::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use lasthop_flow::{Action, FlowKey, KeyedState, Userspace, tunnel_of, tunnel_told};
use lasthop_flowtable::{EXECUTED, Execution, Executions, FlowModule, describe, tracked};
use lasthop_module_api::{DropReason, PORTS_MAX, PortId, UpcallReason};
use lasthop_wire::key::LinkLayer;
use lasthop_wire::{Metadata, Offload};

use crate::interface::adapter::Adapter;
use crate::interface::flows;
use crate::interface::fragments::fragmented;
use crate::interface::places::{Place, Places};

/// Largest number of the control plane's packets that wait for workers.
const UNDER_WAY_PACKETS_MAX: usize = 1024;
/// Largest number of their bytes.
const UNDER_WAY_BYTES_MAX: usize = 8 << 20;
/// The input port of packets without one (the kernel's `DP_MAX_PORTS`).
const NO_PORT: u16 = u16::MAX;

/// A number of packets and their bytes.
#[derive(Debug, Default)]
struct Load {
    packets: AtomicUsize,
    bytes: AtomicUsize,
}

impl Load {
    fn get(&self) -> [usize; 2] {
        [&self.packets, &self.bytes].map(|count| count.load(Ordering::Relaxed))
    }

    fn add(&self, bytes: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.packets.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Packets that workers have not executed yet. A port may have as many as it leaves to others, so there is room for
/// another port however many some have.
#[derive(Debug)]
pub(super) struct PendingExecutions {
    all: Load,
    of_port: Box<[Load]>,
}

impl Default for PendingExecutions {
    fn default() -> Self {
        Self { all: Load::default(), of_port: (0..PORTS_MAX).map(|_| Load::default()).collect() }
    }
}

impl PendingExecutions {
    pub(super) fn has_room(&self, origin: PortId) -> bool {
        let Some(own) = self.of_port.get(origin.index()) else { return false };
        let room = [UNDER_WAY_PACKETS_MAX, UNDER_WAY_BYTES_MAX];
        (own.get().into_iter().zip(self.all.get()).zip(room)).all(|((own, all), max)| own + all < max)
    }

    fn enter(&self, origin: PortId, bytes: usize) {
        self.all.add(bytes);
        self.of_port.get(origin.index()).into_iter().for_each(|own| own.add(bytes));
    }

    fn leave(&self, origin: PortId, bytes: usize) {
        self.all.subtract(bytes);
        self.of_port.get(origin.index()).into_iter().for_each(|own| own.subtract(bytes));
    }
}

/// A packet's hash goes up with it and returns when it is executed. The lower half is its flow's hash; by the upper
/// half, the ticket, the flow table knows that the packet has been answered.
fn hash_of(state: &KeyedState, key: &FlowKey, ticket: u32) -> u64 {
    let hash = state.hash_one((key.ethernet, key.ipv4, key.ipv6, key.tcp.or(key.udp).or(key.sctp)));
    u64::from(ticket) << 32 | u64::from(hash as u32)
}

fn ticket_in(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Userspace actions in order, including those of nested lists.
fn userspace(actions: &[Action]) -> Vec<&Userspace> {
    actions.iter().flat_map(userspace_in).collect()
}

fn userspace_in(action: &Action) -> Vec<&Userspace> {
    match action {
        Action::Userspace(userspace) => vec![userspace],
        Action::Sample(sample) => userspace(&sample.actions),
        Action::Clone(actions) => userspace(actions),
        Action::CheckLength(check) => [userspace(&check.greater), userspace(&check.less_equal)].concat(),
        _ => Vec::new(),
    }
}

impl Places {
    /// The upcall for a packet, and the module with its flow table; takes the frame. `None` if the flow table is gone.
    pub(super) fn upcall(
        &self,
        record: &UpcallRecord,
        frame: &mut Vec<u8>,
    ) -> Option<(DatapathUpcall, Arc<FlowModule>)> {
        let (id, place) = self.of_origin(record.origin)?;
        let (kind, action, actions) = match record.reason {
            UpcallReason::Miss => (UpcallKind::Miss, None, None),
            UpcallReason::Action { flow, step } => {
                let (action, actions) = place.action(flow, usize::from(step))?;
                (UpcallKind::Action { port_id: action.port_id }, Some(action), actions)
            }
            UpcallReason::Suspended { .. } => return None,
        };
        let tunnel = record.tunnel.as_ref().map(tunnel_told).map(Box::new);
        let key = FlowKey { tunnel, ..describe(frame, &record.metadata) };
        let hash = Some(hash_of(&self.upcall_hash, &key, record.ticket));
        let packet = std::mem::take(frame);
        let key = FlowKey { in_port: key.in_port.filter(|number| *number != u32::from(NO_PORT)), ..key };
        let len_bytes = Some(record.len_bytes).filter(|len| *len as usize > packet.len());
        let user_data = action.and_then(|action| action.user_data);
        let message = PacketMessage {
            datapath: id.0,
            packet,
            key,
            actions,
            user_data,
            len_bytes,
            hash,
            mru_bytes: Some(record.mtu_bytes).filter(|bytes| *bytes > 0),
            ..PacketMessage::default()
        };
        let (port, worker) = (u32::from(record.metadata.in_port), usize::from(record.worker));
        Some((DatapathUpcall { kind, port, worker, message }, Arc::clone(&place.module)))
    }
}

impl Place {
    /// The action that caused the upcall, and all actions of its flow if it requests them.
    fn action(&self, flow: u32, step: usize) -> Option<(Userspace, Option<Vec<Action>>)> {
        if flow & EXECUTED != 0 {
            return Some((self.executed.find(flow & !EXECUTED, step)?.clone(), None));
        }
        let flow = self.module.table().named(flow)?;
        let action = (*userspace(&flow.actions).get(step)?).clone();
        let actions = action.has_actions.then(|| flow.actions.clone());
        Some((action, actions))
    }
}

fn metadata(key: &FlowKey) -> Metadata {
    let in_port = key.in_port.and_then(|port| u16::try_from(port).ok()).unwrap_or(NO_PORT);
    Metadata {
        recirc_id: key.recirc_id.unwrap_or(0),
        dp_hash: key.dp_hash.unwrap_or(0),
        priority: key.priority.unwrap_or(0),
        mark: key.mark.unwrap_or(0),
        in_port,
        link: link(key),
        ct: tracked(key),
    }
}

/// A key with an EtherType and without addresses belongs to a packet without an Ethernet header.
fn link(key: &FlowKey) -> LinkLayer {
    match (key.ethernet, key.ether_type) {
        (None, Some(ethertype)) => LinkLayer::None(ethertype),
        _ => LinkLayer::Ethernet,
    }
}

/// A packet of the control plane on its way through a worker.
pub(super) struct OutgoingPacket {
    executions: Arc<Executions>,
    module: Arc<FlowModule>,
    /// Taken when it is announced.
    execution: Option<Execution>,
    ticket: u32,
    under_way: Arc<PendingExecutions>,
    port: PortId,
    len_bytes: usize,
}

impl InjectedPacket for OutgoingPacket {
    fn announce(&mut self) -> Result<(), DropReason> {
        let execution = self.execution.take().ok_or(DropReason::NoFlow)?;
        self.executions.announce(&self.module, execution, self.ticket)
    }

    fn done(self) {
        self.module.done(self.ticket);
        self.under_way.leave(self.port, self.len_bytes);
    }
}

impl Adapter<'_> {
    /// Executes a packet of the control plane, unless this is a probe.
    pub(super) fn send(&mut self, id: DatapathId, execute: Execute) -> Result<(), Refusal> {
        let Execute { packet, metadata: key, actions, is_probe, mru_bytes, hash } = execute;
        if let Some(hash) = hash {
            self.places.answered(id, hash);
        }
        let place = self.place(id)?;
        let (module, metadata) = (Arc::clone(&place.module), metadata(&key));
        let member = place.members.get(&u32::from(metadata.in_port));
        let origin = member.and_then(|member| member.port).unwrap_or(PortId::INTERNAL);
        if is_probe {
            return Execution::new(module.table(), metadata, &actions, 0)
                .map(drop)
                .map_err(flows::unsupported);
        }
        let ticket = hash.map_or(0, ticket_in);
        let execution = self.execution(id, (origin, metadata), &actions, packet.len());
        let execution =
            execution.map(|execution| execution.with_tunnel(tunnel_of(&key))).inspect_err(|_| {
                // It is not sent, and no packet waits for it.
                module.settle(ticket);
                self.inside.engine().upcalls_lost(origin, 1);
            })?;
        let offload = mru_bytes.map_or_else(Offload::default, |mtu_bytes| fragmented(&packet, mtu_bytes));
        self.inject((origin, ticket), module, execution, (&packet, offload));
        Ok(())
    }

    /// Gives up a returned packet that cannot be parsed: no packet waits for it any more.
    pub(super) fn give_up(&mut self, id: DatapathId, hash: u64) {
        self.places.answered(id, hash);
        if let Ok(place) = self.place(id) {
            place.module.settle(ticket_in(hash));
        }
    }

    /// The actions for a packet of this length, if it may be sent.
    fn execution(
        &mut self,
        id: DatapathId,
        (origin, metadata): (PortId, Metadata),
        actions: &[Action],
        len_bytes: usize,
    ) -> Result<Execution, Refusal> {
        if !(FRAME_BYTES_MIN as usize..=FRAME_BYTES_MAX as usize).contains(&len_bytes) {
            return Err(Refusal::invalid("the packet is too short or too long for a frame"));
        }
        if !self.places.under_way.has_room(origin) {
            return Err(Refusal::new(
                Errno::ENOMEM,
                "too many packets of this port are on their way to be executed",
            ));
        }
        let own = userspace(actions).into_iter().cloned().collect();
        let place = self.place_mut(id)?;
        let number = place.executed.remember(own);
        Execution::new(place.module.table(), metadata, actions, number).map_err(flows::unsupported)
    }

    /// Has a worker send a packet, with others of this turn ([`Places::outgoing`]).
    pub(super) fn inject(
        &mut self,
        (origin, ticket): (PortId, u32),
        module: Arc<FlowModule>,
        execution: Execution,
        (frame, offload): (&[u8], Offload),
    ) {
        let (executions, under_way) = (self.inside.executions(), Arc::clone(&self.places.under_way));
        let len_bytes = frame.len();
        under_way.enter(origin, len_bytes);
        let execution = Some(execution);
        let packet =
            OutgoingPacket { executions, module, execution, ticket, under_way, port: origin, len_bytes };
        self.places.outgoing.push(origin, frame, offload, packet);
    }
}

/// Packets whose actions are remembered; their upcalls arrive within one queue's length.
const PACKETS_MAX: usize = 4096;
/// Bytes of those actions, for one datapath: enough for usual ones, each with 1 KiB of the control plane's data.
const BYTES_MAX: usize = 4 << 20;

/// Userspace actions of a datapath's last packets, by number.
#[derive(Debug, Default)]
pub(super) struct Executed {
    all: VecDeque<(u32, Vec<Userspace>)>,
    bytes: usize,
    last: u32,
}

fn bytes_of(actions: &[Userspace]) -> usize {
    size_of_val(actions) + actions.iter().map(Userspace::bytes_behind).sum::<usize>()
}

impl Executed {
    /// Remembers the actions of a packet if there are any; returns their number.
    pub(super) fn remember(&mut self, actions: Vec<Userspace>) -> u32 {
        if actions.is_empty() {
            return 0;
        }
        self.last = ((self.last + 1) % EXECUTED).max(1);
        self.bytes += bytes_of(&actions);
        self.all.push_back((self.last, actions));
        while (self.all.len() > PACKETS_MAX || self.bytes > BYTES_MAX)
            && let Some((_, oldest)) = self.all.pop_front()
        {
            self.bytes -= bytes_of(&oldest);
        }
        self.last
    }

    /// One of a packet's actions, unless newer ones have replaced it.
    pub(super) fn find(&self, number: u32, step: usize) -> Option<&Userspace> {
        let (_, actions) = self.all.iter().rev().find(|(executed, _)| *executed == number)?;
        actions.get(step)
    }
}

#[cfg(test)]
mod tests {
    use lasthop_flow::{CheckLength, SampleAction};

    use super::*;

    #[test]
    fn userspace_actions_are_found_in_the_order_of_the_flow_table() {
        let action = |port_id| Action::Userspace(Userspace { port_id, ..Userspace::default() });
        let sample = SampleAction { probability: 1, actions: vec![action(2), Action::PopVlan] };
        let check = CheckLength { len_bytes: 9, greater: vec![action(4)], less_equal: vec![action(5)] };
        let actions = [
            action(1),
            Action::Sample(sample),
            Action::Clone(vec![action(3)]),
            Action::CheckLength(check),
            action(6),
        ];
        let ids: Vec<u32> = userspace(&actions).iter().map(|action| action.port_id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn packets_of_some_ports_leave_room_for_those_of_others() {
        let under_way = PendingExecutions::default();
        let flood = |port| std::iter::repeat_with(move || PortId(port));
        for port in 1..=4 {
            flood(port)
                .take_while(|port| under_way.has_room(*port))
                .for_each(|port| under_way.enter(port, 60));
        }
        let [all, _] = under_way.all.get();
        assert!((UNDER_WAY_PACKETS_MAX / 2..UNDER_WAY_PACKETS_MAX).contains(&all), "{all}");
        assert!(under_way.has_room(PortId(5)));
        // Long packets reach the bound in bytes.
        under_way.enter(PortId(5), UNDER_WAY_BYTES_MAX / 2);
        assert!(!under_way.has_room(PortId(5)) && under_way.has_room(PortId(6)));
        under_way.leave(PortId(5), UNDER_WAY_BYTES_MAX / 2);
        assert!(under_way.has_room(PortId(5)));
    }

    #[test]
    fn a_hash_brings_the_ticket_back_and_tells_flows_apart() {
        let key =
            |port| FlowKey { udp: Some(lasthop_flow::Ports { src: port, dst: 1 }), ..FlowKey::default() };
        let state = KeyedState::new();
        let hash = hash_of(&state, &key(1), 0x1_0007);
        assert_eq!((ticket_in(hash), ticket_in(hash_of(&state, &key(1), 0))), (0x1_0007, 0));
        assert_eq!(hash as u32, hash_of(&state, &key(1), 0) as u32);
        assert_ne!(hash as u32, hash_of(&state, &key(2), 0) as u32);
    }

    fn data(len: usize) -> Vec<Userspace> {
        vec![Userspace { user_data: Some(vec![7; len]), ..Userspace::default() }]
    }

    #[test]
    fn the_last_ones_are_remembered_within_packets_and_bytes() {
        let mut executed = Executed::default();
        assert_eq!(executed.remember(Vec::new()), 0);
        let first = executed.remember(data(1));
        assert!(executed.find(first, 0).is_some() && executed.find(first, 1).is_none());
        let long: Vec<u32> = (0..300).map(|_| executed.remember(data(32 << 10))).collect();
        assert!(executed.bytes <= BYTES_MAX && executed.all.len() > 100);
        assert!(executed.find(first, 0).is_none() && executed.find(long[0], 0).is_none());
        assert!(executed.find(long[299], 0).is_some());
        (0..PACKETS_MAX).for_each(|_| assert_ne!(executed.remember(data(1)), 0));
        assert_eq!((executed.all.len(), executed.find(long[299], 0)), (PACKETS_MAX, None));
        let bytes: usize = executed.all.iter().map(|(_, actions)| bytes_of(actions)).sum();
        assert_eq!(executed.bytes, bytes);
    }
}
