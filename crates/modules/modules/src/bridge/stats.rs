//! Statistics of the address table.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that any worker may increment.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn raise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Declares the counts once: as atomics of the workers, as values, and by name.
macro_rules! stats {
    ($($field:ident = $name:literal, $meaning:literal;)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $field: Count),* }

        /// Events since the bridge was made. All are monotonic. A frame whose source address is unchanged increments
        /// none of them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct BridgeStats { $(#[doc = $meaning] pub $field: u64),* }

        impl Counts {
            pub(crate) fn read(&self) -> BridgeStats {
                BridgeStats { $($field: self.$field.0.load(Ordering::Relaxed)),* }
            }
        }

        impl BridgeStats {
            /// The counts with their names, in a fixed order.
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
