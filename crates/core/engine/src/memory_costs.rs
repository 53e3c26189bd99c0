//! The costs that guests' memory causes the switch, by port.
//!
//! The kernel charges a page of shared memory to the process that touches it first. A front end may leave its memory
//! sparse and place buffers all over it: then the switch allocates it, page tables included. An access also waits for
//! as long as the front end punches holes around it. So some visits are metered (`lasthop_fabric::VisitMeter`): one in
//! 64, each for all of those, and one after 8 MiB of frames, for itself. All are metered for a second after a round
//! that took long while its thread waited, after many page faults in visits that were not metered, and once much of a
//! port's memory was filled. Page faults are charged to the port in whose memory they were. At intervals the switch reads
//! how much of its files is allocated. Their growth, up to the switch's faults there, counts as filled by the switch. A port's rings stop
//! when that is too much, or when its memory keeps stalling workers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lasthop_guestmem::{Filled, MemoryMap};
use lasthop_module_api::{PORTS_MAX, PortId};

/// Bytes of a small page.
const PAGE_BYTES: u64 = 4096;
/// Page faults in a port's memory after which its files are audited: those of 16 MiB in small pages.
const AUDIT_FAULTS: u64 = 4096;
/// Page faults after which the worker audits itself, since the watchdog's thread has no CPU. An audit takes some
/// microseconds.
const AUDIT_FAULTS_MAX: u64 = 4 * AUDIT_FAULTS;
/// Bytes of a port's memory that the switch may fill, beside half of the present ones: more than the receive buffers of
/// a guest that has just started.
const FILLED_BYTES_MAX: u64 = 128 << 20;
/// The same amount is forgiven in this time: guests restart, and use more memory for packets.
const FORGIVEN: Duration = Duration::from_secs(3600);
/// Stalls within that time that make an offence, in quarters: the host may cause some, when it is short of memory.
const STALL_QUARTERS_MAX: u32 = 20;
/// A stall counts as this many quarters if pages were removed from the memory since the last stall, and as one
/// otherwise: then a thread that has a page locked may have lost its CPU.
const SHRUNK_STALL_QUARTERS: u32 = 4;
const STALLS_TIME: Duration = Duration::from_secs(10);

/// The memory costs of all ports.
#[derive(Debug)]
pub(crate) struct MemoryCosts {
    /// Page faults by port since the last audit.
    faults: Vec<AtomicU64>,
    accounts: Mutex<HashMap<PortId, MemoryAccount>>,
    /// Number of times that all visits were to be metered for a while.
    alarms: AtomicU64,
}

/// When the files of a port have to be audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audit {
    No,
    /// The watchdog does it.
    Soon,
    /// The watchdog should have done it, and did not.
    Now,
}

#[derive(Debug)]
struct MemoryAccount {
    map: Weak<MemoryMap>,
    /// Memory that the switch has filled, at the time `at`.
    filled_bytes: u64,
    at: Instant,
    stall_quarters: u32,
    stalled_since: Instant,
}

impl MemoryAccount {
    fn new(now: Instant) -> Self {
        Self { map: Weak::new(), filled_bytes: 0, at: now, stall_quarters: 0, stalled_since: now }
    }

    /// Adds `faults` since the last audit, and the change of the files; returns whether it is too much.
    fn audit(&mut self, faults: u64, filled: Filled, now: Instant) -> bool {
        let forgiven = now.saturating_duration_since(self.at).as_secs_f64() / FORGIVEN.as_secs_f64();
        let forgiven_bytes = (FILLED_BYTES_MAX as f64 * forgiven) as u64;
        (self.filled_bytes, self.at) = (self.filled_bytes.saturating_sub(forgiven_bytes), now);
        // Memory that the guest gave back, as by a balloon, is not charged any more.
        self.filled_bytes = self.filled_bytes.saturating_sub(filled.shrunk_bytes);
        let added_bytes = filled.grown_bytes.min(faults.saturating_mul(PAGE_BYTES));
        self.filled_bytes += added_bytes;
        added_bytes > 0 && self.filled_bytes > FILLED_BYTES_MAX + filled.bytes / 2
    }

    /// Sets the guest's memory. A new guest is not charged for the last one's memory.
    fn set_memory(&mut self, map: &Arc<MemoryMap>) {
        if self.map.strong_count() == 0 {
            self.filled_bytes = self.filled_bytes.min(FILLED_BYTES_MAX);
        }
        self.map = Arc::downgrade(map);
    }

