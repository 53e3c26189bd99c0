//! The state of the host's scheduler as the engine asks for it.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use lasthop_module_api::PortId;
use lasthop_sched::{CpuPlace, CpuState, GuestVcpus, GuestView, ThreadState};

/// The state of the host's scheduler, read from shared memory. Times in it are 0 unless stated.
pub trait SchedulerView: Debug + Send + Sync {
    /// The threads of the guest behind a port, relative to a CPU; `None` if they are not known.
    fn guest(&self, port: PortId, own_cpu: u16) -> Option<GuestView>;
    /// The same with the times for which threads have slept.
    fn timed_guest(&self, port: PortId, own_cpu: u16) -> Option<GuestView> {
        self.guest(port, own_cpu)
    }
    /// Asks for an event of `worker` when a thread of the guest behind a port goes to sleep next. It may be missing, as all
    /// are without a descriptor.
    fn wake_when_asleep(&self, _port: PortId, _worker: usize) {}
    /// The descriptor that is readable while `worker` has such events, edge-triggered; `None` if there are none.
    fn sleep_events(&self, _worker: usize) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Makes room for further events of `worker`.
    fn clear_events(&self, _worker: usize) {}
    /// The state of a CPU; `None` if it is not known.
    fn cpu(&self, number: u16) -> Option<CpuState>;
    /// The CPU on which a thread of the guest behind a port runs, or ran last; `None` if that is not known.
    fn guest_cpu(&self, _port: PortId) -> Option<u16> {
        None
    }
    /// The threads of the guest behind a port, among which a receive queue's vCPU is; none if they are not known.
    fn vcpus(&self, _port: PortId) -> GuestVcpus {
        GuestVcpus::default()
    }
    /// The state of one of them with its time, by index; `None` if that is not known.
    fn vcpu(&self, _port: PortId, _index: usize) -> Option<ThreadState> {
        None
    }
    /// The number of one of them on the host.
    fn vcpu_tid(&self, _port: PortId, _index: usize) -> Option<u32> {
        None
    }
    /// The index of the one that runs, or ran last. Reads all of them.
    fn last_vcpu(&self, _port: PortId) -> Option<usize> {
        None
    }
    /// The caches and the memory of the CPUs, by number.
    fn places(&self) -> &[CpuPlace] {
        &[]
    }
}

/// The CPU of this thread; the kernel keeps its number in the process's memory, so there is no system call.
pub(crate) fn own_cpu() -> u16 {
    u16::try_from(rustix::thread::sched_getcpu()).unwrap_or(u16::MAX)
}
