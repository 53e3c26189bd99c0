//! Expectations: connections that another connection has announced.

use std::collections::HashMap;

use lasthop_ct_packet::{CtTuple, Direction};

use crate::connection::CtId;

/// Largest number of expectations; they take 400 KiB.
const EXPECTATIONS_MAX: usize = 4096;
/// Lifetime of an expectation in milliseconds: as the kernel's for FTP and TFTP.
const EXPECTATION_MS: u64 = 300_000;

/// One announced connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expectation {
    /// The tuple of its first packet; any source port matches.
    pub(crate) tuple: CtTuple,
    pub(crate) master: CtId,
    /// The direction of its first packet, in terms of the master's directions.
    pub(crate) direction: Direction,
    /// The destination port before the master's helper translated it.
    pub(crate) real_port: u16,
    expires_ms: u64,
}

/// All expectations, at most one for each master.
#[derive(Debug, Default)]
pub(crate) struct Expectations {
    by_tuple: HashMap<CtTuple, Expectation>,
    by_master: HashMap<CtId, CtTuple>,
}

fn key(tuple: &CtTuple) -> CtTuple {
    CtTuple { src_port: 0, ..*tuple }
}

impl Expectations {
    pub(crate) fn len(&self) -> u32 {
        self.by_tuple.len() as u32
    }

    /// The expectation that a packet of a new connection matches.
    #[inline]
    pub(crate) fn find(&self, tuple: &CtTuple, now_ms: u64) -> Option<Expectation> {
        if self.by_tuple.is_empty() {
            return None;
        }
        self.by_tuple.get(&key(tuple)).filter(|expected| expected.expires_ms > now_ms).copied()
    }

    /// Whether another master than `master` expects this tuple.
    pub(crate) fn is_taken(&self, tuple: &CtTuple, master: CtId, now_ms: u64) -> bool {
        self.find(tuple, now_ms).is_some_and(|expected| expected.master != master)
    }

    /// Adds an expectation, which replaces the master's last one. Returns false if there is no room.
    pub(crate) fn add(
        &mut self,
        tuple: &CtTuple,
        master: CtId,
        direction: Direction,
        real_port: u16,
        now_ms: u64,
    ) -> bool {
        if let Some(last) = self.by_master.remove(&master) {
            self.by_tuple.remove(&last);
        }
        if self.by_tuple.len() >= EXPECTATIONS_MAX {
            self.by_tuple.retain(|_, expected| expected.expires_ms > now_ms);
            let left = &self.by_tuple;
            self.by_master.retain(|_, tuple| left.contains_key(tuple));
        }
        if self.by_tuple.len() >= EXPECTATIONS_MAX {
            return false;
        }
        let tuple = key(tuple);
        let expires_ms = now_ms.saturating_add(EXPECTATION_MS);
        let expected = Expectation { tuple, master, direction, real_port, expires_ms };
        if let Some(other) = self.by_tuple.insert(tuple, expected) {
            self.by_master.remove(&other.master);
        }
        self.by_master.insert(master, tuple);
        true
    }

    /// Removes an expectation whose connection has arrived.
    pub(crate) fn remove(&mut self, expected: &Expectation) {
        self.by_tuple.remove(&expected.tuple);
        self.by_master.remove(&expected.master);
    }
}
