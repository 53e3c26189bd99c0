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
/// Clients' connections. OVS has one for each core, two or three for requests, and in the mode of old kernels one for
/// each port.
pub const PEERS_MAX: usize = 2048;
/// Multicast groups that one client may be a member of: there are six.
pub const GROUPS_MAX: usize = 8;
/// Bytes of one datagram from a client: 50 requests with a packet of 64 KiB among them. Larger ones are cut by the socket.
pub const DATAGRAM_BYTES_MAX: usize = 256 * 1024;
/// Bytes of answers that may wait for one client before no more of its requests are looked at, or of its dump made.
pub const ANSWER_BYTES_MAX: usize = 128 * 1024;
/// Bytes of misses and notifications that may wait for one client; beyond, they are lost and counted. Some 10 ms of a
/// fast control plane's work.
pub const UPCALL_BYTES_MAX: usize = 1024 * 1024;
/// Notifications of ports that are told once more to clients of an earlier switch process: a thousand ports may come or go before the
/// last client is back.
pub const NEWS_MAX: usize = 1024;
/// Bytes waiting for one client beyond which misses had better wait where ports have turns: nothing can
/// overtake the packets in the client's queue.
pub const UPCALL_BYTES_READY: usize = 16 * 1024;
/// Bytes that may wait for all clients together: beyond, only answers are taken, of which each client has but a few.
pub const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a client may wait for a port's device, in milliseconds; then it is refused. Devices take some 10 ms, and as
/// long as a restart of the process that makes them.
pub const PARKED_MS_MAX: u64 = 5000;
/// Bytes of one datagram of a dump; OVS takes 64 KiB.
pub const DUMP_BYTES: usize = 16 * 1024;
/// Datapaths: OVS has one for all its bridges.
pub const DATAPATHS_MAX: usize = 16;
/// Largest `OVS_DP_ATTR_MASKS_CACHE_SIZE` (the kernel's: a page for each CPU's table of four-byte entries).
pub const MASKS_CACHE_SIZE_MAX: u32 = 65_536;
/// The default.
pub const MASKS_CACHE_SIZE: u32 = 256;
/// Datagrams of one client that are taken in a row while others wait.
pub const DATAGRAMS_PER_VISIT: usize = 16;
/// Messages of one client that are served in a row while others wait: more than OVS has in a datagram. The rest of a datagram
/// waits for the client's next turn.
pub const MESSAGES_PER_VISIT: usize = 64;
/// Messages that are served in one turn; then their owner looks after its other business. A millisecond or two.
pub const MESSAGES_PER_TURN: usize = 512;
/// The weight of a dump's datagram, in messages: it holds a hundred flows, each read and encoded.
pub const DUMP_MESSAGES: usize = 16;
/// Clients that are heard of at a time.
pub const EVENTS_PER_TURN: usize = 32;
