//! FTP and TFTP: expected connections, with and without translation.

use std::net::SocketAddr;

use lasthop_conntrack::{CtHelper, CtMetadata, CtRequest, PacketImage};
use lasthop_flow::{Masked, NatSource, ct_state};
use lasthop_wire::Offload;

use crate::bench::{Bench, DNAT, EST, NEW, RELATED, REPLY, SNAT, commit, nat, natted};
use crate::frames::{ACK, SYN, Tcp, at, ends, udp};

const SRC: NatSource = NatSource::Src;

/// A control connection through a translation, with each side's sequence numbers.
struct Control {
    bench: Bench,
    request: CtRequest,
    client: SocketAddr,
    server: SocketAddr,
    /// The client's address as the server sees it, and the server's address as the client sees it.
    seen: (SocketAddr, SocketAddr),
    client_seq: u32,
    server_seq: u32,
    /// The next sequence number that each side expects of the other.
    client_got: u32,
    server_got: u32,
}

impl Control {
    fn open(client: &str, server: &str, request: CtRequest) -> Self {
        let mut bench = Bench::default();
        let request = CtRequest { helper: Some(CtHelper::Ftp), ..request };
        let permitted = [4, 2];
        let syn = Tcp::new(at(client), at(server), SYN, 999, 0).options(&permitted).frame();
        let (_, out) = bench.pass(&syn, &request);
        let (from, to) = ends(&out);
        let answer = Tcp::new(to, from, SYN | ACK, 4999, 1000).options(&permitted).frame();
        bench.pass(&answer, &natted());
        bench.pass(&Tcp::new(at(client), at(server), ACK, 1000, 5000).frame(), &natted());
        Self {
            bench,
            request,
            client: at(client),
            server: at(server),
            seen: (from, to),
            client_seq: 1000,
            server_seq: 5000,
            client_got: 5000,
            server_got: 1000,
        }
    }

    /// The client sends a line. Returns the line that the server reads.
    fn say(&mut self, line: &str) -> String {
        let segment =
            Tcp::new(self.client, self.server, ACK, self.client_seq, self.client_got).with(line.as_bytes());
        let (state, out) = self.bench.pass(&segment.frame(), &self.request);
        assert_eq!(state & EST, EST);
        self.client_seq += line.len() as u32;
        let (seq, ack, text) = read(&out);
        assert_eq!((seq, ack), (self.server_got, self.server_seq), "the server's numbers fit");
        self.server_got += text.len() as u32;
        text
    }

    /// The server sends a line. Returns the line that the client reads.
    fn answer(&mut self, line: &str) -> String {
        let (from, to) = self.seen;
        let segment = Tcp::new(to, from, ACK, self.server_seq, self.server_got).with(line.as_bytes());
        let (state, out) = self.bench.pass(&segment.frame(), &natted());
        assert_eq!(state & REPLY, REPLY);
        self.server_seq += line.len() as u32;
        let (seq, ack, text) = read(&out);
        assert_eq!((seq, ack), (self.client_got, self.client_seq), "the client's numbers fit");
        self.client_got += text.len() as u32;
        text
    }
}

/// Sequence number, acknowledgement and payload.
fn read(frame: &[u8]) -> (u32, u32, String) {
    let (_, _, _, l4) = crate::frames::parts(&frame[14..]);
    let long = |at: usize| u32::from_be_bytes([l4[at], l4[at + 1], l4[at + 2], l4[at + 3]]);
    let payload = &l4[usize::from(l4[12] >> 4) * 4..];
    (long(4), long(8), String::from_utf8_lossy(payload).into_owned())
}

fn syn(src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    Tcp::new(src, dst, SYN, 1, 0).frame()
}

