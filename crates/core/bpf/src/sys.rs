//! bpf(2) and mmap(2), as far as needed here. Structures as in linux/bpf.h (`union bpf_attr`).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_RUN: libc::c_int = 10;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const MAP_FREEZE: libc::c_int = 22;
const LINK_CREATE: libc::c_int = 28;

/// Flag of BPF_PROG_RUN: runs on the given CPU.
const RUN_ON_CPU: u32 = 1;
/// The length of a short name that the kernel keeps for tools.
const NAME_BYTES: usize = 16;
/// The length of all keys here.
pub(crate) const KEY_BYTES: u32 = 4;
const WORD_BYTES: usize = size_of::<u64>();

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
    btf_fd: u32,
    func_info_record_bytes: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_record_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_fd: u32,
    padding: u32,
}

#[derive(Default)]
#[repr(C)]
struct ProgRun {
    prog_fd: u32,
    result: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

#[derive(Default)]
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    padding: u32,
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
/// `Attr` has the kernel's layout for `command`, and all its pointers are valid for that command.
unsafe fn bpf<Attr>(command: libc::c_int, attr: &mut Attr) -> io::Result<libc::c_int> {
    // SAFETY: the caller's promise; the kernel reads at most the given size.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<Attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

/// # Safety
/// As [`bpf`], for commands that return a descriptor, which the kernel makes close-on-exec.
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

/// The properties of a new map.
#[derive(Clone, Copy, Default)]
pub(crate) struct MapShape<'a> {
    pub(crate) map_type: u32,
    /// 0, or [`KEY_BYTES`].
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries_max: u32,
    pub(crate) flags: u32,
    /// A map with the shape of a map's values, if those are maps.
    pub(crate) inner: Option<BorrowedFd<'a>>,
}

/// A map's descriptor with the size of its values; keys have four bytes, or there are none.
#[derive(Debug)]
pub(crate) struct MapFd {
    descriptor: OwnedFd,
    value_bytes: usize,
}

impl MapFd {
    pub(crate) fn create(name: &str, shape: MapShape<'_>) -> io::Result<Self> {
        if !matches!(shape.key_bytes, 0 | KEY_BYTES) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attr = MapCreate {
            map_type: shape.map_type,
            key_bytes: shape.key_bytes,
            value_bytes: shape.value_bytes,
            entries_max: shape.entries_max,
            flags: shape.flags,
            inner_map_fd: shape.inner.map_or(0, number),
            name: name_of(name),
            ..Default::default()
        };
        // SAFETY: laid out as for BPF_MAP_CREATE; no pointers.
        let descriptor = unsafe { bpf_fd(MAP_CREATE, &mut attr)? };
        Ok(Self { descriptor, value_bytes: shape.value_bytes as usize })
    }

    pub(crate) fn update(&self, key: u32, value: &[u8]) -> io::Result<()> {
        if value.len() != self.value_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (key, value) = (&raw const key as u64, value.as_ptr() as u64);
        let mut attr = MapElement { map_fd: number(self.as_fd()), key, value, ..Default::default() };
        // SAFETY: laid out as for BPF_MAP_UPDATE_ELEM; key and value are as long as the kernel reads, and live here.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    pub(crate) fn look_up(&self, key: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.value_bytes];
        let (key, value) = (&raw const key as u64, bytes.as_mut_ptr() as u64);
        let mut attr = MapElement { map_fd: number(self.as_fd()), key, value, ..Default::default() };
        // SAFETY: laid out as for BPF_MAP_LOOKUP_ELEM; key and value are as long as the kernel reads and writes, and live here.
        unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
        Ok(bytes)
    }

    pub(crate) fn delete(&self, key: u32) -> io::Result<()> {
        let key = &raw const key as u64;
        let mut attr = MapElement { map_fd: number(self.as_fd()), key, ..Default::default() };
        // SAFETY: laid out as for BPF_MAP_DELETE_ELEM; the key is as long as the kernel reads, and lives here.
        unsafe { bpf(MAP_DELETE_ELEM, &mut attr) }.map(drop)
    }

