//! The addresses of ours at which other hosts reach us, by their datagrams. A datagram to them leaves its source address to the host.

use std::hash::{BuildHasher, RandomState};

use lasthop_wire::mix::keyed_pair;

use super::control::Endpoint;
use crate::bounds::PEERS;

/// A host, and the address of ours that its last datagram came to.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    remote: u128,
    local: u128,
}

/// The last hosts that sent something. Of those that share a place, the one that sent last is known. A keyed hash chooses the place, so
/// no sender of datagrams can choose a source address that has the place of another host.
#[derive(Debug)]
pub(super) struct Peers {
    places: Box<[Peer; PEERS]>,
    key: [u64; 2],
}

impl Peers {
    pub(super) fn new() -> Self {
        let state = RandomState::new();
        let key = [0, 1].map(|number| state.hash_one(number));
        Self { places: Box::new([Peer::default(); PEERS]), key }
    }

    #[inline]
    fn place(&self, remote: u128) -> usize {
        keyed_pair(self.key, remote as u64, (remote >> 64) as u64) as usize % PEERS
    }

    /// Notes where a datagram came from, and to.
    #[inline]
    pub(super) fn note(&mut self, from: &Endpoint) {
        self.places[self.place(from.remote)] = Peer { remote: from.remote, local: from.local };
    }

    /// Our address for a host, if it sent something lately.
    pub(super) fn local(&self, remote: u128) -> Option<u128> {
        let peer = self.places[self.place(remote)];
        (peer.remote == remote && peer.local != 0).then_some(peer.local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_hosts_that_share_a_place_the_last_is_known() {
        let mut peers = Peers::new();
        assert_eq!(peers.local(0), None);
        let hosts = 1..=2 * PEERS as u128;
        for remote in hosts.clone() {
            peers.note(&Endpoint { remote, local: remote << 64, ..Endpoint::default() });
            assert_eq!(peers.local(remote), Some(remote << 64));
        }
        let known = hosts.filter(|remote| peers.local(*remote).is_some()).count();
        assert!(known > PEERS / 2 && known <= PEERS, "{known}");
    }

    #[test]
    fn the_key_decides_which_hosts_share_a_place() {
        let (mine, other) = (Peers::new(), Peers::new());
        let of_one_place = |step: u128| {
            let hosts = (1..=64 * PEERS as u128).map(move |number| 0xffff_0a00_0000 + number * step);
            hosts.filter(|remote| mine.place(*remote) == 7)
        };
        // Of the last bits of IPv4 and of a prefix of IPv6. Some 64 addresses, and 57 places that they have under another key.
        for step in [1, 1 << 64] {
            let mut places: Vec<usize> = of_one_place(step).map(|remote| other.place(remote)).collect();
            let addresses = places.len();
            places.sort_unstable();
            places.dedup();
            assert!(addresses > 16 && places.len() > addresses / 2, "{addresses} in {}", places.len());
        }
    }
}
