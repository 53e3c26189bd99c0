//! Counts of events.

use crate::switch::Switch;

macro_rules! stats {
    ($($field:ident = $name:literal, $meaning:literal;)*) => {
        /// Counts of one switch, or of all.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ControllerStats { $(#[doc = $meaning] pub $field: u64),* }

        impl ControllerStats {
            /// Each count with its name, in a fixed order.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }

            /// The sums of both.
            #[must_use]
            pub fn and(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field),* }
            }
        }
    };
}

stats! {
    ports = "ports_served", "Ports whose packets of no flow come here.";
    misses = "misses_answered", "Packets of no flow that were answered for.";
    strange = "misses_strange", "Those of them from no port that is known; they go nowhere.";
    overrun = "misses_dropped", "Packets of no flow that were dropped unanswered, since the switch was behind with answers.";
    flows = "flows_held", "Flows that are installed, as far as the controller knows.";
    installed = "flows_installed", "Flows that were installed so far.";
    changed = "flows_changed", "Times that a flow got other actions.";
    removed = "flows_removed", "Flows that were taken out.";
    idle = "flows_idle", "Those of them that nobody used.";
    adopted = "flows_adopted", "Flows that were there from a controller before.";
    refused = "flows_lost", "Flows that the switch did not take, or lost.";
    limit_hit = "flow_limit_hit", "Packets whose flow was not installed since there are as many as there may be.";
    evicted = "flows_evicted", "Flows that made room for one of a port that has far fewer.";
    revalidated = "revalidations", "Times that a flow was looked at again after a change.";
    addresses = "addresses", "Addresses that are learned.";
    learned = "fdb_learned", "New addresses that were learned.";
    moved = "fdb_moved", "Learned addresses that were seen on another port and moved there.";
    aged_out = "fdb_aged_out", "Addresses that aged out.";
    address_limit_hit = "fdb_limit_hit", "Times an address was not learned because its port has as many as it may.";
    table_full = "fdb_full", "Times an address was not learned because there was no room for it.";
}

impl ControllerStats {
    pub(crate) fn of(switch: &Switch) -> Self {
        let (counts, addresses) = (&switch.counts, &switch.addresses.counts);
        Self {
            ports: 0,
            misses: counts.misses,
            strange: counts.strange,
            overrun: counts.overrun,
            flows: switch.flow_count() as u64,
            installed: counts.installed,
            changed: counts.changed,
            removed: counts.removed,
            idle: counts.idle,
            adopted: counts.adopted,
            refused: counts.refused,
            limit_hit: counts.limit_hit,
            evicted: counts.evicted,
            revalidated: counts.revalidated,
            addresses: switch.addresses.all_learned(0).count() as u64,
            learned: addresses.learned,
            moved: addresses.moved,
            aged_out: addresses.aged_out,
            address_limit_hit: addresses.limit_hit,
            table_full: addresses.table_full,
        }
    }
}
