//! TFTP: the server answers from another port (RFC 1350, 4).

use lasthop_wire::headers::PROTO_UDP;

use super::Announced;
use crate::packet::PacketImage;
use crate::tuple::{CtTuple, Direction};

const UDP_BYTES: usize = 8;
const READ_REQUEST: u16 = 1;
const WRITE_REQUEST: u16 = 2;

/// A request announces an answer to its own port.
pub(super) fn announced(
    packet: &PacketImage<'_>,
    tuple: &CtTuple,
    direction: Direction,
) -> Option<Announced> {
    let is_request = tuple.proto == PROTO_UDP
        && direction == Direction::Original
        && matches!(packet.word(packet.l4() + UDP_BYTES)?, READ_REQUEST | WRITE_REQUEST);
    is_request.then_some(Announced { address: None, port: tuple.src_port, written: None })
}
