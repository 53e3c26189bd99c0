//! Passes the same packets through two tables: one takes the fast path where it applies, the other never. All words
//! must agree.

use std::sync::atomic::Ordering;

use lasthop_flow::{Nat, NatRange, NatSource};
use lasthop_wire::vnet::F_NEEDS_CSUM;
use lasthop_wire::{Offload, Sum};
use proptest::prelude::*;

use super::*;
use crate::bounds::CtBounds;
use crate::place::PLACE_WORDS;
use crate::request::{CtCommit, CtMetadata, CtRequest, CtVerdict};
use crate::tcp::state::ACK;
use crate::{CtPolicy, PacketImage};

const ZONE: u16 = 7;
const BEGAN_MS: u64 = 1_000_000;
const PORT: u16 = 1;
const SYN: u8 = 2;
const FIN: u8 = 1;
const RST: u8 = 4;
const PSH: u8 = 8;
/// Words that differ between tables: version, hashes, chains.
const OWN_WORDS: [usize; 3] = [0, 17, 18];
/// Connections: two of TCP, two of UDP.
const CONNECTIONS: u8 = 4;

/// A packet of one of the connections, as differences from the expected one.
#[derive(Clone, Debug)]
struct Step {
    connection: u8,
    is_reply: bool,
    flags: u8,
    seq: i32,
    ack: i32,
    window: u16,
    payload_bytes: usize,
    options: u8,
    /// The checksum is right, wrong, or left to be completed.
    sum: u8,
    waits_ms: u64,
    has_policy: bool,
    /// None, one, one of 802.1ad, two.
    tags: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = prop_oneof![12 => Just(ACK), 4 => Just(ACK | PSH), 1 => Just(ACK | FIN), 1 => Just(RST), 1 => Just(SYN), 1 => Just(SYN | ACK), 1 => Just(0)];
    steps_with(flags)
}

/// Steps whose segments have these flags.
fn steps_with(flags: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let near = || prop_oneof![6 => Just(0), 3 => -3..4_i32, 1 => -70_000..70_000_i32, 1 => any::<i32>()];
    let window = prop_oneof![6 => Just(8192), 2 => any::<u16>(), 1 => Just(0)];
    let who = (0..CONNECTIONS, any::<bool>(), flags);
    let waits_ms = prop_oneof![8 => 0..2000_u64, 1 => 0..500_000_u64];
    let tags = prop_oneof![6 => Just(0), 6 => Just(1), 1 => 2..4_u8];
    let payload_bytes = prop_oneof![0..3_usize, 10..14_usize];
    let rest = (payload_bytes, 0..4_u8, 0..8_u8, waits_ms, any::<u8>(), tags);
    let step = (who, near(), near(), window, rest).prop_map(
        |((connection, is_reply, flags), seq, ack, window, rest)| {
            let (payload_bytes, options, sum, waits_ms, policy, tags) = rest;
            let has_policy = policy == 0;
            Step {
                connection,
                is_reply,
                flags,
                seq,
                ack,
                window,
                payload_bytes,
                options,
                sum,
                waits_ms,
                has_policy,
                tags,
            }
        },
    );
    prop::collection::vec(step, 1..80)
}

const LAYERS: [Layer; 3] = [Layer::Ipv4, Layer::Translated, Layer::Ipv6];
/// A datagram over IPv6 with less is not usual.
const LEAST_PAYLOAD_BYTES: usize = 12;

/// The highest numbers that both ends of the connections of TCP have sent.
#[derive(Clone, Copy, Default)]
struct Numbers([[u32; 2]; CONNECTIONS as usize]);

/// The kind of all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Ipv4,
    /// With source NAT.
    Translated,
    Ipv6,
}

