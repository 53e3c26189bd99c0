//! All bounds of the flow table. Exceeding one is a named error or a counted drop.
//!
//! | bound | value | unit | reason |
//! |---|---|---|---|
//! | [`FLOWS_MAX`] | 262144 | flows | 200,000 are required |
//! | [`MASKS_MAX`] | 1024 | masks | a look-up tries all of them at worst, some 20 us |
//! | [`FLOW_DATA_BYTES_MAX`] | 256 | MiB | 1 KiB for each flow: ten actions, or user data of the control plane |
//! | [`FOUR_ENTRIES`] | 8192 to 131072 | usual packets, IPv4 | 512 KiB to 8 MiB a worker, of which pages are allocated on first use |
//! | [`SIX_ENTRIES`] | 4096 to 65536 | the same, IPv6 | 512 KiB to 8 MiB a worker, as above |
//! | second flows | 2 cache lines for each line of the two above | flows behind `ct`, by direction | up to 16 MiB a worker for each IP version, as above, from the first such flow on |
//! | [`LATER_ENTRIES`] | 4096 to 65536 | usual packets, IPv4, in a later pass | 512 KiB to 8 MiB a worker, as above |
//! | [`OTHER_ENTRIES`] | 2048 to 8192 | other packets | 512 KiB to 2 MiB a worker, as above |
//! | [`TUNNELLED_ENTRIES`] | 2048 to 16384 | packets from tunnels | 768 KiB to 6 MiB a worker, as above |
//! | the others | | | below |

use std::ops::RangeInclusive;

/// Flows of one table.
pub const FLOWS_MAX: u32 = 1 << 18;
/// Bytes of the flows' actions in the form in which they were installed, with the user data of upcalls, and of flow
/// keys beyond their usual size. The sum is for one table and includes removed flows that are still remembered. Beyond
/// this bound no flow is installed.
pub const FLOW_DATA_BYTES_MAX: usize = 256 << 20;
/// Bytes of such data that removed flows may keep at most.
pub const FORMER_BYTES: usize = 4 << 20;
/// Removed flows that are remembered for upcalls in flight: changes of some milliseconds under a busy control plane.
pub const FORMER_FLOWS: usize = 1024;
/// Different masks of the flows of one table: each is one more probe for a packet that misses the cache.
pub const MASKS_MAX: usize = 1024;
/// Entries of a worker's exact-match cache for usual IPv4 packets, one cache line each. The first number fits the
/// second-level cache; the cache grows to the second one if entries collide.
pub const FOUR_ENTRIES: RangeInclusive<usize> = 1 << 13..=1 << 17;
/// The same for IPv6, two cache lines each.
pub const SIX_ENTRIES: RangeInclusive<usize> = 1 << 12..=1 << 16;
/// The same for usual IPv4 packets in a later pass, after `ct` or without it, two cache lines each.
pub const LATER_ENTRIES: RangeInclusive<usize> = 1 << 12..=1 << 16;
/// The same for all other packets, also in a later pass, four cache lines each.
pub const OTHER_ENTRIES: RangeInclusive<usize> = 1 << 11..=1 << 13;
/// The same for packets that were received through tunnels, six cache lines each.
pub const TUNNELLED_ENTRIES: RangeInclusive<usize> = 1 << 11..=1 << 14;
/// Batches to wait before the union mask narrows: narrowing invalidates the caches.
pub const UNION_NARROWS_AFTER: u32 = 16_384;
/// Insert probability 1/N when the slot is taken (cf. OVS emc-insert-inv-prob): so rare packets do not evict
/// frequent ones.
pub const CACHE_REPLACE_ONE_IN: u64 = 8;
/// Buckets that may hold a key: its home and those behind it.
pub const PROBES_MAX: usize = 8;
/// The number of most used masks in which packets are looked up side by side while the caches thrash.
pub const BATCH_LOOKUP_MASKS: usize = 4;
/// A mask is looked up in batches if it has at least 1/N of the hits of the most used mask.
pub const LIKELY_SHARE: u32 = 16;
/// While the caches thrash, one batch in N still uses them, to see whether they help again.
pub const CACHE_TRIED_ONE_IN: u32 = 16;
/// Free statistics entries that are kept ready for each worker.
pub const STATS_STOCK: u32 = 1024;
/// Largest number of free entries, if flows are installed faster than workers meet them.
pub const STATS_STOCK_MAX: u32 = 32_768;
/// Words of one flow's compiled actions: outputs to all ports, three times over.
pub const PROGRAM_WORDS_MAX: usize = 4096;
/// Nesting depth of action lists, as in the Open vSwitch datapath.
pub const NESTING_MAX: usize = 16;
/// Words of all flows' compiled actions beyond the first step: 64 MiB.
pub const ARENA_WORDS: usize = 1 << 23;
/// Bytes of a pushed service header. With an Ethernet header in front it fills the room of a header image.
pub const PUSH_NSH_BYTES_MAX: usize = 48;
/// Meters of one table.
pub const METERS_MAX: usize = 4096;
/// Entries of the hash table of meter numbers: twice the number of meters.
pub const METER_ENTRIES: usize = 2 * METERS_MAX;
/// Entries of it that may hold a number.
pub const METER_PROBES_MAX: usize = 32;
/// Meters of which a worker holds tokens at a time. Before it uses one more it returns them all.
pub const BORROWS_MAX: usize = 4;
/// Packets' worth of tokens that a worker takes from a meter at once.
pub const BORROW_PACKETS: u64 = 8;
/// Attempts to take tokens while other workers take theirs; then the packet counts as excess.
pub const BORROW_TRIES: usize = 8;
/// Steps that are executed for one packet, in all flows of all its passes.
pub const STEPS_MAX: u32 = 8192;
/// Recirculations one within the other, in each copy of a packet: Open vSwitch bounds their nesting, too, not their number.
pub const RECIRCULATION_DEPTH_MAX: u32 = 16;
/// Recirculations of a packet with all its copies: a flood recirculates a copy for each of the 1024 ports with rules, and
/// as many more. Each may look in all masks, so it is below [`STEPS_MAX`].
pub const RECIRCULATIONS_MAX: u32 = 2048;
/// Nesting depth of lists, with recirculations: it bounds the use of a worker's stack.
pub const DEPTH_MAX: u32 = 40;
/// Pending flows of each worker whose packets keep their order during upcalls: four ports' full queues. Packets of a
/// flow without a slot may be reordered.
pub const PENDING_FLOWS: usize = 1024;
/// Slots that a flow may use.
pub const PENDING_WAYS: usize = 8;
/// Upcalls of such a flow that are outstanding: the length of a usual transmit ring. Further packets wait in their
/// sender's ring until those are settled; at an uplink they are dropped.
pub const PENDING_PACKETS_MAX: u32 = 256;
/// Pending flows of each worker whose further packets may wait in their ring.
pub const CROWDS_MAX: usize = 64;
/// Time in ns until a packet with the control plane may be overtaken, much longer than a decision takes. If it was
/// overtaken, it is dropped.
pub const PENDING_NS_MAX: u64 = 50_000_000;
/// Further time in ns for which a flow keeps its slot: the control plane may still execute its packets. A packet that
/// returns later is dropped. A client may take a second to read an upcall, and counts as silent two seconds after it.
pub const FORGOTTEN_NS: u64 = 3_000_000_000;
/// The same for a slot that another flow needs, if that finds no other one.
pub const REUSED_NS: u64 = 1_000_000_000;
/// Announced executions whose packets are not injected yet.
pub const EXECUTIONS_MAX: usize = 64;
