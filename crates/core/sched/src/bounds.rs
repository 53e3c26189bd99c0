//! How long policies let something wait, with any view.

/// From the first packet that a receiver was not told of to its signal. Less than a quarter of a round trip between guests.
pub const NOTIFY_DELAY_MAX_NS: u64 = 50_000;
/// From the last visit of a transmit ring whose sender does not kick to the next one.
pub const TRANSMIT_DELAY_MAX_NS: u64 = 50_000;
/// A receiver that was signalled within this time was recently interrupted.
pub const RECENT_NS: u64 = 100_000;
/// A thread that was woken has a CPU, or waits for one, after this time. Before, the view may not show it.
pub const SETTLE_NS: u64 = 20_000;
/// A signalled guest that runs is watched for this long. Then it is slow, and another signal is of no use.
pub const WATCH_NS: u64 = 1_000_000;
/// Without a view, a guest has reacted to a signal by then if it has a CPU.
pub const REACTION_NS: u64 = 100_000;
/// A poller offers its CPU this often if it does not know whether it is wanted, or if nothing took the last offer.
pub const OFFER_NS: u64 = 20_000;
/// And this often if no packet waits by a view whose counts can be wrong.
pub const DISTRUST_NS: u64 = 1_000_000;
