//! Frames with a partial checksum, which hardware should have completed.
//!
//! A veth pair passes a frame from one stack to another with a partial checksum, and marks the skb. XDP only has the
//! bytes. But a partial checksum has a known value: the sum of the pseudo header, not complemented. A frame with that
//! value is passed on as one with a partial checksum.
//!
//! One frame in 65536 has that value as its correct, complete checksum. Completing it yields the same value again,
//! since the sum from the transport header on includes the pseudo header's sum. So such a frame does not change.

use lasthop_wire::headers::{ETHERTYPE_IPV4, PROTO_TCP, PROTO_UDP};
use lasthop_wire::vnet::{F_NEEDS_CSUM, Offload};
use lasthop_wire::{Layers, Sum};

/// First bytes of a frame that are parsed.
pub(super) const HEAD_BYTES: usize = 128;

/// The pending offloads of the frame that starts with `head`.
pub(super) fn offload(head: &[u8]) -> Offload {
    undone(head).unwrap_or_default()
}

/// First bytes of a frame that [`is_usual_and_done`] looks at: Ethernet, IPv4 without options, TCP or UDP.
pub(super) const USUAL_BYTES: usize = 60;

/// Whether the frame that starts with `head` is a TCP segment or UDP datagram in IPv4 without tags, options or fragments, and has
/// nothing to be undone. False if that takes [`offload`] to find out.
#[inline]
pub(super) fn is_usual_and_done(head: &[u8; USUAL_BYTES]) -> bool {
    let word = |at: usize| u32::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let is_unbroken = word(12) == u32::from(ETHERTYPE_IPV4) && head[14] == 0x45 && word(20) & 0x3fff == 0;
    let checksum = match head[23] {
        PROTO_TCP if is_unbroken => word(34 + 16),
        PROTO_UDP if is_unbroken => word(34 + 6),
        _ => return false,
    };
    let l4_len_bytes = word(16).wrapping_sub(20);
    let sum = [26, 28, 30, 32].map(word).iter().sum::<u32>() + u32::from(head[23]) + (l4_len_bytes & 0xffff);
    let folded = (sum & 0xffff) + (sum >> 16);
    checksum != (folded & 0xffff) + (folded >> 16)
}

fn undone(head: &[u8]) -> Option<Offload> {
    let layers = Layers::parse(head).ok()?;
    if !layers.has_l4 || layers.is_fragment || layers.is_source_routed {
        return None;
    }
    let csum_offset = match layers.l4_proto {
        PROTO_TCP => 16,
        PROTO_UDP => 6,
        _ => return None,
    };
    let field = usize::from(layers.l4_offset + csum_offset);
    let value = u16::from_be_bytes(head.get(field..field + 2)?.try_into().ok()?);
    // In UDP 0 means no checksum (RFC 768), and no pseudo header sums to 0.
    let is_undone = value == pseudo(&layers, head)?;
    is_undone.then_some(Offload {
        flags: F_NEEDS_CSUM,
        csum_start: layers.l4_offset,
        csum_offset,
        ..Offload::default()
    })
}

