//! The few BPF instructions that the programs here are made of (RFC 9669), as 64-bit words.

use std::os::fd::{AsRawFd, BorrowedFd};

/// A register: r0 is the result of a call or of the program, r1 to r5 are arguments.
pub(super) type Register = u8;

/// Bits of an instruction: opcode 8, destination 4, source 4, offset 16, immediate 32.
const fn word(opcode: u8, destination: Register, source: Register, offset: i16, immediate: i32) -> u64 {
    opcode as u64
        | (destination as u64) << 8
        | (source as u64) << 12
        | (offset.cast_unsigned() as u64) << 16
        | (immediate.cast_unsigned() as u64) << 32
}

/// `to = *(u32 *)(from + offset)`.
pub(super) const fn load(to: Register, from: Register, offset: i16) -> u64 {
    word(0x61, to, from, offset, 0)
}

/// `*(u32 *)(to + offset) = from`.
pub(super) const fn store(to: Register, offset: i16, from: Register) -> u64 {
    word(0x63, to, from, offset, 0)
}

/// `to = value`, its upper half zero.
pub(super) const fn set(to: Register, value: u32) -> u64 {
    word(0xb4, to, 0, 0, value.cast_signed())
}

/// `to = map`: two words.
pub(super) fn set_map(to: Register, map: BorrowedFd<'_>) -> [u64; 2] {
    const MAP_FD: Register = 1; // BPF_PSEUDO_MAP_FD
    [word(0x18, to, MAP_FD, 0, map.as_raw_fd()), 0]
}

/// Skips `count` words if the lower half of `left` is not `right`.
pub(super) const fn skip_unless_equal(left: Register, right: u32, count: i16) -> u64 {
    word(0x56, left, 0, count, right.cast_signed())
}

/// Calls a helper function by number (linux/bpf.h, `enum bpf_func_id`).
pub(super) const fn call(helper: i32) -> u64 {
    word(0x85, 0, 0, 0, helper)
}

/// Returns r0.
pub(super) const fn exit() -> u64 {
    word(0x95, 0, 0, 0, 0)
}
