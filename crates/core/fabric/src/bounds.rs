//! Every bound of the data path in one table; hitting one is counted and named, nothing grows without end.
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
pub use lasthop_wire::gso::{FRAME_BYTES_MAX, SEGMENTS_MAX as GSO_SEGMENTS_MAX};

/// Bytes of a frame: an Ethernet header.
pub const FRAME_BYTES_MIN: u32 = 14;
/// Segments of a transmit chain: Linux makes up to 19 for a 64 KiB frame; three times that for others.
pub const CHAIN_SEGMENTS_MAX: usize = 64;
/// Segments kept in a slot itself: a Linux guest's small packet has one or two.
pub const SLOT_SEGMENTS: usize = 3;
/// Long chains per transmit ring at one time; more wait in the ring.
pub const LONG_CHAINS_MAX: usize = 256;
/// Receive buffers that one packet may span: 64 KiB in 1 KiB pieces.
pub const PACKET_BUFFERS_MAX: usize = 64;
/// Pieces of memory that those buffers may consist of.
pub const PACKET_BUFFER_SEGMENTS_MAX: usize = 256;
/// Bytes taken from a ring in one visit: some 30 us where they go to one port as they are.
pub const VISIT_BYTES_MAX: u32 = 256 << 10;
/// Costs are in bytes that could be copied meanwhile, at about 10 per ns. A visit that finds packets: indices read and
/// published, a signal.
pub const VISIT_COST: u64 = 2048;
/// Cost of a nanosecond that was measured at one port's memory.
pub const NS_COST: u64 = 10;
/// A port rests for this multiple of the time that page faults in its memory took. So they take a quarter of a worker at most.
pub const FAULT_REST_FACTOR: u64 = 3;
/// The longest rest in ns.
pub const FAULT_REST_NS_MAX: u64 = 100_000_000;
/// Cost of a packet that is taken, decided on and put into one ring, besides its bytes.
pub const PACKET_COST: u64 = 768;
/// Cost of each further copy, or segment, besides its bytes.
pub const COPY_COST: u64 = 512;
/// Cost of a piece of memory, besides its bytes, when a chain or a packet's buffers are in more than one
/// piece. Each descriptor is read, checked and translated, and each piece is copied by itself.
pub const PIECE_COST: u64 = 128;
/// Cost of a visit, some 100 us. If a batch costs more (floods, software segmentation), the port's next
/// batches are smaller. The copies of one packet are not divided, so one alone can cost more: 64 KiB to 1023
/// ports take some 10 ms. Packets that waited for buffers are delivered and charged when buffers come, within
/// bounds of their own.
pub const VISIT_COST_MAX: u64 = 1 << 20;
/// Cost of a port's turn at its worker while others wait: some 30 us. A visit is always finished; its excess
/// is taken off the next turns.
pub const TURN_COST: i64 = 256 << 10;
/// Packets that wait in one internal receive queue: one large ring's worth of small ones.
pub const WAITING_PACKETS_MAX: usize = 256;
/// Bytes that wait in one internal receive queue: TCP's usual largest receive window.
pub const WAITING_BYTES_MAX: u64 = 8 << 20;
/// Time in ns that a packet waits for buffers: longer than a receiver's vCPU is usually off its core.
pub const WAITING_NS_MAX: u64 = 300_000_000;
/// Share of one sender's ring that may wait for slow receivers, in 1/4.
pub const WAITING_SHARE_QUARTERS: u16 = 3;
/// Packets of one port that are copied out of its guest's memory, so that they do not hold back the chains behind them: as many as may
/// wait for one receiver. A port's queue pairs share them evenly.
pub const DETACHED_FRAMES_MAX: usize = WAITING_PACKETS_MAX;
/// The fewest of them that a queue pair has.
pub const DETACHED_FRAMES_MIN: usize = 16;
/// Bytes of them, of one port: that many packets of 8 KiB.
pub const DETACHED_BYTES_MAX: usize = 2 << 20;
/// The fewest of them that a queue pair has: for the longest frame.
pub const DETACHED_BYTES_MIN: usize = 72 << 10;
/// Bytes of a piece of their memory: a frame of the usual MTU lies in one.
pub const DETACHED_PIECE_BYTES: u32 = 2 << 10;
/// Frames that the switch itself has on the way, those of the control plane included. Several of one port use up to 3/4 of them, and
/// leave as many as they are to others; the rest is for the first frame of each port.
pub const INTERNAL_FRAMES_MAX: u16 = 128;
/// Workers of one switch.
pub const WORKERS_MAX: usize = lasthop_sync::WORKERS_MAX;
/// Packets that other workers queue at a receive ring whose claim is taken: as many as may wait there for
/// buffers.
pub const LEFT_PACKETS_MAX: usize = WAITING_PACKETS_MAX;
/// References of one worker's senders that others may hold: each comes back through its completion queue, which holds as many.
pub const LENT_PACKETS_MAX: usize = 4096;
/// Packets of other workers that a claim's holder delivers before it returns to its own rings: two batches.
pub const SERVICE_PACKETS_MAX: u32 = 64;
/// Bytes of them: one visit's worth.
pub const SERVICE_BYTES_MAX: u32 = VISIT_BYTES_MAX;
/// Bytes of packets of any worker that it delivers while page faults are metered: one frame. Each of its pages may be
/// slow to get.
pub const SERVICE_METERED_BYTES_MAX: u32 = 64 << 10;
/// Times that a holder continues at once because packets were queued while it worked. Then its other rings
/// are next.
pub const RECLAIMS_MAX: u32 = 2;
/// Times to look at a receive ring that another worker has, before packets are queued there: some 5 us. A
/// holder that copies without the claim needs much less to reserve a batch's buffers. Queued packets are
/// delivered one by one by the holder, so that others find the claim taken for longer and queue more. A short
/// look would make that the rule.
pub const CLAIM_LOOKS_MAX: u32 = 256;
/// Batches for which copies into a ring are made without the claim, after one that found it taken.
pub const CONTENDED_BATCHES: u8 = 64;
/// Packets that one worker copies side by side with others, in one visit.
pub const LEASE_PACKETS_MAX: usize = 256;
/// Pieces of memory that they go to.
pub const LEASE_SEGMENTS_MAX: usize = 2048;
/// Bytes of a frame that a capture can see: the longest frame, with all headers that actions may put in
/// front.
pub const TAP_FRAME_BYTES_MAX: usize =
    FRAME_BYTES_MAX as usize + lasthop_module_api::IMAGE_BYTES - lasthop_module_api::IMAGE_FETCH_BYTES;
/// Bytes of frames that wait for a capture's reader, by worker: 25 Gbit/s for as long as a reader looks away at most.
pub const TAP_BYTES: usize = 8 << 20;
/// Lines for packets of the port `internal` on their way to the control plane: more than there are datapaths, so that two share
/// one only if many came and went in between.
pub const UPCALL_LINES_OF_INTERNAL: u16 = 64;
/// Bytes of packets on their way to the control plane, by worker: those of 16 ports at their usual limit.
pub const UPCALL_RING_BYTES: usize = 4 << 20;
/// Bytes of them that its reader has taken out and not handed on; more wait in the rings.
pub const UPCALL_READER_BYTES: usize = 16 << 20;
