//! Compares a translating tracker with a simple model of it, by random packets; the model searches lists.
//!
//! The model does not choose ports: it learns them from the first packet as it left, and checks everything that follows
//! against them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use lasthop_conntrack::{CtMetadata, CtRequest, IpBytes};
use lasthop_flow::NatSource;
use proptest::prelude::*;

use crate::bench::{Bench, DNAT, EST, NEW, REPLY, Records, SNAT, commit, nat, natted};
use crate::frames::{assert_right, at, ends, udp};

/// A connection as its client and its server see it.
#[derive(Clone, Copy, Debug)]
struct Known {
    client: (SocketAddr, SocketAddr),
    server: (SocketAddr, SocketAddr),
    is_replied: bool,
    expires_ms: u64,
    began_ms: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// From a client to a server, asking for one of the translations.
    Out { client: u8, port: u8, server: u8, how: u8 },
    /// A reply to one of the connections, by its number.
    Back { which: prop::sample::Index },
    /// Time passes.
    Wait { seconds: u8 },
    /// A zone is emptied.
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let out = (0..4_u8, 0..3_u8, 0..3_u8, 0..4_u8).prop_map(|(client, port, server, how)| Step::Out {
        client,
        port,
        server,
        how,
    });
    let back = any::<prop::sample::Index>().prop_map(|which| Step::Back { which });
    let wait = (1..50_u8).prop_map(|seconds| Step::Wait { seconds });
    prop::collection::vec(prop_oneof![8 => out, 6 => back, 2 => wait, 1 => Just(Step::Flush)], 1..120)
}

/// The requested translations, and the check of an outcome.
fn request(how: u8) -> CtRequest {
    match how {
        0 => commit(),
        1 => nat(NatSource::Src, ("192.0.2.1", "192.0.2.2"), None),
        2 => nat(NatSource::Src, ("192.0.2.1", ""), Some((5000, 5003))),
        _ => nat(NatSource::Dst, ("10.9.0.1", "10.9.0.2"), Some((80, 81))),
    }
}

fn is_allowed(how: u8, before: (SocketAddr, SocketAddr), after: (SocketAddr, SocketAddr)) -> bool {
    let ip = |text: &str| at(&format!("{text}:0")).ip();
    match how {
        0 => after == before,
        1 => after.1 == before.1 && (ip("192.0.2.1")..=ip("192.0.2.2")).contains(&after.0.ip()),
        2 => {
            after.1 == before.1 && after.0.ip() == ip("192.0.2.1") && (5000..=5003).contains(&after.0.port())
        }
        _ => {
            after.0.ip() == before.0.ip()
                && (ip("10.9.0.1")..=ip("10.9.0.2")).contains(&after.1.ip())
                && (80..=81).contains(&after.1.port())
        }
    }
}

#[derive(Default)]
struct Model {
    known: BTreeMap<u32, Known>,
    next: u32,
}

impl Model {
    fn find(&self, now_ms: u64, is_it: impl Fn(&Known) -> bool) -> Option<u32> {
        self.known
            .iter()
            .find(|(_, known)| known.expires_ms > now_ms && is_it(known))
            .map(|(number, _)| *number)
    }

    /// Extends a connection's life after a packet.
    fn renew(&mut self, number: u32, now_ms: u64) {
        let known = self.known.get_mut(&number).expect("it is known");
        let is_stream = known.is_replied && now_ms > known.began_ms + 2000;
        known.expires_ms = now_ms + if is_stream { 120_000 } else { 30_000 };
    }
}

