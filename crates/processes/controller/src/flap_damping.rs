//! Delays the revalidation of flows of addresses that keep moving: if many flows depend on an address that moved
//! recently, another move does not revalidate them at once.

use std::collections::HashMap;

use crate::addresses::FdbKey;
use crate::bounds::MOVED_NS;

/// The last revalidation of an address's flows.
#[derive(Clone, Copy, Debug)]
struct LastLook {
    at_ns: u64,
    /// Whether the address has moved since.
    is_late: bool,
}

/// The last revalidation, by address. Only addresses with many flows are here, so there are few.
#[derive(Debug, Default)]
pub(crate) struct FlapDamping {
    looks: HashMap<FdbKey, LastLook>,
}

impl FlapDamping {
    /// Whether the flows of a moved address have to be revalidated later, since they recently were.
    pub(crate) fn is_deferred(&mut self, fdb_key: FdbKey, now_ns: u64) -> bool {
        let recent = self.looks.get_mut(&fdb_key).filter(|look| now_ns < look.at_ns + MOVED_NS);
        recent.map(|look| look.is_late = true).is_some()
    }

    /// Notes a revalidation of an address's many flows.
    pub(crate) fn looked(&mut self, fdb_key: FdbKey, now_ns: u64) {
        self.looks.insert(fdb_key, LastLook { at_ns: now_ns, is_late: false });
    }

    /// Takes the addresses whose flows are due. Forgets those that have not moved again.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Vec<FdbKey> {
        let mut due = Vec::new();
        self.looks.retain(|fdb_key, look| {
            let is_over = look.at_ns + MOVED_NS <= now_ns;
            due.extend((is_over && look.is_late).then_some(*fdb_key));
            !is_over
        });
        due
    }

    /// When the next one is due.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.looks.values().filter(|look| look.is_late).map(|look| look.at_ns + MOVED_NS).min()
    }

    pub(crate) fn clear(&mut self) {
        self.looks.clear();
    }
}
