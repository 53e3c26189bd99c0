//! All bounds of the control interface, each with its unit and its reason.

/// Ports of one datapath (`DP_MAX_PORTS` of the kernel's).
pub const PORTS_MAX: u32 = 65_536;
/// Bytes of one list of actions (`MAX_ACTIONS_BUFSIZE` of the kernel's).
pub const ACTION_BYTES_MAX: usize = 32 * 1024;
/// How deep lists of actions may be nested (the kernel's limit): each level is a frame of our stack.
pub const ACTION_DEPTH_MAX: usize = 16;
/// Bytes of a datapath's or port's name, without the final NUL: the limit for vnics and switches. The
/// kernel's devices have 15 (IFNAMSIZ - 1).
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a generic family's or group's name (GENL_NAMSIZ - 1).
pub const FAMILY_BYTES_MAX: usize = 15;
/// Port ids in one list: one for each CPU of the largest machines.
pub const CPUS_MAX: usize = 8192;
/// Bands of one meter (`DP_MAX_BANDS` of the kernel's, where more has never been used).
pub const BANDS_MAX: usize = 1;
/// Limits in one message: all that fit an attribute.
pub const ZONE_LIMITS_MAX: usize = 65_535 / 12;
/// Connections of clients. OVS has one for each core, two or three for requests, and for old kernels' mode one for each
/// port.
pub const PEERS_MAX: usize = 2048;
/// Multicast groups that one client may be a member of: there are six.
pub const GROUPS_MAX: usize = 8;
/// Bytes of one datagram from a client: 50 requests with a packet of 64 KiB among them. The socket truncates larger
/// ones.
pub const DATAGRAM_BYTES_MAX: usize = 256 * 1024;
/// Bytes of answers that may wait for one client before its further requests are read, or its dump continues.
pub const ANSWER_BYTES_MAX: usize = 128 * 1024;
/// Bytes of misses and notifications that may wait for one client; further ones are lost and counted. They are some 10
/// ms of a fast control plane's work.
pub const UPCALL_BYTES_MAX: usize = 1024 * 1024;
/// Port notifications that are repeated to clients of an earlier switch process: a thousand ports may come or go before
/// the last client is back.
pub const NEWS_MAX: usize = 1024;
/// Bytes waiting for one client after which misses should wait in the ports' queues, where ports have turns: nothing
/// overtakes packets in the client's queue.
pub const UPCALL_BYTES_READY: usize = 16 * 1024;
/// Bytes of misses and ENDs in one datagram for a client that takes batches.
pub const UPCALL_BATCH_BYTES_MAX: usize = UPCALL_BYTES_READY;
/// ENDs that may wait together for later output, for a client that takes batches.
pub const PATIENT_ENDS_MAX: usize = 16;
/// How long they may wait, in milliseconds: as long as the shortest wait of the main thread for a time.
pub const PATIENT_MS_MAX: u64 = 1;
/// Bytes that may wait for all clients together; beyond, only answers are queued, of which each client has few.
pub const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a client may wait for a port's device, in milliseconds; then the request is refused. Making a device takes
/// some 10 ms, or as long as a restart of the process that makes it.
pub const PARKED_MS_MAX: u64 = 5000;
/// Bytes of one datagram of a dump; OVS accepts 64 KiB.
pub const DUMP_BYTES: usize = 16 * 1024;
/// Datapaths: OVS has one for all its bridges.
pub const DATAPATHS_MAX: usize = 16;
/// Largest `OVS_DP_ATTR_MASKS_CACHE_SIZE` (the kernel's: one page for each CPU's table of four-byte entries).
pub const MASKS_CACHE_SIZE_MAX: u32 = 65_536;
/// Its default.
pub const MASKS_CACHE_SIZE: u32 = 256;
/// Datagrams of one client that are read in a row while others wait.
pub const DATAGRAMS_PER_VISIT: usize = 16;
/// Messages of one client that are served in a row while others wait: more than OVS puts into a datagram. The rest of a
/// datagram waits for the client's next turn.
pub const MESSAGES_PER_VISIT: usize = 64;
/// Messages that are served in one turn, which takes one or two milliseconds; then the main thread does its other work.
pub const MESSAGES_PER_TURN: usize = 512;
/// Time in ms after which a turn serves no further client: messages take longer on a busy machine, and some take long
/// anywhere. One client's visit is always finished: up to `MESSAGES_PER_VISIT`.
pub const TURN_MS_MAX: u64 = 2;
/// The weight of a dump's datagram, in messages: it holds a hundred flows, each of which is read and encoded.
pub const DUMP_MESSAGES: usize = 16;
/// The weight of a part of a flush, in messages: some hundred flows are removed.
pub const FLUSH_MESSAGES: usize = 16;
/// Flows refused to clients that do not wait for answers, until their programs hear of it: `ovs-glue` waits again long before.
pub const REFUSED_FLOWS_MAX: usize = 16_384;
/// Events that are read at a time.
pub const EVENTS_PER_TURN: usize = 32;
