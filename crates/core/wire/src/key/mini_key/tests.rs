use proptest::prelude::*;

use super::*;
use crate::Metadata;
use crate::key::{KEY_WORDS, extract, extract_usual4};

const METADATA: Metadata = Metadata {
    recirc_id: 1,
    dp_hash: 2,
    priority: 3,
    mark: 4,
    in_port: 5,
    link: super::super::LinkLayer::Ethernet,
    ct: super::super::CtWords([0; super::super::CT_WORDS]),
};

fn key_of(head: &[u8]) -> Key {
    let mut key = Key::default();
    extract(head, head.len(), &METADATA, &mut key);
    key
}

/// The results for a packet: its key, the key made from the masked mini key, and TCP flags.
type KeyParts = (Key, Key, u16);

fn told4(head: &[u8], mask: &Key) -> Option<KeyParts> {
    let mini_key = MiniKey::<MINI_KEY4_WORDS>::of(head)?;
    Some((
        key4(mini_key),
        key4(mini_key.masked(&MiniKey::<MINI_KEY4_WORDS>::mask_of(mask))),
        mini_key.tcp_flags(),
    ))
}

fn told6(head: &[u8], mask: &Key) -> Option<KeyParts> {
    let mini_key = MiniKey::<MINI_KEY6_WORDS>::of(head)?;
    Some((
        key6(mini_key),
        key6(mini_key.masked(&MiniKey::<MINI_KEY6_WORDS>::mask_of(mask))),
        mini_key.tcp_flags(),
    ))
}

fn link_key([first, second]: [u64; 2]) -> Key {
    let mut key = key_of(&[]);
    key.put(field::ETH_DST, first >> 16);
    key.put(field::ETH_SRC, (first & 0xffff) << 32 | second >> 32);
    let tci = second >> 16 & 0xffff;
    key.put(field::VLAN_TPID, if tci == 0 { 0 } else { 0x8100 });
    key.put(field::VLAN_TCI, tci);
    key
}

fn key4(mini_key: MiniKey<MINI_KEY4_WORDS>) -> Key {
    let [first, second, third, fourth] = mini_key.0.map(u64::swap_bytes);
    let mut key = link_key([first, second]);
    key.put(field::ETH_TYPE, 0x0800);
    key.put(field::IP_TOS, second & 0xff);
    key.put(field::IP_TTL, third >> 56);
    key.put(field::IP_PROTO, third >> 48 & 0xff);
    key.put(field::IPV4_SRC, third >> 16 & 0xffff_ffff);
    key.put(field::IPV4_DST, (third & 0xffff) << 16 | fourth >> 48);
    put_transport(&mut key, fourth >> 16, fourth & 0xffff);
    key
}

fn key6(mini_key: MiniKey<MINI_KEY6_WORDS>) -> Key {
    let [first, second, addresses @ .., seventh, eighth] = mini_key.0.map(u64::swap_bytes);
    let mut key = link_key([first, second]);
    key.put(field::ETH_TYPE, 0x86dd);
    key.put(field::IP_PROTO, second >> 8 & 0xff);
    key.put(field::IP_TTL, second & 0xff);
    key.0[8..12].copy_from_slice(&addresses);
    key.put(field::IP_TOS, seventh >> 52);
    key.put(field::IPV6_LABEL, seventh >> 32);
    put_transport(&mut key, seventh, eighth >> 48);
    key
}

fn put_transport(key: &mut Key, ports: u64, flags: u64) {
    key.put(field::TP_SRC, ports >> 16 & 0xffff);
    key.put(field::TP_DST, ports & 0xffff);
    key.put(field::TCP_FLAGS, flags);
}

/// Bytes that make a packet a usual one, and the offset of its transport header.
const USUAL4: (&[(usize, u8)], usize) = (&[(12, 8), (13, 0), (14, 0x45), (20, 0x40), (21, 0)], 34);
const USUAL6: (&[(usize, u8)], usize) = (&[(12, 0x86), (13, 0xdd), (14, 0x6f)], 54);

/// A packet with a mini key, except for random changes of the bytes that decide on it.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let (bytes, tag) = (prop::collection::vec(any::<u8>(), 128), prop::option::of(any::<[u8; 2]>()));
    let change = prop::option::weighted(0.3, (12..70_usize, any::<u8>()));
    let len = prop_oneof![3 => Just(128), 1 => 0..128_usize];
    let form = (any::<bool>(), any::<bool>());
    (bytes, tag, form, change, len).prop_map(|(mut bytes, tag, (is_four, is_tcp), change, len)| {
        let (usual, transport) = if is_four { USUAL4 } else { USUAL6 };
        usual.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes[if is_four { 23 } else { 20 }] = if is_tcp { 6 } else { 17 };
        bytes[transport + 12] = 0x50 | bytes[transport + 12] & 0xf;
        if let Some((at, byte)) = change {
            bytes[at] = byte;
        }
        if let Some([high, low]) = tag {
            bytes.splice(12..12, [0x81, 0, high, low]);
        }
        bytes.truncate(len);
        bytes
    })
}

