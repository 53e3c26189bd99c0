//! Bounds of the groups, and times.

use std::time::Duration;

/// The time from one decision about weights to the next. Placement and shares change slowly, so that the host's scheduler and
/// guests settle in between.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// The names of threads without shares are read again after this time.
pub(crate) const NAMES_PERIOD: Duration = Duration::from_secs(10);
/// Threads with shares of their own: 64 workers, and the threads of the driver process. A process that names more
/// threads like this gets no more groups.
pub(crate) const SHARES_MAX: usize = 128;
/// Parents of a process that are looked at: the processes are children of the supervisor, and one a grandchild.
pub(crate) const ANCESTORS_MAX: usize = 4;
/// A mode that cannot take effect is tried again after this time.
pub(crate) const RETRY: Duration = Duration::from_secs(10);
/// A group whose last process still ends is removed after this time.
pub(crate) const REMOVAL_PAUSE: Duration = Duration::from_millis(50);
/// Tries to remove a group, at the end and at the start.
pub(crate) const REMOVALS_MAX: u32 = 40;
/// The supervisor's end waits for the removal for this long.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(3);
/// Listings of a group's members when it is emptied: members may start others meanwhile.
pub(crate) const LISTINGS_MAX: usize = 8;