fn frame(step: &Step, layer: Layer, numbers: &mut Numbers) -> Vec<u8> {
    let of_ipv6 = |last: u8| [0x20, 1, 0xd, 0xb8, 7, 7, 7, 7, 9, 9, 9, 9, 0, 0, 0, last].to_vec();
    let (client, server) = match layer {
        Layer::Ipv6 => (of_ipv6(100 + step.connection), of_ipv6(1)),
        Layer::Translated if step.is_reply => (vec![192, 0, 2, 99], vec![192, 0, 2, 1]),
        _ => (vec![10, 0, 0, step.connection], vec![192, 0, 2, 1]),
    };
    let (ports, service) = (1000 + u16::from(step.connection), 80);
    let (src, dst) = if step.is_reply { (server, client) } else { (client, server) };
    let (sport, dport) = if step.is_reply { (service, ports) } else { (ports, service) };
    let is_tcp = step.connection < CONNECTIONS / 2;
    let options: &[u8] = match step.options {
        1 => &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        2 => &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        3 => &[1, 1, 1, 1],
        _ => &[],
    };
    let mut l4 = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    if is_tcp {
        let [own, other] = [usize::from(step.is_reply), usize::from(!step.is_reply)];
        let last = &mut numbers.0[usize::from(step.connection)];
        let seq = last[own].wrapping_add_signed(step.seq);
        l4.extend(seq.to_be_bytes());
        l4.extend(last[other].wrapping_add_signed(step.ack).to_be_bytes());
        l4.extend([(5 + options.len() as u8 / 4) << 4, step.flags]);
        l4.extend(step.window.to_be_bytes());
        l4.extend([0; 4]);
        l4.extend(options);
        if step.seq == 0 {
            last[own] =
                last[own].wrapping_add(step.payload_bytes as u32 + u32::from(step.flags & (SYN | FIN) != 0));
        }
    } else {
        l4.extend(((8 + step.payload_bytes) as u16).to_be_bytes());
        l4.extend([0; 2]);
    }
    l4.extend(vec![0x5a; step.payload_bytes]);
    let proto = if is_tcp { PROTO_TCP } else { PROTO_UDP };
    let addresses = [src.as_slice(), dst.as_slice()].concat();
    let packet = match layer {
        Layer::Ipv6 => [&[0x60, 0, 0, 0, 0, l4.len() as u8, proto, 64][..], &addresses].concat(),
        _ => ipv4_header((20 + l4.len()) as u16, proto, &addresses),
    };
    let pseudo = [0, proto, 0, l4.len() as u8];
    let at = if is_tcp { 16 } else { 6 };
    let sum = match step.sum {
        0 => 0x1234,
        1 => sum_of(&[&addresses, &pseudo]).partial(),
        2 if !is_tcp => 0,
        _ => sum_of(&[&addresses, &pseudo, &l4]).finish_udp(),
    };
    l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let (tags, ethertype) = (tags(step), if layer == Layer::Ipv6 { [0x86, 0xdd] } else { [8, 0] });
    let mut frame =
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &tags, &ethertype, packet.as_slice(), &l4].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4_header(len_bytes: u16, proto: u8, addresses: &[u8]) -> Vec<u8> {
    let [high, low] = len_bytes.to_be_bytes();
    let mut header = vec![0x45, 0, high, low, 0, 1, 0x40, 0, 64, proto, 0, 0];
    header.extend(addresses);
    let sum = sum_of(&[&header]);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    header
}

fn tags(step: &Step) -> Vec<u8> {
    let of_8021q = [0x81, 0, 0x20, step.connection];
    match step.tags {
        0 => Vec::new(),
        1 => of_8021q.to_vec(),
        2 => [0x88, 0xa8, 0, 5].to_vec(),
        _ => [of_8021q, of_8021q].concat(),
    }
}

fn sum_of(pieces: &[&[u8]]) -> Sum {
    let mut sum = Sum::default();
    pieces.iter().for_each(|piece| sum.add(piece));
    sum
}

fn offload(step: &Step, layer: Layer) -> Offload {
    let csum_offset = if step.connection < CONNECTIONS / 2 { 16 } else { 6 };
    match step.sum {
        1 => {
            let ip_bytes = if layer == Layer::Ipv6 { 40 } else { 20 };
            let csum_start = 14 + ip_bytes + tags(step).len() as u16;
            Offload { flags: F_NEEDS_CSUM, csum_start, csum_offset, ..Offload::default() }
        }
        _ => Offload::default(),
    }
}

/// A verdict as a datapath sees it: all fields, and the frame as it leaves.
type Seen = (CtMetadata, Vec<u8>);

fn long_way(
    shared: &crate::ConntrackTable,
    frame: &[u8],
    offload: Offload,
    request: &CtRequest,
    now_ms: u64,
) -> Seen {
    let before = CtMetadata::default();
    let CtVerdict { metadata, rewrites, refused, .. } =
        again(shared, (frame, &before), offload, request, now_ms);
    assert_eq!(refused, None);
    (metadata, rewrites.applied(frame))
}