    /// Adds a stall; returns whether that is one too many.
    fn stall(&mut self, has_shrunk: bool, now: Instant) -> bool {
        if now.saturating_duration_since(self.stalled_since) > STALLS_TIME {
            (self.stall_quarters, self.stalled_since) = (0, now);
        }
        self.stall_quarters += if has_shrunk { SHRUNK_STALL_QUARTERS } else { 1 };
        let is_too_much = self.stall_quarters >= STALL_QUARTERS_MAX;
        self.stall_quarters *= u32::from(!is_too_much);
        is_too_much
    }
}

impl Default for MemoryCosts {
    fn default() -> Self {
        let faults = (0..PORTS_MAX).map(|_| AtomicU64::new(0)).collect();
        Self { faults, accounts: Mutex::default(), alarms: AtomicU64::new(0) }
    }
}

impl MemoryCosts {
    fn accounts(&self) -> MutexGuard<'_, HashMap<PortId, MemoryAccount>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the memory of the guest of `port`.
    pub(crate) fn set_memory(&self, port: PortId, map: &Arc<MemoryMap>) {
        self.accounts().entry(port).or_insert_with(|| MemoryAccount::new(Instant::now())).set_memory(map);
    }

    /// Removes a port.
    pub(crate) fn forget(&self, port: PortId) {
        self.accounts().remove(&port);
    }

    /// Adds page faults in the memory of `port`; returns when to audit it.
    pub(crate) fn charge(&self, port: PortId, faults: u64) -> Audit {
        let Some(sum) = self.faults.get(port.index()) else { return Audit::No };
        let before = sum.fetch_add(faults, Ordering::Relaxed);
        match before.saturating_add(faults) {
            AUDIT_FAULTS_MAX.. => Audit::Now,
            AUDIT_FAULTS.. if before < AUDIT_FAULTS => Audit::Soon,
            _ => Audit::No,
        }
    }

