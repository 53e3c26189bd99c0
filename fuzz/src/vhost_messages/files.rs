//! The descriptors that a front end sends: of all kinds that a process can make without more rights than others have.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use lasthop_guestmem::memfd;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use crate::input::{Input, Seed};

use super::side::send;

/// Bytes of the files that memory is made of; the last one has odd ends.
const FILE_BYTES: [u64; 4] = [0x10_0000, 0x1_0000, 0, 0x3123];

/// The kind of a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory(u8),
    Event,
    Pipe,
    Socket,
    ReadOnly,
    Disk,
    PipeEnd,
    Datagrams,
    Packets,
    Udp,
    Listener,
    Epoll,
    Timer,
    Process,
    Device(&'static str),
    Directory,
    PathOnly,
    Sealed(SealFlags),
    Huge,
    /// A UNIX socket with another descriptor unread in it.
    Nested,
}

impl Kind {
    /// Seeds know them by their places.
    const ALL: [Self; 27] = [
        Self::Memory(0),
        Self::Event,
        Self::Memory(1),
        Self::Memory(2),
        Self::Memory(3),
        Self::Pipe,
        Self::Socket,
        Self::ReadOnly,
        Self::Disk,
        Self::PipeEnd,
        Self::Datagrams,
        Self::Packets,
        Self::Udp,
        Self::Listener,
        Self::Epoll,
        Self::Timer,
        Self::Process,
        Self::Device("/dev/null"),
        Self::Device("/dev/zero"),
        Self::Device("/dev/full"),
        Self::Directory,
        Self::PathOnly,
        Self::Sealed(SealFlags::WRITE),
        Self::Sealed(SealFlags::FUTURE_WRITE),
        Self::Sealed(SealFlags::SHRINK),
        Self::Huge,
        Self::Nested,
    ];

    pub(super) fn decode(input: &mut Input<'_>) -> Self {
        Self::ALL[usize::from(input.u8()) % Self::ALL.len()]
    }

    pub(super) fn encode(self, seed: &mut Seed) {
        seed.u8(Self::ALL.iter().position(|kind| *kind == self).unwrap_or_default() as u8);
    }
}

/// Files that stay the same ones for the whole session.
#[derive(Default)]
pub(super) struct Files([Option<OwnedFd>; FILE_BYTES.len()]);

impl Files {
    fn memory(&mut self, file: u8) -> &OwnedFd {
        let index = usize::from(file) % FILE_BYTES.len();
        self.0[index].get_or_insert_with(|| memfd("fuzz", FILE_BYTES[index]).expect("a file in memory"))
    }

    pub(super) fn open(&mut self, kind: Kind) -> OwnedFd {
        match kind {
            Kind::Memory(file) => self.memory(file).try_clone().expect("our own file"),
            Kind::ReadOnly => {
                let path = format!("/proc/self/fd/{}", self.memory(0).as_raw_fd());
                at(&path, OFlags::RDONLY)
            }
            _ => fresh(kind),
        }
    }

    pub(super) fn truncate(&mut self, file: u8, bytes: u64) {
        ftruncate(self.memory(file).as_fd(), bytes).expect("our own file");
    }
}

fn at(path: &str, flags: OFlags) -> OwnedFd {
    open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect(path)
}

/// A descriptor that is no part of another one's file.
fn fresh(kind: Kind) -> OwnedFd {
    match kind {
        Kind::Pipe => rustix::pipe::pipe().expect("a pipe").0,
        Kind::PipeEnd => rustix::pipe::pipe().expect("a pipe").1,
        Kind::Socket => UnixStream::pair().expect("sockets").0.into(),
        Kind::Datagrams => UnixDatagram::pair().expect("sockets").0.into(),
        Kind::Packets => {
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            pair.expect("sockets").0
        }
        Kind::Udp => UdpSocket::bind("127.0.0.1:0").expect("a port").into(),
        Kind::Listener => TcpListener::bind("127.0.0.1:0").expect("a port").into(),
        Kind::Epoll => epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll"),
        Kind::Timer => timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("a timer"),
        Kind::Process => pidfd_open(getpid(), PidfdFlags::empty()).expect("ourselves"),
        Kind::Device(path) => at(path, OFlags::RDWR),
        Kind::Disk => at("/proc/self/exe", OFlags::RDONLY),
        Kind::Directory => at("/proc/self", OFlags::RDONLY | OFlags::DIRECTORY),
        Kind::PathOnly => at("/proc/self", OFlags::PATH),
        Kind::Sealed(seals) => sealed(seals),
        // Where no huge pages are set aside it can be sent, and not mapped.
        Kind::Huge => memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)
            .unwrap_or_else(|_| memfd("huge", 0).expect("a file in memory")),
        Kind::Nested => {
            let (outer, receiver) = UnixStream::pair().expect("sockets");
            send(&outer, b"x", &[fresh(Kind::Event)]).expect("there is room");
            receiver.into()
        }
        Kind::Event | Kind::Memory(_) | Kind::ReadOnly => {
            eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
        }
    }
}

fn sealed(seals: SealFlags) -> OwnedFd {
    let file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.expect("a file in memory");
    ftruncate(&file, FILE_BYTES[0]).expect("our own file");
    fcntl_add_seals(&file, seals).expect("our own file");
    file
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn each_kind_can_be_made_and_is_read_as_it_was_written() {
        for kind in Kind::ALL {
            drop(Files::default().open(kind));
            let mut seed = Seed::default();
            kind.encode(&mut seed);
            assert_eq!(Kind::decode(&mut Input::new(&seed.into_bytes())), kind);
        }
    }
}
