//! Checks addresses behind a port: learned, and not behind two ports at the same time.

use lasthop_api::facts::{Facts, MoveFacts};
use lasthop_api::port::change::anew_with;
use lasthop_api::readable::time;

use crate::finding::Verdict;
use crate::link::Case;

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
    let Some(received) = case.now.counters.as_ref().map(|port| port.rx_packets) else {
        return Verdict::unknown("not known, as the switch process gives no answer");
    };
    if received == 0 {
        return Verdict::unknown("no address yet, the guest has sent nothing: ping something from it");
    }
    Verdict::unknown(format!(
        "no address now, though the guest has sent {received} packets: aged out (300 s), or all dropped"
    ))
}

/// Number of moves of an address from which on it does not belong to a migrating guest.
const MOVES_OF_TWO: u32 = 3;
/// Older moves do not matter any more.
const RECENT_MS: u64 = 60_000;

/// The fault, reported at either port.
pub(crate) fn duplicate(facts: &Facts, port: &str) -> Option<Verdict> {
    let moved = facts.moves.iter().find(|moved| is_shared(moved, port))?;
    let text = format!(
        "duplicate MAC address {}: it is seen from {} and {} in turns ({} moves, the last one {} ago)",
        moved.mac,
        moved.from,
        moved.to,
        moved.count,
        time(moved.age_ms)
    );
    Some(Verdict::broken(text, distinct(facts, moved)))
}

fn is_shared(moved: &MoveFacts, name: &str) -> bool {
    moved.count >= MOVES_OF_TWO && moved.age_ms < RECENT_MS && (moved.from == name || moved.to == name)
}

/// How to give both addresses of their own.
fn distinct(facts: &Facts, moved: &MoveFacts) -> String {
    let port = facts.ports.iter().find(|port| port.name == moved.from || port.name == moved.to);
    match port {
        Some(port) if port.settings.tap().is_some() => format!(
            "give the guest another address (QEMU: mac=... at -device), or the host's port {}: {}",
            port.name,
            anew_with(&port.settings, "mac", "ADDRESS")
        ),
        Some(port) => format!(
            "a machine behind {} has the address, too, or frames come back by it: give one of them another address, or end the loop",
            port.name
        ),
        None => "give each guest an address of its own (QEMU: mac=... at -device); mac=ADDRESS at the vnic refuses others".to_owned(),
    }
}