/// The long way of a packet that an earlier action has given this state.
fn again(
    shared: &crate::ConntrackTable,
    (frame, before): (&[u8], &CtMetadata),
    offload: Offload,
    request: &CtRequest,
    now_ms: u64,
) -> CtVerdict {
    let image = PacketImage::parse(frame, frame.len() as u32, offload, PORT).expect("IP");
    let verdict = shared.track(&image, before, request, now_ms);
    // Identities differ between tables.
    CtVerdict { connection: None, ..verdict }
}

/// The short way of a packet that begins a connection: its state, and the frame as it leaves if `commit` can be done the short way. Labels and
/// original tuple of a young connection are those of `wanted`.
fn short_beginning<const WINDOW: usize>(
    table: &crate::ConntrackTable,
    frame: &[u8],
    offload: Offload,
    (commit, wanted): (&CtRequest, &CtMetadata),
    now_ms: u64,
) -> Option<(CtMetadata, Option<Vec<u8>>)> {
    let usual = UsualPacket::<WINDOW>::of(frame, &offload)?;
    let (zone, len_bytes) = (table.usual_zone(ZONE, false, now_ms), frame.len() as u32);
    let tuples = match zone.track_unusual::<false, _>(&usual, len_bytes)? {
        UnusualVerdict::Begins(tuples) => tuples,
        UnusualVerdict::Young(verdict) => {
            return Some((CtMetadata { state: verdict.state, mark: verdict.mark, ..*wanted }, None));
        }
    };
    let original = Some(crate::CtTuple::from_words(usual.tuple_words(zone.last_word_of(&usual))));
    let metadata = CtMetadata { state: BEGINNING_STATE, zone: ZONE, original, ..CtMetadata::default() };
    let translation = zone.commit((&usual, &tuples), (len_bytes, PORT), commit);
    // Some are listed behind their delivery, others by the next writer.
    if now_ms.is_multiple_of(2) {
        table.finish_begun(ZONE);
    }
    let leaves = translation.map(|translation| {
        let (mut leaves, usual) = (frame.to_vec(), UsualPacket4::of(frame, &offload));
        if let (Some(to), Some(usual)) = (translation, usual) {
            usual.translate(&mut leaves, &to);
        }
        leaves
    });
    Some((metadata, leaves))
}

/// The verdict for a packet of a young connection.
fn young<const WHOLE: bool, const WINDOW: usize>(
    zone: &UsualZone<'_>,
    usual: &UsualPacket<'_, WINDOW>,
    frame: &[u8],
) -> Option<UsualVerdict> {
    match zone.track_unusual::<WHOLE, _>(usual, frame.len() as u32)? {
        UnusualVerdict::Young(verdict) => Some(verdict),
        UnusualVerdict::Begins(_) => None,
    }
}

fn short_way(
    table: &crate::ConntrackTable,
    frame: &[u8],
    offload: Offload,
    request: &CtRequest,
    now_ms: u64,
) -> Option<Seen> {
    let usual = UsualPacket4::of(frame, &offload)?;
    let zone = table.usual_zone(ZONE, request.nat.is_some(), now_ms);
    let verdict = zone
        .track::<true, _>(&usual, || frame.len() as u32)
        .or_else(|| young::<true, _>(&zone, &usual, frame))?;
    let mut leaves = frame.to_vec();
    if let Some(to) = verdict.translation {
        usual.translate(&mut leaves, &to);
    }
    let address = |half: u64| crate::IpBytes(u128::from(half & 0xffff_ffff).to_le_bytes());
    let UsualEnds { addresses, ports } = verdict.original;
    let original = crate::CtTuple {
        src: address(addresses),
        dst: address(addresses >> 32),
        src_port: (ports >> 16) as u16,
        dst_port: ports as u16,
        zone: ZONE,
        proto: verdict.proto,
        is_ipv6: false,
    };
    let labels = verdict.labels.map(u64::to_le_bytes).concat().try_into().expect("16 bytes");
    let (state, mark) = (verdict.state, verdict.mark);
    Some((CtMetadata { state, zone: ZONE, mark, labels, original: Some(original) }, leaves))
}

