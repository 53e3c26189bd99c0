//! Flows as `ovs-dpctl dump-flows` prints them (3.1): with the same words, commas and zeros, so that readers and
//! scripts need not distinguish.
//!
//! Fields that the mask ignores are not printed, unless `is_verbose`, as with `-m`.

mod action;
mod cookie;
mod key;
mod text;
mod tunnel;

use lasthop_flow::{Action, FlowKey, FlowStats, Ufid};

use crate::family::FlowMessage;

/// Names of ports by number, for printing.
pub type PortNames<'a> = &'a dyn Fn(u32) -> Option<String>;

/// How a flow is printed.
#[derive(Clone, Copy)]
pub struct Style<'a> {
    /// Prints everything: names of flows, and fields that masks ignore (`-m`).
    pub is_verbose: bool,
    /// Prints ports' names where there are any (`--names`).
    pub names: PortNames<'a>,
}

impl std::fmt::Debug for Style<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Style").field("is_verbose", &self.is_verbose).finish_non_exhaustive()
    }
}

impl Default for Style<'_> {
    fn default() -> Self {
        Self { is_verbose: false, names: &|_| None }
    }
}

impl Style<'_> {
    fn port(&self, number: u32) -> String {
        (self.names)(number).unwrap_or_else(|| number.to_string())
    }
}

/// One line of `dump-flows`; `now_ms` is CLOCK_MONOTONIC's.
#[must_use]
pub fn flow(flow: &FlowMessage, now_ms: u64, style: Style<'_>) -> String {
    let mut line = String::new();
    if let Some(ufid) = flow.ufid.filter(|_| style.is_verbose) {
        line += &format!("ufid:{}, ", self::ufid(ufid));
    }
    line += &flow
        .key
        .as_ref()
        .map_or_else(|| "<empty>".to_owned(), |key| self::key(key, flow.mask.as_ref(), style));
    line += &format!(", {}", stats(&flow.stats.unwrap_or_default(), now_ms));
    if style.is_verbose {
        line += ", dp:ovs";
    }
    line + &format!(", actions:{}", actions(flow.actions.as_deref().unwrap_or_default(), style))
}

/// Formats a flow's name: four words in the host's byte order, with dashes.
#[must_use]
pub fn ufid(ufid: Ufid) -> String {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(ufid.0.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    let [a, b, c, d] = words;
    format!("{a:08x}-{:04x}-{:04x}-{:04x}-{:04x}{d:08x}", b >> 16, b & 0xffff, c >> 16, c & 0xffff)
}

/// Formats a key and its mask. An empty mask counts as none, which is exact.
#[must_use]
pub fn key(key: &FlowKey, mask: Option<&FlowKey>, style: Style<'_>) -> String {
    key::format(key, mask.filter(|mask| **mask != FlowKey::default()), style)
}

/// Formats a list of actions; an empty one is "drop".
#[must_use]
pub fn actions(actions: &[Action], style: Style<'_>) -> String {
    action::format(actions, style)
}

fn stats(stats: &FlowStats, now_ms: u64) -> String {
    let used = match stats.used_ms {
        0 => "never".to_owned(),
        // The flow may have been used after `now_ms` was read.
        used_ms => {
            format!("{}.{:03}s", now_ms.saturating_sub(used_ms) / 1000, now_ms.saturating_sub(used_ms) % 1000)
        }
    };
    let mut line = format!("packets:{}, bytes:{}, used:{used}", stats.packets, stats.bytes);
    if stats.tcp_flags != 0 {
        line += &format!(", flags:{}", tcp_flags(stats.tcp_flags));
    }
    line
}

/// Formats TCP flags like tcpdump.
fn tcp_flags(flags: u16) -> String {
    const SIGNS: [(u16, &str); 12] = [
        (0x02, "S"),
        (0x01, "F"),
        (0x08, "P"),
        (0x04, "R"),
        (0x20, "U"),
        (0x10, "."),
        (0x40, "E"),
        (0x80, "C"),
        (0x100, "N"),
        (0x200, "[200]"),
        (0x400, "[400]"),
        (0x800, "[800]"),
    ];
    SIGNS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, sign)| *sign).collect()
}
