use std::sync::atomic::{Ordering, fence};

/// Prepares for sleep without missing work: requests a wake-up, then checks for work once more.
///
/// `arm` publishes the request (an avail_event, a flag, an idle mark); `pending` checks for work. The other side
/// publishes work, then checks for the request, with a full fence between. With a full fence on both sides at least one
/// of the two sees the other's store, although store buffers reorder a store with a later load (also on x86).
///
/// Returns whether there is work: if so, the caller must not sleep. Used for kicks, completions, mailboxes and claims.
#[inline]
#[must_use]
pub fn arm_and_recheck<T>(
    state: &mut T,
    arm: impl FnOnce(&mut T),
    pending: impl FnOnce(&mut T) -> bool,
) -> bool {
    arm(state);
    fence(Ordering::SeqCst);
    pending(state)
}
