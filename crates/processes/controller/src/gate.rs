//! Ports with rules: their packets are tracked when they enter and leave, and pass if their connection may.
//!
//! ```text
//!   entry ── sender without rules ──────────────────────────> route ── receiver without rules ──> output
//!     │                                                       ^    └── receiver with rules ──┐
//!     └── sender with rules ── ct(zone of the sender), ──> from port                         ct(zone of the receiver),
//!                                       recirculated          │ allowed                      recirculated ──> to port ──> output
//! ```
//!
//! Each port has a zone of its own, so a connection passes a port only if that port's rules allowed it. An allowed
//! connection is committed with the rules' mark ([`PortAcl::mark`]), and its packets match one wide flow. When the
//! rules change, so does the mark. Then existing connections are evaluated again, by the direction and addresses with
//! which they began.

use lasthop_api::acl::AclDirection;
use lasthop_flow::{Action, Conntrack, Masked, ct_state};
use lasthop_module_api::DropReason;
use lasthop_wire::headers::ETHERTYPE_IPV4;

use crate::acl::{AclVerdict, Attempt, AttemptBits, ConnectionTuple, PacketKind, PortAcl};
use crate::frame::{Frame, Looked};
use crate::ports::Port;

/// The recirculation id of [`Stage::Admitted`].
const ADMITTED: u32 = 3;

/// How far a packet has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has just arrived.
    Entry,
    /// It was tracked in the zone of its sender.
    FromPort,
    /// It may come from its port, which has no rules; its destination has not been looked up (`switch/address_flows.rs`).
    Admitted,
    /// It was tracked in the zone of this receiving port.
    ToPort(u32),
}

impl Stage {
    /// The stage of packets with this recirculation id.
    pub(crate) fn of(recirc_id: u32) -> Self {
        match recirc_id {
            0 => Self::Entry,
            ADMITTED => Self::Admitted,
            id if id % 2 == 1 => Self::FromPort,
            id => Self::ToPort(id / 2 - 1),
        }
    }

    pub(crate) fn recirc_id(self) -> u32 {
        match self {
            Self::Entry => 0,
            Self::FromPort => 1,
            Self::Admitted => ADMITTED,
            Self::ToPort(port) => 2 * (port + 1),
        }
    }
}

/// A port that a packet passes in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate<'a> {
    pub(crate) number: u32,
    pub(crate) acl: &'a PortAcl,
    pub(crate) direction: AclDirection,
    pub(crate) vid: u16,
}

/// The decision at a gate.
#[derive(Clone, Debug)]
pub(crate) enum Passage<'a> {
    /// These actions, and then on. Without a verdict the connection was allowed before.
    Passes(Vec<Action>, Option<AclVerdict<'a>>),
    /// These actions, and nothing else: the packet comes back tracked.
    Tracked([Action; 2]),
    Dropped(DropReason, Option<AclVerdict<'a>>),
}

impl<'a> Gate<'a> {
    /// The gate of a packet's sender, if that has rules.
    pub(crate) fn from_port(number: u32, port: &'a Port, vid: u16) -> Option<Self> {
        Some(Self { number, acl: port.acl.as_deref()?, direction: AclDirection::Egress, vid })
    }

    /// The gate of a packet's receiver, if that has rules.
    pub(crate) fn to_port(number: u32, port: &'a Port, vid: u16) -> Option<Self> {
        Some(Self { number, acl: port.acl.as_deref()?, direction: AclDirection::Ingress, vid })
    }

    /// Decides about a packet that was not tracked here: IP must be tracked, except for neighbour discovery.
    pub(crate) fn meet(&self, frame: &Frame, looked: &mut Looked) -> Passage<'a> {
        let kind = frame.kind(looked);
        if matches!(kind, PacketKind::Ipv4 | PacketKind::Ipv6) {
            return Passage::Tracked([self.track(None), Action::Recirc(self.stage().recirc_id())]);
        }
        let mut tuple = ConnectionTuple { protocol: frame.protocol, ..ConnectionTuple::default() };
        if kind == PacketKind::Discovery {
            tuple.src_port = frame.icmpv6_type.into();
        }
        let verdict = self.evaluate(kind, self.direction, &tuple, frame, looked).0;
        match verdict.reason() {
            Some(reason) => Passage::Dropped(reason, Some(verdict)),
            None => Passage::Passes(Vec::new(), Some(verdict)),
        }
    }

    /// Decides about a packet that was tracked here.
    pub(crate) fn pass(&self, frame: &Frame, looked: &mut Looked) -> Passage<'a> {
        let (connection, seen) = (frame.connection, &mut looked.connection);
        seen.state |= ct_state::TRACKED | ct_state::INVALID;
        if connection.state & (ct_state::TRACKED | ct_state::INVALID) != ct_state::TRACKED {
            return Passage::Dropped(DropReason::AclInvalid, None);
        }
        let mark = self.acl.mark(self.vid);
        seen.mark = u32::MAX;
        if connection.mark == mark {
            seen.state |= ct_state::NEW;
            if connection.state & ct_state::NEW == 0 {
                return Passage::Passes(Vec::new(), None);
            }
        }
        seen.state |= ct_state::REPLY;
        let is_reply = connection.state & ct_state::REPLY != 0;
        let direction = if is_reply { opposite(self.direction) } else { self.direction };
        looked.ether_type = u16::MAX;
        let kind = if frame.ether_type == ETHERTYPE_IPV4 { PacketKind::Ipv4 } else { PacketKind::Ipv6 };
        let (verdict, bits) = self.evaluate(kind, direction, &connection.tuple, frame, looked);
        looked.connection.tuple = looked.connection.tuple.or(bits.tuple);
        match verdict.reason() {
            Some(reason) => Passage::Dropped(reason, Some(verdict)),
            None => Passage::Passes(vec![self.track(Some(mark))], Some(verdict)),
        }
    }

    fn evaluate(
        &self,
        kind: PacketKind,
        direction: AclDirection,
        tuple: &ConnectionTuple,
        frame: &Frame,
        looked: &mut Looked,
    ) -> (AclVerdict<'a>, AttemptBits) {
        let remote_mac = if self.direction == AclDirection::Ingress { frame.src } else { frame.dst };
        let attempt = Attempt { kind, direction, tuple, remote_mac, vid: self.vid };
        let mut bits = AttemptBits::default();
        let verdict = self.acl.evaluate(&attempt, &mut bits);
        let seen = if self.direction == AclDirection::Ingress { &mut looked.src } else { &mut looked.dst };
        *seen |= bits.remote_mac;
        (verdict, bits)
    }

    fn stage(&self) -> Stage {
        match self.direction {
            AclDirection::Egress => Stage::FromPort,
            AclDirection::Ingress => Stage::ToPort(self.number),
        }
    }

    /// Tracks a packet in the port's zone; with a mark its connection is committed as allowed.
    fn track(&self, mark: Option<u32>) -> Action {
        Action::Ct(Box::new(Conntrack {
            is_commit: mark.is_some(),
            // Port numbers are below 65536.
            zone: Some(self.number as u16),
            mark: mark.map(Masked::exact),
            ..Conntrack::default()
        }))
    }
}

fn opposite(direction: AclDirection) -> AclDirection {
    match direction {
        AclDirection::Ingress => AclDirection::Egress,
        AclDirection::Egress => AclDirection::Ingress,
    }
}
