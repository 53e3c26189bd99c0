//! Several threads at one table: each connection behaves as if it were alone, limits are exact, no packet is lost or
//! counted twice.

#[path = "../tracker/frames.rs"]
#[allow(dead_code)]
mod frames;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use frames::{ACK, FIN, RST, SYN, Tcp, at, ends, udp};
use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtCommit, CtMetadata, CtRequest, CtTuple, CtVerdict, PacketImage,
};
use lasthop_flow::{Nat, NatRange, NatSource, ct_state};
use lasthop_wire::Offload;
use lasthop_wire::headers::PROTO_UDP;
use proptest::prelude::*;

const EST: u32 = ct_state::TRACKED | ct_state::ESTABLISHED;
const NOW_MS: u64 = 1_000_000;

fn commit(zone: u16) -> CtRequest {
    CtRequest { zone, commit: CtCommit::Yes, ..CtRequest::default() }
}

fn look(zone: u16) -> CtRequest {
    CtRequest { zone, nat: Some(Nat::default()), ..CtRequest::default() }
}

fn snat(address: &str, ports: (u16, u16)) -> CtRequest {
    let range = NatRange {
        ip_min: Some(address.parse().expect("an address")),
        ip_max: None,
        proto_min: Some(ports.0),
        proto_max: Some(ports.1),
    };
    let nat = Nat { source: Some(NatSource::Src), range, is_random: true, ..Nat::default() };
    CtRequest { nat: Some(nat), ..commit(0) }
}

fn track(table: &ConntrackTable, frame: &[u8], request: &CtRequest, port: u16) -> CtVerdict {
    let image =
        PacketImage::parse(frame, frame.len() as u32, Offload::default(), port).expect("an IP packet");
    table.track(&image, &CtMetadata::default(), request, NOW_MS)
}

fn host(number: u32) -> SocketAddr {
    let [_, a, b, c] = number.to_be_bytes();
    SocketAddr::from(([10, a, b, c], 1000))
}

fn bounds(connections_max: u32, port_connections_max: u32) -> CtBounds {
    CtBounds { connections_max, port_connections_max, zone_connections_max: None }
}

/// Checks that created connections are in the table, or counted as removed.
fn assert_conserved(table: &ConntrackTable) {
    let counters = table.counters();
    let gone = counters.expired + counters.evicted + counters.deleted;
    assert_eq!(counters.created - gone, u64::from(table.len()));
    let (mut next, mut records) = (Some(0), Vec::new());
    while let Some(place) = next {
        next = table.dump(place, None, NOW_MS, usize::MAX, &mut records);
    }
    assert_eq!(records.len(), table.len() as usize);
    assert_eq!(records.iter().map(|record| record.id).collect::<HashSet<_>>().len(), records.len());
}

/// Runs `work` on this number of threads, which begin together.
fn together<R: Send>(threads: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let barrier = Barrier::new(threads);
    let run = |number| {
        barrier.wait();
        work(number)
    };
    std::thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = (0..threads).map(|number| scope.spawn(move || run(number))).collect();
        handles.into_iter().map(|handle| handle.join().expect("it ends")).collect()
    })
}

/// A segment of a conversation, or a UDP packet, sometimes slightly wrong.
#[derive(Clone, Copy, Debug)]
struct Step {
    is_reply: bool,
    flags: u8,
    off: u32,
    commits: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = prop_oneof![4 => Just(ACK), 3 => Just(SYN), 2 => Just(SYN | ACK), 1 => Just(FIN | ACK), 1 => Just(RST)];
    let off = prop_oneof![6 => Just(0), 2 => 1..200_u32, 1 => 60_000..80_000_u32];
    let step = (any::<bool>(), flags, off, any::<bool>());
    let step = step.prop_map(|(is_reply, flags, off, commits)| Step { is_reply, flags, off, commits });
    prop::collection::vec(step, 1..20)
}

