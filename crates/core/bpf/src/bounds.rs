//! Bounds of everything that can grow.

/// Instructions of a program: many times more than any program here has, and few enough for every jump.
pub(crate) const INSTRUCTIONS_MAX: usize = 4096;
/// Bytes of the verifier's log: enough for a program of some hundred instructions.
pub(crate) const LOG_BYTES: usize = 1 << 18;
/// Bytes of that log's end that an error quotes. The reason is in the last lines.
pub(crate) const REASON_BYTES: usize = 1 << 11;
/// Bytes of BTF: ten times as many as a large kernel's.
pub(crate) const BTF_BYTES_MAX: u64 = 64 << 20;
/// Types: more than ten times as many as a large kernel's.
pub(crate) const TYPES_MAX: usize = 2 << 20;
/// Steps from a type to the type that it stands for, such as typedef of const of typedef.
pub(crate) const ALIASES_MAX: usize = 32;
/// Nesting of unnamed structures on the way to a member.
pub(crate) const DEPTH_MAX: usize = 8;
/// Members that are searched for one name: many times those of the kernel's largest structures.
pub(crate) const LOOKS_MAX: usize = 1 << 16;
/// Arguments of a tracepoint (linux/bpf.h: MAX_BPF_FUNC_ARGS).
pub(crate) const ARGUMENTS_MAX: usize = 12;
