//! The visits that `tools/instructions` counts and `benches/visit.rs` times.

use lasthop_fabric::Capabilities;

use super::frames::{
    Frame, TCP_SYN, TSO_SEGMENTS, complete, handshake, one_flow, over_ipv6, over_udp, plain, segment, tagged,
    tcp, udp, udp6,
};
use super::{Decider, Layout, Plan, everything};

/// Packets of a full batch.
const BATCH: usize = 32;
/// Largest TCP frames that a visit takes: 256 KiB.
const LARGE: usize = 4;

/// The same with packed rings.
fn packed(plan: Plan) -> Plan {
    Plan { is_packed: true, ..plan }
}

/// A name and its plan.
pub type Scenario = (&'static str, fn() -> Plan);

/// All scenarios. Their names are in `bench/instructions.tsv`.
pub const ALL: &[Scenario] = &[
    ("64-one-flow", || Plan::bridged(one_flow(BATCH, 64))),
    ("64-idle-ports", || Plan { receivers: 250, ..Plan::bridged(one_flow(BATCH, 64)) }),
    ("64-in-order", || Plan { in_order: true, ..Plan::bridged(one_flow(BATCH, 64)) }),
    ("64-packed", || packed(Plan::bridged(one_flow(BATCH, 64)))),
    ("64-packed-in-order", || packed(Plan { in_order: true, ..Plan::bridged(one_flow(BATCH, 64)) })),
    ("64-destinations", destinations),
    ("64-two-descriptors", || Plan { cuts: vec![12], ..Plan::bridged(one_flow(BATCH, 64)) }),
    ("64-indirect", || Plan {
        cuts: vec![12],
        layout: Layout::Indirect,
        ..Plan::bridged(one_flow(BATCH, 64))
    }),
    ("64-single", || Plan::bridged(one_flow(1, 64))),
    ("64-in-order-single", || Plan { in_order: true, ..Plan::bridged(one_flow(1, 64)) }),
    ("64-packed-single", || packed(Plan::bridged(one_flow(1, 64)))),
    ("1500", || Plan::bridged(one_flow(BATCH, 1500))),
    ("9000-merged", || Plan {
        rx_buffer_bytes: 1536,
        buffers_expected: 6 * BATCH / 2,
        ..Plan::bridged(one_flow(BATCH / 2, 9000))
    }),
    ("9000-packed-merged", || {
        packed(Plan {
            rx_buffer_bytes: 1536,
            buffers_expected: 6 * BATCH / 2,
            ..Plan::bridged(one_flow(BATCH / 2, 9000))
        })
    }),
    ("tso-passed", || Plan { rx_buffer_bytes: 68 << 10, ..Plan::bridged(vec![tcp(TSO_SEGMENTS); LARGE]) }),
    ("tso-segmented", || Plan {
        capabilities: Capabilities { csum: false, tso4: false, tso6: false, ..everything() },
        buffers_expected: LARGE * TSO_SEGMENTS,
        ..Plan::bridged(vec![tcp(TSO_SEGMENTS); LARGE])
    }),
    ("1500-summed", || Plan {
        capabilities: Capabilities { csum: false, tso4: false, tso6: false, ..everything() },
        ..Plan::bridged(vec![tcp(1); BATCH])
    }),
    ("flood-8", || flood(8)),
    ("dropped", dropped),
    ("flow-cached", || flows(0, true)),
    ("flow-cached-1000-masks", || flows(1000, true)),
    ("flow-cached-32-destinations", || Plan {
        decider: Decider::Flows { other_masks: 0, is_cached: true },
        frames: destinations().frames.into_iter().map(udp).collect(),
        ..destinations()
    }),
    ("flow-cached-ipv6", || Plan { frames: sources().into_iter().map(udp6).collect(), ..flows(0, true) }),
    ("flow-found", || flows(0, false)),
    ("flow-found-100-masks", || flows(100, false)),
    // The other scenarios minus this one are the cost of `ct`.
    ("flow-cached-tcp", || Plan { decider: flows(0, true).decider, ..tracked(false) }),
    ("ct", || tracked(false)),
    ("ct-summed", || {
        let plan = tracked(false);
        Plan { frames: plan.frames.into_iter().map(complete).collect(), ..plan }
    }),
    ("ct-vlan", || {
        let plan = tracked(false);
        Plan { frames: plan.frames.into_iter().map(tagged).collect(), ..plan }
    }),
    ("ct-nat", || tracked(true)),
    ("ct-new", || beginning(BATCH, false)),
    ("ct-new-single", || beginning(1, false)),
    ("ct-new-nat", || beginning(BATCH, true)),
    // Like the first packets of bench/conntrack.
    ("ct-new-udp-single", || by_udp(beginning(1, false))),
    // Connections with replies that are less than two seconds old.
    ("ct-young", || by_udp(tracked(false))),
    // Frames that are 20 bytes longer than the others, otherwise equal.
    ("ct6", tracked6),
    ("flow-cached-tcp6", || Plan { decider: flows(0, true).decider, ..tracked6() }),
];

/// As [`tracked`], over IPv6.
fn tracked6() -> Plan {
    let plan = tracked(false);
    Plan { frames: plan.frames.into_iter().map(over_ipv6).collect(), ..plan }
}

/// The same by UDP.
fn by_udp(plan: Plan) -> Plan {
    Plan { frames: plan.frames.into_iter().map(over_udp).collect(), ..plan }
}

/// Both directions of 16 established connections.
pub fn tracked(is_translated: bool) -> Plan {
    let pair = |number: u8| [false, true].map(|is_reply| segment(number, is_reply, is_translated));
    let frames = (0..BATCH as u8 / 2).flat_map(pair).collect();
    Plan { decider: Decider::Tracked { is_translated }, ..Plan::bridged(frames) }
}

/// Packets that each begin a connection, which is committed. With `is_translated`, with another source.
fn beginning(count: usize, is_translated: bool) -> Plan {
    let frames = (0..count as u8).map(|number| handshake(number, false, false, TCP_SYN)).collect();
    Plan { is_new: true, decider: Decider::Tracked { is_translated }, ..Plan::bridged(frames) }
}

/// Packets of different flows.
pub fn flows(other_masks: u16, is_cached: bool) -> Plan {
    let frames = sources().into_iter().map(udp).collect();
    Plan { decider: Decider::Flows { other_masks, is_cached }, ..Plan::bridged(frames) }
}

/// Packets from different addresses.
fn sources() -> Vec<Frame> {
    let mut frames = one_flow(BATCH, 64);
    for (frame, source) in frames.iter_mut().zip(0..) {
        frame.bytes[10] = source;
    }
    frames
}

/// Each packet of a batch goes to another receiver.
pub fn destinations() -> Plan {
    let frames = (0..BATCH as u8).map(|receiver| plain(receiver, 64)).collect();
    Plan { receivers: BATCH as u16, ..Plan::bridged(frames) }
}

/// An unknown address: every packet goes to all `receivers`.
pub fn flood(receivers: u16) -> Plan {
    let frames = vec![plain(200, 64); BATCH];
    Plan { receivers, buffers_expected: BATCH * usize::from(receivers), ..Plan::bridged(frames) }
}

/// The sender has no partner: packets are fetched, dropped and completed.
pub fn dropped() -> Plan {
    Plan { decider: Decider::Dummy, receivers: 0, buffers_expected: 0, ..Plan::bridged(one_flow(BATCH, 64)) }
}
