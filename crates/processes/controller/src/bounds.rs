//! Every bound of the controller in one place; hitting one is counted.
//!
//! | bound | value | unit | reason |
//! |---|---|---|---|
//! | [`FLOWS_MAX`] | 200000 | flows | the size of the switch's table, less some for flows that others install |
//! | [`ADDRESSES_MAX`] | 16384 | addresses | as the bridge has; 16 for each of 1024 ports |
//! | [`IDLE_NS`] | 10 | s | an unused flow costs memory only; one that comes back costs a miss |
//! | the others | | | below |

/// Flows of one switch.
pub const FLOWS_MAX: usize = 200_000;
/// One part in this many of them may belong to packets from one port, so one guest cannot take all. If several ports
/// take all, flows of the port with most are evicted for ports with less than half as many.
pub const FLOWS_PORT_SHARE: usize = 4;
/// Flows of packets from one port from which on others are made by address (`switch/address_flows.rs`).
pub const PAIR_FLOWS_MAX: usize = lasthop_api::pair_flows::PAIR_FLOWS_DEFAULT as usize;
/// Default for learned addresses of one switch.
pub const ADDRESSES_MAX: usize = 16_384;
/// One part in this many of them may be at one port, unless its settings say otherwise.
pub const ADDRESSES_PORT_SHARE: usize = 4;
/// Time without a frame after which a learned address counts as absent, in ns (IEEE 802.1D-2004, table 7-5: 300 s).
pub const AGEING_NS: u64 = 300_000_000_000;
/// Time without a packet after which a flow is removed, in ns.
pub const IDLE_NS: u64 = 10_000_000_000;
/// The same while the table is more than half full.
pub const IDLE_CROWDED_NS: u64 = 1_000_000_000;
/// Pause between two reads of all flows' counters, in ns: an address counts as seen at most that much too late.
pub const COUNTING_NS: u64 = 1_000_000_000;
/// Pause between two lists of a datapath's ports, in ns: they show ports that another client removed.
pub const PORTS_NS: u64 = 5_000_000_000;
/// Pause before a refused request is repeated, in ns.
pub const AGAIN_NS: u64 = 200_000_000;
/// Flows that are revalidated, or checked for idleness, in one turn: less than a millisecond, in which new packets wait.
pub const FLOWS_PER_TURN: usize = 1000;
/// Changes of flows in one turn that no packet waits for: one datagram.
pub const CHANGES_PER_TURN: usize = BATCH_REQUESTS;
/// Waiting datagrams from which on no such changes are made: answers to packets wait behind them.
pub const CHANGES_OPEN_MAX: usize = 2;
/// Largest number of flows that depend on one address and are revalidated each time it moves.
pub const ABOUT_FEW: usize = 64;
/// Pause between two revalidations of larger numbers, in ns, for an address that moves between two guests that use it.
/// The flows of a guest that moves to another host follow at once, since that is the first move.
pub const MOVED_NS: u64 = 1_000_000_000;
/// Bytes of requests in one datagram, beyond which the next begins.
pub const BATCH_BYTES: usize = 64 * 1024;
/// Requests in one datagram.
pub const BATCH_REQUESTS: usize = 64;
/// Waiting datagrams after which no more packets are taken: the switch is behind.
pub const WAITING_MAX: usize = 64;
/// Waiting datagrams after which packets that are not taken are not given back to be dropped either. The switch gets no
/// answer for these, and keeps their flows waiting for a while.
pub const GIVEN_BACK_MAX: usize = 4 * WAITING_MAX;
/// Packets of one port that are taken although the switch is behind, up to [`BEHIND_MAX`]. Ports that caused the
/// backlog have more pending packets, so they lose theirs, and others do not.
pub const PORT_PACKETS_MIN: usize = 16;
/// Largest number of waiting datagrams.
pub const BEHIND_MAX: usize = GIVEN_BACK_MAX + WAITING_MAX;
/// Requests of a port that a DHCP server may answer: of several clients, and repeated ones. The oldest makes room.
pub const DHCP_REQUESTS_PER_PORT: usize = 8;
/// How long a server may take to answer, in ns: the longest pause before a client repeats a request (RFC 2131, 4.1).
pub const DHCP_REQUEST_NS: u64 = 64_000_000_000;
/// Pause between two reports of leases that were renewed and are otherwise unchanged, in ns.
pub const LEASES_TOLD_NS: u64 = 1_000_000_000;
/// Largest number of moved addresses that are kept for reports.
pub const MOVES_MAX: usize = 16;