fn out(bench: &mut Bench, model: &mut Model, (client, server): (SocketAddr, SocketAddr), how: u8) {
    let frame = udp(client, server, b"question");
    let verdict = bench.track(&frame, &CtMetadata::default(), &request(how));
    let after = verdict.rewrites.applied(&frame);
    assert_right(&after);
    let (state, now_ms) = (verdict.metadata.state & !(SNAT | DNAT), bench.now_ms);
    if let Some(number) = model.find(now_ms, |known| known.client == (client, server)) {
        let known = model.known[&number];
        assert_eq!((verdict.refused, state), (None, if known.is_replied { EST } else { NEW }));
        let wanted = if how == 0 { known.client } else { known.server };
        assert_eq!(ends(&after), wanted);
        model.renew(number, now_ms);
        return;
    }
    assert_eq!(state, NEW);
    let reply_is_taken = |source: SocketAddr, to: SocketAddr| {
        model.find(now_ms, |known| known.server == (source, to) || known.client == (to, source)).is_some()
    };
    if verdict.refused.is_some() {
        // Only if no suitable address and port is free.
        let is_free = |port: u16| !reply_is_taken(SocketAddr::new(at("192.0.2.1:0").ip(), port), server);
        assert!(
            match how {
                0 => reply_is_taken(client, server),
                2 => !(5000..=5003).any(is_free),
                _ => false,
            },
            "{:?} {client} {server} {how}",
            verdict.refused
        );
        return;
    }
    let left = ends(&after);
    assert!(is_allowed(how, (client, server), left), "{client} {server} {how}: {left:?}");
    assert!(!reply_is_taken(left.0, left.1), "{left:?} belongs to another one");
    let known = Known {
        client: (client, server),
        server: left,
        is_replied: false,
        expires_ms: now_ms + 30_000,
        began_ms: now_ms,
    };
    model.known.insert(model.next, known);
    model.next += 1;
}

fn back(bench: &mut Bench, model: &mut Model, number: u32) {
    let known = model.known[&number];
    let (client, server) = known.server;
    let frame = udp(server, client, b"answer");
    let verdict = bench.track(&frame, &CtMetadata::default(), &natted());
    let after = verdict.rewrites.applied(&frame);
    assert_right(&after);
    assert_eq!(verdict.metadata.state & !(SNAT | DNAT), REPLY);
    assert_eq!(ends(&after), (known.client.1, known.client.0));
    model.renew(number, bench.now_ms);
    model.known.get_mut(&number).expect("it is known").is_replied = true;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_tracker_agrees_with_lists(steps in steps()) {
        let (mut bench, mut model) = (Bench::default(), Model::default());
        for step in steps {
            match step {
                Step::Out { client, port, server, how } => {
                    let client = at(&format!("10.0.0.{}:{}", client + 1, 1000 + u16::from(port)));
                    let server = at(&format!("198.51.100.{}:53", server + 1));
                    out(&mut bench, &mut model, (client, server), how);
                }
                Step::Back { which } if !model.known.is_empty() => {
                    let number = *which.get(&model.known.keys().copied().collect::<Vec<u32>>());
                    back(&mut bench, &mut model, number);
                }
                Step::Back { .. } => {}
                Step::Wait { seconds } => {
                    bench.now_ms += 1000 * u64::from(seconds);
                    bench.tracker.sweep(bench.now_ms, 4096);
                    model.known.retain(|_, known| known.expires_ms > bench.now_ms);
                }
                Step::Flush => {
                    prop_assert!(bench.tracker.flush_zone(0, 10_000));
                    model.known.clear();
                }
            }
            let alive = model.known.values().filter(|known| known.expires_ms > bench.now_ms).count();
            let mut dumped = 0;
            let mut place = 0;
            while let Some((next, record)) = bench.tracker.next_record(place, bench.now_ms) {
                (place, dumped) = (next, dumped + 1);
                let found = model.known.values().find(|known| {
                    let [original, reply] = record.tuples.map(|tuple| {
                        let ip = |bytes: IpBytes| bytes.to_ip(tuple.l3());
                        (SocketAddr::new(ip(tuple.src), tuple.src_port), SocketAddr::new(ip(tuple.dst), tuple.dst_port))
                    });
                    known.expires_ms == bench.now_ms + record.left_ms
                        && known.client == original
                        && known.server == (reply.1, reply.0)
                });
                prop_assert_eq!(found.map(|known| known.is_replied), Some(record.is_replied));
            }
            prop_assert_eq!(dumped, alive);
        }
    }
}
