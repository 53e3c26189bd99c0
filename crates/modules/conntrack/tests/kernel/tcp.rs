//! TCP segments, most of them near the expected ones.

use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtCommit, CtMetadata, CtProtocol, CtRecord, CtRequest, PacketImage, TcpState,
};
use lasthop_wire::Offload;

use crate::Rng;
use crate::frames::{ACK, FIN, RST, SYN, Tcp, at};
use crate::router::{Router, Side};

/// Number of connections, and of segments of each.
const CONNECTIONS: u16 = 150;
const SEGMENTS: u32 = 14;

/// One end's view of its connection, if all segments arrived.
#[derive(Clone, Copy)]
struct End {
    next: u32,
    got: u32,
}

struct Talk {
    ends: [End; 2],
    port: u16,
}

impl Talk {
    fn new(rng: &mut Rng, port: u16) -> Self {
        let (client, server) = (rng.below(u32::MAX), rng.below(u32::MAX));
        Self { ends: [End { next: client, got: server }, End { next: server, got: client }], port }
    }

    /// A segment: a likely one, with an error now and then.
    fn segment(&mut self, rng: &mut Rng, step: u32) -> (Side, Tcp) {
        let (side, flags) = match step {
            0 => (Side::Left, rng.one(&[SYN, SYN, SYN, SYN, SYN, SYN, ACK, FIN | ACK, RST])),
            1 => (
                rng.one(&[Side::Right, Side::Right, Side::Right, Side::Left]),
                rng.one(&[SYN | ACK, SYN | ACK, SYN | ACK, SYN, RST | ACK, ACK]),
            ),
            2 => (
                rng.one(&[Side::Left, Side::Left, Side::Right]),
                rng.one(&[ACK, ACK, ACK, SYN, SYN | ACK, RST]),
            ),
            _ => {
                let flags = [
                    ACK,
                    ACK,
                    ACK,
                    ACK,
                    ACK,
                    FIN | ACK,
                    FIN | ACK,
                    RST,
                    RST | ACK,
                    SYN,
                    SYN | ACK,
                    0,
                    SYN | FIN,
                ];
                (rng.one(&[Side::Left, Side::Right]), rng.one(&flags))
            }
        };
        let (client, server) = (at(&format!("10.0.0.1:{}", self.port)), at("10.0.1.2:80"));
        let (src, dst, index) = if side == Side::Left { (client, server, 0) } else { (server, client, 1) };
        let end = self.ends[index];
        let off = |rng: &mut Rng| match rng.below(12) {
            0 => 1,
            1 => 1_u32.wrapping_neg(),
            2 => rng.one(&[100, 5000, 8192, 8193, 20_000, 66_001, 200_000]),
            3 => rng.one(&[100_u32, 5000, 8192, 8193, 20_000, 66_001, 66_002, 200_000]).wrapping_neg(),
            _ => 0,
        };
        let seq = end.next.wrapping_add(off(rng));
        let ack = if flags & ACK == 0 { rng.one(&[0, end.got]) } else { end.got.wrapping_add(off(rng)) };
        let (seq, ack) =
            if flags & RST != 0 { (rng.one(&[seq, seq, 0]), rng.one(&[ack, ack, 0])) } else { (seq, ack) };
        let mut segment =
            Tcp::new(src, dst, flags, seq, ack).window(rng.one(&[0, 1, 1000, 8192, 8192, 65535]));
        let options: &[&[u8]] = if flags & SYN != 0 {
            &[&[], &[4, 2], &[3, 3, 7], &[4, 2, 1, 3, 3, 2], &[3, 3, 14, 4, 2]]
        } else {
            &[&[], &[], &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]]
        };
        segment = segment.options(rng.one(options));
        if flags & SYN == 0 && rng.below(6) == 0 {
            let edge = end.got.wrapping_add(rng.one(&[10, 500, 3000]));
            let block = [&[5, 10], &edge.to_be_bytes()[..], &edge.wrapping_add(100).to_be_bytes()].concat();
            segment = segment.options(&block);
        }
        if flags & (SYN | RST) == 0 {
            segment = segment.with(&vec![7; rng.one(&[0, 0, 1, 100, 1000])]);
        }
        let used = segment.payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        // Most segments arrive.
        if rng.below(8) > 0 && seq == end.next {
            self.ends[index].next = seq.wrapping_add(used);
            self.ends[1 - index].got = self.ends[index].next;
        }
        (side, segment)
    }
}