/// The same for IPv6, without labels and original direction.
fn short_way6(table: &crate::ConntrackTable, frame: &[u8], offload: Offload, now_ms: u64) -> Option<Seen> {
    let usual = UsualPacket6::of(frame, &offload)?;
    let zone = table.usual_zone(ZONE, false, now_ms);
    let usual_verdict = zone.track::<false, _>(&usual, || frame.len() as u32);
    let verdict = usual_verdict.or_else(|| young::<false, _>(&zone, &usual, frame))?;
    assert_eq!((verdict.original, verdict.labels, verdict.translation), (UsualEnds::default(), [0; 2], None));
    let (state, mark) = (verdict.state, verdict.mark);
    Some((CtMetadata { state, zone: ZONE, mark, ..CtMetadata::default() }, frame.to_vec()))
}

/// All words of connections, except those that differ between tables.
fn words(table: &crate::ConntrackTable) -> Vec<[u64; PLACE_WORDS]> {
    let places = &table.shared.places;
    let live =
        (0..places.used()).filter_map(|index| places.get(index)).filter(|place| place.version().is_live());
    let words = live.map(|place| {
        let mut words = place.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        OWN_WORDS.iter().for_each(|at| words[*at] = 0);
        words
    });
    words.collect()
}

struct Pair {
    tables: [crate::ConntrackTable; 2],
    layer: Layer,
    numbers: Numbers,
    now_ms: u64,
    /// Packets that took the fast path.
    short: u32,
}

impl Pair {
    fn empty(layer: Layer) -> Self {
        let tables = [(); 2].map(|()| crate::ConntrackTable::new(CtBounds::default(), BEGAN_MS));
        Self { tables, layer, numbers: Numbers::default(), now_ms: BEGAN_MS, short: 0 }
    }

    /// Connections of both directions, assured.
    fn new(layer: Layer) -> Self {
        Self::begun(layer, 1500)
    }

    /// Connections of both directions, with this time between their packets.
    fn begun(layer: Layer, waits_ms: u64) -> Self {
        let mut pair = Self::empty(layer);
        for connection in 0..CONNECTIONS {
            for (is_reply, flags) in [(false, SYN), (true, SYN | ACK), (false, ACK), (true, ACK)] {
                pair.now_ms += waits_ms;
                pair.pass(&Step { is_reply, flags, ..pair.plain(connection) }, true);
            }
        }
        assert_eq!(pair.tables[0].len(), u32::from(CONNECTIONS));
        pair
    }

    fn plain(&self, connection: u8) -> Step {
        let (flags, sum) = (ACK, 3);
        Step {
            connection,
            is_reply: false,
            flags,
            seq: 0,
            ack: 0,
            window: 8192,
            payload_bytes: 0,
            options: 0,
            sum,
            waits_ms: 0,
            has_policy: false,
            tags: 0,
        }
    }

    fn request(&self, commits: bool) -> CtRequest {
        let range = NatRange { ip_min: Some([192, 0, 2, 99].into()), ..NatRange::default() };
        let nat = match (self.layer == Layer::Translated, commits) {
            (false, _) => None,
            (true, true) => Some(Nat { source: Some(NatSource::Src), range, ..Nat::default() }),
            (true, false) => Some(Nat::default()),
        };
        let commit = if commits { CtCommit::Yes } else { CtCommit::No };
        let mark = lasthop_flow::Masked { value: 0x55, mask: if commits { 0xff } else { 0 } };
        let labels = if commits { ([9; 16], [0xf; 16]) } else { Default::default() };
        CtRequest { zone: ZONE, commit, nat, mark, labels, ..CtRequest::default() }
    }

