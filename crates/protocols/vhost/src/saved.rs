//! The state of a session that a successor needs if this process is killed: memory, a description, descriptors.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::{Mapping, MappingError, Word};
use lasthop_ring::{Ledger, LedgerError, RingFormat};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::inflight::SavedInflight;
use crate::message::MemoryRegionMessage;
use crate::{Offer, RequestError};

/// Bytes in front of the ledgers: a page.
const HEAD_BYTES: usize = 4096;
const STAGE_AT: usize = 0;
const GRANTED_AT: usize = 4;
const TOLD_AT: usize = 8;

/// Values of the stage word. A fresh file is all zeroes: no message was read yet.
const RESTING: u32 = 0;
const READING: u32 = 1;

/// The memory of one session that outlives the process: a file that its maker hands over with the connection.
///
/// ```text
///   byte 0      stage: 0 between two messages, 1 when some of one may have been read, or not all answered
///   byte 4      queue pairs that the guest asked for through its control queue; 0: it did not ask
///   byte 8      number of the last update: a process with an earlier one knows too little to continue
///   byte 4096   ledger of ring 0 | ledger of ring 1 | ...      see lasthop_ring::Ledger
/// ```
#[derive(Debug)]
pub struct SessionMemory {
    mapping: Arc<Mapping>,
    stage: Word,
    granted: Word,
    told: Word,
}

impl SessionMemory {
    /// Size of the file for a session with this number of rings. Unused pages take no memory.
    #[must_use]
    pub fn bytes(rings: u16) -> u64 {
        (HEAD_BYTES + usize::from(rings) * Ledger::BYTES) as u64
    }

    /// Makes the file for a session with this number of rings. It is sealed against shrinking.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and fcntl(2).
    pub fn create(rings: u16) -> std::io::Result<OwnedFd> {
        let file = memfd_create("lasthop-session", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, Self::bytes(rings))?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    }

    /// Maps a file that has room for `rings`.
    ///
    /// # Errors
    /// [`MappingError`].
    pub fn map(file: BorrowedFd<'_>, rings: u16) -> Result<Self, MappingError> {
        let mapping = Arc::new(Mapping::of_file(file, 0, Self::bytes(rings))?);
        let word = |at| Word::new(&mapping, at).ok_or(MappingError::BadLength(mapping.len() as u64));
        Ok(Self { stage: word(STAGE_AT)?, granted: word(GRANTED_AT)?, told: word(TOLD_AT)?, mapping })
    }

    pub(crate) fn set_reading(&self) {
        self.stage.store(READING);
    }

    pub(crate) fn set_resting(&self) {
        self.stage.store(RESTING);
    }

    /// Whether the session is between two messages, with all replies sent.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.stage.load() == RESTING
    }

    /// Returns an error if a process with update number `told` could not continue the session.
    ///
    /// # Errors
    /// [`TakeOverError::AmidMessage`], [`TakeOverError::NewsLost`].
    pub fn check(&self, told: u32) -> Result<(), TakeOverError> {
        match () {
            () if !self.is_resting() => Err(TakeOverError::AmidMessage),
            () if self.told() != told => Err(TakeOverError::NewsLost),
            () => Ok(()),
        }
    }

    /// Number of updates so far; a [`SavedSession`] has the number at its time.
    #[must_use]
    pub fn told(&self) -> u32 {
        self.told.load()
    }

    pub(crate) fn set_told(&self, times: u32) {
        self.told.store(times);
    }

    /// The word for the queue pairs that the guest requests through its control queue.
    pub(crate) fn granted(&self) -> Word {
        self.granted.clone()
    }

    /// The ledger of ring `index`, if the file has room for it.
    pub(crate) fn ledger(&self, format: RingFormat, index: u16, entries: u16) -> Option<Ledger> {
        let offset = HEAD_BYTES + usize::from(index) * Ledger::BYTES;
        Ledger::within(format, &self.mapping, offset, entries)
    }
}

/// A session's description for its successor, beside the state in its memory. File descriptors are represented by
/// numbers, one for each that the front end sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    /// Number of updates, including this one.
    pub(crate) told: u32,
    pub(crate) offer: Offer,
    pub(crate) features: u64,
    pub(crate) protocol_features: u64,
    pub(crate) status: u8,
    pub(crate) mtu: Option<u16>,
    pub(crate) regions: Vec<SavedRegion>,
    pub(crate) rings: Vec<SavedRing>,
    /// The channel for requests to the front end.
    pub(crate) back_channel: Option<u32>,
    /// The in-flight file.
    pub(crate) inflight: Option<SavedInflight>,
}

/// A memory region, and the number of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedRegion {
    pub(crate) guest_addr: u64,
    pub(crate) size_bytes: u64,
    pub(crate) user_addr: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) file: u32,
}

/// A ring's settings by the front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedRing {
    pub(crate) entries: u16,
    /// Descriptor table, available ring, used ring.
    pub(crate) addresses: Option<[u64; 3]>,
    pub(crate) base: u16,
    /// Whether `base` is of a packed ring.
    #[serde(default)]
    pub(crate) is_base_packed: bool,
    /// Whether `base` is out of date.
    #[serde(default)]
    pub(crate) is_lost: bool,
    pub(crate) kick: SavedKick,
    pub(crate) call: Option<u32>,
    pub(crate) enable: Option<bool>,
    pub(crate) is_running: bool,
}

