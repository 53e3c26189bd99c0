use std::time::Duration;

use crate::workload::{StockTraffic, TrafficKind, Workload};

/// A workload in a few words, as in `One way, 64-byte frames`.
pub(super) fn headline(workload: &Workload) -> String {
    let kind = match workload.kind {
        TrafficKind::Stream { pairs, both_ways } => stream(pairs, both_ways),
        TrafficKind::FanIn { senders } => format!("{senders} senders to one"),
        TrafficKind::AllToAll { guests } => format!("{guests} guests, each to all others"),
        TrafficKind::Offered { rate_pps } => format!("{} packets/s offered", count(rate_pps)),
        TrafficKind::First { rate_pps } => format!("{} new flows/s, one way", count(rate_pps)),
        TrafficKind::RoundTrip { sleeping: true, .. } => "Round trip, guests asleep".to_owned(),
        TrafficKind::RoundTrip { sleeping: false, .. } => "Round trip, guests polling".to_owned(),
        TrafficKind::Stock(traffic) => stock(traffic).to_owned(),
        TrafficKind::Idle { guests } => return format!("{guests} silent guests"),
    };
    format!("{kind}, {}-byte frames", workload.frame_bytes)
}

/// The other properties that distinguish a workload; empty for the defaults.
pub(super) fn details(workload: &Workload) -> Vec<String> {
    let usual = Workload::default();
    let pause = if let TrafficKind::RoundTrip { pause, .. } = workload.kind { pause } else { Duration::ZERO };
    let parts = [
        (!pause.is_zero(), format!("one each {pause:?}")),
        (workload.flows != usual.flows, format!("{} flows", count(workload.flows.into()))),
        (workload.macs != usual.macs, format!("{} addresses", count(workload.macs.into()))),
        (workload.ring_entries != usual.ring_entries, format!("rings of {}", workload.ring_entries)),
        (workload.touched, "every byte written and read".to_owned()),
        (matches!(workload.kind, TrafficKind::Stock(_)), "guests are DPDK's testpmd".to_owned()),
        (workload.idle_ports > 0, format!("{} idle ports beside", workload.idle_ports)),
        (workload.in_order != usual.in_order, "not in order".to_owned()),
        (workload.packed != usual.packed, "packed rings where the switch has them".to_owned()),
        (workload.mergeable != usual.mergeable, "no mergeable buffers".to_owned()),
        (workload.uncut() && workload.tso, "TCP segments to be cut".to_owned()),
        (!workload.tso, "TCP segments that the switch cuts".to_owned()),
        (!workload.nap.is_zero(), format!("guests sleep {:?} between looks", workload.nap)),
    ];
    parts.into_iter().filter_map(|(applies, part)| applies.then_some(part)).collect()
}

fn stock(traffic: StockTraffic) -> &'static str {
    match traffic {
        StockTraffic::FlowGen => "testpmd flowgen, both ways",
        StockTraffic::FiveTupleSwap => "testpmd 5tswap, a ring's frames go round",
        StockTraffic::MacSwap => "testpmd macswap, a ring's frames go round",
        StockTraffic::TxOnly => "testpmd txonly to rxonly",
        StockTraffic::RoundTrip => "testpmd, mean round trip of two frames",
    }
}

fn stream(pairs: u16, both_ways: bool) -> String {
    let direction = if both_ways { "both ways" } else { "one way" };
    match (pairs, both_ways) {
        (1, true) => "Both ways".to_owned(),
        (1, false) => "One way".to_owned(),
        _ => format!("{pairs} pairs {direction}"),
    }
}

/// As in 1.5M for 1500000 if that is exact; otherwise all digits.
fn count(number: u64) -> String {
    let short = |unit: u64, sign: &str| {
        (number >= unit && number.is_multiple_of(unit / 10))
            .then(|| format!("{}{sign}", number as f64 / unit as f64))
    };
    short(1_000_000, "M").or_else(|| short(1_000, "k")).unwrap_or_else(|| number.to_string())
}
