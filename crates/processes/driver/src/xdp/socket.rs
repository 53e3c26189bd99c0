//! Binds an XDP socket to its rings and queue.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset,
};
use rustix::net::{RecvFlags, SendFlags, bind, recv, send, sockopt};

use super::rings::{Consumer, Entry, Frame, Producer};
use super::sys::RingMemory;
use crate::bounds::{XDP_BIND_PAUSE, XDP_BINDS_MAX, XDP_ENTRIES};

/// The queue of an XDP socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct XdpBinding {
    pub(super) interface: u32,
    pub(super) queue: u16,
    /// Whether to request copy mode, the only one of generic XDP.
    pub(super) copy: bool,
}

/// The four rings of a bound XDP socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) receive: Consumer<Frame>,
    pub(super) transmit: Producer<Frame>,
    pub(super) completion: Consumer<u64>,
}

impl Rings {
    /// Gives `socket`, which has its memory, rings, and binds it. This needs no privilege: the process that made
    /// the socket had CAP_NET_RAW, and registered the memory.
    ///
    /// # Errors
    /// Errors of the kernel: `EBUSY` where the queue still has a socket, `ENODEV` and `ENETDOWN` where the device
    /// is gone or down.
    pub(super) fn bind(socket: BorrowedFd<'_>, binding: XdpBinding) -> Result<Self, Errno> {
        sockopt::set_xdp_umem_fill_ring_size(socket, XDP_ENTRIES)?;
        sockopt::set_xdp_umem_completion_ring_size(socket, XDP_ENTRIES)?;
        sockopt::set_xdp_rx_ring_size(socket, XDP_ENTRIES)?;
        sockopt::set_xdp_tx_ring_size(socket, XDP_ENTRIES)?;
        let at = sockopt::xdp_mmap_offsets(socket)?;
        let rings = Self {
            fill: Producer::new(map(socket, XDP_UMEM_PGOFF_FILL_RING, &at.fr)?),
            receive: Consumer::new(map(socket, XDP_PGOFF_RX_RING, &at.rx)?),
            transmit: Producer::new(map(socket, XDP_PGOFF_TX_RING, &at.tx)?),
            completion: Consumer::new(map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr)?),
        };
        bind_in_time(socket, binding)?;
        Ok(rings)
    }

    /// Wakes the kernel for the fill ring if it requested that.
    pub(super) fn wake_to_receive(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        if !self.fill.wants_wakeup() {
            return Ok(());
        }
        match recv(socket, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Err(error) if !passes(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Wakes the kernel for the transmit ring if it requested that. Returns false if it has not seen all of it.
    pub(super) fn wake_to_send(&self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        if !self.transmit.wants_wakeup() {
            return Ok(true);
        }
        match send(socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(true),
            Err(error) if passes(error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Binds. The kernel removes a closed socket from its queue some time later, so the next one may have to wait for that.
fn bind_in_time(socket: BorrowedFd<'_>, binding: XdpBinding) -> Result<(), Errno> {
    for _ in 1..XDP_BINDS_MAX {
        match bind(socket, &address(binding)) {
            Err(Errno::BUSY) => std::thread::sleep(XDP_BIND_PAUSE),
            result => return result,
        }
    }
    bind(socket, &address(binding))
}

/// Whether to try again after this error.
fn passes(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR)
}

fn map<E: Entry>(
    socket: BorrowedFd<'_>,
    page_offset: u64,
    at: &XdpRingOffset,
) -> Result<RingMemory<E>, Errno> {
    RingMemory::of_socket(socket, page_offset, at, XDP_ENTRIES)
}

fn address(binding: XdpBinding) -> SocketAddrXdp {
    let copy = if binding.copy { SocketAddrXdpFlags::XDP_COPY } else { SocketAddrXdpFlags::empty() };
    let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | copy;
    SocketAddrXdp::new(flags, binding.interface, u32::from(binding.queue))
}
