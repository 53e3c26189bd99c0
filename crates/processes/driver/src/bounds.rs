//! Every bound of the driver's data path in one table.
//!
//! | bound | value | unit | reason |
//! |---|---|---|---|
//! | [`BATCH`] | 32 | frames | of one system call, as of one visit in the switch |
//! | [`SEND_BYTES_MAX`] | 262144 | bytes | of one system call: some 50 us in the kernel; the switch fills other buffers meanwhile |
//! | [`SEND_SLOTS`] | 256 | buffers | as many as a large ring has; 1 MiB, so that they stay in the second-level cache |
//! | [`SEND_SLOT_BYTES`] | 4096 | bytes | any frame of 1500 bytes in one, 64 KiB in 17 |
//! | [`SEND_PARTS_MAX`] | 32 | buffers | more than the longest frame needs, fewer than a system call accepts |
//! | [`SEND_DATAGRAMS_MAX`] | 384 | datagrams | of one visit: those of 256 KiB that are cut, and room for the 128 of a frame with the smallest ones; their headers take 96 KiB |
//! | [`MESSAGE_DATAGRAMS_MAX`] | 64 | datagrams | of one message with UDP_SEGMENT: as many as all kernels take (UDP_MAX_SEGMENTS, 128 in new ones); one of 64 KiB has 45 of 1442 bytes |
//! | [`SEND_PIECES_MAX`] | 1024 | pieces | of all datagrams of one visit: as many as the kernel takes of one message (UIO_MAXIOV) |
//! | [`INNER_BYTES_MAX`] | 184 | bytes | of the headers of a frame that is cut: as many as the switch has of a packet with a tunnel; longer ones are `bad_gso` |
//! | [`RECEIVE_SLOTS`] | 256 | buffers | frames that the switch may have not copied yet |
//! | [`RECEIVE_SLOT_BYTES`] | 65728 | bytes | the longest frame with its header and room for a tag; the longest coalesced datagrams (65535) with a tunnel's |
//! | [`STALE_FRAMES_MAX`] | 32768 | frames | dropped at once when a switch or a device comes back; more than a socket of 16 MiB holds, so further ones came meanwhile |
//! | [`DATAGRAMS_MAX`] | 128 | datagrams | of one message with UDP_GRO: as many as a kernel sends as one (UDP_MAX_SEGMENTS); further ones are `truncated` |
//! | [`TUNNEL_ENTRIES`] | 2048 | entries | of a tunnel's ring to the switch: of eight messages each datagram a frame in two pieces, or 40 large frames |
//! | [`PIECES_MAX`] | 64 | pieces | of a frame: as many as the switch accepts; 64 KiB of segments of 1400 bytes have 48 |
//! | [`PEERS`] | 256 | hosts | whose address for us is known, of a tunnel port: 8 KiB; one that is not gets no answers until it has sent something |
//! | [`ANSWERS_AT_ONCE`] | 16 | answers | by ICMP to packets that are too long for their tunnel, for each place: of some connections that begin |
//! | [`ANSWER_INTERVAL`] | 20 | ms | between further ones: a sender needs one for each other host |
//! | [`ANSWERS_PLACES`] | 256 | places | of the switch's ports that frames come from: of a tunnel port up to 4096 answers at once, and 12,800 a second |
//! | [`FOREIGN_ERRORS_MAX`] | 8 | attempts | of one visit to send after errors that other hosts caused; then a frame may be `refused` for one |
//! | [`XDP_FRAMES`](lasthop_device::XDP_FRAMES) | 1024 | frames | of an XDP socket's memory for each direction: 1.2 ms of a 10 Gbit/s link; both take 4 MiB of pinned memory, or 8 above an MTU of 1774 |
//! | [`XDP_ENTRIES`] | 2048 | entries | of each of its rings: the kernel frees an entry after it has passed its frame on, so with twice the frames none is ever full |
//! | [`XDP_BATCH`] | 64 | frames | of one visit: the other direction waits for some 10 us |
//! | [`UNWATCHED_VISITS`] | 64 | visits | with frames, after which a busy device need not be watched: registering it again takes as long as one of them |
//! | [`XDP_WAKES_MAX`] | 8 | system calls | of one visit to send: the kernel takes 32 frames a call, and some may have been left |
//! | [`XDP_BINDS_MAX`] | 250 | attempts | to bind to a queue that has a socket still, half a second in all; the kernel takes some 10 ms to clear away a closed one |
//! | [`XDP_BIND_PAUSE`] | 2 | ms | between them, of the thread that attaches ports |

pub(crate) use crate::sys::BATCH;

