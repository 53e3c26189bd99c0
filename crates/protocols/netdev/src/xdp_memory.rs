//! Registers the memory of XDP sockets. The opener does it, since the memory is pinned: with CAP_IPC_LOCK no limit
//! applies, while RLIMIT_MEMLOCK counts what all processes of the user have pinned.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_device::{DeviceFacts, xdp_queue_bytes, xdp_slot_bytes};
use lasthop_guestmem::{Mapping, memfd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::xdp_error::{XdpError, system};

/// The memory of a device's XDP sockets, mapped until they have it. The kernel keeps it pinned as long as a socket
/// exists.
#[derive(Debug)]
pub(crate) struct XdpMemory {
    file: OwnedFd,
    mapping: Mapping,
    slot_bytes: u32,
}

impl XdpMemory {
    /// Memory for all queues of a device.
    ///
    /// # Errors
    /// [`XdpError::Mtu`], [`XdpError::System`].
    pub(crate) fn new(facts: &DeviceFacts) -> Result<Self, XdpError> {
        let &DeviceFacts { mtu_bytes, queues, .. } = facts;
        let too_long = || XdpError::Mtu { name: facts.name.clone(), mtu_bytes };
        let slot_bytes = xdp_slot_bytes(mtu_bytes).ok_or_else(too_long)?;
        let len_bytes = u64::from(queues) * u64::from(xdp_queue_bytes(slot_bytes));
        lift_limit().map_err(|error| system("raising RLIMIT_MEMLOCK")(error.into()))?;
        let file = memfd("lasthop-xdp", len_bytes);
        let file = file.map_err(|error| system("making memory of XDP sockets")(error.into()))?;
        let mapping = Mapping::of_file(file.as_fd(), 0, len_bytes);
        let mapping = mapping.map_err(|error| XdpError::System {
            what: "mapping memory of XDP sockets",
            reason: error.to_string(),
        })?;
        Ok(Self { file, mapping, slot_bytes })
    }

    /// Gives a queue's socket its part. Only other sockets can have the part later.
    ///
    /// # Errors
    /// [`XdpError::LockedMemory`], [`XdpError::System`].
    pub(crate) fn register(&self, queue: u16, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        let queue_bytes = u64::from(xdp_queue_bytes(self.slot_bytes));
        let part = XdpUmemReg {
            addr: self.mapping.start().as_ptr() as u64 + u64::from(queue) * queue_bytes,
            len: queue_bytes,
            chunk_size: self.slot_bytes,
            headroom: 0, // beside the kernel's own, which is enough for a virtio-net header
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(socket, part).map_err(|error| match error {
            Errno::NOBUFS => XdpError::LockedMemory { queue, kib: queue_bytes >> 10 },
            error => system("registering memory of an XDP socket")(error.into()),
        })
    }

    /// Its file. Another process may use it, and enlarge it for other purposes.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.file
    }
}

/// Lets this process pin as much memory as the system permits, which is any amount with CAP_SYS_RESOURCE. It matters
/// without CAP_IPC_LOCK only; the limit is 8 MiB by default.
fn lift_limit() -> Result<(), Errno> {
    let everything = Rlimit { current: None, maximum: None };
    match setrlimit(Resource::Memlock, everything) {
        Err(Errno::PERM) => {
            let maximum = getrlimit(Resource::Memlock).maximum;
            setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum })
        }
        result => result,
    }
}
