//! The port `internal`. Packets that the switch sends take the usual path, from a ring in its own memory.

use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region};
use lasthop_module_api::{DropReason, PortId};
use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingMemory};
use lasthop_wire::Offload;
use lasthop_wire::vnet::HEADER_BYTES;
use thiserror::Error;

use crate::bounds::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, INTERNAL_FRAMES_MAX, WAITING_SHARE_QUARTERS};
use crate::tx::sender::Sender;
use crate::tx::tx_queue::TxQueue;
use crate::{Fabric, RingId};

const ENTRIES: u32 = INTERNAL_FRAMES_MAX as u32;
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = DESCRIPTORS + 16 * ENTRIES as u64;
const USED: u64 = AVAILABLE + 4096;
const BUFFERS: u64 = USED + 4096;
const BUFFER_BYTES: u64 = 128 << 10;
/// Frames under way that ports with more than one of them share: as many as may wait for slow receivers.
const SHARED_FRAMES: usize = INTERNAL_FRAMES_MAX as usize * WAITING_SHARE_QUARTERS as usize / 4;

/// The reason why the switch could not inject a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InjectError {
    /// All `INTERNAL_FRAMES_MAX` frames are under way, or the port has used its share of them.
    #[error("too many of the {INTERNAL_FRAMES_MAX} frames of the switch's own are under way already")]
    Full,
    /// This worker is not the home of the port `internal`.
    #[error("another worker sends the switch's own frames")]
    Elsewhere,
    /// The frame's length is invalid.
    #[error("a frame of {0} bytes is outside {FRAME_BYTES_MIN}..={FRAME_BYTES_MAX}")]
    BadLength(usize),
}

/// The driver's side of the switch's own transmit ring.
#[derive(Debug)]
pub(crate) struct InternalPort {
    driver: DriverRing,
    map: Arc<MemoryMap>,
    /// Buffers that are free, since their frames were completed.
    free: Vec<u32>,
    /// By buffer: the port that its frame came from, while the frame is under way.
    origins: [Option<PortId>; INTERNAL_FRAMES_MAX as usize],
}

impl InternalPort {
    pub(crate) const RING: RingId = RingId { port: PortId::INTERNAL, queue: 0 };

    /// The driver's side, and the sender that the fabric visits.
    pub(crate) fn new() -> Result<(Self, Sender), String> {
        let bytes = BUFFERS + u64::from(INTERNAL_FRAMES_MAX) * BUFFER_BYTES;
        let mapping = Arc::new(Mapping::anonymous(bytes as usize).map_err(|error| error.to_string())?);
        let map = Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }])?);
        let addresses = RingAddresses { descriptors: DESCRIPTORS, available: AVAILABLE, used: USED };
        let memory = || RingMemory::new(&map, ENTRIES, addresses).map_err(|error| error.to_string());
        let driver = DriverRing::new(memory()?, false);
        let queue = TxQueue::new(DeviceRing::new(memory()?, 0, false));
        let chains = vec![Some(Arc::clone(queue.table.chains()))];
        let queues = vec![Some(queue)];
        let sender = Sender { map: Arc::clone(&map), epoch: 1, queues, chains, ..Sender::default() };
        let free = (0..u32::from(INTERNAL_FRAMES_MAX)).collect();
        let origins = [None; INTERNAL_FRAMES_MAX as usize];
        Ok((Self { driver, map, free, origins }, sender))
    }

    fn reclaim(&mut self) {
        while let Ok(Some(used)) = self.driver.take_used() {
            self.free.push(used.token);
            if let Some(origin) = self.origins.get_mut(used.token as usize) {
                *origin = None;
            }
        }
    }

    /// Whether `origin` may have one more frame under way: its first one, or at most as many as are left for other
    /// ports. So ports whose frames wait for slow receivers leave room for the frames of all others.
    fn has_share(&self, origin: PortId) -> bool {
        let (mut own, mut all) = (0, 0);
        for port in self.origins.iter().flatten() {
            own += usize::from(*port == origin);
            all += 1;
        }
        own == 0 || own + all < SHARED_FRAMES
    }

    /// Checks whether a frame of `len_bytes` from `origin` could be put.
    fn check(&mut self, origin: PortId, len_bytes: usize) -> Result<(), InjectError> {
        if len_bytes < FRAME_BYTES_MIN as usize || len_bytes > FRAME_BYTES_MAX as usize {
            return Err(InjectError::BadLength(len_bytes));
        }
        self.reclaim();
        let is_full = self.driver.free_descriptors() == 0 || self.free.is_empty();
        if is_full || !self.has_share(origin) { Err(InjectError::Full) } else { Ok(()) }
    }

    /// Puts a frame into the ring. Returns the head of its chain.
    fn put(&mut self, origin: PortId, frame: &[u8], offload: Offload) -> Result<u16, InjectError> {
        self.check(origin, frame.len())?;
        let buffer = self.free.pop().ok_or(InjectError::Full)?;
        let addr = BUFFERS + u64::from(buffer) * BUFFER_BYTES;
        let len = (HEADER_BYTES + frame.len()) as u32;
        let segment = self.map.translate(addr, len, &mut 0).ok_or(InjectError::Full)?;
        let written = self
            .map
            .write(segment, 0, &offload.emit(0))
            .and_then(|()| self.map.write(segment, HEADER_BYTES as u32, frame));
        debug_assert!(written.is_ok(), "buffers lie inside the switch's own memory");
        let head = self.driver.add(&[(addr, len)], &[], buffer).ok_or(InjectError::Full)?;
        self.origins[buffer as usize] = Some(origin);
        self.driver.publish();
        Ok(head)
    }
}

impl Fabric {
    /// Whether [`Self::inject_for`] would take a frame of `len_bytes` from `port` now.
    ///
    /// # Errors
    /// See [`InjectError`].
    pub fn can_inject(&mut self, port: PortId, len_bytes: usize) -> Result<(), InjectError> {
        self.internal.as_mut().ok_or(InjectError::Elsewhere)?.check(port, len_bytes)
    }

    /// Injects a frame of the switch's own: an announcement or an ICMP error. The module decides on it, with the source
    /// port `PortId::INTERNAL`.
    ///
    /// # Errors
    /// See [`InjectError`]; the frame was not sent.
    pub fn inject(&mut self, frame: &[u8], offload: Offload, now_ns: u64) -> Result<(), InjectError> {
        self.inject_for(PortId::INTERNAL, frame, offload, now_ns)
    }

    /// As [`Self::inject`], for a frame that came from `port` and comes back from the control plane. It is counted at
    /// that port, if it exists.
    ///
    /// # Errors
    /// See [`InjectError`]; the frame was not sent.
    pub fn inject_for(
        &mut self,
        port: PortId,
        frame: &[u8],
        offload: Offload,
        now_ns: u64,
    ) -> Result<(), InjectError> {
        let head = self.internal.as_mut().ok_or(InjectError::Elsewhere)?.put(port, frame, offload)?;
        self.senders.open_account(head, port);
        self.visit(InternalPort::RING, now_ns);
        Ok(())
    }

    /// Counts a frame that came from `port` and was lost for `reason` before it could be injected.
    pub fn drop_injected(&mut self, port: PortId, reason: DropReason) {
        self.senders.drop_injected(port, reason);
    }
}