/// The verdicts for a conversation between two hosts that no other thread uses.
fn converse(table: &ConntrackTable, number: u32, steps: &[Step]) -> Vec<(u32, bool)> {
    let (client, server) = (host(number), at("198.51.100.1:80"));
    let zone = (number % 3) as u16;
    let verdicts = steps.iter().map(|step| {
        let (from, to) = if step.is_reply { (server, client) } else { (client, server) };
        let frame = match number % 4 {
            0 => udp(from, to, b"data"),
            _ => Tcp::new(from, to, step.flags, 1000 + step.off, 1000 + step.off).frame(),
        };
        let request = if step.commits { commit(zone) } else { look(zone) };
        let verdict = track(table, &frame, &request, number as u16);
        (verdict.metadata.state, verdict.refused.is_some())
    });
    verdicts.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Beside each conversation others come and go, buckets are split, and the control plane dumps, flushes and sweeps.
    #[test]
    fn a_conversation_goes_as_if_it_were_alone(scripts in prop::collection::vec(steps(), 8..24)) {
        let alone = ConntrackTable::new(CtBounds::default(), NOW_MS);
        let wanted: Vec<_> = (0..).zip(&scripts).map(|(number, steps)| converse(&alone, number, steps)).collect();
        let (table, is_over) = (ConntrackTable::new(CtBounds::default(), NOW_MS), AtomicU32::new(0));
        let found = together(3, |thread| {
            let mut found = Vec::new();
            if thread < 2 {
                for (number, steps) in (0..).zip(&scripts).filter(|(number, _)| *number as usize % 2 == thread) {
                    // Other connections on all sides of it.
                    for stranger in 0..50 {
                        let stranger = host(100_000 + 1000 * number + stranger);
                        let _ = track(&table, &udp(stranger, at("198.51.100.2:53"), b""), &commit((number % 4) as u16), 9);
                    }
                    found.push((number, converse(&table, number, steps)));
                }
                is_over.fetch_add(1, Ordering::Relaxed);
                return found;
            }
            while is_over.load(Ordering::Relaxed) < 2 {
                let mut records = Vec::new();
                let _ = table.dump(0, Some(1), NOW_MS, 100, &mut records);
                let _ = table.sweep(NOW_MS, 1000);
                // A zone with other connections only.
                let _ = table.flush_zone(3, 10);
            }
            found
        });
        for (number, verdicts) in found.into_iter().flatten() {
            prop_assert_eq!(&verdicts, &wanted[number as usize], "conversation {}", number);
        }
        prop_assert!(table.sweep(NOW_MS, 1_000_000));
        assert_conserved(&table);
    }
}

/// Both directions of each connection are on different threads all the time: no segment is lost or taken for another's.
#[test]
fn both_directions_move_on_at_once() {
    const SEGMENTS: u32 = 20_000;
    let table = ConntrackTable::new(CtBounds::default(), NOW_MS);
    let (client, server) = (at("10.0.0.1:1000"), at("10.0.0.2:80"));
    let handshake = [
        Tcp::new(client, server, SYN, 0, 0),
        Tcp::new(server, client, SYN | ACK, 0, 1),
        Tcp::new(client, server, ACK, 1, 1),
    ];
    handshake.iter().for_each(|segment| drop(track(&table, &segment.frame(), &commit(0), 1)));
    together(2, |thread| {
        let (from, to, state) = match thread {
            0 => (client, server, EST),
            _ => (server, client, EST | ct_state::REPLY),
        };
        // Within the first windows, so that any order of the two threads is a right one.
        for number in 0..SEGMENTS {
            let frame = Tcp::new(from, to, ACK, 1 + number % 8000, 1).frame();
            assert_eq!(track(&table, &frame, &look(0), 1).metadata.state, state, "{number}");
        }
    });
    let mut records = Vec::new();
    assert_eq!(table.dump(0, None, NOW_MS, 10, &mut records), None);
    let packets: u64 = records[0].packets.iter().sum();
    assert_eq!(packets + table.counters().unchecked, u64::from(2 * SEGMENTS) + 3);
    assert_eq!((table.counters().invalid, table.len()), (0, 1));
}

#[test]
fn the_loser_of_a_race_adopts_the_winners_connection() {
    const ROUNDS: u32 = 500;
    let table = ConntrackTable::new(CtBounds::default(), NOW_MS);
    let request = snat("192.0.2.1", (1024, 65535));
    let found = together(3, |_| {
        let seen = (0..ROUNDS).map(|number| {
            let frame = udp(host(number), at("198.51.100.1:53"), b"question");
            let verdict = track(&table, &frame, &request, 1);
            assert_eq!(verdict.refused, None);
            (verdict.connection, ends(&verdict.rewrites.applied(&frame)))
        });
        seen.collect::<Vec<_>>()
    });
    assert!(found[0] == found[1] && found[1] == found[2], "one translation for each connection");
    assert_eq!(table.len(), ROUNDS);
    assert_conserved(&table);
}

#[test]
fn both_ends_begin_at_once_and_get_one_connection() {
    let table = ConntrackTable::new(CtBounds::default(), NOW_MS);
    together(2, |thread| {
        for number in 0..2000 {
            let (one, other) = (host(number), at("198.51.100.1:500"));
            let (from, to) = if thread == 0 { (one, other) } else { (other, one) };
            assert_eq!(track(&table, &udp(from, to, b"hello"), &commit(0), 1).refused, None);
        }
    });
    assert_eq!(table.len(), 2000);
    assert_conserved(&table);
}

