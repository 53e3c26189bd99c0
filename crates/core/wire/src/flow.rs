//! A hash of a flow that selects one of several receive queues, so that the packets of a flow stay in order.

use crate::headers::{Layers, MACS_BYTES, ethertype};
use crate::mix::{GOLDEN_RATIO, folded_product};

/// 2^64 divided by the root of two: the start value for a key of zero.
const START: u64 = 0xb504_f333_f9de_6485;

/// Hashes the flow of the frame that starts with `head`.
///
/// The hash covers addresses, protocol and ports of an IP packet, without ports if the protocol has none or `head` ends
/// before them. Of a fragment it covers only the addresses, since later fragments have no ports. Of other frames,
/// malformed IP included, it covers MAC addresses and EtherType. VLAN tags do not count. `head` has to be cut at the
/// same length for every packet.
///
/// Different `key`s give unrelated hashes, so a sender without the key cannot select a queue; this is not a
/// cryptographic guarantee. The two directions of a connection have the same hash. All bits are equally good.
#[inline]
#[must_use]
pub fn flow_hash(head: &[u8], key: u64) -> u32 {
    let hash = match Layers::parse(head) {
        Ok(layers) => hash_packet(head, &layers, mix(key ^ START)),
        Err(_) => hash_frame(head, mix(key ^ START)),
    };
    (hash ^ (hash >> 32)) as u32
}

#[inline]
fn hash_packet(head: &[u8], layers: &Layers, start: u64) -> u64 {
    let addresses = layers.addresses(head);
    let hash = match addresses.first_chunk() {
        Some(pair) if addresses.len() == pair.len() => {
            let pair = u64::from_le_bytes(*pair);
            mix(start ^ pair.min(pair.rotate_left(32)))
        }
        _ => {
            let (source, destination) = addresses.split_at(addresses.len() / 2);
            let pairs = source.as_chunks().0.iter().zip(destination.as_chunks().0);
            pairs.fold(start, |hash, (one, other)| {
                mix_pair(hash, u64::from_le_bytes(*one), u64::from_le_bytes(*other))
            })
        }
    };
    if layers.is_fragment {
        return mix(hash);
    }
    let ports = u32::from_le_bytes(layers.ports(head).unwrap_or_default());
    mix(hash ^ (u64::from(ports.min(ports.rotate_left(16))) << 8 | u64::from(layers.l4_proto)))
}

#[inline]
fn hash_frame(head: &[u8], start: u64) -> u64 {
    let Some((ethertype, _)) = ethertype(head) else { return mix(start) };
    let mac =
        |at: usize| head[at..at + MACS_BYTES / 2].iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte));
    mix(mix_pair(start, mac(0), mac(MACS_BYTES / 2)) ^ u64::from(ethertype))
}

/// Mixes in two words, in either order.
#[inline]
fn mix_pair(hash: u64, one: u64, other: u64) -> u64 {
    mix(mix(hash ^ one.min(other)) ^ one.max(other))
}

