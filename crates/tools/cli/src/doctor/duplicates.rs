//! Detects an address behind two ports at the same time.

use lasthop_api::facts::{Facts, MoveFacts};
use lasthop_api::port::change::anew_with;
use lasthop_api::readable::time;

use super::finding::Verdict;

/// Number of moves of an address from which on it does not belong to a migrating guest.
const MOVES_OF_TWO: u32 = 3;
/// Older moves do not matter any more.
const RECENT_MS: u64 = 60_000;

/// The fault, reported at either port.
pub(super) fn duplicate(facts: &Facts, port: &str) -> Option<Verdict> {
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