#[test]
fn limits_are_exact_for_commits_of_any_thread() {
    let table = ConntrackTable::new(bounds(700, 500), NOW_MS);
    table.set_zone_limit(1, Some(100));
    let committed = together(3, |thread| {
        let commits = (0..1000).map(|number| {
            let number = 10_000 * thread as u32 + number;
            let frame = udp(host(number), at("198.51.100.1:53"), b"");
            (track(&table, &frame, &commit(1), 5).refused.is_none(), table.len() <= 700)
        });
        let commits: Vec<_> = commits.collect();
        assert!(commits.iter().all(|(_, is_within)| *is_within));
        commits.iter().filter(|(is_committed, _)| *is_committed).count()
    });
    assert_eq!(committed.iter().sum::<usize>(), 100);
    assert_eq!(table.zone(1), (Some(100), 100));
    // Zones of all shards: first the port's own half-open connections are evicted, then the table's.
    for (port, wanted) in [(5, 500), (6, 200)] {
        together(3, |thread| {
            for number in 0..2000 {
                let from = host(1_000_000 * u32::from(port) + 10_000 * thread as u32 + number);
                let _ = track(
                    &table,
                    &udp(from, at("198.51.100.1:53"), b""),
                    &commit(2 + (number % 40) as u16),
                    port,
                );
                assert!(table.len() <= 700 && table.port_connections(port) <= 500);
            }
        });
        assert!(table.port_connections(port) >= wanted, "{port}: {}", table.port_connections(port));
    }
    assert_eq!(table.len(), 700);
    assert_conserved(&table);
}

#[test]
fn the_last_ports_go_to_as_many_connections() {
    let table = ConntrackTable::new(CtBounds::default(), NOW_MS);
    let request = snat("192.0.2.1", (2000, 2063));
    let found = together(3, |thread| {
        let tries = (0..100).map(|number| {
            let frame = udp(host(1000 * thread as u32 + number), at("198.51.100.1:53"), b"");
            let verdict = track(&table, &frame, &request, 1);
            verdict.refused.is_none().then(|| ends(&verdict.rewrites.applied(&frame)).0)
        });
        tries.collect::<Vec<_>>()
    });
    let given: Vec<SocketAddr> = found.into_iter().flatten().flatten().collect();
    assert_eq!((given.len(), given.iter().collect::<HashSet<_>>().len()), (64, 64));
}

/// Connections come and go beside a search for one that stays; each search finds it.
#[test]
fn a_connection_that_stays_is_always_found() {
    let (table, is_over) = (ConntrackTable::new(bounds(4000, 4000), NOW_MS), AtomicBool::new(false));
    let stays: Vec<_> = (0..64).map(|number| udp(host(number), at("198.51.100.1:53"), b"")).collect();
    stays.iter().for_each(|frame| drop(track(&table, frame, &commit(0), 1)));
    together(2, |thread| {
        if thread == 0 {
            // Their number grows, so that buckets are split; then the zone is flushed.
            for round in 0..20 {
                for number in 0..1500 {
                    let from = host(50_000 + number);
                    let _ = track(&table, &udp(from, at("198.51.100.1:53"), b""), &commit(0), 2);
                }
                for number in 0..1500_u32 {
                    let from = host(50_000 + (number * 7 + round) % 1500);
                    let to = at("198.51.100.1:53");
                    let verdict = track(&table, &udp(from, to, b""), &look(0), 2);
                    let tuple = CtTuple {
                        src: from.ip().into(),
                        dst: to.ip().into(),
                        src_port: from.port(),
                        dst_port: to.port(),
                        zone: 0,
                        proto: PROTO_UDP,
                        is_ipv6: false,
                    };
                    let record = verdict.connection.and_then(|_| table.find(&tuple, NOW_MS));
                    assert_eq!(record.map(|record| record.id), verdict.connection);
                    record.iter().for_each(|record| assert!(table.delete(&record.tuples[1], NOW_MS)));
                }
            }
            is_over.store(true, Ordering::Relaxed);
            return;
        }
        while !is_over.load(Ordering::Relaxed) {
            for frame in &stays {
                let verdict = track(&table, frame, &look(0), 1);
                assert!(verdict.connection.is_some(), "{verdict:?}");
            }
        }
    });
    assert_eq!(table.len(), 64);
    assert_conserved(&table);
}
