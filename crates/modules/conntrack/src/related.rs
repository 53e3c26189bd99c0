//! ICMP errors: finds the connection of the quoted packet.

use lasthop_wire::{Layers, Network};

use crate::packet::{PacketImage, tuple_at};
use crate::table::Table;
use crate::tuple::{CtTuple, Direction};

/// Bytes of an ICMP error's own header.
const ERROR_BYTES: usize = 8;

/// A connection that an ICMP error refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Related {
    pub(crate) index: u32,
    /// The error's direction: the inverse of the quoted packet's.
    pub(crate) direction: Direction,
    /// The offsets of the quoted packet's headers, and its tuple.
    pub(crate) inner: (Layers, CtTuple),
}

impl Related {
    /// Returns `None` if the error refers to no connection, or is not addressed to the sender of the quoted packet.
    pub(crate) fn find(
        table: &mut Table<'_>,
        packet: &PacketImage<'_>,
        zone: u16,
        now_ms: u64,
    ) -> Option<Self> {
        let l3 = packet.layers.l3;
        let end = packet.end()?.min(packet.head.len());
        let head = packet.head.get(..end)?;
        let layers =
            Layers::parse_network(head, l3, packet.l4() + ERROR_BYTES).ok().filter(|inner| inner.has_l4)?;
        let inner = tuple_at(head, &layers, zone)?;
        let (index, direction) = table.find(&inner.inverse()?, now_ms)?;
        let outer = packet.layers.addresses(packet.head);
        let destination = outer.get(outer.len() / 2..)?;
        let sender = table.place(index)?.tuple(direction).dst.0;
        let sender = if l3 == Network::Ipv4 { &sender[..4] } else { &sender[..] };
        (destination == sender).then_some(Self { index, direction, inner: (layers, inner) })
    }
}
