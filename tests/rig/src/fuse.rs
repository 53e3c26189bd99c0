//! A file system in user space (FUSE) with one file; tests choose which requests its server answers.
//!
//! The server speaks the kernel's protocol over /dev/fuse (linux/fuse.h). The mount is in a mount namespace that ends
//! with the thread that made it, so only open files remain of it.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lasthop_foreign::{ForeignFd, Origin};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use super::rogue::event_fd;
use super::sys::unshare_mounts_and_descriptors;
use super::{eventually, rogue};

const DEVICE: &str = "/dev/fuse";
/// The one file.
const NAME: &str = "file";
const FILE_BYTES: u64 = 1 << 20;
const ROOT_NODE: u64 = 1;
const FILE_NODE: u64 = 2;
/// Longer than any request.
const REQUEST_BYTES: usize = 1 << 20;
const IN_HEADER_BYTES: usize = 40;
/// Constants of the server's protocol.
const VERSION: [u32; 2] = [7, 31];

/// Numbers of requests (enum fuse_opcode).
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const RELEASE: u32 = 18;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
}

/// Whether this machine has FUSE, and this user may mount; if not, reports that once in the form that tools/test
/// counts.
pub fn may() -> bool {
    let may = super::namespaces::may() && Path::new(DEVICE).exists();
    if !may {
        std::io::stderr()
            .write_all(b"\nskip fuse: only root mounts, and needs /dev/fuse\n")
            .expect("written");
    }
    may
}

/// The server; all pending requests fail once it is dropped.
pub struct FuseServer {
    waiting: Arc<AtomicUsize>,
    stop: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
    /// The root, opened by path only, about which the server is never asked: the file system lasts longer than the
    /// file.
    _root: Vec<ForeignFd>,
}

impl FuseServer {
    /// Runs `act`, which sends an open file to others. From then on requests with the numbers of `unanswered` get no
    /// answer.
    ///
    /// The file is in a separate descriptor table: commands that other tests start at this time would otherwise have a
    /// copy of it, and block when they close that.
    pub fn send(unanswered: &'static [u32], act: impl FnOnce(BorrowedFd<'_>) + Send) -> Self {
        let device = OFlags::RDWR | OFlags::CLOEXEC;
        let device = File::from(rustix::fs::open(DEVICE, device, Mode::empty()).expect("/dev/fuse"));
        let (is_silent, waiting) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let stop = event_fd();
        let (mounted, is_mounted) = std::sync::mpsc::channel();
        let copy = device.try_clone().expect("a copy");
        let (roots, sender) = UnixStream::pair().expect("sockets");
        let server =
            Server { device, is_silent: Arc::clone(&is_silent), waiting: Arc::clone(&waiting), unanswered };
        let stopped = stop.try_clone().expect("a copy");
        let thread = std::thread::spawn(move || {
            is_mounted.recv().expect("mounted");
            server.serve(&stopped);
        });
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare_mounts_and_descriptors();
                let (root, file) = open_mounted(&copy, || mounted.send(()).expect("it waits"));
                rogue::send_with_fds(sender.as_fd(), b"x", &[root.as_fd()]).expect("sent");
                act(file.as_fd());
            });
            thread.join().expect("sent");
        });
        is_silent.store(true, Ordering::SeqCst);
        let (mut root, flags) = (Vec::new(), rustix::net::RecvFlags::empty());
        lasthop_foreign::receive(roots.as_fd(), &mut [0], flags, Origin::own(), &mut root).expect("the root");
        Self { waiting, stop, thread: Some(thread), _root: root }
    }

    /// Waits until a process is blocked by a missing answer.
    pub fn await_victim(&self) {
        eventually("a request without answer", || (self.waiting.load(Ordering::SeqCst) > 0).then_some(()));
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        rogue::kick(self.stop.as_fd());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Mounts the file system of the server with this descriptor of the device, and opens root and file. The mounts belong
/// to this thread.
fn open_mounted(device: &File, mounted: impl FnOnce()) -> (OwnedFd, OwnedFd) {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("private mounts");
    let dir = tempfile::tempdir().expect("a directory");
    let device = device.as_raw_fd();
    let options = format!("fd={device},rootmode=40000,user_id=0,group_id=0,allow_other");
    let options = CString::new(options).expect("no zero");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("lasthop-test", dir.path(), "fuse", flags, options.as_c_str()).expect("mounted");
    mounted();
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir.path(), root, Mode::empty()).expect("the root");
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir.path().join(NAME), flags, Mode::empty()).expect("the file");
    unmount(dir.path(), UnmountFlags::DETACH).expect("detached");
    (root, file)
}

struct Server {
    device: File,
    is_silent: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
    unanswered: &'static [u32],
}

impl Server {
    fn serve(mut self, stop: &OwnedFd) {
        let mut request = vec![0; REQUEST_BYTES];
        loop {
            let ready = {
                let mut fds = [PollFd::new(&self.device, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
                poll(&mut fds, None).expect("polled");
                (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
            };
            if ready.1 {
                return;
            }
            // Fails once the file system is unmounted, which does not happen before the last file is closed.
            let Ok(length) = self.device.read(&mut request) else { return };
            self.handle(&request[..length]);
        }
    }

    fn handle(&mut self, request: &[u8]) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let number = word(4);
        let unique = u64::from_ne_bytes(request[8..16].try_into().expect("eight bytes"));
        let node = u64::from_ne_bytes(request[16..24].try_into().expect("eight bytes"));
        if matches!(number, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
            return; // these get no answer
        }
        if self.is_silent.load(Ordering::SeqCst) && self.unanswered.contains(&number) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let answer = match number {
            opcode::INIT => {
                let mut out = [VERSION[0], VERSION[1], 0, 0, 0, 4096, 1, 0].map(u32::to_ne_bytes).concat();
                out.resize(64, 0);
                Ok(out)
            }
            opcode::LOOKUP => {
                let name = &request[IN_HEADER_BYTES..];
                let is_file = node == ROOT_NODE && name.strip_suffix(&[0]) == Some(NAME.as_bytes());
                is_file.then(|| [entry(), attributes(FILE_NODE)].concat()).ok_or(libc::ENOENT)
            }
            // Valid for no time, so that each fstat(2) asks.
            opcode::GETATTR => Ok([vec![0; 16], attributes(node)].concat()),
            opcode::OPEN => Ok(vec![0; 16]),
            opcode::READ => Ok(vec![0; 4096]),
            opcode::FLUSH | opcode::RELEASE => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = answer.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let length = 16 + body.len() as u32;
        let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
        // Fails for a request that was interrupted meanwhile.
        let _ = self.device.write(&[head, body].concat());
    }
}

/// struct fuse_entry_out without its attributes.
fn entry() -> Vec<u8> {
    [&FILE_NODE.to_ne_bytes()[..], &[0; 32]].concat()
}

/// struct fuse_attr.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT_NODE { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    let longs = [node, FILE_BYTES, FILE_BYTES / 512, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat();
    [longs, words].concat()
}
