//! Descriptors that no front end should send.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::epoll;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{PidfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_open, setrlimit};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::rogue::{event_fd, send_with_fds};
use super::starts::NoStarts;
use super::sys;

/// A TCP socket whose close(2) blocks, with the peer that never reads.
pub struct LingeringSocket {
    socket: TcpStream,
    _peer: TcpStream,
    /// A starting process would have a copy, and its close could be the last one.
    _no_starts: NoStarts,
}

impl LingeringSocket {
    /// Its last close blocks for `linger`, unless it is ended earlier.
    pub fn new(linger: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let no_starts = NoStarts::begin();
        let mut socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (peer, _) = listener.accept().expect("a peer");
        // Its buffer and the peer's are then full.
        socket.set_nonblocking(true).expect("a socket");
        while socket.write(&[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&socket, Some(linger)).expect("lingers");
        // A non-blocking socket does not linger.
        socket.set_nonblocking(false).expect("a socket");
        Self { socket, _peer: peer, _no_starts: no_starts }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The same without blocking if the close of this process's copy is the last one.
    pub fn let_go_elsewhere(self) -> TcpStream {
        let Self { socket, _peer: peer, .. } = self;
        std::thread::spawn(move || drop(socket));
        peer
    }

    /// Closes this process's own copy, so that the close of the sent ones is the last one. That close no longer blocks
    /// once the remaining peer is dropped.
    pub fn let_go(self) -> TcpStream {
        self._peer
    }
}

/// A UNIX socket with `fd` in its receive queue.
pub fn nested(fd: BorrowedFd<'_>) -> OwnedFd {
    let (sender, receiver) = UnixStream::pair().expect("sockets");
    send_with_fds(sender.as_fd(), b"x", &[fd]).expect("sent");
    receiver.into()
}

/// An eventfd that wakes `watchers` epoll items at each signal; all of them end with the returned descriptors.
pub fn watched_eventfd(watchers: usize) -> (OwnedFd, Vec<OwnedFd>) {
    let event = event_fd();
    let watches = watched(event.as_fd(), watchers);
    (event, watches)
}

/// Watches of a descriptor, which end when the returned descriptors are dropped.
pub fn watched(fd: BorrowedFd<'_>, watchers: usize) -> Vec<OwnedFd> {
    const COPIES: usize = 500;
    raise_descriptor_limit();
    let copies: Vec<_> = (0..COPIES).map(|_| fd.try_clone_to_owned().expect("a copy")).collect();
    let mut epolls = Vec::new();
    for _ in 0..watchers.div_ceil(COPIES) {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        for copy in &copies {
            let data = epoll::EventData::new_u64(copy.as_raw_fd() as u64);
            epoll::add(&set, copy, data, epoll::EventFlags::IN | epoll::EventFlags::ET).expect("a watch");
        }
        epolls.push(set);
    }
    epolls.extend(copies);
    epolls
}

/// Raises this process's limit of descriptors to its maximum.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("within the limit");
}

/// One descriptor of each kind that this host supports, with its name. Files are created in `directory`.
pub fn assortment(directory: &Path) -> Vec<(&'static str, OwnedFd)> {
    let mut all = files(directory);
    all.extend(sockets());
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("a timer");
    all.extend([
        ("pipe-read", read),
        ("pipe-write", write),
        ("eventfd", event_fd()),
        ("timerfd", timer),
        ("pidfd", pidfd_open(getpid(), PidfdFlags::empty()).expect("a pidfd")),
        ("epoll", epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll")),
        ("watched-eventfd", watched_eventfd(1).0),
    ]);
    let rare = [
        ("signalfd", sys::signalfd()),
        ("userfaultfd", sys::userfaultfd()),
        ("io_uring", sys::io_uring()),
        ("memfd_secret", sys::secret_memory()),
        ("memfd-huge", memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB).ok()),
    ];
    all.extend(rare.into_iter().filter_map(|(name, fd)| Some((name, fd?))));
    all
}

fn files(directory: &Path) -> Vec<(&'static str, OwnedFd)> {
    let plain = tempfile::tempfile_in(directory).expect("a file");
    plain.set_len(1 << 20).expect("a size");
    let path_only = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(directory).expect("a path");
    let mut all: Vec<(_, OwnedFd)> = vec![
        ("file", plain.into()),
        ("directory", File::open(directory).expect("a directory").into()),
        ("path", path_only.into()),
        ("memfd", sealed_memory(1 << 20, SealFlags::empty())),
        ("memfd-write-sealed", sealed_memory(1 << 20, SealFlags::WRITE)),
        ("memfd-shrink-sealed", sealed_memory(1 << 20, SealFlags::SHRINK | SealFlags::SEAL)),
    ];
    for device in
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/ptmx", "/dev/net/tun", "/dev/fuse"]
    {
        let file = OpenOptions::new().read(true).write(true).open(device);
        all.extend(file.map(|file| (device, file.into())));
    }
    all
}

fn sockets() -> Vec<(&'static str, OwnedFd)> {
    let (stream, _) = UnixStream::pair().expect("sockets");
    let (datagram, _) = UnixDatagram::pair().expect("sockets");
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (packets, _) = socketpair(kind.0, kind.1, kind.2, None).expect("sockets");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let tcp = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    vec![
        ("unix-stream", stream.into()),
        ("unix-datagram", datagram.into()),
        ("unix-seqpacket", packets),
        ("tcp-listener", listener.into()),
        ("tcp", tcp.into()),
        ("udp", UdpSocket::bind("127.0.0.1:0").expect("a port").into()),
    ]
}

/// A memfd with seals.
pub fn sealed_memory(size: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&file, size).expect("a size");
    fcntl_add_seals(&file, seals).expect("sealed");
    file
}
