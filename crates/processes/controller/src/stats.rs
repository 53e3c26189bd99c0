//! Counters.

use crate::switch::Switch;

macro_rules! stats {
    ($($field:ident = $name:literal, $meaning:literal;)*) => {
        /// Counters of one switch, or of all.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ControllerStats { $(#[doc = $meaning] pub $field: u64),* }

        impl ControllerStats {
            /// Each counter with its name, in a fixed order.
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
    ports = "ports_served", "Ports whose misses the controller receives.";
    misses = "misses_answered", "Misses that the controller answered.";
    strange = "misses_strange", "Answered misses from unknown ports; their packets are dropped.";
    overrun = "misses_dropped", "Misses that were dropped unanswered, since the switch had not taken earlier requests.";
    flows = "flows_held", "Flows that are installed, as far as the controller knows.";
    installed = "flows_installed", "Flows that were installed so far.";
    changed = "flows_changed", "Times that a flow got other actions.";
    removed = "flows_removed", "Flows that were removed.";
    idle = "flows_idle", "Removed flows that had been idle.";
    adopted = "flows_adopted", "Flows that were taken over from an earlier controller.";
    refused = "flows_lost", "Flows that the switch refused or lost.";
    limit_hit = "flow_limit_hit", "Packets whose flow was not installed because the limit was reached.";
    evicted = "flows_evicted", "Flows that were evicted for a port with far fewer flows.";
    revalidated = "revalidations", "Times that a flow was revalidated after a change.";
    addresses = "addresses", "Learned addresses.";
    learned = "fdb_learned", "New addresses that were learned.";
    moved = "fdb_moved", "Learned addresses that were seen on another port and moved there.";
    aged_out = "fdb_aged_out", "Addresses that aged out.";
    address_limit_hit = "fdb_limit_hit", "Times that an address was not learned because its port had reached its limit.";
    leases = "leases", "Addresses that DHCP servers gave to ports with addresses=dhcp, and that they have now.";
    leases_learned = "leases_learned", "New such addresses.";
    leases_ended = "leases_ended", "Such addresses that ended: in time, by the guest or by the server.";
    leases_refused = "leases_refused", "Answers of DHCP servers to a port, or addresses in them, that were not learned: without a request of the port, or with another port's address.";
    leases_crowded_out = "leases_crowded_out", "Such addresses that made room for others of their port.";
    dhcp_requests_dropped = "dhcp_requests_dropped", "DHCP requests of which an answer would not be learned any more, since their port made too many.";
    table_full = "fdb_full", "Times that an address was not learned because the table was full.";
}

impl ControllerStats {
    pub(crate) fn of(switch: &Switch) -> Self {
        let (counts, addresses, leases) = (&switch.counts, &switch.addresses.counts, &switch.leases.counts);
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
            leases: switch.leases.len() as u64,
            leases_learned: leases.learned,
            leases_ended: leases.ended,
            leases_refused: leases.refused,
            leases_crowded_out: leases.crowded_out,
            dhcp_requests_dropped: leases.requests_dropped,
            table_full: addresses.table_full,
        }
    }
}
