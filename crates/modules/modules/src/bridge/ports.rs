//! State of each port: presence, static address, learning limit and learned addresses.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use lasthop_bridge_policy::IsolationClass;
use lasthop_module_api::{DropReason, PORTS_MAX, PortId};

use super::vlans::Standing;

/// Words of a set of ports.
const SET_WORDS: usize = PORTS_MAX.div_ceil(64);

/// The states of all ports. All workers read them; changes require the bridge's writer lock.
#[derive(Debug)]
pub(crate) struct Ports {
    /// Bit `n` is set while port `n` receives floods and its addresses are learned; it is never set for the internal
    /// port. The set is two cache lines, so a flood costs only its receivers, not all possible ports.
    live: [AtomicU64; SET_WORDS],
    /// The live ports without VLAN settings.
    without_vlans: [AtomicU64; SET_WORDS],
    ports: Box<[BridgePort]>,
}

#[derive(Debug, Default)]
struct BridgePort {
    /// Number of slots in the table that hold a learned address of this port, aged ones included.
    learned: AtomicU32,
    learned_max: AtomicU32,
    /// The port's isolation class, as the bits of [`IsolationClass`].
    isolation: AtomicU8,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            live: std::array::from_fn(|_| AtomicU64::new(0)),
            without_vlans: std::array::from_fn(|_| AtomicU64::new(0)),
            ports: (0..PORTS_MAX).map(|_| BridgePort::default()).collect(),
        }
    }
}

impl Ports {
    /// Makes a port live. A number from `PORTS_MAX` on is ignored.
    pub(crate) fn open(&self, port: PortId, learned_max: u32, standing: Standing, isolation: IsolationClass) {
        let Some(state) = self.ports.get(port.index()) else { return };
        state.learned_max.store(learned_max, Ordering::Relaxed);
        state.isolation.store(isolation.bits(), Ordering::Relaxed);
        if port == PortId::INTERNAL {
            return;
        }
        let sets = [(&self.without_vlans, standing.is_any()), (&self.live, true)];
        // Release: a thread that sees the port sees its settings.
        for (set, _) in sets.into_iter().filter(|(_, is_in)| *is_in) {
            set[port.index() / 64].fetch_or(bit(port), Ordering::Release);
        }
    }

    /// Changes the isolation class of a port.
    pub(crate) fn set_isolation(&self, port: PortId, isolation: IsolationClass) {
        if let Some(state) = self.ports.get(port.index()) {
            state.isolation.store(isolation.bits(), Ordering::Relaxed);
        }
    }

    /// Updates the set of ports without VLAN settings for a live port.
    pub(crate) fn set_standing(&self, port: PortId, standing: Standing) {
        let Some(word) = self.without_vlans.get(port.index() / 64) else { return };
        match standing.is_any() && self.is_live(port) {
            true => word.fetch_or(bit(port), Ordering::Release),
            false => word.fetch_and(!bit(port), Ordering::Release),
        };
    }

    /// Ends floods to the port, and learning of its addresses.
    pub(crate) fn close(&self, port: PortId) {
        if port.index() >= PORTS_MAX {
            return;
        }
        for set in [&self.live, &self.without_vlans] {
            set[port.index() / 64].fetch_and(!bit(port), Ordering::Release);
        }
    }

    /// Whether the port receives floods and its addresses are learned.
    pub(crate) fn is_live(&self, port: PortId) -> bool {
        self.live.get(port.index() / 64).is_some_and(|word| word.load(Ordering::Acquire) & bit(port) != 0)
    }

    /// Every live port other than `from` that may receive its frames, in ascending order.
    pub(crate) fn others(&self, from: PortId) -> impl Iterator<Item = PortId> {
        let is_barred = self.isolation(from).is_barred();
        Self::members(&self.live, from).filter(move |port| !is_barred || self.barrier(from, *port).is_none())
    }

    /// Live ports without VLAN settings other than `from`, in ascending order. Isolation is not considered.
    pub(crate) fn others_without_vlans(&self, from: PortId) -> impl Iterator<Item = PortId> {
        Self::members(&self.without_vlans, from)
    }

    fn members(set: &[AtomicU64; SET_WORDS], except: PortId) -> impl Iterator<Item = PortId> {
        let words = set.iter().enumerate();
        let all =
            words.flat_map(|(index, word)| bits(word.load(Ordering::Acquire)).map(move |at| 64 * index + at));
        all.map(|number| PortId(number as u16)).filter(move |port| *port != except)
    }

    /// The port's isolation class.
    pub(crate) fn isolation(&self, port: PortId) -> IsolationClass {
        let state = self.ports.get(port.index());
        state.map_or_else(IsolationClass::default, |state| {
            IsolationClass::from_bits(state.isolation.load(Ordering::Relaxed))
        })
    }

    /// The reason that no frame passes between two ports; `None` if frames pass.
    pub(crate) fn barrier(&self, one: PortId, other: PortId) -> Option<DropReason> {
        self.isolation(one).barrier(self.isolation(other))
    }

    /// Number of slots that hold a learned address of the port.
    pub(crate) fn learned(&self, port: PortId) -> u32 {
        self.ports.get(port.index()).map_or(0, |state| state.learned.load(Ordering::Relaxed))
    }

    /// Whether the port is at its limit of learned addresses.
    pub(crate) fn is_full(&self, port: PortId) -> bool {
        let max = self.ports.get(port.index()).map_or(0, |state| state.learned_max.load(Ordering::Relaxed));
        self.learned(port) >= max
    }

    /// Counts one more slot for the port.
    pub(crate) fn take_slot(&self, port: PortId) {
        if let Some(state) = self.ports.get(port.index()) {
            state.learned.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one slot less for the port.
    pub(crate) fn release_slot(&self, port: PortId) {
        if let Some(state) = self.ports.get(port.index()) {
            let before = state.learned.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "port {port} releases a slot that it did not take");
        }
    }
}

fn bit(port: PortId) -> u64 {
    1 << (port.0 % 64)
}

/// The numbers of the set bits, ascending.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_ascending_and_leave_out_one() {
        let ports = Ports::default();
        for port in [1023, 64, 1, 63, 0] {
            ports.open(PortId(port), 1, Standing::default(), IsolationClass::default());
        }
        assert_eq!(ports.others(PortId(64)).map(|port| port.0).collect::<Vec<_>>(), [1, 63, 1023]);
        ports.close(PortId(63));
        assert_eq!(ports.others(PortId(9)).map(|port| port.0).collect::<Vec<_>>(), [1, 64, 1023]);
        assert!(!ports.is_live(PortId::INTERNAL));
    }

    #[test]
    fn numbers_beyond_the_last_are_never_live() {
        let ports = Ports::default();
        for port in [PORTS_MAX as u16, u16::MAX] {
            ports.open(PortId(port), 1, Standing::default(), IsolationClass::default());
            ports.take_slot(PortId(port));
            ports.release_slot(PortId(port));
            ports.close(PortId(port));
            assert!(!ports.is_live(PortId(port)));
            assert!(ports.is_full(PortId(port)));
        }
    }

    #[test]
    fn a_port_is_full_at_its_limit() {
        let ports = Ports::default();
        ports.open(PortId(3), 2, Standing::default(), IsolationClass::default());
        ports.take_slot(PortId(3));
        assert!(!ports.is_full(PortId(3)));
        ports.take_slot(PortId(3));
        assert!(ports.is_full(PortId(3)));
        ports.release_slot(PortId(3));
        assert!(!ports.is_full(PortId(3)));
    }
}
