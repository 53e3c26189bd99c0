//! The BPF programs of uplinks: redirect to XDP sockets, and keep the host's stack apart.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::instruction::{call, exit, load, set, set_map, skip_unless_equal, store};
use super::sys;

/// Numbers of linux/bpf.h.
mod number {
    pub(super) const MAP_TYPE_XSKMAP: u32 = 17;
    pub(super) const PROG_TYPE_SCHED_CLS: u32 = 3;
    pub(super) const PROG_TYPE_XDP: u32 = 6;
    pub(super) const ATTACH_XDP: u32 = 37;
    pub(super) const ATTACH_TCX_INGRESS: u32 = 46;
    pub(super) const ATTACH_TCX_EGRESS: u32 = 47;
    pub(super) const HELPER_REDIRECT: i32 = 23;
    pub(super) const HELPER_REDIRECT_MAP: i32 = 51;
    /// Where `struct xdp_md` has the number of the receive queue.
    pub(super) const XDP_RX_QUEUE: i16 = 16;
    /// Where `struct __sk_buff` has the mark.
    pub(super) const SKB_MARK: i16 = 8;
    pub(super) const XDP_DROP: u32 = 1;
    /// `TCX_NEXT`: the next program, if there is one, or on its way.
    pub(super) const TCX_NEXT: u32 = u32::MAX;
    pub(super) const TCX_DROP: u32 = 2;
    /// Of `bpf_redirect`: as if received by the interface, not to be sent by it.
    pub(super) const REDIRECT_INGRESS: u32 = 1;
    /// XDP_FLAGS_SKB_MODE and XDP_FLAGS_DRV_MODE (linux/if_link.h).
    pub(super) const XDP_GENERIC: u32 = 1 << 1;
    pub(super) const XDP_NATIVE: u32 = 1 << 2;
}

/// Bytes of the verifier's log.
const LOG_BYTES: usize = 4096;

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// In the device's driver, before there is an skb.
    XdpNative,
    /// For drivers that cannot: at the start of the stack.
    XdpGeneric,
    /// On the way from the device to the stack, behind packet sockets.
    Ingress,
    /// On the way from the stack to the device.
    Egress,
}

impl Hook {
    fn attach_type(self) -> u32 {
        match self {
            Self::XdpNative | Self::XdpGeneric => number::ATTACH_XDP,
            Self::Ingress => number::ATTACH_TCX_INGRESS,
            Self::Egress => number::ATTACH_TCX_EGRESS,
        }
    }

    fn link_flags(self) -> u32 {
        match self {
            Self::XdpNative => number::XDP_NATIVE,
            Self::XdpGeneric => number::XDP_GENERIC,
            Self::Ingress | Self::Egress => 0,
        }
    }
}

/// XDP sockets by receive queue.
#[derive(Debug)]
pub(crate) struct SocketMap(OwnedFd);

impl SocketMap {
    /// For queues 0 to `queues` - 1, none of which has a socket.
    pub(crate) fn new(queues: u16) -> io::Result<Self> {
        sys::create_map(number::MAP_TYPE_XSKMAP, u32::from(queues), "lasthop_sockets").map(Self)
    }

    /// From here on, frames of `queue` go to `socket`, once that is bound.
    pub(crate) fn set(&self, queue: u16, socket: BorrowedFd<'_>) -> io::Result<()> {
        sys::update(self.0.as_fd(), u32::from(queue), socket.as_raw_fd().cast_unsigned())
    }
}

/// A program that the kernel has taken.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

impl Program {
    /// At an uplink's XDP hook: frames go to their queue's socket. Those of a queue without one are dropped: the stack sees
    /// all frames of the device, or none.
    pub(crate) fn to_sockets(sockets: &SocketMap) -> io::Result<Self> {
        let [map, map_too] = set_map(1, sockets.0.as_fd());
        let code = [
            load(2, 1, number::XDP_RX_QUEUE),
            map,
            map_too,
            set(3, number::XDP_DROP),
            call(number::HELPER_REDIRECT_MAP),
            exit(),
        ];
        Self::load((number::PROG_TYPE_XDP, number::ATTACH_XDP), &code, "lasthop_sockets")
    }