/// How the driver kicks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SavedKick {
    #[default]
    NotSet,
    Polled,
    Fd(u32),
}

impl SavedRegion {
    pub(crate) fn new(message: MemoryRegionMessage, file: u32) -> Self {
        let MemoryRegionMessage { guest_addr, size, user_addr, offset } = message;
        Self { guest_addr, size_bytes: size, user_addr, offset_bytes: offset, file }
    }

    pub(crate) fn message(&self) -> MemoryRegionMessage {
        let Self { guest_addr, size_bytes, user_addr, offset_bytes, .. } = *self;
        MemoryRegionMessage { guest_addr, size: size_bytes, user_addr, offset: offset_bytes }
    }

    /// Whether a message names this region; the offset is ignored when a region is removed.
    pub(crate) fn is_named_by(&self, message: &MemoryRegionMessage) -> bool {
        (self.guest_addr, self.user_addr, self.size_bytes)
            == (message.guest_addr, message.user_addr, message.size)
    }
}

impl SavedSession {
    /// The numbers of all its file descriptors.
    pub fn fds(&self) -> impl Iterator<Item = u32> + '_ {
        let kicks = self.rings.iter().filter_map(|ring| match ring.kick {
            SavedKick::Fd(number) => Some(number),
            SavedKick::NotSet | SavedKick::Polled => None,
        });
        let calls = self.rings.iter().filter_map(|ring| ring.call);
        let inflight = self.inflight.map(|inflight| inflight.file);
        let regions = self.regions.iter().map(|region| region.file);
        regions.chain(kicks).chain(calls).chain(self.back_channel).chain(inflight)
    }
}

/// An update for the process that keeps a session's state.
#[derive(Debug)]
pub struct SessionUpdate {
    /// The whole session; it replaces the last update.
    pub session: SavedSession,
    /// New file descriptors in it. One that could not be duplicated is missing.
    pub fds: Vec<(u32, ForeignFd)>,
}

/// Why a session cannot be taken over, so that its front end has to connect again.
#[derive(Debug, Error)]
pub enum TakeOverError {
    /// Some of a message may have been read, or served without a reply.
    #[error("it was in the middle of a message")]
    AmidMessage,
    /// The last update is missing.
    #[error("the last message of its front end did not arrive")]
    NewsLost,
    /// A descriptor is missing, since a process could not open more.
    #[error("file descriptor {0} of it is missing; raise the limit of open files (ulimit -n, LimitNOFILE=)")]
    FdMissing(u32),
    /// A ring contradicts its kept state.
    #[error("ring {0}: {1}")]
    Ring(u16, LedgerError),
    /// The session has another number of rings than the port.
    #[error("it has {0} rings, and its port {1}")]
    Rings(usize, u16),
    /// A request that succeeded before fails now.
    #[error("{0}")]
    Refused(#[from] RequestError),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl TakeOverError {
    /// Whether the front end is the cause, for every process: it truncated the session's memory.
    #[must_use]
    pub fn is_of_the_front_end(&self) -> bool {
        matches!(self, Self::Refused(RequestError::Mapping(MappingError::BeyondFile { .. })))
    }
}

/// The state that a successor gets beside the connection.
#[derive(Debug)]
pub struct PreviousSession {
    /// The session's memory.
    pub memory: SessionMemory,
    /// Its last update.
    pub session: SavedSession,
    /// Its file descriptors.
    pub fds: BTreeMap<u32, ForeignFd>,
}

impl PreviousSession {
    /// Returns an error if it has another number of rings.
    pub(crate) fn check_rings(&self, rings: u16) -> Result<(), TakeOverError> {
        let known = self.session.rings.len();
        if known == usize::from(rings) { Ok(()) } else { Err(TakeOverError::Rings(known, rings)) }
    }

    /// Takes descriptor `number`.
    pub(crate) fn take_fd(&mut self, number: u32) -> Result<ForeignFd, TakeOverError> {
        self.fds.remove(&number).ok_or(TakeOverError::FdMissing(number))
    }
}

/// Numbers the file descriptors that a successor needs, and holds copies of them until the next update.
#[derive(Debug, Default)]
pub(crate) struct FdNumbers {
    is_on: bool,
    last: u32,
    fresh: Vec<(u32, ForeignFd)>,
}

impl FdNumbers {
    /// Continues after the number `last`.
    pub(crate) fn new(last: u32) -> Self {
        Self { is_on: true, last, fresh: Vec::new() }
    }

    /// Numbers a descriptor that just came.
    pub(crate) fn keep(&mut self, fd: &ForeignFd) -> u32 {
        if !self.is_on {
            return 0;
        }
        self.last = self.last.wrapping_add(1);
        // If the copy fails, a successor notices the missing descriptor and does not continue.
        let copy = fd.try_clone();
        self.fresh.extend(copy.ok().map(|copy| (self.last, copy)));
        self.last
    }

    /// Takes the descriptors that came since the last call.
    pub(crate) fn take(&mut self) -> Vec<(u32, ForeignFd)> {
        std::mem::take(&mut self.fresh)
    }
}
