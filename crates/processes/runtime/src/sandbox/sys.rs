//! System calls without safe wrappers in std or rustix: leaving namespaces, landlock, filtering system calls, and the
//! handler for refused ones.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use seccompiler::{BpfProgram, sock_filter};

/// Offset of `si_syscall` in a siginfo_t of SIGSYS, in units of `c_int` (include/uapi/asm-generic/siginfo.h: three
/// numbers, one for alignment, the address of the call, then its number).
const SI_SYSCALL: usize = if cfg!(target_pointer_width = "64") { 6 } else { 4 };

/// Moves to new namespaces.
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: of all flags only CLONE_FILES changes the meaning of descriptors for other threads, and it is never given here.
    unsafe { rustix::thread::unshare_unsafe(flags - UnshareFlags::FILES) }
}

/// Installs a filter for the calling thread and all that it starts. Speculation stays as it is: before Linux 5.16 a
/// filter would disable the processor's speculative store bypass, which only matters for processes that run untrusted
/// code.
pub(super) fn filter(program: &BpfProgram) -> io::Result<()> {
    /// `struct sock_fprog` of linux/filter.h.
    #[repr(C)]
    struct Program {
        len: libc::c_ushort,
        filter: *const sock_filter,
    }
    let len = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = Program { len, filter: program.as_ptr() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the kernel reads `len` instructions at `filter`, which live as long as this call.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    // Kernels before 4.17 do not know the flag.
    if install(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) == 0 || install(0) == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The rights to deny, each a set of bits: `struct landlock_ruleset_attr` of linux/landlock.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct LandlockRules {
    pub(super) files: u64,
    pub(super) network: u64,
    pub(super) scopes: u64,
}

impl LandlockRules {
    pub(super) const NONE: Self = Self { files: 0, network: 0, scopes: 0 };
}

const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;

/// The kernel's version of landlock.
pub(super) fn landlock_version() -> rustix::io::Result<u32> {
    let nothing = std::ptr::null::<LandlockRules>();
    // SAFETY: with this flag the kernel reads no rules.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, LANDLOCK_CREATE_RULESET_VERSION)
    };
    u32::try_from(version).map_err(|_| last_errno())
}

/// Denies the rights in the rules to the calling thread, and to all that it starts. Empty sets are omitted, since older
/// kernels do not know them.
pub(super) fn landlock_deny(rules: &LandlockRules) -> rustix::io::Result<()> {
    let words = [rules.files, rules.network, rules.scopes];
    let bytes = words.iter().rposition(|word| *word != 0).map_or(0, |last| (last + 1) * size_of::<u64>());
    // SAFETY: the kernel reads the first `bytes` bytes of the rules.
    let rule_set = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const *rules, bytes, 0) };
    let rule_set = RawFd::try_from(rule_set).ok().filter(|fd| *fd >= 0).ok_or_else(last_errno)?;
    // SAFETY: the kernel has just made this descriptor, and no other code has it.
    let rule_set = unsafe { OwnedFd::from_raw_fd(rule_set) };
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rule_set.as_raw_fd(), 0) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The message about a refused call, and its descriptor.
struct RefusalMessage {
    to: RawFd,
    /// A complete frame, with spaces for the call's number.
    frame: Vec<u8>,
    digits: Range<usize>,
}

static LAST_WORDS: OnceLock<RefusalMessage> = OnceLock::new();
/// Room for a frame on the handler's stack.
const FRAME_BYTES_MAX: usize = 256;

/// Has a refused call reported to `to`: writes `frame` with the call's number at `digits`. The process still ends by
/// SIGSYS.
pub(super) fn on_forbidden_call(to: RawFd, frame: Vec<u8>, digits: Range<usize>) -> io::Result<()> {
    if frame.len() > FRAME_BYTES_MAX || digits.end > frame.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let _ = LAST_WORDS.set(RefusalMessage { to, frame, digits });
    // SAFETY: an all-zero sigaction is valid; the handler uses its own stack, the values set above, and system calls.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsys as *const () as usize;
        // The handler runs once: a second signal, or one inside the handler, ends the process itself.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigsys(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a whole siginfo_t, which is 128 bytes of plain numbers.
    let number = unsafe { *info.cast::<u32>().add(SI_SYSCALL) };
    if let Some(words) = LAST_WORDS.get() {
        say(words, number);
    }
    // SAFETY: numbers only. SIGSYS is the default action's now, and is one that the filter does not let through anyway.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), libc::SIGSYS);
        libc::_exit(1)
    }
}

/// Allocates nothing and takes no lock, since the thread may hold any.
fn say(words: &RefusalMessage, mut number: u32) {
    let mut bytes = [0; FRAME_BYTES_MAX];
    let frame = &mut bytes[..words.frame.len()];
    frame.copy_from_slice(&words.frame);
    let digits = &mut frame[words.digits.clone()];
    // JSON allows spaces before a number, but no zeroes.
    digits.fill(b' ');
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    // SAFETY: the frame lives here. It goes out whole or, if the channel is full, is lost.
    unsafe { libc::write(words.to, frame.as_ptr().cast(), frame.len()) };
}

/// Makes any system call, for tests of a sandbox's refusals.
#[cfg(test)]
pub(super) fn call(number: libc::c_long, arguments: [usize; 6]) -> io::Result<libc::c_long> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: tests pass null or valid pointers, and end with the process that calls.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