/// Makes every bit of `word` affect every bit.
#[inline]
fn mix(word: u64) -> u64 {
    // The addition keeps a word of zero from staying zero.
    folded_product(word.wrapping_add(START), GOLDEN_RATIO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn udp_v4(host: u8, source_port: u16) -> Vec<u8> {
        let mut head = vec![2; 12];
        head.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 0, 0, 2]);
        head.extend(source_port.to_be_bytes());
        head.extend([0, 53, 0, 8, 0, 0]);
        head
    }

    #[test]
    fn a_flow_is_its_five_tuple() {
        let hash = flow_hash(&udp_v4(1, 1000), 7);
        let changed = |at: usize| {
            let mut head = udp_v4(1, 1000);
            head[at] ^= 1;
            flow_hash(&head, 7)
        };
        for at in [23, 26, 29, 30, 33, 34, 35, 36, 37] {
            assert_ne!(hash, changed(at), "byte {at} is part of the flow");
        }
        for at in [0, 11, 17, 18, 22, 24, 38, 41] {
            assert_eq!(hash, changed(at), "byte {at} is not part of the flow");
        }
        assert_ne!(hash, flow_hash(&udp_v4(1, 1000), 8));
    }

    #[test]
    fn both_directions_are_one_flow() {
        let (mut there, mut back) = (udp_v4(1, 1000), udp_v4(1, 1000));
        back[26..30].copy_from_slice(&[10, 0, 0, 2]);
        back[30..34].copy_from_slice(&[10, 0, 0, 1]);
        back[34..38].copy_from_slice(&[0, 53, 3, 232]);
        back[..6].fill(4);
        assert_eq!(flow_hash(&there, 7), flow_hash(&back, 7));
        // Not IP: by MAC addresses.
        there[12..14].fill(9);
        (there[0], there[6]) = (6, 8);
        back = there.clone();
        (back[0], back[6]) = (8, 6);
        assert_eq!(flow_hash(&there, 7), flow_hash(&back, 7));
        back[5] = 3;
        assert_ne!(flow_hash(&there, 7), flow_hash(&back, 7));
    }

    #[test]
    fn both_directions_of_ipv6_are_one_flow() {
        let packet = |source: u8, destination: u8, ports: [u8; 4]| {
            let mut head = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]].concat();
            head.extend([[source; 16], [destination; 16]].concat());
            head.extend(ports);
            head.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
            flow_hash(&head, 7)
        };
        assert_eq!(packet(1, 2, [1, 2, 3, 4]), packet(2, 1, [3, 4, 1, 2]));
        assert_ne!(packet(1, 2, [1, 2, 3, 4]), packet(1, 3, [1, 2, 3, 4]));
        assert_ne!(packet(1, 2, [1, 2, 3, 4]), packet(1, 2, [1, 2, 3, 5]));
    }

    #[test]
    fn a_tag_does_not_change_the_flow() {
        let mut head = udp_v4(1, 1000);
        let hash = flow_hash(&head, 7);
        head.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(flow_hash(&head, 7), hash);
    }

    #[test]
    fn fragments_of_a_packet_stay_together() {
        let fragment = |bits: u16, port| {
            let mut head = udp_v4(1, port);
            head[20..22].copy_from_slice(&bits.to_be_bytes());
            flow_hash(&head, 7)
        };
        assert_eq!(fragment(0x2000, 1000), fragment(0x0100, 2000));
        assert_ne!(fragment(0x2000, 1000), fragment(0, 1000));
    }

    #[test]
    fn other_frames_are_told_by_macs_and_ethertype() {
        let arp = |mac: u8, ethertype: u8, rest: u8| {
            flow_hash(&[&[2, 0, 0, 0, 0, mac, 2, 0, 0, 0, 0, 9, 8, ethertype][..], &[rest; 20]].concat(), 7)
        };
        assert_eq!(arp(1, 6, 0), arp(1, 6, 1));
        assert_ne!(arp(1, 6, 0), arp(2, 6, 0));
        assert_ne!(arp(1, 6, 0), arp(1, 7, 0));
        assert_eq!(flow_hash(&[], 7), flow_hash(&[1; 13], 7));
    }

    /// 4096 flows over 2 to 9 queues: each queue gets 4/5 to 6/5 of its share.
    #[test]
    fn spreads_flows_evenly() {
        for queues in 2..10_usize {
            let mut counts = vec![0; queues];
            for flow in 0..4096_u16 {
                counts[flow_hash(&udp_v4((flow % 16) as u8, 32768 + flow / 16), 0) as usize % queues] += 1;
            }
            let share = 4096 / queues;
            assert!(counts.iter().all(|count| (share * 4 / 5..share * 6 / 5).contains(count)), "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(head in prop::collection::vec(any::<u8>(), 0..200), key: u64) {
            prop_assert_eq!(flow_hash(&head, key), flow_hash(&head, key));
        }
    }
}
