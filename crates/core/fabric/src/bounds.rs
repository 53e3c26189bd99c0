//! Every bound of the data path in one table. A packet that exceeds one is counted under a name; nothing grows without
//! limit.
//!
//! | bound | value | unit | reason |
//! |---|---|---|---|
//! | [`lasthop_module_api::PORTS_MAX`] | 1024 | ports | one server's guests with several vNICs each |
//! | [`lasthop_module_api::BATCH_PACKETS_MAX`] | 32 | packets | headers of a batch stay in the first-level cache |
//! | [`lasthop_module_api::IMAGES_MADE_MAX`] | 64 | header images | of each packet of a batch one tagged and one untagged |
//! | [`lasthop_ring::RING_ENTRIES_MAX`] | 32768 | entries | virtio 1.2, 2.7 |
//! | chains of a ring that are postponed | all; of 32768 entries 2016 | chains | room in a ring's ledger; more are lost as `restart` |
//! | [`lasthop_ring::CHAIN_DESCRIPTORS_MAX`] | 1024 | descriptors | the limit of QEMU |
//! | [`lasthop_guestmem::REGIONS_MAX`] | 509 | regions | the most that QEMU asks for |
//! | [`FRAME_BYTES_MAX`] | 65553 | bytes | 65535 of IP behind an Ethernet header with one tag |
//! | [`GSO_SEGMENTS_MAX`] | 128 | segments | software segments of one GSO frame |
//! | the others | | | below |

/// Queue pairs of one port: as many as a guest has vCPUs worth giving a queue.
pub const QUEUE_PAIRS_MAX: u16 = 64;
pub use lasthop_turns::{
    COPY_COST, FAULT_REST_FACTOR, FAULT_REST_NS_MAX, NS_COST, PACKET_COST, PIECE_COST, TURN_COST,
    UPCALL_COST, UPCALL_LINES_OF_INTERNAL, UPCALLS_SPARSE, VISIT_COST, VISIT_COST_MAX,
};
pub use lasthop_wire::gso::{FRAME_BYTES_MAX, SEGMENTS_MAX as GSO_SEGMENTS_MAX};

