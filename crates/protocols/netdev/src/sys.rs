//! System calls without safe wrappers in std or rustix: options of packet sockets and taps.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

fn checked(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Sets an option that is a number.
///
/// # Errors
/// Errors of setsockopt(2).
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    set_struct(fd, level, name, &value)
}

fn set_struct<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> Result<(), Errno> {
    let (at, len_bytes) = (std::ptr::from_ref(value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads the bytes of `value`.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len_bytes) }).map(drop)
}

/// Reads an option that is a number.
///
/// # Errors
/// Errors of getsockopt(2).
pub(crate) fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    get_struct(fd, level, name, &mut value).map(|()| value)
}

fn get_struct<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &mut T) -> Result<(), Errno> {
    let (at, mut len_bytes) = (std::ptr::from_mut(value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len_bytes` to `value`, a plain number or struct of numbers.
    checked(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len_bytes) }).map(drop)
}

/// Bytes that the kernel allocates together for a ring: it splits larger ones if it has none.
const RING_BLOCK_BYTES: u32 = 1 << 16;

/// Gives a packet socket a ring for received frames.
///
/// # Errors
/// Errors of setsockopt(2): `NOMEM`, and `INVAL` for slots that do not fill blocks.
pub(crate) fn set_ring(fd: BorrowedFd<'_>, slots: u32, slot_bytes: u32) -> Result<(), Errno> {
    let request = libc::tpacket_req {
        tp_block_size: RING_BLOCK_BYTES,
        tp_block_nr: slots * slot_bytes / RING_BLOCK_BYTES,
        tp_frame_size: slot_bytes,
        tp_frame_nr: slots,
    };
    set_struct(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Takes the last slot of a socket's ring from the kernel. The driver process gives it back with the first frame. Until then the socket is
/// readable, so its signals are events of an edge-triggered epoll from the beginning, also those of frames that the kernel drops.
///
/// # Errors
/// Errors of mmap(2).
pub(crate) fn hold_last_slot(fd: BorrowedFd<'_>, slots: u32, slot_bytes: u32) -> Result<(), Errno> {
    let (len_bytes, slot_bytes) = (slots as usize * slot_bytes as usize, slot_bytes as usize);
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh address range is chosen by the kernel; nothing existing is replaced.
    let base = unsafe { mmap(std::ptr::null_mut(), len_bytes, protection, flags, fd, 0)? };
    // SAFETY: the slot is the last of those that were mapped; it begins with its status, is aligned to its size, and the kernel uses the status
    // as one word, too.
    let status = unsafe { &*base.byte_add(len_bytes - slot_bytes).cast::<AtomicU32>() };
    status.store(libc::TP_STATUS_USER, Ordering::Release);
    // SAFETY: mmap returned it, and `status` is not used any more.
    unsafe { munmap(base, len_bytes) }
}

/// Makes a packet socket ignore packets with `mark`.
///
/// # Errors
/// Errors of setsockopt(2).
pub(crate) fn filter_out(fd: BorrowedFd<'_>, mark: u32) -> Result<(), Errno> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mark_at = (libc::SKF_AD_OFF + libc::SKF_AD_MARK).cast_unsigned();
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, mark_at),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, mark),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX), // all bytes of it
    ];
    attach(fd, &mut steps)
}

/// Has a raw socket for GRE receive datagrams of the two `protocols` only, or all others. Datagrams that end before their protocol count as
/// others. `has_ip_header`: they come with their header of IPv4.
///
/// # Errors
/// Errors of setsockopt(2).
pub(crate) fn take_gre(
    fd: BorrowedFd<'_>,
    has_ip_header: bool,
    protocols: [u16; 2],
    is_only: bool,
) -> Result<(), Errno> {
    use libc::{
        BPF_ALU, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_LEN,
        BPF_MSH, BPF_RET, BPF_SUB, BPF_W, BPF_X,
    };
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // X: bytes of the IP header.
    let header = if has_ip_header {
        step(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0)
    } else {
        step(BPF_LDX | BPF_W | BPF_IMM, 0, 0, 0)
    };
    let (of_these, others) = if is_only { (u32::MAX, 0) } else { (0, u32::MAX) };
    let mut steps = [
        header,
        step(BPF_LD | BPF_W | BPF_LEN, 0, 0, 0),
        step(BPF_ALU | BPF_SUB | BPF_X, 0, 0, 0),
        step(BPF_JMP | BPF_JGE | BPF_K, 0, 3, 4),
        step(BPF_LD | BPF_H | BPF_IND, 0, 0, 2),
        step(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, u32::from(protocols[0])),
        step(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, u32::from(protocols[1])),
        step(BPF_RET | BPF_K, 0, 0, others),
        step(BPF_RET | BPF_K, 0, 0, of_these),
    ];
    attach(fd, &mut steps)
}

fn attach(fd: BorrowedFd<'_>, steps: &mut [libc::sock_filter]) -> Result<(), Errno> {
    // Of a handful of steps.
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    set_struct(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Makes a device promiscuous while the socket is open.
///
/// # Errors
/// Errors of setsockopt(2).
pub(crate) fn listen_to_all(fd: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    let membership = libc::packet_mreq {
        mr_ifindex: index as c_int, // the kernel's indices are positive ints
        mr_type: libc::PACKET_MR_PROMISC as _,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_struct(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// Binds a packet socket to a device, for frames of all protocols.
///
/// # Errors
/// Errors of bind(2).
pub(crate) fn bind_to_device(fd: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    // SAFETY: all its fields are numbers, for which zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as _;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let (at, len_bytes) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
    // SAFETY: the kernel reads `len_bytes` of the address.
    checked(unsafe { libc::bind(fd.as_raw_fd(), at, len_bytes) }).map(drop)
}

/// A request about a device by its name (netdevice(7)); the answer follows the name.
#[repr(C, align(8))]
pub(crate) struct DeviceRequest {
    name: [u8; libc::IFNAMSIZ],
    /// The kernel's union: 24 bytes on 64-bit machines.
    pub(crate) value: [u8; 24],
}

impl DeviceRequest {
    /// `None` if the name is too long for a device, or empty.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let mut request = Self { name: [0; libc::IFNAMSIZ], value: [0; 24] };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['\0', '/']) {
            return None;
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Some(request)
    }

    /// The name, which the kernel may have chosen.
    pub(crate) fn name(&self) -> String {
        let name = CStr::from_bytes_until_nul(&self.name);
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Makes one of the requests of netdevice(7), or TUNSETIFF.
    ///
    /// # Errors
    /// Errors of ioctl(2).
    pub(crate) fn ask(&mut self, fd: BorrowedFd<'_>, request: DeviceCall) -> Result<(), Errno> {
        let at = std::ptr::from_mut(self);
        // SAFETY: all of these read and write one `ifreq`, which is 40 bytes long and laid out like this.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, at) }).map(drop)
    }
}

/// Requests that take a [`DeviceRequest`].
#[derive(Clone, Copy)]
#[repr(u64)]
#[allow(clippy::unnecessary_cast, reason = "TUNSETIFF is an int with musl")]
pub(crate) enum DeviceCall {
    Index = libc::SIOCGIFINDEX,
    Flags = libc::SIOCGIFFLAGS,
    SetFlags = libc::SIOCSIFFLAGS,
    Address = libc::SIOCGIFHWADDR,
    SetAddress = libc::SIOCSIFHWADDR,
    Mtu = libc::SIOCGIFMTU,
    SetMtu = libc::SIOCSIFMTU,
    MakeTap = libc::TUNSETIFF as u64,
}

/// Sets the length of a tap's virtio-net headers, which become little endian.
///
/// # Errors
/// Errors of ioctl(2).
pub(crate) fn set_tap_headers(fd: BorrowedFd<'_>, len_bytes: c_int) -> Result<(), Errno> {
    let (raw, little) = (fd.as_raw_fd(), 1 as c_int);
    // SAFETY: both requests read one int.
    unsafe {
        checked(libc::ioctl(raw, libc::TUNSETVNETHDRSZ as _, &raw const len_bytes))?;
        checked(libc::ioctl(raw, libc::TUNSETVNETLE as _, &raw const little)).map(drop)
    }
}

/// Sets whether a tap has a carrier at its other end.
///
/// # Errors
/// Errors of ioctl(2); `BADFD` if the tap is gone.
pub(crate) fn set_tap_carrier(fd: BorrowedFd<'_>, is_there: bool) -> Result<(), Errno> {
    /// `_IOW('T', 226, int)` of linux/if_tun.h.
    const TUNSETCARRIER: u32 = 0x4004_54e2;
    let value = c_int::from(is_there);
    // SAFETY: the request reads one int.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETCARRIER as _, &raw const value) }).map(drop)
}

/// The network namespace of a tap, even if it was moved.
///
/// # Errors
/// Errors of ioctl(2); `BADFD` if the tap is gone.
pub(crate) fn tap_namespace(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    /// `_IO('T', 227)` of linux/if_tun.h; since Linux 5.6.
    const TUNGETDEVNETNS: u32 = 0x54e3;
    // SAFETY: the request takes nothing.
    let namespace = checked(unsafe { libc::ioctl(fd.as_raw_fd(), TUNGETDEVNETNS as _) })?;
    // SAFETY: the kernel made this descriptor for us just then.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

/// Sets the offloads that a tap leaves to its reader (`TUN_F_*`).
///
/// # Errors
/// `INVAL` if the kernel does not know one of them.
pub(crate) fn set_tap_offloads(fd: BorrowedFd<'_>, offloads: u32) -> Result<(), Errno> {
    // SAFETY: the request takes a number.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, c_ulong::from(offloads)) };
    checked(result).map(drop)
}