#[test]
fn data_connections_of_all_kinds_are_expected_once() {
    let cases = [
        ("10.0.0.1:40000", "10.0.0.2:21", "PORT 10,0,0,1,200,1\r\n", "", "10.0.0.2:20", "10.0.0.1:51201"),
        ("10.0.0.1:40000", "10.0.0.2:21", "EPRT |1|10.0.0.1|51201|\r\n", "", "10.0.0.2:20", "10.0.0.1:51201"),
        (
            "[fd00::1]:40000",
            "[fd00::2]:21",
            "EPRT |2|fd00::1|51201|\r\n",
            "",
            "[fd00::2]:20",
            "[fd00::1]:51201",
        ),
        (
            "10.0.0.1:40000",
            "10.0.0.2:21",
            "PASV\r\n",
            "227 Entering (10,0,0,2,200,1)\r\n",
            "10.0.0.1:41000",
            "10.0.0.2:51201",
        ),
        (
            "[fd00::1]:40000",
            "[fd00::2]:21",
            "EPSV\r\n",
            "229 Ok (|||51201|)\r\n",
            "[fd00::1]:41000",
            "[fd00::2]:51201",
        ),
    ];
    for (client, server, line, answer, from, to) in cases {
        let mut control =
            Control::open(client, server, CtRequest { mark: Masked { value: 5, mask: 7 }, ..commit() });
        assert_eq!(control.say(line), line);
        if !answer.is_empty() {
            assert_eq!(control.answer(answer), answer);
        }
        let data = syn(at(from), at(to));
        let bench = &mut control.bench;
        let lookup = bench.track(&data, &CtMetadata::default(), &CtRequest::default()).metadata;
        assert_eq!(lookup.state, NEW | ct_state::RELATED, "{line}");
        let verdict = bench.track(&data, &CtMetadata::default(), &commit());
        assert_eq!((verdict.metadata.state, verdict.metadata.mark), (NEW | ct_state::RELATED, 5));
        assert_eq!(verdict.metadata.original.map(|tuple| tuple.dst_port), Some(21), "the master's tuple");
        let back = Tcp::new(at(to), at(from), SYN | ACK, 9, 2).frame();
        assert_eq!(bench.state(&back, &commit()), REPLY | ct_state::RELATED);
        // Any other port is not expected.
        let mut other = at(from);
        other.set_port(41_001);
        assert_eq!(bench.state(&syn(other, at(to)), &commit()), NEW);
    }
}

#[test]
fn an_address_that_is_not_the_senders_opens_nothing() {
    let mut control = Control::open("10.0.0.1:40000", "10.0.0.2:21", commit());
    control.say("PORT 10,0,0,9,200,1\r\n");
    assert_eq!(control.bench.state(&syn(at("10.0.0.2:20"), at("10.0.0.9:51201")), &commit()), NEW);
    control.say("PORT 10,0,0,1,200,1");
    assert_eq!(
        control.bench.state(&syn(at("10.0.0.2:20"), at("10.0.0.1:51201")), &commit()),
        NEW,
        "no whole line"
    );
}

#[test]
fn an_active_transfer_through_source_nat() {
    // Shorter, longer and as long as the text that it replaces.
    for mapped in ["1.2.3.4", "203.0.113.200", "20.0.0.1"] {
        let request = nat(SRC, (mapped, ""), None);
        let mut control = Control::open("10.0.0.1:40000", "198.51.100.2:21", request);
        for round in 0..3_u8 {
            let line = format!("PORT 10,0,0,1,200,{round}\r\n");
            let wanted = format!("PORT {},200,{round}\r\n", mapped.replace('.', ","));
            assert_eq!(control.say(&line), wanted);
            assert_eq!(
                control.answer("200 PORT command successful.\r\n"),
                "200 PORT command successful.\r\n"
            );
            let port = 51_200 + u16::from(round);
            let (from, to) = (at("198.51.100.2:20"), SocketAddr::new(at(&format!("{mapped}:0")).ip(), port));
            let (state, data) = control.bench.pass(&syn(from, to), &control.request);
            assert_eq!(state, NEW | ct_state::RELATED | DNAT);
            assert_eq!(ends(&data), (from, SocketAddr::new(at("10.0.0.1:0").ip(), port)));
            let back = Tcp::new(ends(&data).1, from, SYN | ACK, 9, 2).frame();
            let (state, back) = control.bench.pass(&back, &natted());
            assert_eq!((state, ends(&back)), (REPLY | RELATED | SNAT, (to, from)));
        }
    }
}

#[test]
fn a_segment_that_comes_again_is_written_as_before_and_counts_once() {
    let mut control = Control::open("10.0.0.1:40000", "198.51.100.2:21", nat(SRC, ("1.2.3.4", ""), None));
    let line = "PORT 10,0,0,1,200,1\r\n";
    let first = control.say(line);
    let again = Tcp::new(control.client, control.server, ACK, 1000, 5000).with(line.as_bytes()).frame();
    let (_, out) = control.bench.pass(&again, &control.request);
    assert_eq!(read(&out), (1000, 5000, first));
    assert_eq!(control.say("LIST\r\n"), "LIST\r\n");
    // The server reports a hole behind the line, which has other numbers on the client's side.
    let mut sack = vec![1, 5, 10];
    sack.extend((control.server_got + 10).to_be_bytes());
    sack.extend((control.server_got + 20).to_be_bytes());
    control.client_seq += 20;
    let segment =
        Tcp::new(control.client, control.server, ACK, control.client_seq - 10, 5000).with(&[b'x'; 10]);
    control.bench.pass(&segment.frame(), &control.request);
    let (from, to) = control.seen;
    let segment = Tcp::new(to, from, ACK, 5000, control.server_got).options(&sack);
    let (_, out) = control.bench.pass(&segment.frame(), &natted());
    let edges = &out[14 + 20 + 23..][..8];
    let wanted = [control.client_seq - 10, control.client_seq].map(u32::to_be_bytes).concat();
    assert_eq!(edges, wanted);
}