/// Bytes of the shortest frame: an Ethernet header.
pub const FRAME_BYTES_MIN: u32 = 14;
/// Segments of a transmit chain: Linux makes up to 19 for a 64 KiB frame; other drivers get three times that.
pub const CHAIN_SEGMENTS_MAX: usize = 64;
/// Segments kept in the slot itself: a Linux guest's small packet has one or two.
pub const SLOT_SEGMENTS: usize = 3;
/// Long chains under way per transmit ring; further ones stay in the ring.
pub const LONG_CHAINS_MAX: usize = 256;
/// Receive buffers that one packet may span: 64 KiB in 1 KiB pieces.
pub const PACKET_BUFFERS_MAX: usize = 64;
/// Memory pieces that those buffers may consist of.
pub const PACKET_BUFFER_SEGMENTS_MAX: usize = 256;
/// Bytes taken from a ring in one visit: some 30 us if they go to one port unchanged.
pub const VISIT_BYTES_MAX: u32 = 256 << 10;
/// Packets that wait in one internal receive queue: the entries of a large ring.
pub const WAITING_PACKETS_MAX: usize = 256;
/// Bytes that wait in one internal receive queue: a usual maximum of TCP's receive window.
pub const WAITING_BYTES_MAX: u64 = 8 << 20;
/// Time in ns that a packet waits for buffers: longer than a receiver's vCPU is usually off its core.
pub const WAITING_NS_MAX: u64 = 300_000_000;
/// Time in ns after a try to move a ring of a port for which the port's rings are paused, if the control plane has
/// packets of theirs. The next try is expected much earlier, but its thread may be kept from the CPU.
pub const LEAVING_NS_MAX: u64 = 100_000_000;
/// Share of one sender's ring that may wait for slow receivers, in 1/4.
pub const WAITING_SHARE_QUARTERS: u16 = 3;
/// Detached packets of one port: as many as may wait for one receiver. A port's queue pairs share them evenly.
pub const DETACHED_FRAMES_MAX: usize = WAITING_PACKETS_MAX;
/// Detached packets of a queue pair, at least.
pub const DETACHED_FRAMES_MIN: usize = 16;
/// Bytes of a port's detached packets: as many packets of 8 KiB.
pub const DETACHED_BYTES_MAX: usize = 2 << 20;
/// Bytes of a queue pair's detached packets, at least: the longest frame fits.
pub const DETACHED_BYTES_MIN: usize = 72 << 10;
/// Bytes of a piece of that memory: a frame of the usual MTU fits one piece.
pub const DETACHED_PIECE_BYTES: u32 = 2 << 10;
/// Frames of the port `internal` under way, including those of the control plane. Ports with several frames share 3/4
/// of them, and each takes at most as many as it leaves to others. The rest is for the first frame of each port.
pub const INTERNAL_FRAMES_MAX: u16 = 128;
/// Workers of one switch.
pub const WORKERS_MAX: usize = lasthop_sync::WORKERS_MAX;
/// Packets that other workers queue at a receive ring whose claim is taken: as many as may wait there for
/// buffers.
pub const LEFT_PACKETS_MAX: usize = WAITING_PACKETS_MAX;
/// References to one worker's packets that other workers may hold. Each returns through its completion queue, which has
/// room for all of them.
pub const LENT_PACKETS_MAX: usize = 4096;
/// Of these, those that ports with several waiting copies share: each port takes at most as many as it leaves to others.
/// The rest is for the first copy of each port, and for copies within [`LEFT_PACKETS_MIN`].
pub const LENT_PACKETS_SHARED: usize = LENT_PACKETS_MAX / 4 * 3;
/// Copies of a port that may wait for a claim although the port has used its share: one batch. The claim's holder
/// usually delivers them at once.
pub const LEFT_PACKETS_MIN: usize = lasthop_module_api::BATCH_PACKETS_MAX;
/// Packets of other workers that a claim's holder delivers before it returns to its own rings: two batches.
pub const SERVICE_PACKETS_MAX: u32 = 64;
/// Bytes of packets of other workers that a claim's holder delivers: as many as one visit takes.
pub const SERVICE_BYTES_MAX: u32 = VISIT_BYTES_MAX;
/// Bytes of packets of any worker that a holder delivers while page faults are metered: one frame, since each of its
/// pages may be slow to fault in. While packets wait, a visit takes no more than that.
pub const SERVICE_METERED_BYTES_MAX: u32 = 64 << 10;
/// Times that a holder takes the claim again at once because packets were queued meanwhile. After that it serves its
/// other rings.
pub const RECLAIMS_MAX: u32 = 2;
/// Times that a worker checks whether a ring's claim is free before it queues packets there: some 5 us. A holder that
/// copies without the claim reserves a batch's buffers in much less time. The holder delivers queued packets one by
/// one, so other workers find the claim taken for longer and queue more. With fewer checks, queueing would become the
/// rule.
pub const CLAIM_LOOKS_MAX: u32 = 256;
/// Batches for which copies into a ring are made without the claim, after one that found it taken.
pub const CONTENDED_BATCHES: u8 = 64;
/// Packets that one worker copies without the claim in one visit.
pub const LEASE_PACKETS_MAX: usize = 256;
/// Memory pieces of the buffers of those packets.
pub const LEASE_SEGMENTS_MAX: usize = 2048;
/// Ports with a broken ring that a worker notes until it next reads the list.
pub const BROKEN_MAX: usize = 16;
/// Orders in a helper's mailbox: rings whose large frames it is to copy. Also those that a worker has back from helpers.
pub const HELP_ORDERS_MAX: usize = 8;
/// Large frames that a helper copies before it looks at its tasks: some 1 ms.
pub const HELP_FRAMES_MAX: usize = 64;
/// Bytes of a frame that a capture can see: the longest frame, and all headers that actions may push.
pub const TAP_FRAME_BYTES_MAX: usize =
    FRAME_BYTES_MAX as usize + lasthop_module_api::IMAGE_BYTES - lasthop_module_api::IMAGE_FETCH_BYTES;
/// Bytes of frames that wait for a capture's reader, by worker: 25 Gbit/s for the longest pause of a reader.
pub const TAP_BYTES: usize = 8 << 20;
/// Bytes of upcalls under way, by worker: 16 ports at their usual limit.
pub const UPCALL_RING_BYTES: usize = 4 << 20;
/// Bytes of upcalls that the reader took out of the rings and did not pass on; further ones stay in the rings.
pub const UPCALL_READER_BYTES: usize = 16 << 20;