    /// Freezes the map: from now on only programs can change it, neither bpf(2) nor a mapping.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        let mut attr = MapElement { map_fd: number(self.as_fd()), ..Default::default() };
        // SAFETY: BPF_MAP_FREEZE has the descriptor in the same place, and takes no other field but zeroes.
        unsafe { bpf(MAP_FREEZE, &mut attr) }.map(drop)
    }

    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

impl AsFd for MapFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A program for the kernel to verify.
pub(crate) struct Load<'a> {
    pub(crate) prog_type: u32,
    pub(crate) expected_attach_type: u32,
    /// The type in the kernel's BTF of its attach point; 0: none.
    pub(crate) attach_btf_id: u32,
    pub(crate) name: &'a str,
    pub(crate) license: &'a CStr,
    pub(crate) instructions: &'a [u64],
}

/// Makes the kernel verify and load a program. The verifier's messages go to `log`, if that is not empty.
pub(crate) fn load_program(load: &Load<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = ProgLoad {
        prog_type: load.prog_type,
        expected_attach_type: load.expected_attach_type,
        attach_btf_id: load.attach_btf_id,
        instruction_count: load.instructions.len() as u32, // bounded by the assembler
        instructions: load.instructions.as_ptr() as u64,
        license: load.license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: log.len() as u32, // ours, and short
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        name: name_of(load.name),
        ..Default::default()
    };
    // SAFETY: laid out as for BPF_PROG_LOAD; instructions, licence and log are the caller's, as long as told, and outlive
    // the call.
    unsafe { bpf_fd(PROG_LOAD, &mut attr) }
}

/// Runs a program of the kind raw tracepoint once, on the given CPU or on this one, with `context` as its arguments.
pub(crate) fn run_program(program: BorrowedFd<'_>, cpu: Option<u32>, context: &[u64]) -> io::Result<u32> {
    let mut attr = ProgRun {
        prog_fd: number(program),
        context_in_bytes: size_of_val(context) as u32, // the kernel refuses more than a few words
        context_in: if context.is_empty() { 0 } else { context.as_ptr() as u64 },
        flags: if cpu.is_some() { RUN_ON_CPU } else { 0 },
        cpu: cpu.unwrap_or(0),
        ..Default::default()
    };
    // SAFETY: laid out as for BPF_PROG_RUN; the context is as long as told, and outlives the call.
    unsafe { bpf(PROG_RUN, &mut attr) }?;
    Ok(attr.result)
}

/// Attaches a program of the kind tracing to the tracepoint for which it was loaded, until the link is closed.
pub(crate) fn open_raw_tracepoint(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = RawTracepointOpen { prog_fd: number(program), ..Default::default() };
    // SAFETY: laid out as for BPF_RAW_TRACEPOINT_OPEN, without a name: the program has its tracepoint.
    unsafe { bpf_fd(RAW_TRACEPOINT_OPEN, &mut attr) }
}

/// Attaches a program to a network interface of the caller's network namespace, until the link is closed.
pub(crate) fn create_link(
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

/// The mapped words of a map. Programs and other processes change them at any time, so each access is one volatile load
/// or store of an aligned word, and no reference to them exists.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u64>,
    words: usize,
    is_writable: bool,
}

// SAFETY: the memory is shared with the kernel anyway; accesses are volatile and by raw pointer, so threads add nothing.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(map: BorrowedFd<'_>, words: usize, is_writable: bool) -> io::Result<Self> {
        Self::at(map, 0, words, is_writable)
    }

    /// Maps words from `offset_bytes` on, a multiple of the page size.
    pub(crate) fn at(
        map: BorrowedFd<'_>,
        offset_bytes: u64,
        words: usize,
        is_writable: bool,
    ) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses a fresh address range; nothing existing is replaced.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, map, offset_bytes)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, words, is_writable })
    }

    pub(crate) fn len(&self) -> usize {
        self.words
    }

    pub(crate) fn load(&self, index: usize) -> Option<u64> {
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned, since it starts at a page.
        (index < self.words).then(|| unsafe { self.base.add(index).read_volatile() })
    }

    pub(crate) fn store(&self, index: usize, value: u64) -> bool {
        let is_inside = self.is_writable && index < self.words;
        if is_inside {
            // SAFETY: inside the mapping, which lives as long as `self` and is writable, and aligned.
            unsafe { self.base.add(index).write_volatile(value) };
        }
        is_inside
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole of a mapping of our own, to which nothing else has a pointer. An error would leave it mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * WORD_BYTES) };
    }
}
