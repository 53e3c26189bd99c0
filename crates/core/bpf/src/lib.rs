//! BPF programs of a few dozen instructions, written in Rust: they need no compiler, no library and no object file.
//!
//! **Purpose.** [`Assembler`] makes [`Code`], [`Program`] loads and attaches it, [`Map`] is memory that programs and processes share, and
//! [`Btf`] finds members of the running kernel's structures.
//!
//! ```text
//!   Assembler ──finish──> Code ──Program::load──> Program ──attach_*──> Link
//!      ^    ^                     (the verifier judges)          (its drop detaches)
//!      │    └── Map: memory of programs and processes; WritableWords: a map in this process's memory
//!      └── Btf: where the running kernel keeps the members of its structures
//! ```
//!
//! **Contract.** A program lives as long as a descriptor of it, or of its link. Nothing is pinned, so nothing remains when
//! the process ends, however it ends. Offsets in the kernel's structures come from its BTF. A missing name is an error for
//! the caller, never a guess by kernel version. BTF and map contents are read with bounds checks: no content causes a panic.
//!
//! **Not checked.** Whether a program is correct. The kernel's verifier does that at [`Program::load`], and its message is
//! part of [`LoadError`].
//!
//! **Threading.** A value belongs to one thread, which makes all system calls. Programs run in the kernel, on any CPU; words of
//! maps are read and written atomically.
//!
//! # Examples
//!
//! ```
//! use lasthop_bpf::{Assembler, CodeError, Condition, Register};
//!
//! // Returns 1 if its argument is not 0, else 0.
//! let mut code = Assembler::new();
//! let end = code.label();
//! code.set(Register::R0, 0).jump_if(Condition::Equal, Register::R1, 0, end).set(Register::R0, 1);
//! code.place(end).exit();
//! assert!(code.finish().is_ok());
//!
//! let mut code = Assembler::new();
//! let nowhere = code.label();
//! code.jump(nowhere);
//! assert_eq!(code.finish().unwrap_err(), CodeError::Label);
//! ```
#![deny(unsafe_code)]

mod assembler;
mod bounds;
pub mod btf;
mod instruction;
mod map;
mod program;
mod sys;

pub use assembler::{Assembler, Code, CodeError, Label};
pub use btf::Btf;
pub use instruction::{Condition, Operand, Operation, Register, Width};
pub use map::{EventQueue, Map, ReadWords, WritableWords};
pub use program::{Hook, Licence, Link, LoadError, Program, ProgramKind};

/// Numbers of helper functions (linux/bpf.h, `enum bpf_func_id`).
pub mod helper {
    /// `bpf_map_lookup_elem(map, key)`.
    pub const MAP_LOOKUP: i32 = 1;
    /// `bpf_ktime_get_ns()`: CLOCK_MONOTONIC.
    pub const KTIME_NS: i32 = 5;
    /// `bpf_get_smp_processor_id()`.
    pub const CPU: i32 = 8;
    /// `bpf_get_current_pid_tgid()`: the process above the thread's number.
    pub const PID_TGID: i32 = 14;
    /// `bpf_redirect(interface, flags)`.
    pub const REDIRECT: i32 = 23;
    /// `bpf_redirect_map(map, key, flags)`.
    pub const REDIRECT_MAP: i32 = 51;
    /// `bpf_ringbuf_output(map, data, size, flags)`.
    pub const RING_BUFFER_OUTPUT: i32 = 130;
    /// A flag of it: wakes the reader in any case.
    pub const FORCE_WAKE_UP: u32 = 1 << 1;
}
