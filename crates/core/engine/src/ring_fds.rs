//! The eventfds between rings and their guests: kicks, and calls, which any worker may write.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lasthop_module_api::PortId;
use lasthop_vhost::ForeignFd;
use rustix::io::Errno;

use crate::empty_kicks::KickRecord;

/// The descriptors between a ring and its guest: the call descriptor, and whether there is a kick descriptor.
#[derive(Clone, Debug)]
pub(crate) struct GuestSignals {
    /// Shared, since any worker may deliver.
    pub(crate) call: Option<Arc<CallFd>>,
    /// The guest gave no kick descriptor.
    pub(crate) is_polled: bool,
    /// The ring uses event indices (VIRTIO_F_EVENT_IDX): a wanted signal shows that the guest has taken the packets of
    /// the last one.
    pub(crate) has_event_index: bool,
}

/// A guest's call descriptor.
#[derive(Debug)]
pub(crate) struct CallFd {
    fd: ForeignFd,
    /// Whether no worker may write it any more.
    is_shut: AtomicBool,
}

/// A write to a call descriptor blocked, and was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked;

impl CallFd {
    pub(crate) fn new(fd: ForeignFd) -> Self {
        Self { fd, is_shut: AtomicBool::new(false) }
    }

    /// Signals the guest, unless its calls are shut. A saturated eventfd is one that its guest has not read yet; it
    /// will find the packets when it does.
    ///
    /// # Errors
    /// [`Blocked`] if the descriptor has become blocking, and was saturated.
    pub(crate) fn signal(&self) -> Result<(), Blocked> {
        if self.is_shut() {
            return Ok(());
        }
        match rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            Err(Errno::INTR) => Err(Blocked),
            _ => Ok(()),
        }
    }

    /// Ends all writes to it. Returns false if they had ended already.
    pub(crate) fn shut(&self) -> bool {
        !self.is_shut.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed)
    }
}

/// A guest's eventfds of one virtqueue, for one worker.
#[derive(Debug)]
pub(crate) struct RingFds {
    pub(crate) signals: GuestSignals,
    /// Whether this worker is the ring's home.
    pub(crate) is_home: bool,
    /// The kick descriptor, at home only.
    pub(crate) kick: Option<ForeignFd>,
    /// Kicks received, at home.
    pub(crate) kicks: u64,
    pub(crate) record: KickRecord,
}

impl RingFds {
    /// The descriptors of a ring; its kick descriptor is not registered yet.
    pub(crate) fn new(signals: GuestSignals, is_home: bool) -> Self {
        Self { signals, is_home, kick: None, kicks: 0, record: KickRecord::default() }
    }
}

/// Descriptors by port and virtqueue index.
pub(crate) type RingFdMap = HashMap<(PortId, u16), RingFds, BuildHasherDefault<RingHasher>>;

/// A short hash for numbers that the switch gives, not a guest: a worker that wakes has no code of a longer one in its cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RingHasher(u64);

impl Hasher for RingHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u16(u16::from(*byte)));
    }

    /// By Fibonacci hashing (Knuth, volume 3, 6.4): a table takes its group from the low bits and its tags from the high ones.
    fn write_u16(&mut self, number: u16) {
        self.0 = (self.0.rotate_left(32) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The call descriptors of a port.
pub(crate) fn calls(fds: &RingFdMap, port: PortId) -> impl Iterator<Item = &CallFd> {
    let of_port = fds.iter().filter(move |((owner, _), _)| *owner == port);
    of_port.filter_map(|(_, fds)| fds.signals.call.as_deref())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    /// hashbrown takes the group from the low bits and a tag from the seven high ones.
    #[test]
    fn rings_are_spread_by_low_bits_and_by_high_bits() {
        let rings = (1..=64_u16).flat_map(|port| (0..4_u16).map(move |index| (PortId(port), index)));
        let hashes: Vec<u64> =
            rings.map(|ring| BuildHasherDefault::<RingHasher>::default().hash_one(ring)).collect();
        let low: HashSet<u64> = hashes.iter().map(|hash| hash & 0xff).collect();
        let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
        // 256 balls fill 162 of 256 bins by chance. Tags only spare comparisons.
        assert!(low.len() > 140 && high.len() > 32, "{} and {}", low.len(), high.len());
    }
}
