//! A network card without a driver: connection, memory and rings, with the user's own buffers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_ring::{DriverRing, RING_ENTRIES_MAX, RingAddresses, RingFormat, RingMemory, Used};
use lasthop_vhost::features::{self, protocol};
use lasthop_vhost::front::FrontEnd;

use crate::handshake::{Agreement, RingSetup, enable_rings, negotiate, share_memory, start_ring};
use crate::memory::{GUEST_ADDR, Memory, Plan};
use crate::notifications::RingEventFds;
use crate::options::FeatureRequest;
use crate::{DeviceConfig, GuestError, QUEUE_PAIRS_MAX};

/// Options of a network card.
#[derive(Clone, Copy, Debug)]
pub struct VnicOptions {
    /// Requested virtio features; of these the offered ones are used.
    pub features: u64,
    /// Queue pairs, 1 to [`QUEUE_PAIRS_MAX`].
    pub queue_pairs: u16,
    /// Entries of each receive ring, a power of two.
    pub rx_entries: u16,
    /// Entries of each transmit ring, a power of two.
    pub tx_entries: u16,
    /// Bytes of memory for the buffers of each queue pair; rounded up to whole pages.
    pub arena_bytes: u32,
    /// Whether packets should have tunnel metadata: then the virtio-net header is longer, if that is offered.
    pub has_tunnel: bool,
}

impl VnicOptions {
    fn check(&self) -> Result<(), GuestError> {
        let is_size = |entries: u16| entries.is_power_of_two() && entries <= RING_ENTRIES_MAX;
        let wrong = if !(1..=QUEUE_PAIRS_MAX).contains(&self.queue_pairs) {
            format!("{} queue pairs, 1 to {QUEUE_PAIRS_MAX} are possible", self.queue_pairs)
        } else if !is_size(self.rx_entries) || !is_size(self.tx_entries) {
            let (rx, tx) = (self.rx_entries, self.tx_entries);
            format!("rings of {rx} and {tx} entries, a power of two up to {RING_ENTRIES_MAX} is possible")
        } else if self.arena_bytes == 0 {
            "no memory for buffers".to_owned()
        } else {
            return Ok(());
        };
        Err(GuestError::Options(wrong))
    }

    fn request(&self) -> FeatureRequest {
        let protocol = protocol::OFFERED | if self.has_tunnel { protocol::TUNNEL } else { 0 };
        FeatureRequest { features: self.features, protocol, queue_pairs: self.queue_pairs }
    }
}

/// Rings and buffers of one queue pair.
#[derive(Clone, Copy, Debug)]
struct PairPlace {
    rx: RingAddresses,
    tx: RingAddresses,
    arena: Segment,
}

/// A network card without a driver: the connection to the back end, memory, and rings. The user manages the memory, and
/// decides which parts are lent to the back end; nothing is copied here.
///
/// ```text
///   one memfd    [ arena of pair 0 ] [ arena of pair 1 ] ... [ pair 0: receive ring | transmit ring ] [ pair 1 ] ...
/// ```
#[derive(Debug)]
pub struct Vnic {
    front: FrontEnd,
    options: VnicOptions,
    agreement: Agreement,
    memory: Memory,
    pairs: Vec<PairPlace>,
    len_bytes: u64,
}

impl Vnic {
    /// Starts on a connected socket: features, memory, empty rings. Other threads may use the queue pairs.
    ///
    /// # Errors
    /// [`GuestError::Options`], or a refusal of the back end.
    pub fn over(stream: UnixStream, options: VnicOptions) -> Result<(Self, Vec<VnicPair>), GuestError> {
        Self::in_memory(stream, options, None)
    }

