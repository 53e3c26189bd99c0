//! Addresses behind a port: learned, and not elsewhere at the same time.

use crate::doctor::finding::Verdict;
use lasthop_api::facts::MoveFacts;
use lasthop_api::readable::time;

use super::Case;

/// Moves of one address from which on it is no guest that migrates.
const MOVES_OF_TWO: u32 = 3;
/// Moves longer ago than this are over.
const RECENT_MS: u64 = 60_000;
/// Addresses shown.
const SHOWN_MAX: usize = 4;

pub(super) fn learning(case: &Case<'_>) -> Verdict {
    let name = case.now.name();
    if case.now.module == "dummy" {
        return Verdict::ok("module dummy needs no addresses");
    }
    if let Some(moved) = case.facts.moves.iter().find(|moved| is_shared(moved, name)) {
        return Verdict::broken(
            format!(
                "duplicate MAC address {}: it is seen from {} and {} in turns ({} moves, the last one {} ago)",
                moved.mac,
                moved.from,
                moved.to,
                moved.count,
                time(moved.age_ms)
            ),
            distinct(case, moved),
        );
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

/// How both get addresses of their own.
fn distinct(case: &Case<'_>, moved: &MoveFacts) -> String {
    let port = case.facts.ports.iter().find(|port| port.name == moved.from || port.name == moved.to);
    match port {
        Some(port) if port.settings.tap().is_some() => format!(
            "give the guest another address (QEMU: mac=... at -device), or the host's port {}: mac=ADDRESS",
            port.name
        ),
        _ => "give each guest an address of its own (QEMU: mac=... at -device); mac=ADDRESS at the vnic refuses others".to_owned(),
    }
}

fn is_shared(moved: &MoveFacts, name: &str) -> bool {
    moved.count >= MOVES_OF_TWO && moved.age_ms < RECENT_MS && (moved.from == name || moved.to == name)
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
