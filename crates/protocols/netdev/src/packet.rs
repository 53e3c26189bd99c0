//! Opens devices by packet sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_device::{Backend, DeviceFacts, OpenedDevice};
use lasthop_wire::vnet::{HEADER_BYTES, HEADER_BYTES_LEGACY};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::OpenError;
use crate::features::{FEATURES, UDP_FEATURES};
use crate::link::{NetDevice, is_unknown};
use crate::sys::{bind_to_device, filter_out, listen_to_all, option, set_option};

/// Bytes that a packet socket may hold in each direction: TCP's usual largest window.
const SOCKET_BYTES: i32 = 8 << 20;

const CAPABILITY: &str = "CAP_NET_RAW";

/// Largest number of sockets of one device; a fanout group has room for 256 (the kernel's `PACKET_FANOUT_MAX` before
/// 5.12).
const QUEUES_MAX: u16 = 64;

/// How to open a device by packet sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// Number of sockets: frames from the device are spread over them by flow.
    pub queues: u16,
    /// Whether to bypass the device's queueing discipline: faster, but nothing waits when the device is full.
    pub qdisc_bypass: bool,
    /// Whether to receive frames to any address, while a socket is open.
    pub promiscuous: bool,
    /// Whether to use the short virtio-net header, as for kernels before 6.4, which only know that one.
    pub short_header: bool,
    /// The mark of a [`Gate`](super::Gate) at the device: sent packets have it, and packets with it are not received.
    pub mark: Option<u32>,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self { queues: 1, qdisc_bypass: false, promiscuous: true, short_header: false, mark: None }
    }
}

/// Opens a network device by packet sockets. Its settings are undone when the last descriptor is closed.
///
/// # Errors
/// [`OpenError`].
pub fn packet(name: &str, options: PacketOptions) -> Result<OpenedDevice, OpenError> {
    if !(1..=QUEUES_MAX).contains(&options.queues) {
        let (name, queues) = (name.to_owned(), options.queues);
        return Err(OpenError::BadQueues { name, queues, max: QUEUES_MAX });
    }
    let link = NetDevice::new(name)?;
    let (index, mac, mtu_bytes) = (link.index()?, link.mac()?, link.mtu_bytes()?);
    let (mut queues, mut header_bytes): (Vec<OwnedFd>, _) = (Vec::new(), HEADER_BYTES);
    for _ in 0..options.queues {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol, so that nothing arrives before everything is set.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let socket = socket.map_err(OpenError::of(name, CAPABILITY, "make a packet socket"))?;
        header_bytes = prepare(name, socket.as_fd(), index, options)?;
        if options.queues > 1 {
            join_group(name, socket.as_fd(), queues.first().map(AsFd::as_fd))?;
        }
        queues.push(socket);
    }
    let facts = DeviceFacts {
        backend: Backend::AfPacket,
        name: name.to_owned(),
        index,
        queues: options.queues,
        mtu_bytes,
        mac,
        // Kernels got UDP segmentation (6.2) shortly before the longer header (6.4), which serves as a test for it:
        // others refuse such frames.
        features: if header_bytes == HEADER_BYTES { FEATURES | UDP_FEATURES } else { FEATURES },
        header_bytes: header_bytes as u8, // 10 or 12
        xdp: None,
        tunnel: None,
    };
    Ok(OpenedDevice { facts, descriptors: queues })
}

/// Makes all settings and binds; returns the length of the virtio-net header.
fn prepare(
    name: &str,
    socket: BorrowedFd<'_>,
    index: u32,
    options: PacketOptions,
) -> Result<usize, OpenError> {
    let set = |option, value, what| {
        set_option(socket, libc::SOL_PACKET, option, value).map_err(OpenError::of(name, CAPABILITY, what))
    };
    let header_bytes = set_headers(socket, options.short_header).map_err(OpenError::of(
        name,
        CAPABILITY,
        "set PACKET_VNET_HDR for the socket",
    ))?;
    set(libc::PACKET_AUXDATA, 1, "set PACKET_AUXDATA for the socket")?;
    set(libc::PACKET_IGNORE_OUTGOING, 1, "set PACKET_IGNORE_OUTGOING for the socket")?;
    if options.qdisc_bypass {
        set(libc::PACKET_QDISC_BYPASS, 1, "set PACKET_QDISC_BYPASS for the socket")?;
    }
    if let Some(mark) = options.mark {
        let set = set_option(socket, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed());
        let set = set.and_then(|()| filter_out(socket, mark));
        set.map_err(OpenError::of(name, CAPABILITY, "set SO_MARK for the socket"))?;
    }
    set_room(socket);
    bind_to_device(socket, index).map_err(OpenError::of(name, CAPABILITY, "bind a socket to the device"))?;
    if options.promiscuous {
        let all = listen_to_all(socket, index);
        all.map_err(OpenError::of(name, CAPABILITY, "set promiscuous mode"))?;
    }
    Ok(header_bytes)
}

fn set_headers(socket: BorrowedFd<'_>, short: bool) -> Result<usize, Errno> {
    if !short {
        match set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR_SZ, HEADER_BYTES as i32) {
            Err(error) if is_unknown(error) => {}
            result => return result.map(|()| HEADER_BYTES),
        }
    }
    set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1).map(|()| HEADER_BYTES_LEGACY)
}

/// Sets the buffer size: as much as the bounds allow if privileged, else the system's limit.
pub(crate) fn set_room(socket: BorrowedFd<'_>) {
    for (force, ask) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        if set_option(socket, libc::SOL_SOCKET, force, SOCKET_BYTES).is_err() {
            // With smaller buffers frames are lost earlier.
            let _ = set_option(socket, libc::SOL_SOCKET, ask, SOCKET_BYTES);
        }
    }
}

/// Makes a socket share the device's frames with the group of `first`, by flow; without `first` it makes a group.
fn join_group(name: &str, socket: BorrowedFd<'_>, first: Option<BorrowedFd<'_>>) -> Result<(), OpenError> {
    let flags = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let group = match first {
        None => (flags | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
        Some(first) => {
            let group = option(first, libc::SOL_PACKET, libc::PACKET_FANOUT);
            let group = group.map_err(OpenError::of(name, CAPABILITY, "ask for the fanout group"))?;
            (group & 0xffff).cast_unsigned() | flags << 16
        }
    };
    let joined = set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, group.cast_signed());
    joined.map_err(OpenError::of(name, CAPABILITY, "set PACKET_FANOUT for the socket"))
}
