//! Translated packets of several protocols and ICMP errors about them: the results are the same, byte by
//! byte.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lasthop_conntrack::{ConntrackTable, CtBounds, CtCommit, CtMetadata, CtRequest, PacketImage};
use lasthop_flow::{Nat, NatRange, NatSource};
use lasthop_wire::Offload;

use crate::Rng;
use crate::frames::{ACK, SYN, Tcp, at, echo, udp, unreachable};
use crate::router::{Router, Side};

/// Packets of a test.
const PACKETS: u32 = 600;

/// A translation, with the addresses that each side sees.
struct Scene {
    rules: &'static str,
    source: NatSource,
    to: &'static str,
    client: &'static str,
    /// The server's address for the client, and its real one.
    server: (&'static str, &'static str),
    /// The client's address for the server.
    seen: &'static str,
}

fn request(scene: &Scene, side: Side) -> CtRequest {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let range = NatRange { ip_min: Some(address(scene.to)), ..NatRange::default() };
    let nat = match side {
        Side::Left => Nat { source: Some(scene.source), range, ..Nat::default() },
        Side::Right => Nat::default(),
    };
    CtRequest { commit: CtCommit::Yes, nat: Some(nat), ..CtRequest::default() }
}

/// A packet of one of a few connections, or an error about one that was seen on that side.
fn packet(
    rng: &mut Rng,
    scene: &Scene,
    seen: &[(Side, Vec<u8>)],
    opened: &mut BTreeSet<(u32, u32)>,
) -> (Side, Vec<u8>) {
    let side = rng.one(&[Side::Left, Side::Left, Side::Right]);
    let about: Vec<&Vec<u8>> =
        seen.iter().filter(|(from, _)| *from != side).map(|(_, frame)| frame).collect();
    if rng.below(4) == 0 && !about.is_empty() {
        let from = if side == Side::Left { scene.client } else { rng.one(&[scene.server.1, "10.0.1.5"]) };
        let about = about[rng.below(about.len() as u32) as usize];
        return (side, unreachable(from, about, rng.one(&[28, 40, 48, 100, 500])));
    }
    let (kind, port) = (rng.below(3), 2000 + rng.below(8));
    // A server that sends first would have the client's port, and NAT would choose another one at random.
    if side == Side::Left {
        opened.insert((kind, port));
    } else if !opened.contains(&(kind, port)) {
        return packet(rng, scene, seen, opened);
    }
    let (src, dst) = match side {
        Side::Left => (scene.client, scene.server.0),
        Side::Right => (scene.server.1, scene.seen),
    };
    let (here, there) = if side == Side::Left { (port, 80) } else { (80, port) };
    let (from, to) = (at(&format!("{src}:{here}")), at(&format!("{dst}:{there}")));
    let payload = vec![7; rng.one(&[0, 1, 20, 333])];
    let frame = match kind {
        0 => udp(from, to, &payload),
        1 if side == Side::Left => Tcp::new(from, to, SYN, 1000, 0).frame(),
        1 => Tcp::new(from, to, SYN | ACK, 5000, 1001).options(&[4, 2]).frame(),
        _ => echo(src, dst, side == Side::Right, port as u16),
    };
    (side, frame)
}

/// The frame without the router's own changes: hardware addresses, TOS, TTL, and the header's checksum.
fn comparable(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame[14..].to_vec();
    (bytes[1], bytes[8]) = (0, 0);
    bytes[10..12].fill(0);
    bytes
}

fn compare(scene: &Scene) {
    let Some(mut router) = Router::start(scene.rules) else { return };
    let mut rng = Rng(0x5eed_0002);
    let tracker = ConntrackTable::new(CtBounds::default(), 0);
    let (mut seen, mut opened, mut errors) = (Vec::new(), BTreeSet::new(), 0);
    for number in 0..PACKETS {
        let (side, frame) = packet(&mut rng, scene, &seen, &mut opened);
        let image =
            PacketImage::parse(&frame, frame.len() as u32, Offload::default(), 1).expect("an IP packet");
        let verdict = tracker.track(&image, &CtMetadata::default(), &request(scene, side), 1);
        let out = verdict.rewrites.applied(&frame);
        // An untranslated packet may go to an address that no host here has.
        let Some(routed) = router.pass(side, &frame) else { continue };
        let state = verdict.metadata.state & 0x3f;
        assert_eq!(state, routed.state, "packet {number}, {side:?}: {frame:x?}");
        assert_eq!(comparable(&out), comparable(&routed.frame), "packet {number}, {side:?}: {frame:x?}");
        errors += u32::from(state & 4 != 0);
        if state != 0x30 {
            seen.push((side, out));
        }
    }
    assert!(seen.len() > 200 && errors > 20, "{} packets, {errors} errors", seen.len());
}

#[test]
fn sources() {
    compare(&Scene {
        rules: r#"chain post { type nat hook postrouting priority srcnat; oifname "right1" snat to 10.0.1.3; }"#,
        source: NatSource::Src,
        to: "10.0.1.3",
        client: "10.0.0.1",
        server: ("10.0.1.2", "10.0.1.2"),
        seen: "10.0.1.3",
    });
}

#[test]
fn destinations() {
    compare(&Scene {
        rules: r#"chain pre { type nat hook prerouting priority dstnat; iifname "left1" ip daddr 10.0.1.4 dnat to 10.0.1.2; }"#,
        source: NatSource::Dst,
        to: "10.0.1.2",
        client: "10.0.0.1",
        server: ("10.0.1.4", "10.0.1.2"),
        seen: "10.0.0.1",
    });
}
