//! A guest that opens connections without end, beside two that talk: on the built binary, with rules about connections.

use etherparse::PacketBuilder;
use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, WAIT, check_balance, guest, send};
use lasthop_rig::{Switch, eventually};
use lasthop_wire::Offload;

const FLOODER: [u8; 6] = [0x02, 0, 0, 0, 0, 9];
const SERVER_ADDRESS: [u8; 4] = [10, 0, 0, 1];
const CLIENT_ADDRESS: [u8; 4] = [10, 0, 0, 2];
/// The limit of connections for one port.
const SHARE: u32 = 1 << 18;
/// SYNs of the flood: more than its port's limit.
const SYNS: u32 = SHARE + 20_000;
/// SYNs of the flood between two connections of the client.
const PAUSE: u32 = 2_000;
const BURST: usize = 64;

#[derive(Clone, Copy)]
struct End {
    mac: [u8; 6],
    address: [u8; 4],
    port: u16,
}

const SERVER: End = End { mac: ONE, address: SERVER_ADDRESS, port: 443 };

fn client(number: u32) -> End {
    End { mac: TWO, address: CLIENT_ADDRESS, port: 10_000 + number as u16 }
}

/// One of the invented addresses and ports of the flood.
fn flooder(number: u32) -> End {
    let [_, high, middle, low] = (number >> 8).to_be_bytes();
    End { mac: FLOODER, address: [11, high, middle, low], port: 1024 + (number & 0xff) as u16 }
}

/// A segment: SYN, ACK, and its data.
fn segment(from: End, to: End, (is_syn, seq, ack): (bool, u32, Option<u32>), data: &[u8]) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(from.mac, to.mac).ipv4(from.address, to.address, 64);
    let tcp = ip.tcp(from.port, to.port, seq, 8192);
    let tcp = if is_syn { tcp.syn() } else { tcp };
    let tcp = if let Some(ack) = ack { tcp.ack(ack) } else { tcp };
    let mut bytes = Vec::new();
    tcp.write(&mut bytes, data).expect("a segment");
    bytes
}

/// Receives until this frame arrives; others belong to the flood.
fn await_frame(guest: &mut Guest, wanted: &[u8]) {
    let mut frame = Vec::new();
    loop {
        assert!(guest.wait(Some(WAIT)).expect("connected"), "it did not come");
        while guest.recv(0, &mut frame).expect("a sound ring").is_some() {
            if frame == wanted {
                return;
            }
            assert_eq!(frame[6..12], FLOODER, "nothing but the flood");
        }
    }
}

fn pass(from: &mut Guest, to: &mut Guest, frame: &[u8]) {
    send(from, frame);
    await_frame(to, frame);
}

/// SYNs of the flood with these numbers, which the server does not answer.
fn flood(bad: &mut Guest, server: &mut Guest, numbers: std::ops::Range<u32>) {
    let frames: Vec<Vec<u8>> =
        numbers.map(|number| segment(flooder(number), SERVER, (true, 1, None), &[])).collect();
    for burst in frames.chunks(BURST) {
        bad.reclaim(0).expect("a sound ring");
        for frame in burst {
            assert!(bad.send(0, frame, Offload::default()).expect("sent"), "the ring is full");
        }
        bad.flush(0).expect("flushed");
        // The last one arrives after all earlier ones: then rings and queues are empty.
        await_frame(server, burst.last().expect("a burst has frames"));
    }
}

#[test]
fn others_connect_while_a_guest_sends_syns_without_end() {
    let words = ["--module", "flow", "--vnic", "web", "--vnic", "client", "--vnic", "bad"];
    let switch = Switch::start(&words);
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    let rule = ["--port", "web", "--direction", "ingress", "--action"];
    let https = ["acl", "add", "https", "--protocol", "tcp", "--dport", "443"];
    switch.ask(&[&https[..], &rule, &["allow"]].concat()).ok();
    switch.ask(&[&["acl", "add", "rest"][..], &rule, &["deny"]].concat()).ok();
    let mut server = guest(&switch, "web", ONE);
    let (mut talker, mut bad) = (guest(&switch, "client", TWO), guest(&switch, "bad", FLOODER));
    // Addresses are learned from frames without rules.
    let arp = [&[0xff; 6][..], &ONE, &[8, 6], &[0; 46]].concat();
    pass(&mut server, &mut talker, &arp);
    await_frame(&mut bad, &arp);

    let rounds = SYNS / PAUSE;
    for round in 0..rounds {
        flood(&mut bad, &mut server, round * PAUSE..(round + 1) * PAUSE);
        let own = client(round);
        pass(&mut talker, &mut server, &segment(own, SERVER, (true, 100, None), &[]));
        pass(&mut server, &mut talker, &segment(SERVER, own, (true, 500, Some(101)), &[]));
        pass(&mut talker, &mut server, &segment(own, SERVER, (false, 101, Some(501)), &[]));
    }
    // None of them was evicted.
    for round in 0..rounds {
        let own = client(round);
        pass(&mut talker, &mut server, &segment(own, SERVER, (false, 101, Some(501)), b"question"));
        pass(&mut server, &mut talker, &segment(SERVER, own, (false, 501, Some(109)), b"answer"));
    }
    let counter =
        |name: &str| switch.json(&["switch", "list"])["switches"][0]["counters"][name].as_u64().unwrap_or(0);
    eventually("evictions", || (counter("ct_evicted") > 0).then_some(()));
    assert!(counter("connections") <= u64::from(SHARE + rounds), "the flood has its port's share");
    assert_eq!(switch.port("client")["rx_drops"], serde_json::json!({}));
    check_balance(&switch);
}
