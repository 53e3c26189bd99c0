//! Statistics of the address table.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that any worker may raise.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn raise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Declares the counts once: as raised by workers, as told to others, and by name.
macro_rules! stats {
    ($($field:ident = $name:literal, $meaning:literal;)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $field: Count),* }

        /// Events since the bridge was made. All monotonic; none of them is on the way of a frame that finds
        /// its source address unchanged.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct BridgeStats { $(#[doc = $meaning] pub $field: u64),* }

        impl Counts {
            pub(crate) fn read(&self) -> BridgeStats {
                BridgeStats { $($field: self.$field.0.load(Ordering::Relaxed)),* }
            }
        }

        impl BridgeStats {
            /// Each count with its name, in a fixed order.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }
        }
    };
}

stats! {
    learned = "fdb_learned", "New addresses that were learned.";
    moved = "fdb_moved", "Learned addresses that were seen on another port and moved there.";
    aged_out = "fdb_aged_out", "Aged entries whose place was taken or swept.";
    displaced = "fdb_displaced", "Learned entries that made room for a static address.";
    limit_hit = "fdb_limit_hit", "Times an address was not learned because its port has as many as it may.";
    bucket_full = "fdb_bucket_full", "Times an address was not learned because the table had no room for it.";
    busy = "fdb_busy", "Times an address was left to the next frame because the table was being changed.";
}