fn name(state: TcpState) -> &'static str {
    match state {
        TcpState::None => "NONE",
        TcpState::SynSent => "SYN_SENT",
        TcpState::SynRecv => "SYN_RECV",
        TcpState::Established => "ESTABLISHED",
        TcpState::FinWait => "FIN_WAIT",
        TcpState::CloseWait => "CLOSE_WAIT",
        TcpState::LastAck => "LAST_ACK",
        TcpState::TimeWait => "TIME_WAIT",
        TcpState::Close => "CLOSE",
        TcpState::SynSent2 => "SYN_SENT2",
    }
}

/// State, seconds left, and bits.
fn kept(record: Option<CtRecord>) -> Option<(String, u64, bool, bool)> {
    let record = record?;
    let CtProtocol::Tcp { state, .. } = record.protocol else { return None };
    Some((name(state).to_owned(), record.left_ms / 1000, record.is_replied, record.is_assured))
}

fn kept_by_kernel(words: Option<Vec<String>>) -> Option<(String, u64, bool, bool)> {
    let words = words?;
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    let seconds = words[4].parse().expect("seconds");
    Some((words[5].clone(), seconds, !has("[UNREPLIED]"), has("[ASSURED]")))
}

#[test]
fn segments_get_the_same_states_and_leave_the_same_connections() {
    let Some(mut router) = Router::start("") else { return };
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0001);
    let mut rng = Rng(seed);
    let request = CtRequest { commit: CtCommit::Yes, ..CtRequest::default() };
    let started = std::time::Instant::now();
    let now_ms = || 1_000_000 + started.elapsed().as_millis() as u64;
    for port in 10_000..10_000 + CONNECTIONS {
        let tracker = ConntrackTable::new(CtBounds::default(), now_ms());
        let mut talk = Talk::new(&mut rng, port);
        let mut so_far = Vec::new();
        for step in 0..SEGMENTS {
            let (side, segment) = talk.segment(&mut rng, step);
            let frame = segment.frame();
            let wanted = router.pass(side, &frame).map(|routed| routed.state);
            let image = PacketImage::parse(&frame, frame.len() as u32, Offload::default(), 1).expect("TCP");
            let verdict = tracker.track(&image, &CtMetadata::default(), &request, now_ms());
            let wanted_kept = kept_by_kernel(router.entry(port));
            let mut found = Vec::new();
            tracker.dump(0, None, now_ms(), 1, &mut found);
            let found = found.pop();
            // We keep a connection for a moment after a reset that ends it at once, for the sake of that packet.
            let found = kept(found.filter(|found| found.left_ms > 1000));
            so_far.push(format!(
                "{side:?} flags {:#x} seq {} ack {} window {} options {:?}, {} bytes: {:#x} {found:?}, {wanted:x?} {wanted_kept:?}",
                segment.flags,
                segment.seq,
                segment.ack,
                segment.window,
                segment.options,
                segment.payload.len(),
                verdict.metadata.state
            ));
            let is_same = wanted.is_none_or(|wanted| wanted == verdict.metadata.state)
                && match (&wanted_kept, &found) {
                    (Some(wanted), Some(found)) => {
                        (&wanted.0, wanted.2, wanted.3) == (&found.0, found.2, found.3)
                            && wanted.1.abs_diff(found.1) <= 2
                    }
                    (wanted, found) => wanted.is_none() == found.is_none(),
                };
            assert!(
                is_same,
                "SEED={seed}, port {port}: behind each segment what is found here, then by the kernel\n{}",
                so_far.join("\n")
            );
        }
    }
}
