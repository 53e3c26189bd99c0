//! The connection of a packet, as tracking reports it; or, as a mask, the bits of it that a decision depends on.

use lasthop_flow::{CtKey, Tuple4, Tuple6};
use lasthop_wire::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

use crate::acl::ConnectionTuple;

/// State, mark, and the first packet's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    /// `ct_state` bits.
    pub(crate) state: u32,
    pub(crate) mark: u32,
    /// The tuple of the direction in which it began.
    pub(crate) tuple: ConnectionTuple,
}

impl Connection {
    /// Reads a packet's key, or a mask.
    pub(crate) fn of(key: &CtKey) -> Self {
        let tuple4 = key.tuple4.map(|tuple| ConnectionTuple {
            src: tuple.src.to_bits().into(),
            dst: tuple.dst.to_bits().into(),
            src_port: tuple.src_port,
            dst_port: tuple.dst_port,
            protocol: tuple.proto,
        });
        let tuple6 = key.tuple6.map(|tuple| ConnectionTuple {
            src: tuple.src.to_bits(),
            dst: tuple.dst.to_bits(),
            src_port: tuple.src_port,
            dst_port: tuple.dst_port,
            protocol: tuple.proto,
        });
        // A key may have both, one of them empty.
        let tuple = [tuple4, tuple6].into_iter().flatten().find(|tuple| *tuple != ConnectionTuple::default());
        Self { state: key.state.unwrap_or(0), mark: key.mark.unwrap_or(0), tuple: tuple.unwrap_or_default() }
    }

    /// The bits that are set in `mask`.
    pub(crate) fn masked(self, mask: &Self) -> Self {
        let (tuple, bits) = (self.tuple, mask.tuple);
        Self {
            state: self.state & mask.state,
            mark: self.mark & mask.mark,
            tuple: ConnectionTuple {
                src: tuple.src & bits.src,
                dst: tuple.dst & bits.dst,
                src_port: tuple.src_port & bits.src_port,
                dst_port: tuple.dst_port & bits.dst_port,
                protocol: tuple.protocol & bits.protocol,
            },
        }
    }

    /// The fields of a key or mask for packets of this EtherType, as far as `mask` has bits of them.
    pub(crate) fn to_key(self, mask: &Self, ether_type: u16) -> CtKey {
        let ConnectionTuple { src, dst, src_port, dst_port, protocol: proto } = self.tuple;
        let has_tuple = mask.tuple != ConnectionTuple::default();
        // IPv4 addresses are in the low bits.
        let (src4, dst4) = ((src as u32).into(), (dst as u32).into());
        let (src6, dst6) = (src.into(), dst.into());
        CtKey {
            state: Some(self.state).filter(|_| mask.state != 0),
            mark: Some(self.mark).filter(|_| mask.mark != 0),
            tuple4: Some(Tuple4 { src: src4, dst: dst4, src_port, dst_port, proto })
                .filter(|_| has_tuple && ether_type == ETHERTYPE_IPV4),
            tuple6: Some(Tuple6 { src: src6, dst: dst6, src_port, dst_port, proto })
                .filter(|_| has_tuple && ether_type == ETHERTYPE_IPV6),
            ..CtKey::default()
        }
    }
}
