//! ICMP errors: which connection the packet inside is of.

use lasthop_wire::{Layers, Network};

use crate::packet::{PacketImage, tuple_at};
use crate::table::Table;
use crate::tuple::{CtTuple, Direction};

/// Bytes of an ICMP error's own header.
const ERROR_BYTES: usize = 8;

/// A connection that an error is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Related {
    pub(crate) index: u32,
    /// Of the error: the other one than that of the packet inside.
    pub(crate) direction: Direction,
    /// Where the headers of the packet inside are, and its tuple.
    pub(crate) inner: (Layers, CtTuple),
}

impl Related {
    /// None: it is about no connection, or its destination is not the sender of the packet inside.
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
