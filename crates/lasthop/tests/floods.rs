//! A guest that opens connections without end, beside others that talk: on the built binary, with rules about connections.

use etherparse::PacketBuilder;
use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, WAIT, check_balance, guest, send};
use lasthop_rig::{Switch, eventually};
use lasthop_wire::Offload;
use serde_json::Value;

const FLOODER: [u8; 6] = [0x02, 0, 0, 0, 0, 9];
const SERVER_ADDRESS: [u8; 4] = [10, 0, 0, 1];
/// Guests that open connections meanwhile, by port.
const CLIENTS: [&str; 3] = ["client1", "client2", "client3"];
/// The limit of connections for one port.
const SHARE: u32 = 1 << 18;
/// SYNs of the flood: more than its port's limit.
const SYNS: u32 = SHARE + 20_000;
/// SYNs of the flood between two connections of each client.
const PAUSE: u32 = 2_000;
const BURST: usize = 64;

#[derive(Clone, Copy)]
struct End {
    mac: [u8; 6],
    address: [u8; 4],
    port: u16,
}

const SERVER: End = End { mac: ONE, address: SERVER_ADDRESS, port: 443 };

fn client_mac(client: usize) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, 0x10 + client as u8]
}

/// The client's end of one of its connections.
fn client_end(client: usize, number: u32) -> End {
    End { mac: client_mac(client), address: [10, 0, 0, 0x10 + client as u8], port: 10_000 + number as u16 }
}

/// One of the invented addresses and ports of the flood: all differ, and consecutive ones are far apart.
fn flooder(number: u32) -> End {
    let [_, high, middle, low] = (number >> 8).to_be_bytes();
    let port = 1024 + (number & 0xff) * 251 % 60_000;
    End { mac: FLOODER, address: [11, high, middle, low], port: port as u16 }
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

fn open(client: &mut Guest, server: &mut Guest, own: End) {
    pass(client, server, &segment(own, SERVER, (true, 100, None), &[]));
    pass(server, client, &segment(SERVER, own, (true, 500, Some(101)), &[]));
    pass(client, server, &segment(own, SERVER, (false, 101, Some(501)), &[]));
}

/// A question and its answer, the same each time, as if repeated.
fn talk(client: &mut Guest, server: &mut Guest, own: End) {
    pass(client, server, &segment(own, SERVER, (false, 101, Some(501)), b"question"));
    pass(server, client, &segment(SERVER, own, (false, 501, Some(109)), b"answer"));
}

fn start() -> Switch {
    let vnics = ["web", "bad"].iter().chain(&CLIENTS).flat_map(|name| ["--vnic", name]);
    let switch = Switch::start(&["--module", "flow"].into_iter().chain(vnics).collect::<Vec<_>>());
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    let rule = ["--port", "web", "--direction", "ingress", "--action"];
    let https = ["acl", "add", "https", "--protocol", "tcp", "--dport", "443"];
    switch.ask(&[&https[..], &rule, &["allow"]].concat()).ok();
    switch.ask(&[&["acl", "add", "rest"][..], &rule, &["deny"]].concat()).ok();
    switch
}

#[test]
fn others_connect_while_a_guest_sends_syns_without_end() {
    let switch = start();
    let mut server = guest(&switch, "web", ONE);
    let mut bad = guest(&switch, "bad", FLOODER);
    let mut clients: Vec<Guest> =
        (0..).zip(CLIENTS).map(|(at, name)| guest(&switch, name, client_mac(at))).collect();
    // Addresses are learned from frames without rules.
    let arp = [&[0xff; 6][..], &ONE, &[8, 6], &[0; 46]].concat();
    send(&mut server, &arp);
    clients.iter_mut().chain([&mut bad]).for_each(|guest| await_frame(guest, &arp));

    let rounds = SYNS / PAUSE;
    for (at, client) in clients.iter_mut().enumerate() {
        open(client, &mut server, client_end(at, rounds));
    }
    for round in 0..rounds {
        flood(&mut bad, &mut server, round * PAUSE..(round + 1) * PAUSE);
        for (at, client) in clients.iter_mut().enumerate() {
            open(client, &mut server, client_end(at, round));
            talk(client, &mut server, client_end(at, rounds));
        }
    }
    // None of them was evicted.
    for round in 0..=rounds {
        for (at, client) in clients.iter_mut().enumerate() {
            talk(client, &mut server, client_end(at, round));
        }
    }
    let counters = || switch.json(&["switch", "list"])["switches"][0]["counters"].clone();
    let evicted = |counters: &Value| counters["ct_evicted"].as_u64().filter(|count| *count > 0);
    eventually("evictions", || evicted(&counters()));
    let counters = counters();
    let count = |name: &str| counters[name].as_u64().expect("a counter");
    let (held, others) = (count("connections"), (rounds + 1) * CLIENTS.len() as u32);
    assert!(held <= u64::from(SHARE + others), "the flood has its port's share: {held}");
    let gone = count("ct_expired") + count("ct_evicted") + count("ct_deleted");
    assert_eq!(count("ct_created"), held + gone, "{counters}");
    assert_eq!(
        count("ct_created"),
        u64::from(rounds * PAUSE + others),
        "each SYN was let through: {counters}"
    );
    for name in CLIENTS.iter().chain(&["web", "bad"]) {
        assert_eq!(switch.port(name)["rx_drops"], serde_json::json!({}), "{name}");
    }
    check_balance(&switch);
}
