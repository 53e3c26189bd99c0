use proptest::prelude::*;

use lasthop_wire::headers::PROTO_UDP;

use super::*;

const PLACE: FragmentPlace = FragmentPlace { datapath: 1, zone: 5, source: 7 };

/// A whole packet of IPv4 or IPv6.
fn packet(is_ipv6: bool, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((payload_bytes as u16).to_be_bytes());
        frame.extend([PROTO_UDP, 64]);
        frame.extend([0xfc; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + payload_bytes as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, PROTO_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend((0..payload_bytes).map(|at| (at % 251) as u8));
    frame
}

/// Bytes `from..to` of a packet's payload as a fragment; the last fragment if nothing follows.
fn piece(whole: &[u8], identification: u16, (from, to): (usize, usize)) -> Vec<u8> {
    let is_ipv6 = whole[12] == 0x86;
    let cut_at = if is_ipv6 { 54 } else { 34 };
    let mut frame = whole[..cut_at].to_vec();
    let more = u16::from(to < whole.len() - cut_at);
    if is_ipv6 {
        frame[18..20].copy_from_slice(&(8 + (to - from) as u16).to_be_bytes());
        frame[20] = 44;
        frame.extend([PROTO_UDP, 0]);
        frame.extend((from as u16 | more).to_be_bytes());
        frame.extend(u32::from(identification).to_be_bytes());
    } else {
        frame[16..18].copy_from_slice(&(20 + (to - from) as u16).to_be_bytes());
        frame[18..20].copy_from_slice(&identification.to_be_bytes());
        frame[20..22].copy_from_slice(&((from / 8) as u16 | more << 13).to_be_bytes());
    }
    frame.extend(&whole[cut_at + from..cut_at + to]);
    frame
}

/// The packets that a pool returns for some fragments, and the lost fragments by reason.
fn taken(pool: &mut FragmentPool, frames: &[Vec<u8>]) -> (Vec<WholePacket>, Vec<(FragmentLoss, u32)>) {
    let mut lost = Vec::new();
    let whole = frames.iter().filter_map(|frame| pool.take(PLACE, frame.clone(), 0, &mut lost)).collect();
    (whole, lost.iter().map(|lost| (lost.reason, lost.fragments)).collect())
}

fn payload_of(frame: &[u8], is_ipv6: bool) -> &[u8] {
    &frame[if is_ipv6 { 54 } else { 34 }..]
}

/// Places where a payload is cut.
fn cuts(payload_bytes: usize, at: &[usize]) -> Vec<(usize, usize)> {
    let mut at: Vec<usize> =
        at.iter().map(|at| at % (payload_bytes - 48) / 8 * 8).filter(|at| *at >= 48).collect();
    at.sort_unstable();
    let mut pieces = vec![0];
    for at in at {
        if at >= pieces[pieces.len() - 1] + 48 {
            pieces.push(at);
        }
    }
    pieces.push(payload_bytes);
    pieces.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Some order of `count` things.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed | 1;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

proptest! {
    /// With any cuts, any order and any duplicates the packet comes out once, and nothing else.
    #[test]
    fn a_packet_in_any_pieces_in_any_order_is_put_together_once(
        is_ipv6: bool,
        payload_bytes in 200..9000_usize,
        at in prop::collection::vec(0..9000_usize, 1..20),
        seed: u64,
        twice in 0..20_usize,
    ) {
        let whole = packet(is_ipv6, payload_bytes);
        let cuts = cuts(payload_bytes, &at);
        prop_assume!(cuts.len() > 1);
        let pieces: Vec<_> = cuts.iter().map(|cut| piece(&whole, 9, *cut)).collect();
        let mut frames: Vec<_> = shuffled(pieces.len(), seed).iter().map(|at| pieces[*at].clone()).collect();
        frames.insert(1, frames[0].clone());
        if twice < pieces.len() - 1 {
            frames.insert(2, frames[0].clone());
        }
        let duplicates = frames.len() - pieces.len();
        let mut pool = FragmentPool::default();
        let (found, lost) = taken(&mut pool, &frames);
        prop_assert_eq!(lost, vec![(FragmentLoss::Overlap, 1); duplicates]);
        prop_assert_eq!(found.len(), 1);
        prop_assert_eq!(payload_of(&found[0].frame, is_ipv6), payload_of(&whole, is_ipv6));
        prop_assert_eq!(found[0].fragments as usize, pieces.len());
        prop_assert_eq!(pool.queued(), FragmentShare::default());
        prop_assert!(pool.due_ms().is_none() && pool.shares.is_empty() && pool.of_source.is_empty());
    }

    /// Any fragments at all: each is queued, lost for a reason, or part of one packet, and bounds hold.
    #[test]
    fn every_fragment_is_queued_lost_or_part_of_a_packet(
        sent in prop::collection::vec((0..4_u16, 0..3_u16, 0..40_usize, 6..30_usize, any::<bool>(), 0..3_u16), 1..400),
    ) {
        let share = |fragments| FragmentShare { fragments, bytes: fragments * 200 };
        let bounds = FragmentBounds { all: share(40), zone: share(25), source: share(12), time_ms: 50 };
        let mut pool = FragmentPool::new(bounds);
        let whole = packet(false, 800);
        let (mut lost, mut parts) = (Vec::new(), 0);
        for (now_ms, (identification, source, from, len, is_last, zone)) in (0..).zip(&sent) {
            let end = if *is_last { 800 } else { (from + len) * 8 };
            let frame = piece(&whole, *identification, (from * 8, end.clamp(from * 8 + 8, 800)));
            let place = FragmentPlace { datapath: 1, zone: *zone, source: *source };
            pool.expire(now_ms, &mut lost);
            let done = pool.take(place, frame, now_ms, &mut lost);
            parts += done.map_or(0, |whole| whole.fragments);
            prop_assert!(pool.queued().fragments <= 40 && pool.queued().bytes <= 8000);
            for source in 0..3 {
                prop_assert!(pool.share(Holder::Source(1, source)).fragments <= 12);
            }
            for zone in 0..3 {
                prop_assert!(pool.share(Holder::Zone(1, zone)).fragments <= 25);
            }
        }
        let counted = lost.iter().map(|lost| lost.fragments).sum::<u32>() + parts + pool.queued().fragments;
        prop_assert_eq!(counted as usize, sent.len());
        pool.expire(u64::MAX, &mut lost);
        prop_assert_eq!(pool.queued(), FragmentShare::default());
        prop_assert!(pool.datagrams.is_empty() && pool.order.is_empty() && pool.shares.is_empty());
    }
}

#[test]
fn fragments_that_overlap_take_their_packet_with_them() {
    for is_ipv6 in [false, true] {
        let whole = packet(is_ipv6, 800);
        let mut pool = FragmentPool::default();
        let frames = [(0, 400), (392, 800)].map(|cut| piece(&whole, 1, cut));
        assert_eq!(taken(&mut pool, &frames), (vec![], vec![(FragmentLoss::Overlap, 2)]));
        let frames = [(392, 800), (0, 400)].map(|cut| piece(&whole, 1, cut));
        assert_eq!(taken(&mut pool, &frames), (vec![], vec![(FragmentLoss::Overlap, 2)]));
        // Two ends.
        let shorter = packet(is_ipv6, 600);
        let frames = [piece(&whole, 1, (400, 800)), piece(&shorter, 1, (200, 600))];
        assert_eq!(taken(&mut pool, &frames).1, [(FragmentLoss::Overlap, 2)]);
        assert_eq!(pool.queued(), FragmentShare::default());
    }
}

#[test]
fn those_of_other_zones_sources_and_packets_are_apart() {
    let whole = packet(false, 800);
    let (first, second) = (piece(&whole, 1, (0, 400)), piece(&whole, 1, (400, 800)));
    let (mut pool, mut lost) = (FragmentPool::default(), Vec::new());
    assert!(pool.take(PLACE, first, 0, &mut lost).is_none());
    for place in [
        FragmentPlace { zone: 6, ..PLACE },
        FragmentPlace { source: 8, ..PLACE },
        FragmentPlace { datapath: 2, ..PLACE },
    ] {
        assert!(pool.take(place, second.clone(), 0, &mut lost).is_none());
    }
    assert!(pool.take(PLACE, piece(&whole, 2, (400, 800)), 0, &mut lost).is_none());
    assert!(pool.take(PLACE, second, 0, &mut lost).is_some() && lost.is_empty());
}

#[test]
fn time_ends_for_each_datagram_from_its_first_fragment_on() {
    let whole = packet(true, 1200);
    let (mut pool, mut lost) = (FragmentPool::default(), Vec::new());
    assert_eq!(pool.due_ms(), None);
    pool.take(PLACE, piece(&whole, 1, (0, 400)), 100, &mut lost);
    pool.take(PLACE, piece(&whole, 1, (400, 800)), 20_000, &mut lost);
    pool.take(PLACE, piece(&whole, 2, (0, 400)), 20_000, &mut lost);
    assert_eq!(pool.due_ms(), Some(30_100));
    pool.expire(30_099, &mut lost);
    assert!(lost.is_empty());
    pool.expire(30_100, &mut lost);
    assert_eq!(lost, [LostFragments { place: PLACE, reason: FragmentLoss::Timeout, fragments: 2 }]);
    assert_eq!(pool.due_ms(), Some(50_000));
}

#[test]
fn a_source_without_end_takes_its_own_share_only() {
    let whole = packet(false, 2000);
    let (mut pool, mut lost) = (FragmentPool::default(), Vec::new());
    let others = FragmentPlace { source: 8, ..PLACE };
    assert!(pool.take(others, piece(&whole, 1, (0, 1400)), 0, &mut lost).is_none());
    for identification in 0..5000 {
        pool.take(PLACE, piece(&whole, identification, (0, 1400)), 0, &mut lost);
    }
    let own = pool.share(Holder::Source(1, PLACE.source));
    let bounds = FragmentBounds::default();
    assert!(own.bytes <= bounds.source.bytes && own.bytes > bounds.source.bytes - 1500);
    assert!(lost.iter().all(|lost| (lost.place, lost.reason) == (PLACE, FragmentLoss::Share)));
    assert!(pool.take(others, piece(&whole, 1, (1400, 2000)), 0, &mut lost).is_some());
    // Many such sources share their zone with one that has little.
    assert!(pool.take(others, piece(&whole, 2, (0, 1400)), 0, &mut lost).is_none());
    for source in 100..120 {
        for identification in 0..400 {
            let place = FragmentPlace { source, ..PLACE };
            pool.take(place, piece(&whole, identification, (0, 1400)), 0, &mut lost);
        }
    }
    assert!(pool.share(Holder::Zone(1, PLACE.zone)).bytes <= bounds.zone.bytes);
    assert!(pool.take(others, piece(&whole, 2, (1400, 2000)), 0, &mut lost).is_some());
}

#[test]
fn a_datagram_has_so_many_fragments_and_is_no_longer_than_a_packet() {
    let whole = packet(false, 30_000);
    let frames: Vec<_> = (0..=128).map(|at| piece(&whole, 1, (at * 48, at * 48 + 48))).collect();
    let (_, lost) = taken(&mut FragmentPool::default(), &frames);
    assert_eq!(lost, [(FragmentLoss::Share, 129)]);
    // Headers of the first one count.
    let mut long = packet(false, 60_000);
    long.truncate(34);
    long.extend([0; 65_512]);
    let options = |frame: Vec<u8>| {
        let mut frame = [&frame[..34], &[1; 40], &frame[34..]].concat();
        let len = u16::from_be_bytes([frame[16], frame[17]]) + 40;
        frame[14] = 0x4f;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        frame
    };
    let frames = [options(piece(&long, 1, (0, 800))), piece(&long, 1, (800, 65_512))];
    assert_eq!(taken(&mut FragmentPool::default(), &frames).1, [(FragmentLoss::TooLarge, 2)]);
}
