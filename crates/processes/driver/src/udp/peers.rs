//! The addresses of ours at which other hosts reach us, by their datagrams. A datagram to them leaves its source address to the host.

use lasthop_wire::mix::GOLDEN_RATIO;

use super::control::Endpoint;
use crate::bounds::PEERS;

/// A host, and the address of ours that its last datagram came to.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    remote: u128,
    local: u128,
}

/// The last hosts that sent something. Of those that share a place, the one that sent last is known.
#[derive(Debug)]
pub(super) struct Peers {
    places: Box<[Peer; PEERS]>,
}

fn place(remote: u128) -> usize {
    let word = (remote as u64 ^ (remote >> 64) as u64).wrapping_mul(GOLDEN_RATIO);
    (word >> 32) as usize % PEERS
}

impl Peers {
    pub(super) fn new() -> Self {
        Self { places: Box::new([Peer::default(); PEERS]) }
    }

    /// Notes where a datagram came from, and to.
    #[inline]
    pub(super) fn note(&mut self, from: &Endpoint) {
        self.places[place(from.remote)] = Peer { remote: from.remote, local: from.local };
    }

    /// Our address for a host, if it sent something lately.
    pub(super) fn local(&self, remote: u128) -> Option<u128> {
        let peer = self.places[place(remote)];
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
}
