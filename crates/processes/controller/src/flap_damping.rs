//! Addresses that many flows depend on, and which moved a moment ago: should they move again, their flows are not looked at each time.

use std::collections::HashMap;

use crate::addresses::FdbKey;
use crate::bounds::MOVED_NS;

/// When an address's flows were looked at for the last time.
#[derive(Clone, Copy, Debug)]
struct LastLook {
    at_ns: u64,
    /// The address has moved since.
    is_late: bool,
}

/// By address: the last look at its flows. Only addresses with many flows are here, so there are few.
#[derive(Debug, Default)]
pub(crate) struct FlapDamping {
    looks: HashMap<FdbKey, LastLook>,
}

impl FlapDamping {
    /// Whether the flows of an address that moved are to be looked at later, since they have just been.
    pub(crate) fn is_deferred(&mut self, fdb_key: FdbKey, now_ns: u64) -> bool {
        let recent = self.looks.get_mut(&fdb_key).filter(|look| now_ns < look.at_ns + MOVED_NS);
        recent.map(|look| look.is_late = true).is_some()
    }

    /// The many flows of an address are looked at now.
    pub(crate) fn looked(&mut self, fdb_key: FdbKey, now_ns: u64) {
        self.looks.insert(fdb_key, LastLook { at_ns: now_ns, is_late: false });
    }

    /// Addresses whose flows are to be looked at now. Those that came to rest are forgotten.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Vec<FdbKey> {
        let mut due = Vec::new();
        self.looks.retain(|fdb_key, look| {
            let is_over = look.at_ns + MOVED_NS <= now_ns;
            due.extend((is_over && look.is_late).then_some(*fdb_key));
            !is_over
        });
        due
    }

    /// When that may be so.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.looks.values().filter(|look| look.is_late).map(|look| look.at_ns + MOVED_NS).min()
    }

    pub(crate) fn clear(&mut self) {
        self.looks.clear();
    }
}