    /// As [`Self::over`], with the arenas at the start of `file`, one after the other; it grows by the rings. A fresh
    /// file if there is none.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn in_memory(
        stream: UnixStream,
        options: VnicOptions,
        file: Option<OwnedFd>,
    ) -> Result<(Self, Vec<VnicPair>), GuestError> {
        options.check()?;
        let mut plan = Plan::default();
        let arenas: Vec<_> =
            (0..options.queue_pairs).map(|_| plan.area(u64::from(options.arena_bytes))).collect();
        let place = |offset| {
            let arena = Segment { offset, len: options.arena_bytes, region: 0 };
            PairPlace { rx: plan.ring(options.rx_entries), tx: plan.ring(options.tx_entries), arena }
        };
        let pairs = arenas.into_iter().map(place).collect();
        let (len_bytes, front) = (plan.len_bytes(), FrontEnd::new(stream)?);
        let memory = match file {
            Some(file) => Memory::of_file(file, len_bytes)?,
            None => Memory::new(len_bytes)?,
        };
        let mut vnic = Self { front, options, agreement: Agreement::default(), memory, pairs, len_bytes };
        let pairs = vnic.introduce()?;
        Ok((vnic, pairs))
    }

    /// Starts again on another connection, for example after a restart of the back end: same memory, fresh rings. The
    /// old queue pairs must have been dropped. All lent buffers belong to the user again.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<Vec<VnicPair>, GuestError> {
        self.front = FrontEnd::new(stream)?;
        self.introduce()
    }

    fn introduce(&mut self) -> Result<Vec<VnicPair>, GuestError> {
        self.front.set_owner()?;
        self.agreement = negotiate(&mut self.front, self.options.request())?;
        self.share()?;
        self.start()
    }

    fn share(&mut self) -> Result<(), GuestError> {
        let whole = 0..self.len_bytes;
        share_memory(&mut self.front, &self.memory, std::slice::from_ref(&whole))
    }

    /// Resets the device, and starts again with fresh rings, other features and, if there is a `file`, other memory;
    /// see [`Self::reconnect`] and [`Self::in_memory`].
    ///
    /// # Errors
    /// A refusal of the back end; it must support RESET_DEVICE.
    pub fn reset(&mut self, features: u64, file: Option<OwnedFd>) -> Result<Vec<VnicPair>, GuestError> {
        self.front.reset_device()?;
        if let Some(file) = file {
            self.memory = Memory::of_file(file, self.len_bytes)?;
            self.share()?;
        }
        self.options.features = features;
        let offered = self.front.get_features()?;
        self.agreement.features = offered & features & !features::PROTOCOL_FEATURES;
        self.agreement.set_features(&mut self.front)?;
        self.start()
    }

    fn start(&mut self) -> Result<Vec<VnicPair>, GuestError> {
        let made = self.pairs.iter().enumerate().map(|(number, place)| self.pair(number as u16, place));
        let pairs: Vec<VnicPair> = made.collect::<Result<_, _>>()?;
        for (place, pair) in self.pairs.iter().zip(&pairs) {
            for (ring, addresses) in [(&pair.rx, place.rx), (&pair.tx, place.tx)] {
                let (index, entries, eventfds) = (ring.index, ring.ring.entries(), &ring.eventfds);
                start_ring(
                    &mut self.front,
                    &RingSetup { index, entries, base: 0, format: RingFormat::Split, addresses, eventfds },
                )?;
            }
        }
        enable_rings(&mut self.front, &self.agreement, 2 * self.options.queue_pairs)?;
        Ok(pairs)
    }

    fn pair(&self, number: u16, place: &PairPlace) -> Result<VnicPair, GuestError> {
        let ring = |index: u16, entries: u16, addresses| {
            let memory = RingMemory::new(&self.memory.map, u32::from(entries), addresses)?;
            let ring = DriverRing::new(memory, self.agreement.has(features::EVENT_IDX));
            let (arena, is_written) = (place.arena, index.is_multiple_of(2));
            let eventfds = RingEventFds::new()?;
            Ok::<_, GuestError>(VnicRing { index, ring, eventfds, arena, is_written, is_published: true })
        };
        Ok(VnicPair {
            rx: ring(2 * number, self.options.rx_entries, place.rx)?,
            tx: ring(2 * number + 1, self.options.tx_entries, place.tx)?,
            map: self.memory.map.clone(),
            arena: place.arena,
            header_bytes: self.agreement.header_bytes(),
            features: self.agreement.features,
        })
    }

    /// The negotiated virtio features.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.agreement.features
    }

    /// The device's configuration space; zeroes if the back end has none.
    #[must_use]
    pub fn config(&self) -> DeviceConfig {
        self.agreement.config
    }

    /// The connection, over which nothing comes unasked except its end (`RDHUP`).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.front.fd()
    }

    /// The file of the memory.
    #[must_use]
    pub fn memory_file(&self) -> BorrowedFd<'_> {
        self.memory.file.as_fd()
    }
}

/// A queue pair of a [`Vnic`], for one thread at a time.
#[derive(Debug)]
pub struct VnicPair {
    /// Buffers that the back end writes frames to.
    pub rx: VnicRing,
    /// Buffers that the back end reads frames from.
    pub tx: VnicRing,
    map: MemoryMap,
    arena: Segment,
    header_bytes: usize,
    features: u64,
}

impl VnicPair {
    /// The vNIC's memory.
    #[must_use]
    pub fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// This pair's buffers: offsets start at its beginning, which is page-aligned.
    #[must_use]
    pub fn arena(&self) -> Segment {
        self.arena
    }

    /// Length of the virtio-net header before each frame.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Whether a frame may use several buffers.
    #[must_use]
    pub fn is_mergeable(&self) -> bool {
        self.has(features::MRG_RXBUF)
    }

