//! What is bounded at XDP sockets, with unit and reason.

/// Frames of an XDP socket's memory for each direction: 1024 frames of 1500 bytes are 1.2 ms of a 10 Gbit/s link. Both
/// directions take 4 MiB of what may be locked (8 MiB above an MTU of 1774). A power of two.
pub(super) const XDP_FRAMES: u32 = 1024;
/// Entries of each of an XDP socket's rings: the kernel gives back places in batches, after it has passed on what stood in
/// them. Twice the frames, so that none is ever full.
pub(super) const XDP_ENTRIES: u32 = 2 * XDP_FRAMES;
/// Frames that one visit to an XDP socket takes: as much as keeps the other direction waiting for some 10 us.
pub(super) const XDP_BATCH: usize = 64;
/// Calls into the kernel for one batch to be sent: it takes 32 frames a call, and others may have been left.
pub(super) const XDP_WAKES_MAX: usize = 8;
/// Attempts to bind a socket to a queue that has one still: [`XDP_BIND_PAUSE`] apart, together half a second, of the thread
/// that attaches ports. The kernel takes some 10 ms to clear away a closed socket.
pub(super) const XDP_BINDS_MAX: usize = 250;
/// Between two attempts.
pub(super) const XDP_BIND_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);