/// The sum of the pseudo header, from the same fields for IPv4 and IPv6: its other fields are zero.
fn pseudo(layers: &Layers, head: &[u8]) -> Option<u16> {
    let lead = u32::from(layers.l4_offset - layers.l3_offset);
    let l4_len_bytes = layers.l3_len_bytes.checked_sub(lead)?;
    let mut sum = Sum::default();
    sum.add(layers.addresses(head));
    sum.add(&l4_len_bytes.to_be_bytes());
    sum.add_word(u16::from(layers.l4_proto));
    Some(sum.partial())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UDP: u8 = PROTO_UDP;

    /// A UDP datagram over IPv4. Its checksum field is `checksum` of (pseudo header's sum, right checksum).
    fn datagram(payload: &[u8], checksum: impl Fn(u16, u16) -> u16) -> Vec<u8> {
        let len = (8 + payload.len()) as u16;
        let mut frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &[0x45, 0]].concat();
        frame.extend((20 + len).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, UDP, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]);
        let udp = [&[0x12, 0x34, 0x56, 0x78][..], &len.to_be_bytes(), &[0, 0], payload].concat();
        let mut sum = Sum::pseudo_v4([192, 0, 2, 1], [198, 51, 100, 7], UDP, len);
        let partial = sum.partial();
        sum.add(&udp);
        frame.extend(&udp);
        frame[40..42].copy_from_slice(&checksum(partial, sum.finish_udp()).to_be_bytes());
        frame
    }

    #[test]
    fn an_undone_checksum_is_told_and_a_done_one_left_alone() {
        let wanted = Offload { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::default() };
        assert_eq!(offload(&datagram(b"payload", |partial, _| partial)), wanted);
        assert_eq!(offload(&datagram(b"payload", |_, done| done)), Offload::default());
        assert_eq!(offload(&datagram(b"payload", |_, _| 0)), Offload::default(), "none");
    }

    fn usual(frame: &[u8]) -> bool {
        is_usual_and_done(frame.first_chunk().unwrap())
    }

    #[test]
    fn a_usual_frame_is_done_at_first_sight() {
        let payload = [7; 32];
        assert!(usual(&datagram(&payload, |_, done| done)) && usual(&datagram(&payload, |_, _| 0)));
        assert!(!usual(&datagram(&payload, |partial, _| partial)));
        let done = datagram(&payload, |_, done| done);
        for (at, value) in [(12, 0x86), (13, 6), (14, 0x46), (20, 0x20), (21, 1), (23, 47)] {
            let mut frame = done.clone();
            frame[at] = value;
            assert!(!usual(&frame), "byte {at}");
        }
    }

    proptest! {
        /// The first sight never overlooks what a full one finds.
        #[test]
        fn no_frame_is_done_at_first_sight_and_undone_at_the_second(
            payload in prop::collection::vec(any::<u8>(), 18..40),
            changes in prop::collection::vec((12_usize..60, any::<u8>()), 0..3),
            is_partial in any::<bool>(),
        ) {
            let mut frame = datagram(&payload, |partial, done| if is_partial { partial } else { done });
            changes.into_iter().for_each(|(at, value)| frame[at] = value);
            prop_assert!(!usual(&frame) || offload(&frame) == Offload::default());
        }
    }

    #[test]
    fn other_packets_have_nothing_undone() {
        let mut fragment = datagram(b"payload", |partial, _| partial);
        fragment[20] = 0x20; // more fragments
        assert_eq!(offload(&fragment), Offload::default());
        let whole = datagram(b"payload", |partial, _| partial);
        for len in 0..42 {
            assert_eq!(offload(&whole[..len]), Offload::default(), "{len} bytes");
        }
    }

    proptest! {
        /// Where a correct checksum looks like a partial one, completing it changes nothing.
        #[test]
        fn completing_a_right_checksum_does_no_harm(payload in prop::collection::vec(any::<u8>(), 2..40)) {
            // The first word of the payload makes the correct checksum equal the pseudo header's sum.
            let mut payload = payload;
            payload[..2].fill(0);
            let gap = std::cell::Cell::new(0_u16);
            datagram(&payload, |partial, done| {
                let mut sum = Sum::default();
                sum.add_word(done);
                sum.add_word(!partial);
                gap.set(sum.partial());
                done
            });
            payload[..2].copy_from_slice(&gap.get().to_be_bytes());
            let frame = datagram(&payload, |partial, done| {
                assert_eq!(partial, done, "the example is one");
                done
            });
            let told = offload(&frame);
            prop_assert!(told.needs_csum());
            let mut sum = Sum::default();
            sum.add(&frame[usize::from(told.csum_start)..]);
            prop_assert_eq!(sum.finish_udp().to_be_bytes(), [frame[40], frame[41]]);
        }
    }
}
