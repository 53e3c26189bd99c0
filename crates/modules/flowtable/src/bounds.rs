//! Every bound of the flow table in one place; hitting one is an error by name, or counted.
//!
//! | bound | value | unit | reason |
//! |---|---|---|---|
//! | [`FLOWS_MAX`] | 262144 | flows | 200,000 are asked for |
//! | [`MASKS_MAX`] | 1024 | masks | a look-up tries all of them at worst, some 20 us |
//! | [`FLOW_DATA_BYTES_MAX`] | 256 | MiB | 1 KiB for each flow: ten actions, or data of a control plane's own |
//! | [`FOUR_ENTRIES`] | 8192 to 131072 | usual packets, IPv4 | 512 KiB to 8 MiB a worker, of which a page is there once it is used |
//! | [`SIX_ENTRIES`] | 4096 to 65536 | the same, IPv6 | 512 KiB to 8 MiB a worker, as above |
//! | [`LATER_ENTRIES`] | 4096 to 65536 | usual packets, IPv4, in a later pass | 512 KiB to 8 MiB a worker, as above |
//! | [`OTHER_ENTRIES`] | 2048 to 8192 | other packets | 512 KiB to 2 MiB a worker, as above |
//! | [`TUNNELLED_ENTRIES`] | 2048 to 16384 | packets out of tunnels | 768 KiB to 6 MiB a worker, as above |
//! | the others | | | below |

use std::ops::RangeInclusive;

/// Flows of one table.
pub const FLOWS_MAX: u32 = 1 << 18;
/// Bytes of flows' actions as they were written, with the user data of upcalls, and of flow keys beyond their
/// usual size. Counted for one table, with removed flows that are still remembered. Beyond this no flow is
/// installed.
pub const FLOW_DATA_BYTES_MAX: usize = 256 << 20;
/// Bytes of such data that flows which are gone are remembered with at most.
pub const FORMER_BYTES: usize = 4 << 20;
/// Flows that are gone and remembered for packets on their way to the control plane: some milliseconds of a busy one's changes.
pub const FORMER_FLOWS: usize = 1024;
/// Different masks of its flows: each is one more probe for a packet that the cache does not know.
pub const MASKS_MAX: usize = 1024;
/// Entries of a worker's exact-match cache of usual packets of IPv4, a cache line each: at first, which fits the second-level cache, and
/// when packets are crowded out.
pub const FOUR_ENTRIES: RangeInclusive<usize> = 1 << 13..=1 << 17;
/// The same of IPv6, two cache lines each.
pub const SIX_ENTRIES: RangeInclusive<usize> = 1 << 12..=1 << 16;
/// The same of usual packets of IPv4 in a later pass, behind `ct` or not, two cache lines each.
pub const LATER_ENTRIES: RangeInclusive<usize> = 1 << 12..=1 << 16;
/// The same of all other packets, and of those in a later pass, four cache lines each.
pub const OTHER_ENTRIES: RangeInclusive<usize> = 1 << 11..=1 << 13;
/// The same of packets that came through tunnels, six cache lines each.
pub const TUNNELLED_ENTRIES: RangeInclusive<usize> = 1 << 11..=1 << 14;
/// Batches to wait before the union mask narrows: narrowing invalidates the caches.
pub const UNION_NARROWS_AFTER: u32 = 16_384;
/// Insert probability 1/N when the slot is taken (cf. OVS emc-insert-inv-prob): so rare packets do not evict
/// frequent ones.
pub const CACHE_REPLACE_ONE_IN: u64 = 8;
/// Buckets that a key may be in: its home and the ones behind it.
pub const PROBES_MAX: usize = 8;
/// Masks of those most used, in which packets are looked up side by side while the cache knows few of them.
pub const BATCH_LOOKUP_MASKS: usize = 4;
/// A mask is looked up in batches if it has at least 1/N of the hits of the most used mask.
pub const LIKELY_SHARE: u32 = 16;
/// While the caches thrash, one batch in N still uses them, to see whether they help again.
pub const CACHE_TRIED_ONE_IN: u32 = 16;
/// Statistics entries that each worker finds ready for flows that it has not met before.
pub const STATS_STOCK: u32 = 1024;
/// The same, at most, when flows are installed faster than they are met.
pub const STATS_STOCK_MAX: u32 = 32_768;
/// Words of one flow's compiled actions: outputs to all ports, three times over.
pub const PROGRAM_WORDS_MAX: usize = 4096;
/// Lists of actions within each other, as in the Open vSwitch datapath.
pub const NESTING_MAX: usize = 16;
/// Words of all flows' compiled actions beyond the first step: 64 MiB.
pub const ARENA_WORDS: usize = 1 << 23;
/// Bytes of a service header that is put in front: with an Ethernet header in front of that, as much as a header image has room for.
pub const PUSH_NSH_BYTES_MAX: usize = 48;
/// Meters of one table.
pub const METERS_MAX: usize = 4096;
/// Entries of the table that meters' numbers are found in: twice as many as meters.
pub const METER_ENTRIES: usize = 2 * METERS_MAX;
/// Entries of it that a number may be in.
pub const METER_PROBES_MAX: usize = 32;
/// Meters that a worker has tokens of at a time; one more, and all are given back first.
pub const BORROWS_MAX: usize = 4;
/// Packets' worth of tokens that a worker takes out of a meter at once.
pub const BORROW_PACKETS: u64 = 8;
/// Times that it tries while other workers take theirs; then the packet counts as excess.
pub const BORROW_TRIES: usize = 8;
/// Steps that are done for one packet, in all flows that it goes through.
pub const STEPS_MAX: u32 = 8192;
/// Times that a packet and its copies go through the table again.
pub const RECIRCULATIONS_MAX: u32 = 16;
/// Lists within each other, recirculations included: as deep as a worker's stack is used.
pub const DEPTH_MAX: u32 = 40;
/// Pending flows of each worker, whose packets keep their order during upcalls: four ports' full queues.
/// Packets of a flow without a slot may overtake.
pub const PENDING_FLOWS: usize = 1024;
/// Places that such a flow may have.
pub const PENDING_WAYS: usize = 8;
/// Packets of such a flow that go to the control plane, one behind the other: a transmit ring of the usual length. More wait in their
/// sender's ring until those are through; at an uplink they are dropped.
pub const PENDING_PACKETS_MAX: u32 = 256;
/// Pending flows of each worker with so many packets under way that further ones wait.
pub const CROWDS_MAX: usize = 64;
/// Time in ns that it is waited for, much longer than it takes to decide; then a packet may be overtaken, and is dropped if it was.
pub const PENDING_NS_MAX: u64 = 50_000_000;
/// Time in ns after that in which a flow keeps its slot: the control plane may still execute its packets.
pub const FORGOTTEN_NS: u64 = 1_000_000_000;
/// Packets that the control plane has executed at a time.
pub const EXECUTIONS_MAX: usize = 64;
