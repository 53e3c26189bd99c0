//! Every bound of the controller in one place; hitting one is counted.
//!
//! | bound | value | unit | reason |
//! |---|---|---|---|
//! | [`FLOWS_MAX`] | 200000 | flows | the size of the switch's table, less some for flows that others install |
//! | [`ADDRESSES_MAX`] | 16384 | addresses | as the bridge has; 16 for each of 1024 ports |
//! | [`IDLE_NS`] | 10 | s | a flow that is not used costs memory only; one that comes back costs a miss |
//! | the others | | | below |

/// Flows of one switch.
pub const FLOWS_MAX: usize = 200_000;
/// Part of them that packets from one port may make: one guest cannot take all. If several take all, flows of the port that has most
/// make room for those of ports that have less than half as many.
pub const FLOWS_PORT_SHARE: usize = 4;
/// Learned addresses of one switch, unless told otherwise.
pub const ADDRESSES_MAX: usize = 16_384;
/// Part of them that may be behind one port, unless its settings say otherwise.
pub const ADDRESSES_PORT_SHARE: usize = 4;
/// Time without a frame after which a learned address counts as absent, in ns (IEEE 802.1D-2004, table 7-5: 300 s).
pub const AGEING_NS: u64 = 300_000_000_000;
/// Time without a packet after which a flow is taken out, in ns.
pub const IDLE_NS: u64 = 10_000_000_000;
/// The same while the table is more than half full.
pub const IDLE_CROWDED_NS: u64 = 1_000_000_000;
/// Pause between two looks at all flows' counters, in ns: an address counts as seen that much late at most.
pub const COUNTING_NS: u64 = 1_000_000_000;
/// Pause between two looks at all ports of a datapath, in ns: they find ports that another client removed.
pub const PORTS_NS: u64 = 5_000_000_000;
/// Pause before something is asked for again that was refused, in ns.
pub const AGAIN_NS: u64 = 200_000_000;
/// Flows looked at again in one turn after a change: some milliseconds, in which new packets wait.
pub const REVALIDATED_PER_TURN: usize = 10_000;
/// Flows that depend on where one address is, up to which all are looked at whenever that changes.
pub const ABOUT_FEW: usize = 64;
/// Pause between two looks at them where they are more, in ns: however often the address moves, between two ports of which each has
/// a guest that uses it. A guest that moves to another host is followed at once, since that is the first time.
pub const MOVED_NS: u64 = 1_000_000_000;
/// Bytes of requests in one datagram, beyond which the next begins.
pub const BATCH_BYTES: usize = 64 * 1024;
/// Requests in one datagram.
pub const BATCH_REQUESTS: usize = 64;
/// Datagrams that may wait to be sent before no more packets are taken: the switch is behind.
pub const WAITING_MAX: usize = 64;
/// The same, up to which packets that are not taken are given back to be dropped. Of those beyond, the switch hears nothing, and keeps
/// their flows waiting for a while.
pub const GIVEN_BACK_MAX: usize = 4 * WAITING_MAX;
/// Packets of one port that are taken although the switch is behind, up to [`BEHIND_MAX`]: ports whose packets have it behind have more
/// under way, so they lose theirs, and others do not.
pub const PORT_PACKETS_MIN: usize = 16;
/// Datagrams that may wait at all.
pub const BEHIND_MAX: usize = GIVEN_BACK_MAX + WAITING_MAX;
/// Addresses that changed ports and are kept to be shown.
pub const MOVES_MAX: usize = 16;