    /// Passes a packet through both tables, and returns whether it took the fast path.
    fn pass(&mut self, step: &Step, commits: bool) -> bool {
        self.now_ms += step.waits_ms;
        if step.has_policy {
            let tcp = crate::TcpPolicy { timeouts_s: [60; 12], ..CtPolicy::OVS.tcp };
            self.tables.iter().for_each(|table| table.set_policy(0, CtPolicy { tcp, ..CtPolicy::OVS }));
        }
        let frame = frame(step, self.layer, &mut self.numbers);
        let (offload, request, now_ms) = (offload(step, self.layer), self.request(commits), self.now_ms);
        let [short, long] = &self.tables;
        let mut wanted = long_way(long, &frame, offload, &request, now_ms);
        let seen = match self.layer {
            _ if commits => None,
            Layer::Ipv6 => short_way6(short, &frame, offload, now_ms),
            _ => short_way(short, &frame, offload, &request, now_ms),
        };
        let is_short = seen.is_some();
        if is_short && self.layer == Layer::Ipv6 {
            (wanted.0.labels, wanted.0.original) = Default::default();
        }
        let seen = seen.unwrap_or_else(|| long_way(short, &frame, offload, &request, now_ms));
        assert_eq!(seen, wanted, "{step:?}, the short way: {is_short}");
        assert_eq!(words(short), words(long), "{step:?}, the short way: {is_short}");
        self.short += u32::from(is_short);
        is_short
    }

    /// Passes a packet through `ct(zone)` and `commit` of both tables, and returns whether the commit took the short way.
    fn pass_and_commit(&mut self, step: &Step, commit: &CtRequest) -> bool {
        self.now_ms += step.waits_ms;
        let (frame, now_ms) = (frame(step, self.layer, &mut self.numbers), self.now_ms);
        let offload = offload(step, self.layer);
        let tracks = CtRequest { zone: ZONE, ..CtRequest::default() };
        let [short, long] = &self.tables;
        let (wanted, _) = long_way(long, &frame, offload, &tracks, now_ms);
        let left = again(long, (&frame, &wanted), offload, commit, now_ms);
        let beginning = match self.layer {
            Layer::Ipv6 => {
                short_beginning::<WINDOW6_BYTES>(short, &frame, offload, (commit, &wanted), now_ms)
            }
            _ => short_beginning::<WINDOW4_BYTES>(short, &frame, offload, (commit, &wanted), now_ms),
        };
        let (seen, leaves) =
            beginning.unwrap_or_else(|| (long_way(short, &frame, offload, &tracks, now_ms).0, None));
        assert_eq!(seen, wanted, "{step:?}");
        let is_committed = leaves.is_some();
        match leaves {
            Some(leaves) => {
                assert_eq!((leaves, None), (left.rewrites.applied(&frame), left.refused), "{step:?}")
            }
            None => assert_eq!(again(short, (&frame, &seen), offload, commit, now_ms), left, "{step:?}"),
        }
        assert_eq!(words(short), words(long), "{step:?}, the short way: {is_committed}");
        is_committed
    }
}

/// Commits: those that the short way does, and others. None translates: ports would be chosen at random.
fn commits() -> impl Strategy<Value = CtRequest> {
    let stays = Nat { source: Some(NatSource::Src), ..Nat::default() };
    let nat = prop_oneof![4 => Just(None), 2 => Just(Some(stays)), 1 => Just(Some(Nat::default()))];
    let helper = prop_oneof![8 => Just(None), 1 => Just(Some(crate::CtHelper::Ftp))];
    let commit = prop_oneof![8 => Just(CtCommit::Yes), 1 => Just(CtCommit::Force), 1 => Just(CtCommit::No)];
    (nat, helper, commit, any::<[u32; 2]>(), any::<[[u8; 16]; 2]>(), 0..2_u8).prop_map(
        |(nat, helper, commit, [value, mask], [label, label_mask], policy)| {
            let mark = lasthop_flow::Masked { value, mask };
            CtRequest { zone: ZONE, commit, mark, labels: (label, label_mask), helper, nat, policy }
        },
    )
}

proptest! {
    #[test]
    fn the_short_way_is_the_long_way(
        steps in steps(),
        layer in prop::sample::select(LAYERS.to_vec()),
        waits_ms in prop::sample::select(vec![10, 1500]),
    ) {
        let mut pair = Pair::begun(layer, waits_ms);
        steps.iter().for_each(|step| { pair.pass(step, false); });
    }
}

proptest! {
    #[test]
    fn a_short_commit_is_a_long_one(
        steps in steps_with(prop_oneof![8 => Just(SYN), 2 => Just(ACK), 1 => Just(SYN | ACK), 1 => Just(RST)]),
        commits in prop::collection::vec(commits(), 80),
        layer in prop::sample::select(vec![Layer::Ipv4, Layer::Ipv6]),
    ) {
        let mut pair = Pair::empty(layer);
        for (step, commit) in steps.iter().zip(&commits) {
            pair.pass_and_commit(step, commit);
        }
    }
}