    /// Has workers meter all visits for a while.
    pub(crate) fn raise_alarm(&self) {
        self.alarms.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of alarms so far.
    #[inline]
    pub(crate) fn alarms(&self) -> u64 {
        self.alarms.load(Ordering::Relaxed)
    }

    /// Reads how much of the files of `port` is allocated; returns whether the switch has filled too much of it.
    pub(crate) fn audit(&self, port: PortId) -> bool {
        let faults = self.faults.get(port.index()).map_or(0, |faults| faults.swap(0, Ordering::Relaxed));
        // Measured without the lock: workers take it, and the map may be the last one of its memory, to be unmapped here.
        let map = self.accounts().get(&port).and_then(|account| account.map.upgrade());
        // Huge pages belong to a pool that the administrator has reserved for guests.
        let Some(map) = map.filter(|map| map.page_bytes_max() == PAGE_BYTES) else { return false };
        let filled = map.measure();
        let mut accounts = self.accounts();
        let Some(account) = accounts.get_mut(&port) else { return false };
        let is_too_much = account.audit(faults, filled, Instant::now());
        if account.filled_bytes > FILLED_BYTES_MAX / 2 {
            self.raise_alarm();
        }
        is_too_much
    }

    /// Notes that a worker waited for the memory of `port`; returns whether that was once too often. `has_shrunk`:
    /// pages were removed from it since the last wait.
    pub(crate) fn stall(&self, port: PortId, has_shrunk: bool) -> bool {
        self.accounts().get_mut(&port).is_some_and(|account| account.stall(has_shrunk, Instant::now()))
    }

    /// Allocated bytes of the files of `port`'s memory.
    pub(crate) fn filled_bytes(&self, port: PortId) -> u64 {
        // Measured without the lock, as in `audit`.
        let map = self.accounts().get(&port).and_then(|account| account.map.upgrade());
        map.map_or(0, |map| map.filled_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lasthop_guestmem::{Mapping, Region, Segment, memfd};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A guest's sparse memory.
    fn sparse(bytes: u64) -> (std::os::fd::OwnedFd, Arc<MemoryMap>) {
        let file = memfd("sparse", bytes).unwrap();
        let mapping = Arc::new(Mapping::of_file(file.as_fd(), 0, bytes).unwrap());
        let region = Region { guest_addr: 0, user_addr: 0, mapping };
        (file, Arc::new(MemoryMap::new(vec![region]).unwrap()))
    }

    fn touch(map: &MemoryMap, from_bytes: u64, bytes: u64) {
        map.touch(Segment { offset: from_bytes, len: bytes as u32, region: 0 });
    }

    #[test]
    fn what_the_switch_fills_counts_and_what_the_front_end_fills_does_not() {
        let (file, map) = sparse(1 << 30);
        let mut account = MemoryAccount { map: Arc::downgrade(&map), ..MemoryAccount::new(Instant::now()) };
        let now = Instant::now();
        touch(&map, 0, 4 * MIB);
        assert!(!account.audit(1024, map.measure(), now));
        assert_eq!(account.filled_bytes, 4 * MIB);
        rustix::io::pwrite(&file, &vec![1; 8 << 20], 512 * MIB).unwrap();
        touch(&map, 512 * MIB, 8 * MIB);
        assert!(!account.audit(0, map.measure(), now), "the switch had no part in it");
        assert_eq!(account.filled_bytes, 4 * MIB);
        touch(&map, 512 * MIB, 8 * MIB);
        assert!(!account.audit(2048, map.measure(), now), "nothing grew");
        assert_eq!(account.filled_bytes, 4 * MIB);
    }

    #[test]
    fn too_much_is_too_much_and_is_forgiven_in_time() {
        let (_file, map) = sparse(1 << 30);
        let now = Instant::now();
        let mut account = MemoryAccount { map: Arc::downgrade(&map), ..MemoryAccount::new(now) };
        account.filled_bytes = FILLED_BYTES_MAX - MIB;
        touch(&map, 0, MIB);
        assert!(!account.audit(256, map.measure(), now));
        touch(&map, MIB, 4 * MIB);
        assert!(account.audit(1024, map.measure(), now));
        assert!(!account.audit(0, map.measure(), now + FORGIVEN / 2));
        assert_eq!(account.filled_bytes, FILLED_BYTES_MAX / 2 + 4 * MIB);
        let shrunk = Filled { shrunk_bytes: 4 * MIB, ..Filled::default() };
        assert!(!account.audit(1024, shrunk, now + FORGIVEN / 2));
        assert_eq!(account.filled_bytes, FILLED_BYTES_MAX / 2, "a balloon");
    }

    #[test]
    fn stalls_that_are_rare_are_none() {
        let now = Instant::now();
        let mut account = MemoryAccount::new(now);
        let late =
            |account: &mut MemoryAccount, seconds| account.stall(true, now + Duration::from_secs(seconds));
        assert!((0..9).all(|number| !late(&mut account, 6 * number)));
        let often = [60, 61, 62, 63, 64].map(|at| late(&mut account, at));
        assert_eq!(often, [false, false, false, false, true]);
    }

    #[test]
    fn stalls_of_memory_that_does_not_shrink_count_a_quarter() {
        let (now, mut account) = (Instant::now(), MemoryAccount::new(Instant::now()));
        assert!((1..STALL_QUARTERS_MAX).all(|_| !account.stall(false, now)));
        assert!(account.stall(false, now));
        let after_one: Vec<bool> = (0..5).map(|_| account.stall(true, now)).collect();
        assert_eq!(after_one, [false, false, false, false, true], "from the beginning");
    }

    #[test]
    fn a_port_is_audited_by_the_watchdog_and_by_the_worker_if_that_is_late() {
        let (costs, port) = (MemoryCosts::default(), PortId(3));
        assert_eq!(costs.charge(port, AUDIT_FAULTS - 1), Audit::No);
        assert_eq!(costs.charge(port, 1), Audit::Soon);
        assert_eq!(costs.charge(port, 1), Audit::No, "it was asked for");
        assert_eq!(costs.charge(port, AUDIT_FAULTS_MAX), Audit::Now);
        costs.audit(port);
        assert_eq!(costs.charge(port, AUDIT_FAULTS), Audit::Soon, "from the beginning");
    }

    #[test]
    fn a_port_with_much_that_was_filled_is_an_alarm() {
        let (_file, map) = sparse(1 << 30);
        let (costs, port) = (MemoryCosts::default(), PortId(3));
        costs.set_memory(port, &map);
        touch(&map, 0, FILLED_BYTES_MAX / 2);
        costs.charge(port, FILLED_BYTES_MAX / 2 / PAGE_BYTES);
        assert!(!costs.audit(port));
        assert_eq!(costs.alarms(), 0);
        touch(&map, FILLED_BYTES_MAX, MIB);
        costs.charge(port, MIB / PAGE_BYTES);
        assert!(!costs.audit(port));
        assert_eq!(costs.alarms(), 1);
    }
}
