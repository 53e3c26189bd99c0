//! Opens devices by packet sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_device::{Backend, DeviceFacts, OpenedDevice, PacketRing};
use lasthop_wire::vnet::{HEADER_BYTES, HEADER_BYTES_LEGACY};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::OpenError;
use crate::features::{FEATURES, UDP_FEATURES};
use crate::link::{NetDevice, is_unknown};
use crate::sys::{bind_to_device, filter_out, hold_last_slot, listen_to_all, option, set_option, set_ring};

/// Bytes that a packet socket may hold in each direction: TCP's usual largest window.
const SOCKET_BYTES: i32 = 8 << 20;

/// The ring of a socket: as many bytes of kernel memory as the socket may hold, and a place for each of 4096 frames of up to some 1970 bytes,
/// which is four times the kernel's usual backlog (`net.core.netdev_max_backlog`). Slots fill blocks of pages.
const RING: PacketRing = PacketRing { slots: 4096, slot_bytes: 2048 };

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
    /// Whether frames are received by a ring in shared memory, if the kernel has room for it: much cheaper for short ones.
    pub ring: bool,
    /// The mark of a [`Gate`](super::Gate) at the device: sent packets have it, and packets with it are not received.
    pub mark: Option<u32>,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self {
            queues: 1,
            qdisc_bypass: false,
            promiscuous: true,
            short_header: false,
            ring: true,
            mark: None,
        }
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
    let (mut queues, mut headers): (Vec<OwnedFd>, _) = (Vec::new(), Headers::default());
    for _ in 0..options.queues {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol, so that nothing arrives before everything is set.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let socket = socket.map_err(OpenError::of(name, CAPABILITY, "make a packet socket"))?;
        headers = match prepare(name, socket.as_fd(), index, options)? {
            Some(headers) => headers,
            None => {
                drop((socket, queues)); // the memory of their rings
                return packet(name, PacketOptions { ring: false, ..options });
            }
        };
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
        features: if headers.knows_long { FEATURES | UDP_FEATURES } else { FEATURES },
        header_bytes: headers.bytes as u8, // 10 or 12
        ring: options.ring.then_some(RING),
        xdp: None,
        tunnel: None,
    };
    Ok(OpenedDevice { facts, descriptors: queues })
}

/// The virtio-net headers of a socket.
#[derive(Clone, Copy, Debug, Default)]
struct Headers {
    bytes: usize,
    /// Whether the kernel knows the longer one.
    knows_long: bool,
}

/// Makes all settings and binds. `None` if the kernel gives no ring.
fn prepare(
    name: &str,
    socket: BorrowedFd<'_>,
    index: u32,
    options: PacketOptions,
) -> Result<Option<Headers>, OpenError> {
    let set = |option, value, what| {
        set_option(socket, libc::SOL_PACKET, option, value).map_err(OpenError::of(name, CAPABILITY, what))
    };
    let headers = set_headers(socket, options).map_err(OpenError::of(
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
    if options.ring && make_ring(socket, RING).is_err() {
        return Ok(None);
    }
    bind_to_device(socket, index).map_err(OpenError::of(name, CAPABILITY, "bind a socket to the device"))?;
    if options.promiscuous {
        let all = listen_to_all(socket, index);
        all.map_err(OpenError::of(name, CAPABILITY, "set promiscuous mode"))?;
    }
    Ok(Some(headers))
}

/// Has the kernel put received frames into slots, and those that are longer than a slot into the socket's buffer: these are
/// read into the vNIC's memory at once, which a slot of their length would not save. The headers must have been set.
fn make_ring(socket: BorrowedFd<'_>, ring: PacketRing) -> Result<(), Errno> {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
    set_option(socket, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, 1)?;
    set_ring(socket, ring.slots, ring.slot_bytes)?;
    // Before the socket is bound: the kernel fills no slot yet.
    hold_last_slot(socket, ring.slots, ring.slot_bytes)
}

/// In a ring the kernel leaves room for the longer header, and writes the shorter one directly before the frame (Linux 6.18). So a
/// socket with a ring has the shorter one, whose place is beyond doubt.
fn set_headers(socket: BorrowedFd<'_>, options: PacketOptions) -> Result<Headers, Errno> {
    let mut knows_long = false;
    if !options.short_header {
        match set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR_SZ, HEADER_BYTES as i32) {
            Err(error) if is_unknown(error) => {}
            result => knows_long = result.map(|()| true)?,
        }
    }
    if knows_long && !options.ring {
        return Ok(Headers { bytes: HEADER_BYTES, knows_long });
    }
    set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    Ok(Headers { bytes: HEADER_BYTES_LEGACY, knows_long })
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
