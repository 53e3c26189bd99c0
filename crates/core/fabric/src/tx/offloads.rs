//! Which copies a worker shares with helpers.

use crate::RingId;
use crate::tx::sender::Fetched;

/// Large copies of one visit to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeCopies {
    /// Their number.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that wait at the receiver already.
    pub waiting: u32,
    /// Whether the switch completes checksums of all of them.
    pub is_summed: bool,
}

/// A helper, and what it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelpShare {
    /// The worker that helps.
    pub helper: u8,
    /// Number of copies, the last ones, that it and the home copy in turns.
    pub packets: u32,
}

/// Finds and wakes helpers.
pub trait HelperFinder: Send {
    /// The helper for large copies to receive queue `ring` now; `None`: the caller copies alone. Asked once for each visit
    /// that has such copies.
    fn find(&mut self, ring: RingId, copies: LargeCopies) -> Option<HelpShare>;

    /// Wakes worker `helper`, which has an order and sleeps.
    fn wake(&mut self, helper: usize);
}

/// Which copies a worker shares with helpers.
#[derive(Default)]
pub(crate) struct Offloads {
    /// Bytes from which on a frame is large, and who knows the helpers.
    pub(crate) with: Option<(u32, Box<dyn HelperFinder>)>,
    /// Whether this worker ever gave an order: helpers may give orders back to it.
    pub(crate) has_ordered: bool,
}

impl std::fmt::Debug for Offloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from {:?} bytes on", self.with.as_ref().map(|(bytes_min, _)| bytes_min))
    }
}

impl Offloads {
    /// Whether a visit's packets may be large.
    #[inline]
    pub(crate) fn concern(&self, fetched: &Fetched) -> bool {
        self.with.as_ref().is_some_and(|(bytes_min, _)| {
            fetched.len > 1 && fetched.headers[0].frame_len_bytes() >= *bytes_min
        })
    }
}
