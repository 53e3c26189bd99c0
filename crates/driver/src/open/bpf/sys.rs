//! bpf(2), as far as it is needed here: maps of numbers, programs, links. Structures as in linux/bpf.h (`union bpf_attr`).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

/// A short name as the kernel keeps it for tools.
const NAME_BYTES: usize = 16;
const LICENSE: &std::ffi::CStr = c"Apache-2.0";

#[derive(Default)]
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; NAME_BYTES],
}

#[derive(Default)]
#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
    expected_attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_interface: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    padding: u32,
    expected_revision: u64,
}

/// # Safety
/// `Attr` is laid out as the kernel has it for `command`, and all that it points to is valid for that
/// command.
unsafe fn bpf<Attr>(command: libc::c_int, attr: &mut Attr) -> io::Result<libc::c_int> {
    // SAFETY: the caller's promise; the kernel reads no more than the size that it is told.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<Attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

/// # Safety
/// As [`bpf`], for commands that answer with a descriptor, which the kernel makes close-on-exec.
unsafe fn bpf_fd<Attr>(command: libc::c_int, attr: &mut Attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the descriptor is new and has no other owner.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attr)?)) }
}

fn name_of(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let len = name.len().min(NAME_BYTES - 1);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// A map from u32 to u32.
pub(super) fn create_map(map_type: u32, entries_max: u32, name: &str) -> io::Result<OwnedFd> {
    let mut attr = MapCreate {
        map_type,
        key_bytes: 4,
        value_bytes: 4,
        entries_max,
        name: name_of(name),
        ..Default::default()
    };
    // SAFETY: laid out as for BPF_MAP_CREATE; no pointers.
    unsafe { bpf_fd(MAP_CREATE, &mut attr) }
}

/// Sets an entry of a map from u32 to u32.
pub(super) fn update(map: BorrowedFd<'_>, key: u32, value: u32) -> io::Result<()> {
    let (key, value) = (&raw const key as u64, &raw const value as u64);
    let mut attr = MapElement { map_fd: number(map), key, value, ..Default::default() };
    // SAFETY: laid out as for BPF_MAP_UPDATE_ELEM; key and value are four bytes each, as `create_map` has it, and live here.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Has the kernel verify and load a program. The verifier's messages go to `log`, if that is not empty.
pub(super) fn load_program(
    (prog_type, expected_attach_type): (u32, u32),
    instructions: &[u64],
    name: &str,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let mut attr = ProgLoad {
        prog_type,
        expected_attach_type,
        instruction_count: instructions.len() as u32, // the kernel refuses long before 2^32
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: log.len() as u32, // ours, and short
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        name: name_of(name),
        ..Default::default()
    };
    // SAFETY: laid out as for BPF_PROG_LOAD; instructions, licence and log are the caller's, as long as told, and outlive
    // the call.
    unsafe { bpf_fd(PROG_LOAD, &mut attr) }
}

/// Attaches a program to a network interface of the caller's network namespace, until the link is closed.
pub(super) fn create_link(
    program: BorrowedFd<'_>,
    interface: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr = LinkCreate {
        prog_fd: number(program),
        target_interface: interface,
        attach_type,
        flags,
        ..Default::default()
    };
    // SAFETY: laid out as for BPF_LINK_CREATE with XDP and TCX; no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attr) }
}