#[test]
fn usual_packets_begin_connections_the_short_way() {
    for layer in [Layer::Ipv4, Layer::Ipv6] {
        for connection in 0..CONNECTIONS {
            let mut pair = Pair::empty(layer);
            let commit = CtRequest { commit: CtCommit::Yes, zone: ZONE, ..CtRequest::default() };
            let payload_bytes = LEAST_PAYLOAD_BYTES;
            let step = Step { flags: SYN, options: 1, tags: 1, payload_bytes, ..pair.plain(connection) };
            assert!(pair.pass_and_commit(&step, &commit), "{connection}");
            assert_eq!(pair.tables[0].len(), 1);
            // Known ones, and segments that begin none, do not.
            assert!(!pair.pass_and_commit(&step, &commit), "{connection}");
            let other = Step { flags: SYN | ACK, ..pair.plain(1) };
            assert!(!pair.pass_and_commit(&other, &commit), "{connection}");
        }
    }
}

#[test]
fn usual_packets_are_translated_where_they_begin_connections() {
    let range = |ip: [u8; 4]| NatRange { ip_min: Some(ip.into()), ..NatRange::default() };
    for source in [NatSource::Src, NatSource::Dst] {
        let nat = Some(Nat { source: Some(source), range: range([192, 0, 2, 99]), ..Nat::default() });
        let commit = CtRequest { commit: CtCommit::Yes, zone: ZONE, nat, ..CtRequest::default() };
        let mut pair = Pair::empty(Layer::Ipv4);
        for (connection, sum, tags) in (0..CONNECTIONS).flat_map(|c| [(c, 1, 0), (c, 3, 1)]) {
            let step = Step { flags: SYN, sum, tags, payload_bytes: 12, ..pair.plain(connection) };
            let is_first = sum == 1;
            assert_eq!(pair.pass_and_commit(&step, &commit), is_first, "{connection}");
        }
        assert_eq!(pair.tables[0].len(), u32::from(CONNECTIONS));
    }
}

#[test]
fn datagrams_of_young_connections_take_the_short_way() {
    for layer in LAYERS {
        for connection in CONNECTIONS / 2..CONNECTIONS {
            let mut pair = Pair::empty(layer);
            let step = Step { payload_bytes: LEAST_PAYLOAD_BYTES, ..pair.plain(connection) };
            let reply = Step { is_reply: true, ..step.clone() };
            pair.pass(&step, true);
            assert!(!pair.pass(&step, false), "no reply yet");
            assert!(pair.pass(&reply, false), "the first reply");
            // From the last one on the connection is assured.
            for waits_ms in [10, 1900, 90, 1, 1] {
                assert!(pair.pass(&Step { waits_ms, ..step.clone() }, false));
                assert!(pair.pass(&reply, false));
            }
            let words = words(&pair.tables[0]);
            assert!(words[0][1] & u64::from(ASSURED) != 0);
            assert_eq!((pair.short, pair.tables[0].shared.shard(ZONE).has_changes()), (11, true));
        }
    }
}

#[test]
fn usual_packets_take_the_short_way() {
    for layer in LAYERS {
        let mut pair = Pair::new(layer);
        for round in 0..20 {
            for connection in 0..CONNECTIONS {
                let options = u8::from(round % 2 == 0);
                let tags = u8::from(round % 4 < 2);
                let payload_bytes = LEAST_PAYLOAD_BYTES + round % 3;
                let step = Step { payload_bytes, options, tags, ..pair.plain(connection) };
                pair.now_ms += 1000;
                assert!(pair.pass(&Step { sum: 1, ..step.clone() }, false), "{connection} {round}");
                // Of datagrams one without a checksum is usual, too.
                let sum = if connection < CONNECTIONS / 2 { 3 } else { 2 };
                assert!(pair.pass(&Step { is_reply: true, sum, ..step }, false), "{connection} {round}");
            }
        }
        // A FIN is not a usual packet.
        assert!(!pair.pass(&Step { flags: ACK | FIN, ..pair.plain(0) }, false));
        assert!(!pair.pass(&Step { is_reply: true, payload_bytes: 1, ..pair.plain(0) }, false));
    }
}