#[test]
fn a_passive_transfer_from_behind_a_translated_server() {
    let request = nat(NatSource::Dst, ("10.9.0.5", ""), Some((2121, 2121)));
    let mut control = Control::open("10.0.0.1:40000", "192.0.2.80:21", request);
    assert_eq!(control.say("PASV\r\n"), "PASV\r\n");
    let text = control.answer("227 Entering Passive Mode (10,9,0,5,200,1).\r\n");
    assert_eq!(text, "227 Entering Passive Mode (192,0,2,80,200,1).\r\n");
    let (state, data) =
        control.bench.pass(&syn(at("10.0.0.1:41000"), at("192.0.2.80:51201")), &control.request);
    assert_eq!(state, NEW | ct_state::RELATED | DNAT);
    assert_eq!(ends(&data), (at("10.0.0.1:41000"), at("10.9.0.5:51201")));
    assert_eq!(control.say("QUIT\r\n"), "QUIT\r\n");
}

#[test]
fn a_passive_transfer_of_a_translated_client_leaves_as_its_control_connection() {
    let mut control =
        Control::open("10.0.0.1:40000", "198.51.100.2:21", nat(SRC, ("192.0.2.1", "192.0.2.9"), None));
    let line = "227 Entering Passive Mode (198,51,100,2,200,1).\r\n";
    assert_eq!(control.answer(line), line);
    let (state, data) =
        control.bench.pass(&syn(at("10.0.0.1:41000"), at("198.51.100.2:51201")), &control.request);
    assert_eq!(state, NEW | ct_state::RELATED | SNAT);
    assert_eq!(ends(&data), (SocketAddr::new(control.seen.0.ip(), 41_000), at("198.51.100.2:51201")));
}

#[test]
fn ipv6_text_that_grows_stays_within_its_bounds() {
    let long = "2001:db8:1111:2222:3333:4444:5555:6666";
    let mut control = Control::open("[fd00::1]:40000", "[2001:db8::2]:21", nat(SRC, (long, ""), None));
    assert_eq!(control.say("EPRT |2|fd00::1|51201|\r\n"), format!("EPRT |2|{long}|51201|\r\n"));
    assert_eq!(control.say("NOOP\r\n"), "NOOP\r\n");
    assert_eq!(control.answer("200 ok\r\n"), "200 ok\r\n");
}

#[test]
fn two_clients_behind_one_address_get_ports_of_their_own() {
    let mut control = Control::open("10.0.0.1:40000", "198.51.100.2:21", nat(SRC, ("192.0.2.1", ""), None));
    assert_eq!(control.say("PORT 10,0,0,1,200,1\r\n"), "PORT 192,0,2,1,200,1\r\n");
    let bench = std::mem::take(&mut control.bench);
    let mut other = Control::open("10.0.0.7:40000", "198.51.100.2:21", nat(SRC, ("192.0.2.1", ""), None));
    // The second connection, in the first one's table.
    other.bench = bench;
    let opened =
        other.bench.pass(&Tcp::new(other.client, other.server, SYN, 999, 0).frame(), &other.request).1;
    other.seen = ends(&opened);
    let answer = Tcp::new(other.seen.1, other.seen.0, SYN | ACK, 4999, 1000).frame();
    other.bench.pass(&answer, &natted());
    other.bench.pass(&Tcp::new(other.client, other.server, ACK, 1000, 5000).frame(), &natted());
    assert_eq!(other.say("PORT 10,0,0,7,200,1\r\n"), "PORT 192,0,2,1,200,2\r\n");
    for (port, client) in [(51201, "10.0.0.1:51201"), (51202, "10.0.0.7:51201")] {
        let to = SocketAddr::new(at("192.0.2.1:0").ip(), port);
        let (_, data) = other.bench.pass(&syn(at("198.51.100.2:20"), to), &other.request);
        assert_eq!(ends(&data).1, at(client));
    }
}