    /// Whether all of these virtio features were negotiated.
    #[must_use]
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }
}

/// Pieces of a frame that [`VnicRing::lend_pieces`] takes: as many as a back end accepts for a frame.
pub const PIECES_MAX: usize = 64;

/// A ring of a [`Vnic`], by which buffers are lent to the back end and returned.
#[derive(Debug)]
pub struct VnicRing {
    index: u16,
    ring: DriverRing,
    eventfds: RingEventFds,
    arena: Segment,
    /// Whether the back end writes to the buffers.
    is_written: bool,
    /// Whether everything that was lent is published.
    is_published: bool,
}

impl VnicRing {
    /// Lends `len` bytes at `offset` of the pair's arena; [`Self::flush`] publishes it. Returns false if the ring is
    /// full. The back end refuses bytes beyond the arena, and then stops the ring.
    #[inline]
    #[must_use]
    pub fn lend(&mut self, offset: u32, len: u32, token: u32) -> bool {
        let buffer = [(GUEST_ADDR + self.arena.offset + u64::from(offset), len)];
        let head = if self.is_written {
            self.ring.add(&[], &buffer, token)
        } else {
            self.ring.add(&buffer, &[], token)
        };
        self.is_published &= head.is_none();
        head.is_some()
    }

    /// As [`Self::lend`], for a frame in several pieces (offset, bytes), which the back end reads. Returns false if there are more than
    /// [`PIECES_MAX`] or than there is room for.
    #[must_use]
    pub fn lend_pieces(&mut self, pieces: &[(u32, u32)], token: u32) -> bool {
        let mut buffers = [(0, 0); PIECES_MAX];
        let Some(buffers) = buffers.get_mut(..pieces.len()) else { return false };
        let start = GUEST_ADDR + self.arena.offset;
        for (buffer, (offset, len)) in buffers.iter_mut().zip(pieces) {
            *buffer = (start + u64::from(*offset), *len);
        }
        let head = self.ring.add(buffers, &[], token);
        self.is_published &= head.is_none();
        head.is_some()
    }

    /// A number that no lent buffer has, and that the next one will have, below the entries of the ring; `None` if it is full.
    #[must_use]
    pub fn next_number(&self) -> Option<u16> {
        self.ring.next_head()
    }

    /// Takes the next buffer that the back end has used: its token, and in a receive ring the bytes that the back end
    /// claims to have written, which are unchecked.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    #[inline]
    pub fn take_back(&mut self) -> Result<Option<Used>, GuestError> {
        self.ring.take_used().map_err(|error| GuestError::Ring(self.index, error))
    }

    /// As [`Self::take_back`], but only takes buffers that [`Self::look`] saw, and none from a faulty entry on, which that names. This is
    /// faster in a loop.
    #[inline(always)]
    pub fn take_seen(&mut self) -> Option<Used> {
        self.ring.take_seen()
    }

    /// Reads whether there are buffers to take back.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    #[inline]
    pub fn look(&mut self) -> Result<bool, GuestError> {
        self.ring.look_for_used().map_err(|error| GuestError::Ring(self.index, error))
    }

    /// Number of buffers that [`Self::take_back`] would return.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    #[inline]
    pub fn pending(&mut self) -> Result<u16, GuestError> {
        self.ring.used_pending().map_err(|error| GuestError::Ring(self.index, error))
    }

    /// Publishes the lent buffers, and kicks the back end if it requests that. Returns whether it did.
    ///
    /// # Errors
    /// [`GuestError::System`] if the eventfd fails.
    #[inline]
    pub fn flush(&mut self) -> Result<bool, GuestError> {
        // Storing the same index again would only take its cache line away from the back end.
        if self.is_published {
            return Ok(false);
        }
        self.is_published = true;
        self.ring.publish();
        let wanted = self.ring.needs_kick();
        if wanted {
            self.eventfds.kick()?;
        }
        Ok(wanted)
    }

    /// Number of buffers that can be lent.
    #[must_use]
    pub fn room(&self) -> u16 {
        self.ring.free_descriptors()
    }

    /// Number of published buffers that were not taken back.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// Suppresses signals, since the ring is polled.
    #[inline]
    pub fn suppress_calls(&mut self) {
        self.ring.suppress_calls();
    }

    /// Requests a signal for the next returned buffer, and polls once more. Returns true if there is one: do not sleep.
    #[must_use]
    pub fn arm_calls(&mut self) -> bool {
        self.ring.arm_calls()
    }

    /// The eventfd by which the back end signals: non-blocking; wait for it edge-triggered, and never read it.
    #[must_use]
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.eventfds.call_fd()
    }
}
