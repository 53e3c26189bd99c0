//! The state of a packet's connection, as connection tracking returns it and as words of a flow key.

use lasthop_conntrack::{
    BEGINNING_STATE, CtMetadata, CtTuple, IpBytes, USUAL_STATE, UsualEnds, UsualVerdict,
};
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6};
use lasthop_wire::key::{CtWords, ct_field};
use lasthop_wire::{Key, Network};

/// The words of a packet for which `ct(...)` returned this state.
pub(crate) fn words_of(metadata: &CtMetadata) -> CtWords {
    let mut key = Key::default();
    key.put(ct_field::STATE, metadata.state.into());
    key.put(ct_field::ZONE, metadata.zone.into());
    key.put(ct_field::MARK, metadata.mark.into());
    key.put_wide(ct_field::LABELS, u128::from_be_bytes(metadata.labels));
    if let Some(original) = &metadata.original {
        put_original(&mut key, original);
    }
    CtWords::of(&key)
}

/// The words of a usual packet. If the verdict lacks labels and original direction, the words are right only under a
/// mask that ignores these.
pub(crate) fn words_of_usual(verdict: &UsualVerdict, zone: u16) -> CtWords {
    let [labels_high, labels_low] = verdict.labels.map(u64::swap_bytes);
    let [ports, addresses] = words_of_ends(verdict.original);
    let first = first_word_of_usual(verdict, common_of_usual(zone));
    CtWords([first, labels_high, labels_low, ports, addresses, 0, 0, 0])
}

/// The words of a usual IPv4 packet that begins a connection.
pub(crate) fn words_of_beginning(first: u64, original: UsualEnds) -> CtWords {
    let [ports, addresses] = words_of_ends(original);
    CtWords([first, 0, 0, ports, addresses, 0, 0, 0])
}

fn words_of_ends(original: UsualEnds) -> [u64; 2] {
    [u64::from(original.ports) << 32, original.addresses.swap_bytes()]
}

/// The first word of a usual packet that begins a connection.
pub(crate) fn first_word_of_beginning(proto: u8, zone: u16) -> u64 {
    u64::from(BEGINNING_STATE) << 56 | u64::from(proto) << 48 | u64::from(zone) << 32
}

/// The bits of the first word that are the same for all usual packets of a zone.
pub(crate) fn common_of_usual(zone: u16) -> u64 {
    u64::from(USUAL_STATE) << 56 | u64::from(zone) << 32
}

/// The first word: state, protocol, zone, mark. `common`: [`common_of_usual`].
#[inline(always)]
pub(crate) fn first_word_of_usual(verdict: &UsualVerdict, common: u64) -> u64 {
    common
        | u64::from(verdict.state & !USUAL_STATE) << 56
        | u64::from(verdict.proto) << 48
        | u64::from(verdict.mark)
}

/// ICMP type and code take the place of ports, as in `struct ovs_key_ct_tuple_ipv4`.
fn put_original(key: &mut Key, original: &CtTuple) {
    let (src_port, dst_port) = match original.proto {
        PROTO_ICMP | PROTO_ICMPV6 => (original.dst_port >> 8, original.dst_port & 0xff),
        _ => (original.src_port, original.dst_port),
    };
    key.put(ct_field::PROTO, original.proto.into());
    key.put(ct_field::TP_SRC, src_port.into());
    key.put(ct_field::TP_DST, dst_port.into());
    let [src, dst] = [original.src, original.dst].map(|address| u128::from_be_bytes(address.0));
    match original.l3() {
        Network::Ipv4 => {
            key.put(ct_field::IPV4_SRC, (src >> 96) as u64);
            key.put(ct_field::IPV4_DST, (dst >> 96) as u64);
        }
        Network::Ipv6 => {
            key.put_wide(ct_field::IPV6_SRC, src);
            key.put_wide(ct_field::IPV6_DST, dst);
        }
    }
}

/// The state in the words of a packet of this IP version. The words have no identifier of an ICMP packet.
pub(crate) fn metadata_of(words: &CtWords, l3: Network) -> CtMetadata {
    if *words == CtWords::default() {
        return CtMetadata::default();
    }
    let key = words.to_key();
    CtMetadata {
        state: key.get(ct_field::STATE) as u32,
        zone: key.get(ct_field::ZONE) as u16,
        mark: key.get(ct_field::MARK) as u32,
        labels: key.get_wide(ct_field::LABELS).to_be_bytes(),
        original: original_of(&key, l3),
    }
}

fn original_of(key: &Key, l3: Network) -> Option<CtTuple> {
    let proto = key.get(ct_field::PROTO) as u8;
    let (first, second) = (key.get(ct_field::TP_SRC) as u16, key.get(ct_field::TP_DST) as u16);
    let (src_port, dst_port) = match proto {
        0 => return None,
        PROTO_ICMP | PROTO_ICMPV6 => (0, first << 8 | second & 0xff),
        _ => (first, second),
    };
    let is_ipv6 = l3 == Network::Ipv6;
    let [src, dst] = match l3 {
        Network::Ipv4 => {
            [ct_field::IPV4_SRC, ct_field::IPV4_DST].map(|field| u128::from(key.get(field)) << 96)
        }
        Network::Ipv6 => [ct_field::IPV6_SRC, ct_field::IPV6_DST].map(|field| key.get_wide(field)),
    }
    .map(|address| IpBytes(address.to_be_bytes()));
    Some(CtTuple { src, dst, src_port, dst_port, zone: key.get(ct_field::ZONE) as u16, proto, is_ipv6 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_state_survives_its_words(
            state in 0_u32..256,
            (zone, mark, labels) in any::<(u16, u32, [u8; 16])>(),
            proto in prop::sample::select(vec![1_u8, 6, 17, 58, 132, 47]),
            (src, dst) in any::<([u8; 16], [u8; 16])>(),
            (src_port, dst_port) in any::<(u16, u16)>(),
            is_ipv6 in any::<bool>(),
        ) {
            let bytes = |mut bytes: [u8; 16]| {
                if !is_ipv6 {
                    bytes[4..].fill(0);
                }
                IpBytes(bytes)
            };
            // The key has no ICMP identifier.
            let src_port = if matches!(proto, 1 | 58) { 0 } else { src_port };
            let tuple = CtTuple { src: bytes(src), dst: bytes(dst), src_port, dst_port, zone, proto, is_ipv6 };
            let metadata = CtMetadata { state, zone, mark, labels, original: Some(tuple) };
            let l3 = if is_ipv6 { Network::Ipv6 } else { Network::Ipv4 };
            prop_assert_eq!(metadata_of(&words_of(&metadata), l3), metadata);
        }
    }

    #[test]
    fn an_untracked_packet_has_zeros_only() {
        assert_eq!(words_of(&CtMetadata::default()), CtWords::default());
        assert_eq!(metadata_of(&CtWords::default(), Network::Ipv4), CtMetadata::default());
    }
}
