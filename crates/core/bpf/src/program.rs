//! Programs and their attach points.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use thiserror::Error;

use crate::assembler::Code;
use crate::bounds::{LOG_BYTES, REASON_BYTES};
use crate::sys::{self, Load};

/// Numbers of linux/bpf.h.
mod number {
    pub(super) const TYPE_SCHED_CLS: u32 = 3;
    pub(super) const TYPE_XDP: u32 = 6;
    pub(super) const TYPE_RAW_TRACEPOINT: u32 = 17;
    pub(super) const TYPE_TRACING: u32 = 26;
    pub(super) const ATTACH_TRACE_RAW_TP: u32 = 23;
    pub(super) const ATTACH_XDP: u32 = 37;
    pub(super) const ATTACH_TCX_INGRESS: u32 = 46;
    pub(super) const ATTACH_TCX_EGRESS: u32 = 47;
    /// XDP_FLAGS_SKB_MODE and XDP_FLAGS_DRV_MODE (linux/if_link.h).
    pub(super) const XDP_GENERIC: u32 = 1 << 1;
    pub(super) const XDP_NATIVE: u32 = 1 << 2;
}

/// When a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// For each frame that a network device receives.
    Xdp,
    /// For each packet between a network device and the stack.
    Classifier,
    /// At a tracepoint, whose arguments are untyped words. The process can also run it: [`Program::run`].
    RawTracepoint,
    /// At a tracepoint, whose arguments are typed: their structures can be read by plain loads.
    Tracing {
        /// The number of the tracepoint's type in the kernel's BTF.
        btf_id: u32,
    },
}

impl ProgramKind {
    /// The numbers of the program's type and attach point.
    fn numbers(self) -> (u32, u32, u32) {
        match self {
            Self::Xdp => (number::TYPE_XDP, number::ATTACH_XDP, 0),
            Self::Classifier => (number::TYPE_SCHED_CLS, 0, 0),
            Self::RawTracepoint => (number::TYPE_RAW_TRACEPOINT, 0, 0),
            Self::Tracing { btf_id } => (number::TYPE_TRACING, number::ATTACH_TRACE_RAW_TP, btf_id),
        }
    }
}

/// The licence that a program declares to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Licence {
    /// The licence of the rest of Lasthop.
    Apache,
    /// MIT, which is the other licence of Lasthop, or GPL, which the kernel asks of programs that read its structures.
    MitOrGpl,
}

impl Licence {
    fn text(self) -> &'static CStr {
        match self {
            Self::Apache => c"Apache-2.0",
            Self::MitOrGpl => c"Dual MIT/GPL",
        }
    }
}

/// Why the kernel refused a program.
#[derive(Debug, Error)]
pub enum LoadError {
    /// Errors of bpf(2); EPERM without CAP_BPF and the further capabilities of its kind.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The verifier refused it.
    #[error("{error} (program {name}: {reason})")]
    Refused {
        /// The program.
        name: String,
        /// The error of bpf(2).
        error: io::Error,
        /// The end of the verifier's log.
        reason: String,
    },
}

impl From<LoadError> for io::Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::System(error) => error,
            refused @ LoadError::Refused { .. } => Self::other(refused),
        }
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// An attached program: it is detached when this and all duplicates of its descriptor are closed.
#[derive(Debug)]
pub struct Link(#[expect(dead_code, reason = "held, not used")] OwnedFd);

impl Program {
    /// Makes the kernel verify and load a program.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(kind: ProgramKind, licence: Licence, name: &str, code: &Code<'_>) -> Result<Self, LoadError> {
        let (prog_type, expected_attach_type, attach_btf_id) = kind.numbers();
        let (license, instructions) = (licence.text(), code.words());
        let load = Load { prog_type, expected_attach_type, attach_btf_id, name, license, instructions };
        let refused = match sys::load_program(&load, &mut []) {
            Ok(program) => return Ok(Self(program)),
            Err(error) => error,
        };
        if refused.raw_os_error() == Some(libc::EPERM) {
            return Err(refused.into());
        }
        // Loads it again to get the verifier's reason.
        let mut log = vec![0; LOG_BYTES];
        match sys::load_program(&load, &mut log) {
            Ok(program) => Ok(Self(program)),
            Err(error) => Err(LoadError::Refused { name: name.to_owned(), error, reason: end_of(&log) }),
        }
    }

    /// Attaches the program to a network interface of the caller's network namespace.
    ///
    /// # Errors
    /// Errors of bpf(2); EBUSY if there is another program, EOPNOTSUPP if the device's driver does not support it.
    pub fn attach_to_interface(&self, interface: u32, hook: Hook) -> io::Result<Link> {
        sys::create_link(self.0.as_fd(), interface, hook.attach_type(), hook.link_flags()).map(Link)
    }

    /// Attaches a program of the kind [`Tracing`](ProgramKind::Tracing) to its tracepoint.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub fn attach(&self) -> io::Result<Link> {
        sys::open_raw_tracepoint(self.0.as_fd()).map(Link)
    }

    /// Runs a program of the kind [`RawTracepoint`](ProgramKind::RawTracepoint) once, with `context` as its arguments;
    /// returns its result. `cpu` is the CPU that runs it, this thread's if `None`.
    ///
    /// # Errors
    /// Errors of bpf(2); ENXIO if the CPU is offline, EINVAL if the program reads more arguments.
    pub fn run(&self, cpu: Option<u32>, context: &[u64]) -> io::Result<u32> {
        sys::run_program(self.0.as_fd(), cpu, context)
    }
}

/// The end of a log, from the start of a line.
fn end_of(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let text = text.trim_end_matches('\0').trim();
    let end = &text[text.ceil_char_boundary(text.len().saturating_sub(REASON_BYTES))..];
    if end.len() == text.len() {
        return end.to_owned();
    }
    end.split_once('\n').map_or(end, |(_, lines)| lines).to_owned()
}

/// The attach point of a program at a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the device's driver, before there is an skb.
    XdpNative,
    /// At the start of the stack, for drivers without XDP.
    XdpGeneric,
    /// From the device to the stack, after packet sockets.
    Ingress,
    /// From the stack to the device.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_whole_lines() {
        assert_eq!(end_of(b"short\0\0"), "short");
        let long = format!("{}\nlast but one\nlast\n\0\0", "x".repeat(REASON_BYTES));
        assert_eq!(end_of(long.as_bytes()), "last but one\nlast");
        assert_eq!(end_of(&[]), "");
    }
}
