//! Decides whether a front end caused a long wait in its guest's memory.
//!
//! A worker that touches a page may wait for the front end, if that punches holes around it, but also for others: for
//! the host, when it is short of memory; for a disk, when the page was swapped out; for the munmap of another session's
//! memory, on kernels before 6.7. So a wait counts only if nothing was unmapped meanwhile, and a control measurement
//! right afterwards, on pages of the worker's own, is quick.
//!
//! One control is not enough: a thread that holds the address space's lock may lose its CPU for longer, and then all
//! wait, but the lock is free as soon as it runs again. So the watchdog's thread repeats the control for a while. A
//! single slow control explains the wait: getting an own page never needs a sleep, however busy the machine is.

use std::time::{Duration, Instant};

use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment, Unmapped};
use lasthop_module_api::PortId;

use crate::sys::{ThreadUsage, thread_cpu_ns};

/// An access to a port's memory that waits longer, in ns, is a stall: only a page from a disk takes that long.
pub(crate) const STALL_NS: u64 = 10_000_000;
/// A control that takes longer, in ns, shows that pages are slow for the whole process. It usually takes 0.02 ms.
const CONTROL_NS_MAX: u64 = 1_000_000;
/// Bytes of a control: as many as a large frame has.
const CONTROL_BYTES: usize = 64 * 1024;

/// How long controls are repeated after a wait: several time slices on a busy machine.
pub(crate) const INQUIRY: Duration = Duration::from_millis(100);
/// Pause between two of them: they take less than a twentieth of a CPU.
pub(crate) const CONTROL_PAUSE: Duration = Duration::from_micros(500);

/// A piece of work in one guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) ns: u64,
    /// Whether the thread slept: one that was preempted did not wait for memory.
    pub(crate) has_slept: bool,
    /// Whether a page came from a disk.
    pub(crate) has_read_disk: bool,
    /// Whether no guest's memory was unmapped meanwhile.
    pub(crate) is_alone: bool,
}

impl Wait {
    /// Whether the worker waited for that guest's memory and nothing else. `control` measures the time for pages that
    /// no guest owns; it is called only if all else speaks against the guest.
    pub(crate) fn is_of_the_memory(self, control: impl FnOnce() -> u64) -> bool {
        let Self { ns, has_slept, has_read_disk, is_alone } = self;
        ns >= STALL_NS && has_slept && !has_read_disk && is_alone && control() <= CONTROL_NS_MAX
    }
}

/// Measures how long it takes to get fresh pages of this process, in ns; `u64::MAX` if there are none.
pub(crate) fn control_ns() -> u64 {
    let start = Instant::now();
    let write = || {
        let mapping = Mapping::anonymous(CONTROL_BYTES).ok()?;
        let region = Region { guest_addr: 0, user_addr: 0, mapping: mapping.into() };
        let map = MemoryMap::new(vec![region]).ok()?;
        let all = Segment { offset: 0, len: CONTROL_BYTES as u32, region: 0 };
        // Writes them, since pages that are only read are all one page of zeroes.
        (0..CONTROL_BYTES as u32).step_by(4096).try_for_each(|skip| map.write(all, skip, &[1])).ok()?;
        Some(start.elapsed().as_nanos() as u64)
    };
    write().unwrap_or(u64::MAX)
}

/// Whether getting pages of this process is slow at the moment, for a reason that is not a front end's: by unmapping
/// its memory one front end could make it slow for another.
pub(crate) fn is_slow_for_all() -> bool {
    let (waits, cpu_ns, unmapped) = (ThreadUsage::now().waits, thread_cpu_ns(), Unmapped::now());
    let has_failed = control_ns() == u64::MAX;
    // Time in which others had this CPU does not count.
    let is_slow = has_failed || ThreadUsage::now().waits > waits || thread_cpu_ns() - cpu_ns > CONTROL_NS_MAX;
    is_slow && Unmapped::now().none_since(unmapped)
}

/// Ports in whose memory a worker waited, while other causes are sought.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    ports: Vec<PortId>,
    until: Option<Instant>,
}

impl Suspects {
    /// Notes that a worker waited in the memory of `port`.
    pub(crate) fn add(&mut self, port: PortId, now: Instant) {
        if !self.ports.contains(&port) {
            self.ports.push(port);
        }
        self.until.get_or_insert(now + INQUIRY);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Does one more control. Returns ports whose waits no other cause has explained in all that time.
    pub(crate) fn look(&mut self, now: Instant, is_slow_for_all: impl FnOnce() -> bool) -> Vec<PortId> {
        let Some(until) = self.until else { return Vec::new() };
        let is_explained = is_slow_for_all();
        if !is_explained && now < until {
            return Vec::new();
        }
        let ports = std::mem::take(self).ports;
        if is_explained { Vec::new() } else { ports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Wait = Wait { ns: STALL_NS, has_slept: true, has_read_disk: false, is_alone: true };

    #[test]
    fn a_long_wait_that_nothing_else_explains_is_of_the_memory() {
        assert!(STALL.is_of_the_memory(|| CONTROL_NS_MAX));
    }

    #[test]
    fn a_wait_that_something_else_explains_is_not() {
        let quick = || 20_000;
        assert!(!STALL.is_of_the_memory(|| CONTROL_NS_MAX + 1), "the host is short of memory");
        assert!(!Wait { is_alone: false, ..STALL }.is_of_the_memory(quick), "another session's munmap");
        assert!(!Wait { has_read_disk: true, ..STALL }.is_of_the_memory(quick), "swap");
        assert!(!Wait { has_slept: false, ..STALL }.is_of_the_memory(quick), "the core was taken away");
    }

    #[test]
    fn work_that_did_not_take_long_costs_no_control() {
        let quick = Wait { ns: STALL_NS - 1, ..STALL };
        assert!(!quick.is_of_the_memory(|| unreachable!("it is not suspected")));
    }

    #[test]
    fn a_control_touches_pages_and_gives_them_back() {
        assert!(control_ns() < u64::MAX);
    }

    #[test]
    fn ports_are_accused_if_no_control_in_all_the_time_is_slow() {
        let (start, mut suspects) = (Instant::now(), Suspects::default());
        assert!(suspects.look(start, || unreachable!("nobody is suspected")).is_empty());
        suspects.add(PortId(1), start);
        suspects.add(PortId(1), start);
        assert!(suspects.look(start, || false).is_empty());
        suspects.add(PortId(2), start + INQUIRY / 2);
        assert!(suspects.look(start + INQUIRY / 2, || false).is_empty());
        assert_eq!(suspects.look(start + INQUIRY, || false), [PortId(1), PortId(2)]);
        assert!(suspects.is_empty());
    }

    #[test]
    fn a_single_control_that_is_slow_explains_the_waits() {
        let (start, mut suspects) = (Instant::now(), Suspects::default());
        suspects.add(PortId(1), start);
        assert!(suspects.look(start, || true).is_empty());
        assert!(suspects.is_empty());
        suspects.add(PortId(1), start + INQUIRY);
        assert!(suspects.look(start + INQUIRY, || false).is_empty(), "from the beginning");
    }
}
