//! Expectations: connections that another connection has announced.

use std::collections::{BTreeMap, HashMap};

use lasthop_ct_packet::{CtTuple, Direction};

use crate::connection::CtId;

/// Largest number of expectations of a shard; they take some 2 MiB.
const EXPECTATIONS_MAX: usize = 4096;
/// Largest number of those whose masters one port began: a port cannot take the room of all others.
const PORT_EXPECTATIONS_MAX: usize = EXPECTATIONS_MAX / 4;
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
    /// The port that began the master.
    pub(crate) in_port: u16,
    expiry: Expiry,
}

/// Time of expiry in milliseconds, and a number that no other expectation has.
type Expiry = (u64, u64);

/// All expectations, at most one for each master.
#[derive(Debug, Default)]
pub(crate) struct Expectations {
    by_tuple: HashMap<CtTuple, Expectation>,
    by_master: HashMap<CtId, CtTuple>,
    by_expiry: BTreeMap<Expiry, CtTuple>,
    /// Numbers of expectations, of ports that have some.
    by_port: HashMap<u16, usize>,
    last_number: u64,
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
        self.by_tuple.get(&key(tuple)).filter(|expected| expected.expiry.0 > now_ms).copied()
    }

    /// Whether another master than `master` expects this tuple.
    pub(crate) fn is_taken(&self, tuple: &CtTuple, master: CtId, now_ms: u64) -> bool {
        self.find(tuple, now_ms).is_some_and(|expected| expected.master != master)
    }

    /// Adds an expectation, which replaces the last one of the master, which `in_port` began. Returns false if there is no
    /// room.
    pub(crate) fn add(
        &mut self,
        tuple: &CtTuple,
        (master, in_port): (CtId, u16),
        direction: Direction,
        real_port: u16,
        now_ms: u64,
    ) -> bool {
        if let Some(last) = self.by_master.get(&master).copied() {
            self.forget(&last);
        }
        self.expire(now_ms);
        let of_port = self.by_port.get(&in_port).copied().unwrap_or(0);
        if self.by_tuple.len() >= EXPECTATIONS_MAX || of_port >= PORT_EXPECTATIONS_MAX {
            return false;
        }
        let tuple = key(tuple);
        self.forget(&tuple);
        self.last_number += 1;
        let expiry = (now_ms.saturating_add(EXPECTATION_MS), self.last_number);
        let expected = Expectation { tuple, master, direction, real_port, in_port, expiry };
        self.by_tuple.insert(tuple, expected);
        self.by_master.insert(master, tuple);
        self.by_expiry.insert(expiry, tuple);
        *self.by_port.entry(in_port).or_default() += 1;
        true
    }

    /// Removes an expectation whose connection has arrived.
    pub(crate) fn remove(&mut self, expected: &Expectation) {
        self.forget(&expected.tuple);
    }

    /// Removes those that have expired. Each was added once, so an addition costs the same for any number of them.
    fn expire(&mut self, now_ms: u64) {
        while let Some(first) = self.by_expiry.first_entry().filter(|first| first.key().0 <= now_ms) {
            let tuple = first.remove();
            self.forget(&tuple);
        }
    }

    fn forget(&mut self, tuple: &CtTuple) {
        let Some(expected) = self.by_tuple.remove(tuple) else { return };
        self.by_master.remove(&expected.master);
        self.by_expiry.remove(&expected.expiry);
        let left = self.by_port.get(&expected.in_port).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            self.by_port.remove(&expected.in_port);
        } else {
            self.by_port.insert(expected.in_port, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An expectation of master `master`, which `port` began, of a connection to port `to`.
    fn add(all: &mut Expectations, (master, port): (u32, u16), to: u16, now_ms: u64) -> bool {
        let master = CtId { index: master, generation: 1 };
        all.add(&tuple(to), (master, port), Direction::Reply, to, now_ms)
    }

    fn tuple(to: u16) -> CtTuple {
        let address = crate::IpBytes([1; 16]);
        CtTuple { src: address, dst: address, src_port: 9, dst_port: to, zone: 0, proto: 6, is_ipv6: true }
    }

    fn check(all: &Expectations, len: usize) {
        let of_ports: usize = all.by_port.values().sum();
        let lens = [all.by_tuple.len(), all.by_master.len(), all.by_expiry.len(), of_ports];
        assert_eq!(lens, [len; 4]);
    }

    #[test]
    fn a_port_has_a_quarter_of_the_room() {
        let mut all = Expectations::default();
        let added = |all: &mut Expectations, port: u16, now_ms| {
            (0..2000)
                .filter(|n| add(all, (u32::from(port * 2000 + n), port), port * 2000 + n, now_ms))
                .count()
        };
        assert_eq!(
            (1..=5).map(|port| added(&mut all, port, 5)).collect::<Vec<_>>(),
            [1024, 1024, 1024, 1024, 0]
        );
        check(&all, EXPECTATIONS_MAX);
        // A master of a full port replaces its own one, and an arrival makes room.
        assert!(add(&mut all, (2000, 1), 60_000, 6));
        let arrived = all.find(&tuple(60_000), 6).expect("it is expected");
        all.remove(&arrived);
        check(&all, EXPECTATIONS_MAX - 1);
        assert!(!add(&mut all, (1, 2), 1, 6) && add(&mut all, (2000, 1), 60_000, 6));
        // All but the last one expire at once.
        assert_eq!(added(&mut all, 5, EXPECTATION_MS + 5), 1024);
        check(&all, 1025);
    }

    #[test]
    fn the_latest_master_of_a_tuple_expects_it() {
        let mut all = Expectations::default();
        assert!(add(&mut all, (1, 1), 80, 0) && add(&mut all, (2, 2), 80, 1));
        check(&all, 1);
        assert_eq!(all.find(&tuple(80), 1).map(|expected| expected.in_port), Some(2));
        assert!(add(&mut all, (2, 2), 81, 2), "another one of that master");
        check(&all, 1);
        assert_eq!(all.find(&tuple(80), 2), None);
        assert_eq!(all.find(&tuple(81), EXPECTATION_MS + 2), None, "it has expired");
    }
}
