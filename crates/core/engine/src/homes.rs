//! The home worker of each queue pair.

use std::collections::BTreeMap;

use lasthop_module_api::PortId;

/// The home worker of each queue pair: it fetches from the pair's transmit ring, and receives the kicks of both rings.
#[derive(Debug)]
pub(crate) struct Homes {
    workers: usize,
    homes: BTreeMap<(PortId, u16), usize>,
}

impl Homes {
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers, homes: BTreeMap::new() }
    }

    /// The home of a pair. A pair without one gets the worker with the fewest pairs of the same port, then of all
    /// ports. So a guest with several queues gets several cores, and a guest that restarts its rings keeps its homes.
    pub(crate) fn assign(&mut self, port: PortId, pair: u16) -> usize {
        if let Some(home) = self.find(port, pair) {
            return home;
        }
        let pairs = |worker: usize, of_port: bool| {
            let homes =
                self.homes.iter().filter(|(key, home)| **home == worker && (!of_port || key.0 == port));
            homes.count()
        };
        let load = |worker: &usize| (pairs(*worker, true), pairs(*worker, false));
        let home = (0..self.workers).min_by_key(load).unwrap_or(0);
        self.homes.insert((port, pair), home);
        home
    }

    pub(crate) fn find(&self, port: PortId, pair: u16) -> Option<usize> {
        self.homes.get(&(port, pair)).copied()
    }

    /// Makes a worker the home of a pair.
    pub(crate) fn set(&mut self, port: PortId, pair: u16, home: usize) {
        self.homes.insert((port, pair), home);
    }

    /// Pairs of a port that have a home.
    pub(crate) fn pairs(&self, port: PortId) -> Vec<u16> {
        self.homes.range((port, 0)..=(port, u16::MAX)).map(|((_, pair), _)| *pair).collect()
    }

    /// Removes a port whose guest is gone.
    pub(crate) fn remove_port(&mut self, port: PortId) {
        self.homes.retain(|(other, _), _| *other != port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_a_port_are_spread_and_workers_loaded_evenly() {
        let mut homes = Homes::new(2);
        assert_eq!((homes.assign(PortId(1), 0), homes.assign(PortId(2), 0)), (0, 1));
        assert_eq!((homes.assign(PortId(3), 0), homes.assign(PortId(3), 1)), (0, 1));
        assert_eq!(homes.assign(PortId(1), 0), 0, "it stays");
        homes.remove_port(PortId(2));
        assert_eq!((homes.find(PortId(2), 0), homes.assign(PortId(4), 0)), (None, 1));
        assert_eq!(homes.pairs(PortId(3)), [0, 1]);
    }
}