/// Bytes of frames that one system call sends at most.
pub(crate) const SEND_BYTES_MAX: usize = 256 << 10;
/// Buffers lent to the switch for frames to the device.
pub(crate) const SEND_SLOTS: u16 = 256;
/// Bytes of each.
pub(crate) const SEND_SLOT_BYTES: u32 = 4096;
/// Distance of two such buffers: an odd number of cache lines, so that they do not share a few sets of the cache.
pub(crate) const SEND_STRIDE_BYTES: u32 = SEND_SLOT_BYTES + 64;
/// Buffers of one frame.
pub(crate) const SEND_PARTS_MAX: usize = 32;

/// Buffers for frames from the device.
pub(crate) const RECEIVE_SLOTS: u16 = 256;
/// Bytes of each; an odd number of cache lines, see [`SEND_STRIDE_BYTES`].
pub(crate) const RECEIVE_SLOT_BYTES: u32 = 1027 * 64;

/// Datagrams that frames of one visit become.
pub(crate) const SEND_DATAGRAMS_MAX: usize = 384;
/// Datagrams of one message.
pub(crate) const MESSAGE_DATAGRAMS_MAX: usize = 64;
/// Parts of all datagrams of one visit: a head of each, and payloads that lie in up to all buffers.
pub(crate) const SEND_PIECES_MAX: usize = 2 * SEND_DATAGRAMS_MAX + crate::sys::PARTS_MAX;
/// The kernel takes no more of one message (UIO_MAXIOV).
const _: () = assert!(SEND_PIECES_MAX <= 1024);
/// Bytes of the headers of a frame that is cut, Ethernet to TCP.
pub(crate) const INNER_BYTES_MAX: usize = 184;

/// Frames that waited at a device without a switch, and are dropped when there is one. Lanes of the device's earlier sockets may have passed
/// them.
pub(crate) const STALE_FRAMES_MAX: usize = 32_768;

/// Datagrams of one message that are looked at.
pub(crate) const DATAGRAMS_MAX: usize = 128;
/// Entries of the ring for frames out of tunnels.
pub(crate) const TUNNEL_ENTRIES: u16 = 2048;
pub(crate) use lasthop_frontend::PIECES_MAX;
/// Distance of places for the headers of such frames, one for each entry.
pub(crate) const PLACE_BYTES: u32 = 128;
/// Bytes of the buffers of such a pair: its places are last.
pub(crate) const TUNNEL_ARENA_BYTES: u32 = ARENA_BYTES + TUNNEL_ENTRIES as u32 * PLACE_BYTES;
const _: () = assert!(PLACE_BYTES as usize >= lasthop_wire::tunnel::HEADER_BYTES);
const _: () = assert!(
    RECEIVE_SLOT_BYTES as usize >= 65_535 + lasthop_wire::tunnel::HEADER_BYTES + PLACEHOLDER_ROOM as usize
);
/// Bytes in front of a datagram whose header may be shorter than a placeholder.
pub(crate) const PLACEHOLDER_ROOM: u32 = 16;
const _: () = assert!(PLACEHOLDER_ROOM as usize >= lasthop_wire::tunnel::layer3::PLACEHOLDER_BYTES);

/// Hosts whose address for us a tunnel port knows.
pub(crate) const PEERS: usize = 256;
/// Answers to packets that are too long for their tunnel, at once.
pub(crate) const ANSWERS_AT_ONCE: u32 = 16;
/// Between further ones.
pub(crate) const ANSWER_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// Groups of sending ports that have a limit each.
pub(crate) const ANSWERS_PLACES: usize = 256;
/// Attempts of a visit to send again after errors of ICMP.
pub(crate) const FOREIGN_ERRORS_MAX: usize = 8;

/// Bytes of a pair's buffers; those for sending are first.
pub(crate) const ARENA_BYTES: u32 = RECEIVE_AT + RECEIVE_SLOTS as u32 * RECEIVE_SLOT_BYTES;
/// Where the buffers for receiving start.
pub(crate) const RECEIVE_AT: u32 = SEND_SLOTS as u32 * SEND_STRIDE_BYTES;

const _: () =
    assert!(SEND_PARTS_MAX * SEND_SLOT_BYTES as usize > 65_600 && SEND_PARTS_MAX < crate::sys::PARTS_MAX);
const _: () = assert!((SEND_STRIDE_BYTES / 64) % 2 == 1 && (RECEIVE_SLOT_BYTES / 64) % 2 == 1);

/// Visits with frames after which a lane's device may be watched no more until the lane rests.
pub(crate) const UNWATCHED_VISITS: u32 = 64;
/// Entries of each of its rings.
pub(crate) const XDP_ENTRIES: u32 = 2 * lasthop_device::XDP_FRAMES;
/// Frames that one visit takes.
pub(crate) const XDP_BATCH: usize = 64;
/// System calls to send one batch.
pub(crate) const XDP_WAKES_MAX: usize = 8;
/// Attempts to bind.
pub(crate) const XDP_BINDS_MAX: usize = 250;
/// Pause between two attempts.
pub(crate) const XDP_BIND_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);