fn check(packet: &[u8], mask: &Key, told: Option<KeyParts>) -> Result<(), TestCaseError> {
    let Some((whole, masked, flags)) = told else { return Ok(()) };
    let key = key_of(packet);
    prop_assert_eq!(whole, key);
    prop_assert_eq!(u64::from(flags), key.get(field::TCP_FLAGS));
    // The masked mini key keeps exactly the bits of the key that the mask has.
    prop_assert_eq!(masked.masked(mask), key.masked(mask));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8000, ..ProptestConfig::default() })]

    #[test]
    fn a_brief_is_its_packets_key(packet in any_packet(), words in any::<[u64; 12]>()) {
        let mut mask = Key::default();
        mask.0[..12].copy_from_slice(&words);
        check(&packet, &mask, told4(&packet, &mask))?;
        check(&packet, &mask, told6(&packet, &mask))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8000, ..ProptestConfig::default() })]

    #[test]
    fn usual_packets_have_their_keys_at_once(packet in any_packet()) {
        let is_tagged = packet.get(12..14) == Some(&[0x81, 0]);
        let (mut quick, mut whole) = (Key([u64::MAX; KEY_WORDS]), Key([u64::MAX; KEY_WORDS]));
        let is_usual = extract_usual4(&packet, 5, &mut quick);
        prop_assert_eq!(is_usual, has_brief4(&packet) && !is_tagged);
        if is_usual {
            extract(&packet, packet.len(), &Metadata { in_port: 5, ..Metadata::default() }, &mut whole);
            prop_assert_eq!(quick, whole);
        }
    }
}

fn has_brief4(head: &[u8]) -> bool {
    MiniKey::<MINI_KEY4_WORDS>::of(head).is_some()
}

fn has_brief6(head: &[u8]) -> bool {
    MiniKey::<MINI_KEY6_WORDS>::of(head).is_some()
}

fn changed(packet: &[u8], (at, byte): (usize, u8)) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    bytes[at] = byte;
    bytes
}

/// Checks the shortest usual TCP packet, one of UDP, and packets with one and two tags. `proto_at` is the offset of the
/// protocol.
fn check_lengths(
    has_brief: fn(&[u8]) -> bool,
    packet: &[u8],
    (proto_at, tcp_len, udp_len): (usize, usize, usize),
) {
    let udp = changed(packet, (proto_at, 17));
    assert!(has_brief(&udp[..udp_len]) && !has_brief(&udp[..udp_len - 1]));
    let mut packet = packet.to_vec();
    assert!(has_brief(&packet[..tcp_len]) && !has_brief(&packet[..tcp_len - 1]));
    packet.splice(12..12, [0x81, 0, 0, 7]);
    assert!(has_brief(&packet[..tcp_len + 4]) && !has_brief(&packet[..tcp_len + 3]));
    packet.splice(12..12, [0x81, 0, 0, 7]);
    assert!(!has_brief(&packet), "two tags");
}

#[test]
fn usual_packets_have_briefs_and_others_do_not() {
    let mut tcp = vec![0; 128];
    (tcp[12], tcp[14], tcp[23], tcp[46]) = (8, 0x45, 6, 0x50);
    let is_usual = |change| has_brief4(&changed(&tcp, change));
    assert!(
        [(20, 0x40), (23, 17), (46, 0xf0)].into_iter().all(is_usual),
        "not to be fragmented, UDP, options"
    );
    let others = [(12, 9), (13, 6), (14, 0x46), (20, 0x20), (20, 1), (21, 1), (23, 1), (46, 0x40)];
    assert!(!others.into_iter().any(is_usual));
    check_lengths(has_brief4, &tcp, (23, 54, 42));
}

#[test]
fn so_have_usual_packets_of_ipv6() {
    let mut tcp = vec![0; 128];
    (tcp[12], tcp[13], tcp[14], tcp[20], tcp[66]) = (0x86, 0xdd, 0x60, 6, 0x50);
    let is_usual = |change| has_brief6(&changed(&tcp, change));
    assert!([(14, 0x6f), (20, 17), (66, 0xf0)].into_iter().all(is_usual), "any class, UDP, options");
    let others = [(12, 8), (14, 0x50), (20, 0), (20, 44), (20, 58), (66, 0x40)];
    assert!(!others.into_iter().any(is_usual));
    check_lengths(has_brief6, &tcp, (20, 74, 62));
}