    /// Nothing passes.
    pub(crate) fn nothing() -> io::Result<Self> {
        Self::classifier(&[set(0, number::TCX_DROP), exit()], "lasthop_nothing")
    }

    /// At egress: only packets with `mark` pass.
    pub(crate) fn marked_only(mark: u32) -> io::Result<Self> {
        let code = [
            load(2, 1, number::SKB_MARK),
            set(0, number::TCX_DROP),
            skip_unless_equal(2, mark, 1),
            set(0, number::TCX_NEXT),
            exit(),
        ];
        Self::classifier(&code, "lasthop_ours")
    }

    /// At an uplink's egress: packets without `mark`, which come from the stack, are marked and sent by
    /// `interface`.
    pub(crate) fn others_to(interface: u32, mark: u32) -> io::Result<Self> {
        let code = [
            load(2, 1, number::SKB_MARK),
            skip_unless_equal(2, mark, 2),
            set(0, number::TCX_NEXT),
            exit(),
            set(2, mark),
            store(1, number::SKB_MARK, 2),
            set(1, interface),
            set(2, 0),
            call(number::HELPER_REDIRECT),
            exit(),
        ];
        Self::classifier(&code, "lasthop_others")
    }

    /// At a tap's ingress: everything is marked, and comes in at `interface`.
    pub(crate) fn received_by(interface: u32, mark: u32) -> io::Result<Self> {
        let code = [
            set(2, mark),
            store(1, number::SKB_MARK, 2),
            set(1, interface),
            set(2, number::REDIRECT_INGRESS),
            call(number::HELPER_REDIRECT),
            exit(),
        ];
        Self::classifier(&code, "lasthop_in")
    }

    /// At an uplink's ingress: only packets with `mark` pass to the stack. The mark, which is the gate's own,
    /// is removed.
    pub(crate) fn unmarked(mark: u32) -> io::Result<Self> {
        let code = [
            load(2, 1, number::SKB_MARK),
            set(0, number::TCX_DROP),
            skip_unless_equal(2, mark, 3),
            set(2, 0),
            store(1, number::SKB_MARK, 2),
            set(0, number::TCX_NEXT),
            exit(),
        ];
        Self::classifier(&code, "lasthop_unmark")
    }

    fn classifier(code: &[u64], name: &str) -> io::Result<Self> {
        Self::load((number::PROG_TYPE_SCHED_CLS, 0), code, name)
    }

    fn load(kind: (u32, u32), code: &[u64], name: &str) -> io::Result<Self> {
        let mut log = [0; LOG_BYTES];
        let refused = match sys::load_program(kind, code, name, &mut []) {
            Ok(program) => return Ok(Self(program)),
            Err(error) => error,
        };
        if refused.raw_os_error() == Some(libc::EPERM) {
            return Err(refused);
        }
        // Once more for the verifier's reason.
        match sys::load_program(kind, code, name, &mut log) {
            Ok(program) => Ok(Self(program)),
            Err(error) => {
                let said = String::from_utf8_lossy(&log);
                let said = said.trim_end_matches('\0').trim();
                Err(io::Error::new(error.kind(), format!("{error} (program {name}: {said})")))
            }
        }
    }

    /// Attached to `interface` until the returned descriptor is closed.
    pub(crate) fn attach(&self, interface: u32, hook: Hook) -> io::Result<OwnedFd> {
        sys::create_link(self.0.as_fd(), interface, hook.attach_type(), hook.link_flags())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's verifier judges the instructions; this needs CAP_BPF and CAP_NET_ADMIN, as all tests of
    /// devices.
    #[test]
    #[ignore = "needs root"]
    fn the_kernel_takes_every_program() {
        let sockets = SocketMap::new(4).unwrap();
        Program::to_sockets(&sockets).unwrap();
        Program::nothing().unwrap();
        Program::marked_only(0xdead_beef).unwrap();
        Program::others_to(1, 0xdead_beef).unwrap();
        Program::received_by(1, 0xdead_beef).unwrap();
        Program::unmarked(0xdead_beef).unwrap();
    }

    #[test]
    #[ignore = "needs root"]
    fn the_verifiers_message_is_reported() {
        let error = Program::classifier(&[exit()], "wrong").unwrap_err().to_string();
        assert!(error.contains("R0 !read_ok"), "{error}");
    }
}
