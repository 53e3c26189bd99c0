//! Checks addresses behind a port: learned, and not elsewhere at the same time.

use crate::doctor::duplicates::duplicate;
use crate::doctor::finding::Verdict;

use super::Case;

/// Number of addresses that are shown.
const SHOWN_MAX: usize = 4;

pub(super) fn learning(case: &Case<'_>) -> Verdict {
    let name = case.now.name();
    if case.now.module == "dummy" {
        return Verdict::ok("module dummy needs no addresses");
    }
    if let Some(verdict) = duplicate(case.facts, name) {
        return verdict;
    }
    if case.facts.is_for_outside(case.now.common().switch.as_str()) {
        return Verdict::ok(
            "the controller of its switch has its addresses; Open vSwitch: ovs-appctl fdb/show BRIDGE",
        );
    }
    let addresses: Vec<&str> =
        case.facts.fdb.iter().filter(|line| line.port == name).map(|line| line.mac.as_str()).collect();
    if addresses.is_empty() {
        return unlearned(case);
    }
    let more = addresses.len().saturating_sub(SHOWN_MAX);
    let shown = addresses.iter().take(SHOWN_MAX).copied().collect::<Vec<_>>().join(" ");
    Verdict::ok(if more > 0 { format!("{shown} and {more} more") } else { shown })
}

fn unlearned(case: &Case<'_>) -> Verdict {
    let received = case.now.counters.as_ref().map_or(0, |port| port.rx_packets);
    if received == 0 {
        return Verdict::unknown("no address yet, the guest has sent nothing: ping something from it");
    }
    Verdict::unknown(format!(
        "no address now, though the guest has sent {received} packets: aged out (300 s), or all dropped"
    ))
}