#[test]
fn a_tftp_server_answers_from_another_port() {
    for (request, client) in
        [(commit(), "10.0.0.1:3000"), (nat(SRC, ("192.0.2.1", ""), Some((9000, 9000))), "192.0.2.1:9000")]
    {
        let mut bench = Bench::default();
        let request = CtRequest { helper: Some(CtHelper::Tftp), ..request };
        let read = udp(at("10.0.0.1:3000"), at("10.0.0.2:69"), b"\0\x01file\0octet\0");
        bench.pass(&read, &request);
        let data = udp(at("10.0.0.2:7777"), at(client), b"\0\x03\0\x01data");
        let (state, data) = bench.pass(&data, &request);
        assert_eq!(state & (NEW | ct_state::RELATED), NEW | ct_state::RELATED);
        assert_eq!(ends(&data).1, at("10.0.0.1:3000"));
        let (state, ack) =
            bench.pass(&udp(at("10.0.0.1:3000"), at("10.0.0.2:7777"), b"\0\x04\0\x01"), &natted());
        assert_eq!((state & REPLY, ends(&ack).0), (REPLY, at(client)));
    }
}

#[test]
fn expectations_time_out_and_go_with_their_master() {
    let mut control = Control::open("10.0.0.1:40000", "10.0.0.2:21", commit());
    control.say("PORT 10,0,0,1,200,1\r\n");
    control.answer("200 ok\r\n");
    // Unacknowledged data would shorten the master's timeout to the same value.
    control.say("");
    let data = syn(at("10.0.0.2:20"), at("10.0.0.1:51201"));
    control.bench.now_ms += 299_000;
    assert_eq!(control.bench.state(&data, &CtRequest::default()), NEW | ct_state::RELATED);
    control.bench.now_ms += 2000;
    assert_eq!(control.bench.state(&data, &CtRequest::default()), NEW);
    control.say("PORT 10,0,0,1,200,1\r\n");
    assert_eq!(control.bench.state(&data, &CtRequest::default()), NEW | ct_state::RELATED);
    assert!(control.bench.tracker.flush_zone(0, 10));
    assert_eq!(control.bench.state(&data, &CtRequest::default()), NEW);
}

#[test]
fn a_line_behind_the_image_is_asked_for_and_read_once() {
    let mut control = Control::open("[fd00::1]:40000", "[fd00::2]:21", commit());
    control.say("EPSV\r\n");
    let counted = |control: &Control| {
        let connections = &control.bench.tracker;
        let mut records = Vec::new();
        connections.dump(0, None, control.bench.now_ms, 1, &mut records);
        records[0].packets
    };
    let line = "229 Entering Extended Passive Mode (|||51201|).\r\n";
    let (from, to) = control.seen;
    let frame = Tcp::new(to, from, ACK, 5000, 1006).with(line.as_bytes()).frame();
    let track = |control: &Control, image: usize| {
        let image = &frame[..image];
        let packet = PacketImage::parse(image, frame.len() as u32, Offload::default(), 1).expect("TCP");
        control.bench.tracker.track(&packet, &CtMetadata::default(), &natted(), control.bench.now_ms)
    };
    let before = counted(&control);
    let verdict = track(&control, 100);
    assert!(verdict.wants_whole && verdict.metadata == CtMetadata::default());
    assert_eq!(counted(&control), before, "nothing was done");
    let verdict = track(&control, frame.len());
    assert!(!verdict.wants_whole && verdict.metadata.state & REPLY != 0);
    assert_eq!(counted(&control)[1], before[1] + 1);
    let data = syn(at("[fd00::1]:41000"), at("[fd00::2]:51201"));
    assert_eq!(control.bench.state(&data, &commit()) & (NEW | RELATED), NEW | RELATED);
    // Helpers ignore other text, and packets that are too long.
    for text in
        ["230 Logged in; the rest of this line announces nothing.\r\n", "229 (|||1|)", &"229 ".repeat(500)]
    {
        let frame = Tcp::new(to, from, ACK, 5049, 1006).with(text.as_bytes()).frame();
        let image = &frame[..80];
        let packet = PacketImage::parse(image, frame.len() as u32, Offload::default(), 1).expect("TCP");
        let verdict =
            control.bench.tracker.track(&packet, &CtMetadata::default(), &natted(), control.bench.now_ms);
        assert_eq!(verdict.wants_whole, text == "229 (|||1|)", "{text}");
    }
}
