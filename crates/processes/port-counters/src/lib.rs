//! The ports' counters over all switch processes: a new process continues them.
//!
//! **Purpose.** [`PortCounterTable`] has the memory in which a switch process counts for each port, and the counters of all dead processes.
//! It adds these to the reports of the present one.
//!
//! **Contract.** No counter decreases when a process dies. The sums of all ports are balanced when it has died, so packets are conserved. A
//! counter that this version does not know is kept under its name.
//!
//! **Not checked.** The numbers that a switch process wrote: a wrong one harms reports, and the placement of threads by cache.
//!
//! **Threading.** All values belong to one thread.
//!
//! ```text
//!   switch process ──counts──> memory of a port ──its end──> past ──┬─> record of the port (`lasthop-fd-store`)
//!   its successor  <──next──── another memory                       └─> reports
//! ```
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::SystemTime;

use lasthop_engine::{PORT_COUNTERS_BYTES, SavedCounters, former_writes, worker_counts};
use lasthop_fabric::{Drops, PortCounters, RX_DROPS, TX_DROPS};
use lasthop_module_api::BATCH_PACKETS_MAX;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use lasthop_api::orders::Answer;
use lasthop_api::report::{self, PortReport, WorkerReport};
use lasthop_fd_store::{RecordKey, RecordStore};
use lasthop_runtime::procfs;

/// The name of a worker's thread, without its number.
const THREAD_NAME: &str = "worker";
/// As many packets as a worker takes from a ring in one visit (`BATCH_PACKETS_MAX`).
const PACKETS_PER_BATCH: u64 = BATCH_PACKETS_MAX as u64;

/// The switch's own port has none: packets of the control plane count at the ports that they came from.
const INTERNAL: &str = "internal";

/// A port's counters: those of all dead switch processes, and the memory in which the present one keeps its own.
#[derive(Debug)]
pub struct LifetimeCounters {
    memory: OwnedFd,
    /// The memory for a switch process that is about to take over.
    next: Option<OwnedFd>,
    past: SavedCounters,
    /// The start of all counters, in milliseconds since 1970.
    since_ms: u64,
}

impl LifetimeCounters {
    /// Counters that begin now.
    fn open() -> io::Result<Self> {
        Ok(Self { memory: blank()?, next: None, past: SavedCounters::default(), since_ms: time_ms() })
    }

    /// Counters that another supervisor kept.
    pub fn of_kept(memory: OwnedFd, past: &BTreeMap<String, u64>, since_ms: Option<u64>) -> Self {
        let since_ms = since_ms.unwrap_or_else(time_ms);
        let mut counters = Self { memory, next: None, past: SavedCounters::default(), since_ms };
        past.iter().for_each(|(name, count)| counters.past.add(name, *count));
        // The process that counted there has died.
        if let Ok(collected) = counters.collect() {
            counters.add_to_past(&collected);
        }
        counters
    }

