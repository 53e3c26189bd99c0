//! The longest delays that policies cause, with any view.

/// From the first packet of which a receiver was not notified to its signal. Less than a quarter of a round trip
/// between guests.
pub const NOTIFY_DELAY_MAX_NS: u64 = 50_000;
/// From the last visit of a transmit ring whose sender does not kick to the next one.
pub const TRANSMIT_DELAY_MAX_NS: u64 = 50_000;
/// A transmit ring without packets for this time is armed, even if its sender runs. Eight visits in vain.
pub const TRANSMIT_WATCH_NS: u64 = 400_000;
/// A receiver that was signalled within this time was recently interrupted.
pub const RECENT_NS: u64 = 100_000;
/// A woken thread has a CPU, or waits for one, after this time. Earlier the view may not show it.
pub const SETTLE_NS: u64 = 20_000;
/// A signalled guest that runs is watched for this time. Then it counts as slow, and another signal would not help.
pub const WATCH_NS: u64 = 1_000_000;
/// Without a view: a guest that has a CPU reacts to a signal within this time.
pub const REACTION_NS: u64 = 100_000;
/// The interval at which a poller offers its CPU if it does not know whether others want it, or if nothing took the
/// last offer.
pub const OFFER_NS: u64 = 20_000;
/// The interval of offers if no thread waits according to the view, whose counts can be wrong.
pub const DISTRUST_NS: u64 = 1_000_000;
/// Above this load, in percent, a thread has no time left for a burst.
pub const SATURATED_PERCENT: u64 = 90;
/// Workers of a saturated thread are held together for this time while no CPU is idle. Half of the shortest time after which TCP
/// repeats a segment.
pub const HELD_MAX_NS: u64 = 100_000_000;
/// A thread's share of the CPU is at most this many times its own, however many idle threads lend theirs. The main
/// thread of a process, which lends and takes nothing, keeps a fifth of a CPU beside it.
pub const SHARE_GROWTH_MAX: u32 = 4;
