//! The statistics of a flow, relative to the workers' counters of its slot.

use lasthop_flow::FlowStats;

/// Start values of a flow's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// The workers' counters at the time of the last clear.
    before: FlowStats,
    /// The flow's counters from before its installation here.
    brought: FlowStats,
}

impl Tally {
    /// Returns the tally of a flow that has these counters already.
    pub(crate) fn brought(brought: FlowStats) -> Self {
        Self { brought, ..Self::default() }
    }

    /// Returns the tally of a flow whose counters begin at zero while the workers' counters are at `before`.
    pub(crate) fn cleared(before: FlowStats) -> Self {
        Self { before, ..Self::default() }
    }

    /// The flow's statistics when the workers' counters are at `now`.
    pub(crate) fn told(&self, now: FlowStats) -> FlowStats {
        let Self { before, brought } = self;
        let is_new = now.packets > before.packets;
        FlowStats {
            packets: (now.packets - before.packets).wrapping_add(brought.packets),
            bytes: (now.bytes - before.bytes).wrapping_add(brought.bytes),
            used_ms: if is_new { now.used_ms.max(brought.used_ms) } else { brought.used_ms },
            tcp_flags: brought.tcp_flags | if is_new { now.tcp_flags } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_from_given_values_and_from_zero_when_cleared() {
        let stats =
            |packets, used_ms, tcp_flags| FlowStats { packets, bytes: packets * 60, used_ms, tcp_flags };
        let tally = Tally::brought(stats(5, 100, 2));
        assert_eq!(tally.told(FlowStats::default()), stats(5, 100, 2));
        assert_eq!(tally.told(stats(2, 130, 16)), stats(7, 130, 18));
        assert_eq!(tally.told(stats(2, 90, 0)).used_ms, 100, "never back");
        let tally = Tally::cleared(stats(2, 130, 16));
        assert_eq!(tally.told(stats(2, 130, 16)), FlowStats::default());
        assert_eq!(tally.told(stats(3, 140, 1)), stats(1, 140, 1));
        let hostile = Tally::brought(FlowStats { packets: u64::MAX, ..FlowStats::default() });
        assert_eq!(hostile.told(stats(2, 1, 0)).packets, 1, "no panic");
    }
}