    /// The counters of all dead processes, by name.
    pub fn past_by_name(&self) -> BTreeMap<String, u64> {
        let known = PortCounters::names().zip(self.past.counters.words());
        let known = known.map(|(name, count)| (name.to_string(), count));
        let all = known.chain(self.past.unknown.clone());
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// The start of its counters, in milliseconds since 1970.
    pub fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Batches of packets that each of the first `workers` workers of the present switch process passed to the guest or took from
    /// it: each signal counts, and 32 packets do. Those that cannot be read count as 0.
    pub fn batches(&self, workers: usize) -> Vec<u64> {
        let counts = worker_counts(workers, ["rx_packets", "tx_packets", "signals"], |bytes, at| {
            rustix::io::pread(&self.memory, &mut *bytes, at) == Ok(bytes.len())
        });
        let batches = |[received, sent, signals]: [u64; 3]| {
            signals.saturating_add(received.saturating_add(sent) / PACKETS_PER_BATCH)
        };
        counts.into_iter().map(batches).collect()
    }

    /// A copy of the descriptor, for the switch.
    fn memory(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    /// A copy of the descriptor for the switch process after the present one.
    fn next_memory(&mut self) -> io::Result<OwnedFd> {
        let next = blank()?;
        let copy = next.try_clone()?;
        self.next = Some(next);
        Ok(copy)
    }

    /// Takes the counters of a switch process that has stopped; the next one gets a new file.
    fn collect(&mut self) -> io::Result<SavedCounters> {
        let mut bytes = vec![0; PORT_COUNTERS_BYTES];
        let read = rustix::io::pread(&self.memory, &mut bytes[..], 0)?;
        self.memory = self.next.take().map_or_else(blank, Ok)?;
        Ok(SavedCounters::of(&bytes[..read]))
    }

    /// Adds the counters of earlier processes. The present switch process is told, for clients of its control
    /// interface: if that fails, their counters start at 0.
    fn add_to_past(&mut self, collected: &SavedCounters) {
        self.past.merge(collected);
        for (at, bytes) in former_writes(&self.past) {
            let _ = rustix::io::pwrite(&self.memory, &bytes, at as u64);
        }
    }
}

impl AsFd for LifetimeCounters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

fn blank() -> io::Result<OwnedFd> {
    let memory = memfd_create("lasthop-counters", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, PORT_COUNTERS_BYTES as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

/// The counters of all ports.
#[derive(Debug, Default)]
pub struct PortCounterTable {
    /// Counters by the number of their port.
    pub by_port: BTreeMap<u32, LifetimeCounters>,
    /// Counters of the last supervisor's ports that no client has requested again, by name.
    left: BTreeMap<String, LifetimeCounters>,
}

impl PortCounterTable {
    /// Adds the counters of earlier switch processes to the answer of the present one, `pid`. `name` has the ports' names.
    pub fn with_past<'a>(
        &self,
        mut answer: Answer,
        pid: Option<u32>,
        name: impl Fn(u32) -> Option<&'a str>,
    ) -> Answer {
        let ports = match &mut answer {
            Answer::Stats(stats) => {
                stats.time_ms = time_ms();
                pid.iter().for_each(|pid| enter_cpu_time(*pid, &mut stats.workers));
                &mut stats.ports
            }
            Answer::Inspection(inspection) => &mut inspection.ports,
            _ => return answer,
        };
        let named = self.by_port.iter().filter_map(|(number, counters)| Some((name(*number)?, counters)));
        let past: HashMap<&str, &LifetimeCounters> = named.collect();
        let upcalls: u64 = past.values().map(|counters| counters.past.counters.upcalls).sum();
        for port in ports {
            if let Some(counters) = past.get(port.name.as_str()) {
                add(port, &counters.past);
                port.since_ms = Some(counters.since_ms);
            }
            if port.name == INTERNAL {
                port.tx_packets += upcalls;
            }
        }
        answer
    }

    /// Memory for the counters of port `number`; `None` if the system has none: then they start at 0 with each switch
    /// process.
    pub fn memory(&mut self, number: u32, name: &str, store: &mut RecordStore) -> Option<OwnedFd> {
        if let Some(counters) = self.by_port.get(&number) {
            return counters.memory().ok();
        }
        let counters = self.left.remove(name).map_or_else(LifetimeCounters::open, Ok).ok()?;
        let memory = counters.memory().ok();
        self.by_port.insert(number, counters);
        store.is_late(RecordKey::Port(number));
        memory
    }

    /// Keeps the counters of a port over a device, which starts over with each supervisor when it is requested.
    pub fn leave(&mut self, port: &str, counters: LifetimeCounters) {
        self.left.insert(port.to_owned(), counters);
    }

    /// Memory for the counters of port `number` in the switch process that is about to take over; `None` as for `memory`.
    pub fn next_memory(&mut self, number: u32) -> Option<OwnedFd> {
        self.by_port.get_mut(&number)?.next_memory().ok()
    }

    /// Drops the memory for a successor, since none takes over.
    pub fn forget_next_memories(&mut self) {
        self.by_port.values_mut().for_each(|counters| counters.next = None);
    }

    /// Adds the counters of a switch process that has stopped to those of earlier processes.
    ///
    /// Returns its counters, summed over all ports.
    pub fn collect_counters(&mut self, store: &mut RecordStore) -> PortCounters {
        let counters = self.by_port.values_mut();
        let mut closed: Vec<(&mut LifetimeCounters, SavedCounters)> = counters
            .filter_map(|counters| counters.collect().ok().map(|collected| (counters, collected)))
            .collect();
        balance(closed.iter_mut().map(|(_, collected)| &mut collected.counters).collect());
        let mut sum = PortCounters::default();
        for (counters, collected) in closed {
            counters.add_to_past(&collected);
            sum.merge(&collected.counters);
        }
        self.by_port.keys().for_each(|number| store.is_late(RecordKey::Port(*number)));
        sum
    }
}

/// The time of day, in milliseconds since 1970.
fn time_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Enters the CPU time of each worker's thread, whose name has its number.
fn enter_cpu_time(pid: u32, workers: &mut [WorkerReport]) {
    let of_thread = |thread: i32| {
        let name = procfs::text(pid, &format!("task/{thread}/comm"))?;
        let number = name.trim().strip_prefix(THREAD_NAME)?.parse::<usize>().ok()?;
        Some((number, procfs::thread_cpu_ns(pid, thread)?))
    };
    let times: HashMap<usize, u64> = procfs::threads(pid).filter_map(of_thread).collect();
    workers.iter_mut().for_each(|worker| worker.cpu_ns = times.get(&worker.index).copied());
}

/// Balances the sums: the copies of different ports may be of different times, so a packet that left one port has
/// reached another, or the control plane.
fn balance(mut ports: Vec<&mut PortCounters>) {
    let forwarded: u64 = ports.iter().map(|port| port.forwarded.saturating_sub(port.upcalls)).sum();
    let delivered: u64 = ports.iter().map(|port| port.tx_packets).sum();
    let Some(busiest) = ports.iter_mut().max_by_key(|port| port.forwarded + port.tx_packets) else { return };
    let missing = delivered.saturating_sub(forwarded);
    busiest.forwarded += missing;
    busiest.rx_packets += missing;
    busiest.tx_packets += forwarded.saturating_sub(delivered);
}

/// The counters of a dead process, in one line.
pub fn final_counters_text(counters: &PortCounters) -> String {
    let mut drops = counters.rx_drops;
    drops.merge(&counters.tx_drops);
    let mut reasons: Vec<_> = drops.nonzero().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let reasons: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {}", reason.name())).collect();
    let reasons = if reasons.is_empty() { "nothing".to_owned() } else { reasons.join(", ") };
    let (taken, delivered) = (counters.rx_packets, counters.tx_packets);
    format!("it had taken {taken} packets, delivered {delivered}, and dropped {reasons}")
}

/// Names each counter, so that a new one cannot be forgotten.
fn add(port: &mut PortReport, past: &SavedCounters) {
    let PortCounters {
        rx_packets,
        rx_bytes,
        rx_gso_packets,
        injected,
        copies_added,
        segments_added,
        forwarded,
        upcalls,
        rx_drops,
        flooded_to_none,
        waiting: _, // a dead process has no waiting packets
        detached,
        tx_packets,
        tx_bytes,
        tx_gso_packets,
        tx_drops,
        tx_csum_completed,
        signals,
    } = &past.counters;
    port.rx_packets += rx_packets;
    port.rx_bytes += rx_bytes;
    port.rx_gso_packets += rx_gso_packets;
    port.tx_packets += tx_packets;
    port.tx_bytes += tx_bytes;
    port.tx_gso_packets += tx_gso_packets;
    port.injected += injected;
    port.copies_added += copies_added;
    port.segments_added += segments_added;
    port.forwarded += forwarded;
    port.upcalls += upcalls;
    port.detached += detached;
    port.flooded_to_none += flooded_to_none;
    add_drops(&mut port.rx_drops, (rx_drops, RX_DROPS), past);
    add_drops(&mut port.tx_drops, (tx_drops, TX_DROPS), past);
    port.tx_csum_completed += tx_csum_completed;
    port.signals += signals;
}

fn add_drops(drops: &mut report::DropCounts, (known, side): (&Drops, &str), past: &SavedCounters) {
    let known = known.nonzero().map(|(reason, count)| (reason.name(), count));
    let unknown = past.unknown.iter().filter_map(|(name, count)| Some((name.strip_prefix(side)?, *count)));
    for (reason, count) in known.chain(unknown) {
        *drops.entry(reason.to_owned()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use lasthop_engine::NAMES_BYTES;
    use lasthop_module_api::DropReason;

    use super::*;

    #[test]
    fn collected_counters_balance() {
        let port = |rx_packets, forwarded, tx_packets| PortCounters {
            rx_packets,
            forwarded,
            tx_packets,
            ..PortCounters::default()
        };
        let mut asked = [PortCounters { upcalls: 2, ..port(9, 9, 0) }, port(0, 0, 7)];
        balance(asked.iter_mut().collect());
        assert_eq!((asked[0].forwarded, asked[1].tx_packets), (9, 7), "two were asked about");
        for (mut one, mut other) in [(port(9, 9, 3), port(3, 3, 7)), (port(5, 5, 3), port(3, 3, 9))] {
            balance(vec![&mut one, &mut other]);
            assert_eq!(one.forwarded + other.forwarded, one.tx_packets + other.tx_packets);
            assert!(one.is_conserved() && other.is_conserved());
        }
    }

    #[test]
    fn the_final_counters_text_has_the_most_frequent_reason_first() {
        let mut counters = PortCounters { rx_packets: 9, tx_packets: 4, ..PortCounters::default() };
        assert_eq!(
            final_counters_text(&counters),
            "it had taken 9 packets, delivered 4, and dropped nothing"
        );
        counters.rx_drops.count_all(DropReason::BadCsum, 2);
        counters.tx_drops.count_all(DropReason::Restart, 3);
        let text = final_counters_text(&counters);
        assert!(text.ends_with("dropped 3 restart, 2 bad_csum"), "{text}");
    }

    #[test]
    fn counters_start_blank_and_are_read_whole() {
        let mut counters = LifetimeCounters::open().expect("counters");
        let write = |bytes: &[u8], at| rustix::io::pwrite(&counters.memory, bytes, at).expect("written");
        write(b"rx_packets rx_drops.moon tx_drops.too_long forwarded tx_drops.moon", 0);
        let words = [7_u64, 2, 3, 5, 1].map(u64::to_ne_bytes);
        write(words.as_flattened(), NAMES_BYTES as u64);
        let collected = counters.collect().expect("read");
        assert_eq!((collected.counters.rx_packets, collected.counters.forwarded), (7, 5));
        assert_eq!(counters.collect().expect("read"), SavedCounters::default());
        let mut port = PortReport { tx_drops: [("too_long".to_owned(), 4)].into(), ..PortReport::default() };
        add(&mut port, &collected);
        assert_eq!((port.rx_packets, port.forwarded), (7, 5));
        assert_eq!(port.rx_drops, [("moon".to_owned(), 2)].into());
        assert_eq!(port.tx_drops, [("moon".to_owned(), 1), ("too_long".to_owned(), 7)].into());
    }
}
