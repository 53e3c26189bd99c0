use std::sync::atomic::{Ordering, fence};

/// Going to sleep without missing work: ask to be woken, then look once more.
///
/// `arm` publishes "wake me" (an avail_event, a flag, an idle mark); `pending` looks for work. The other side
/// publishes work, then looks for "wake me", with a full fence between. With a full fence on both sides at
/// least one of the two sees the other's store, although store buffers reorder a store with a later load (x86
/// does).
///
/// Returns whether there is work: then do not sleep. Used for kicks, completions, mailboxes and claims alike.
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
