//! The BPF programs at an uplink: a few instructions each, attached by links, so that nothing remains once their
//! descriptors are closed, however the process ends.
//!
//! ```text
//!                     wire                                        wire
//!                      │ ^                                         │ ^
//!   af_xdp:  [redirect]│ │ past all programs    af_packet:         │ │ our socket's, known by their mark
//!        XDP sockets <─┘ │                      our socket <───────┤ │
//!                        │                      (not the marked)   │ │
//!                  [keep out]                              [keep out] [keep in | to the tap]
//!                        X                         marked only ────┤ ^
//!                      stack                                       v │
//!                                                                 stack
//! ```

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use lasthop_bpf::{
    Assembler, Condition, Hook, Licence, Link, LoadError, Map, Program, ProgramKind, Register, Width, helper,
};

use Register::{R0, R1, R2, R3};

/// Numbers of linux/bpf.h.
mod number {
    /// Offset of the receive queue's number in `struct xdp_md`.
    pub(super) const XDP_RX_QUEUE: i16 = 16;
    /// Offset of the mark in `struct __sk_buff`.
    pub(super) const SKB_MARK: i16 = 8;
    pub(super) const XDP_DROP: u32 = 1;
    /// `TCX_NEXT`: continue with the next program if there is one; otherwise the packet passes.
    pub(super) const TCX_NEXT: u32 = u32::MAX;
    pub(super) const TCX_DROP: u32 = 2;
    /// Flag of `bpf_redirect`: the interface receives the packet instead of sending it.
    pub(super) const REDIRECT_INGRESS: u32 = 1;
}

/// XDP sockets by receive queue.
#[derive(Debug)]
pub(super) struct SocketMap(Map);

impl SocketMap {
    /// A map for queues 0 to `queues` - 1, without sockets.
    pub(super) fn new(queues: u16) -> io::Result<Self> {
        Map::xdp_sockets("lasthop_sockets", u32::from(queues)).map(Self)
    }

    /// Directs frames of `queue` to `socket`, once that is bound.
    pub(super) fn set(&self, queue: u16, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.0.set(u32::from(queue), &socket.as_raw_fd().to_ne_bytes())
    }
}

/// A program at an uplink, loaded into the kernel.
#[derive(Debug)]
pub(super) struct UplinkProgram(Program);

impl UplinkProgram {
    /// For an uplink's XDP hook: directs frames to their queue's socket. Frames of a queue without one are dropped: the
    /// stack gets all frames of the device, or none.
    pub(super) fn to_sockets(sockets: &SocketMap) -> io::Result<Self> {
        let mut code = Assembler::new();
        code.load(Width::U32, R2, R1, number::XDP_RX_QUEUE).set_map(R1, &sockets.0);
        code.set(R3, number::XDP_DROP).call(helper::REDIRECT_MAP).exit();
        load(ProgramKind::Xdp, "lasthop_sockets", code)
    }

    /// Lets nothing pass.
    pub(super) fn nothing() -> io::Result<Self> {
        let mut code = Assembler::new();
        code.set(R0, number::TCX_DROP).exit();
        load(ProgramKind::Classifier, "lasthop_nothing", code)
    }

    /// For egress: only packets with `mark` pass.
    pub(super) fn marked_only(mark: u32) -> io::Result<Self> {
        let mut code = Assembler::new();
        let out = code.label();
        code.load(Width::U32, R2, R1, number::SKB_MARK).set(R0, number::TCX_DROP);
        code.jump_if_low(Condition::NotEqual, R2, mark, out).set(R0, number::TCX_NEXT);
        code.place(out).exit();
        load(ProgramKind::Classifier, "lasthop_ours", code)
    }

    /// For an uplink's egress: marks packets without `mark`, which come from the stack, and has `interface` send them.
    pub(super) fn others_to(interface: u32, mark: u32) -> io::Result<Self> {
        let mut code = Assembler::new();
        let others = code.label();
        code.load(Width::U32, R2, R1, number::SKB_MARK);
        code.jump_if_low(Condition::NotEqual, R2, mark, others).set(R0, number::TCX_NEXT).exit();
        code.place(others);
        redirect(&mut code, interface, mark, 0);
        load(ProgramKind::Classifier, "lasthop_others", code)
    }

    /// For a tap's ingress: marks all packets, and has `interface` receive them.
    pub(super) fn received_by(interface: u32, mark: u32) -> io::Result<Self> {
        let mut code = Assembler::new();
        redirect(&mut code, interface, mark, number::REDIRECT_INGRESS);
        load(ProgramKind::Classifier, "lasthop_in", code)
    }

    /// For an uplink's ingress: only packets with `mark` pass to the stack. It removes the mark, which belongs to the
    /// gate.
    pub(super) fn unmarked(mark: u32) -> io::Result<Self> {
        let mut code = Assembler::new();
        let out = code.label();
        code.load(Width::U32, R2, R1, number::SKB_MARK).set(R0, number::TCX_DROP);
        code.jump_if_low(Condition::NotEqual, R2, mark, out).set(R2, 0);
        code.store(Width::U32, R1, number::SKB_MARK, R2).set(R0, number::TCX_NEXT);
        code.place(out).exit();
        load(ProgramKind::Classifier, "lasthop_unmark", code)
    }

    /// Attaches it to `interface` until the link is dropped.
    pub(super) fn attach(&self, interface: u32, hook: Hook) -> io::Result<Link> {
        self.0.attach_to_interface(interface, hook)
    }
}

/// Marks the packet and redirects it to `interface`.
fn redirect(code: &mut Assembler<'_>, interface: u32, mark: u32, flags: u32) {
    code.set(R2, mark).store(Width::U32, R1, number::SKB_MARK, R2);
    code.set(R1, interface).set(R2, flags).call(helper::REDIRECT).exit();
}

fn load(kind: ProgramKind, name: &str, code: Assembler<'_>) -> io::Result<UplinkProgram> {
    let code = code.finish().map_err(io::Error::other)?;
    let program = Program::load(kind, Licence::Apache, name, &code);
    program.map(UplinkProgram).map_err(LoadError::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's verifier checks the instructions; this needs CAP_BPF and CAP_NET_ADMIN, like all tests of devices.
    #[test]
    #[ignore = "needs root"]
    fn the_kernel_takes_every_program() {
        let sockets = SocketMap::new(4).unwrap();
        UplinkProgram::to_sockets(&sockets).unwrap();
        UplinkProgram::nothing().unwrap();
        UplinkProgram::marked_only(0xdead_beef).unwrap();
        UplinkProgram::others_to(1, 0xdead_beef).unwrap();
        UplinkProgram::received_by(1, 0xdead_beef).unwrap();
        UplinkProgram::unmarked(0xdead_beef).unwrap();
    }
}
