//! A guest over one or several connections, and its frames.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DriverRing, RingFormat, RingMemory, position_of_wire};
use lasthop_vhost::features::{self, protocol};
use lasthop_vhost::front::FrontEnd;
use lasthop_vhost::message::InflightMessage;
use lasthop_wire::vnet::Offload;
use lasthop_wire::{PacketHash, hash};

use crate::handshake::{Agreement, RingSetup, enable_rings, negotiate, share_memory, start_ring};
use crate::memory::{Layout, Memory};
use crate::notifications::{Deadline, RingEventFds, sleep};
use crate::rx::{RxQueue, RxShape};
use crate::tx::TxQueue;
use crate::{DeviceConfig, GuestError, GuestOptions, ReceivedFrame};

/// How long a guest waits for a reply: a machine with many guests may leave its back end no CPU for a while.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Frames and bytes (without virtio-net headers) since the rings were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCounters {
    /// Frames put into transmit rings.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames taken from receive rings.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) rx: RxQueue,
    pub(crate) tx: TxQueue,
}

/// A guest with a connected network card. Queue pairs are numbered from 0.
#[derive(Debug)]
pub struct Guest {
    pub(crate) front: FrontEnd,
    pub(crate) options: GuestOptions,
    pub(crate) agreement: Agreement,
    pub(crate) layout: Layout,
    pub(crate) memory: Memory,
    pub(crate) pairs: Vec<QueuePair>,
    /// The back end's in-flight file.
    inflight: Option<(InflightMessage, OwnedFd)>,
}

impl Guest {
    /// Connects to a back end at `path`, and starts.
    ///
    /// # Errors
    /// [`GuestError::System`] if no back end listens there, else as [`Self::over`].
    pub fn connect(path: impl AsRef<Path>, options: GuestOptions) -> Result<Self, GuestError> {
        Self::over(UnixStream::connect(path)?, options)
    }

    /// Starts on a connected socket: features, memory, rings, all receive buffers available.
    ///
    /// # Errors
    /// [`GuestError::Options`], or a refusal of the back end.
    pub fn over(stream: UnixStream, options: GuestOptions) -> Result<Self, GuestError> {
        options.check()?;
        let layout = Layout::new(&options);
        let memory = Memory::new(layout.len_bytes)?;
        let (front, agreement) = (front_end(stream)?, Agreement::default());
        let mut guest = Self { front, options, agreement, layout, memory, pairs: Vec::new(), inflight: None };
        guest.introduce()?;
        Ok(guest)
    }

    /// Starts again on another connection, for example after a restart of the back end: same memory, fresh rings.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<(), GuestError> {
        self.front = front_end(stream)?;
        self.introduce()
    }

    /// The complete handshake with a new back end.
    fn introduce(&mut self) -> Result<(), GuestError> {
        self.front.set_owner()?;
        self.agreement = negotiate(&mut self.front, self.options.request())?;
        share_memory(&mut self.front, &self.memory, &self.layout.regions(self.options.regions))?;
        if self.options.inflight && self.agreement.protocol & protocol::INFLIGHT_SHMFD != 0 {
            let rings = self.layout.rings.len() as u16; // at most 256
            self.inflight = Some(self.front.get_inflight_fd(rings, self.options.ring_entries)?);
        }
        self.track()?;
        self.start_fresh()
    }

    /// Continues on another connection with the rings as they are, like a VMM whose back end died: from the used index
    /// on, with the old back end's log of chains in flight.
    ///
    /// # Errors
    /// As [`Self::over`]; [`GuestError::Options`] if the offered features have changed.
    pub fn resume(&mut self, stream: UnixStream) -> Result<(), GuestError> {
        self.front = front_end(stream)?;
        self.front.set_owner()?;
        let agreement = negotiate(&mut self.front, self.options.request())?;
        if agreement.features != self.agreement.features {
            return Err(GuestError::Options("the rings are of other features".to_owned()));
        }
        share_memory(&mut self.front, &self.memory, &self.layout.regions(self.options.regions))?;
        self.track()?;
        let mut bases = Vec::new();
        for pair in &mut self.pairs {
            for ring in [&mut pair.rx.ring, &mut pair.tx.ring] {
                bases.push(ring.used_end().map_err(|error| GuestError::Ring(0, error))?);
            }
        }
        self.start(&bases)
    }

    fn track(&mut self) -> Result<(), GuestError> {
        match &self.inflight {
            Some((message, file)) => Ok(self.front.set_inflight_fd(*message, file.as_fd())?),
            None => Ok(()),
        }
    }

    /// Resets the device (needs the RESET_DEVICE protocol feature) and starts again with fresh rings.
    ///
    /// # Errors
    /// A refusal of the back end.
    pub fn reset(&mut self) -> Result<(), GuestError> {
        self.front.reset_device()?;
        self.agreement.set_features(&mut self.front)?;
        self.start_fresh()
    }

    fn start_fresh(&mut self) -> Result<(), GuestError> {
        let pairs = (0..self.options.queue_pairs).map(|pair| self.queue_pair(pair));
        self.pairs = pairs.collect::<Result<_, _>>()?;
        let bases = vec![self.options.start_position; self.layout.rings.len()];
        self.start(&bases)
    }

    /// Shares the same memory again, in `regions` regions (1 to 8), while the rings run. For tests of back ends.
    ///
    /// # Errors
    /// A refusal of the back end; [`GuestError::Options`] if there cannot be as many regions.
    pub fn share_anew(&mut self, regions: u16) -> Result<(), GuestError> {
        let options = GuestOptions { regions, ..self.options.clone() };
        options.check()?;
        self.options = options;
        share_memory(&mut self.front, &self.memory, &self.layout.regions(regions))
    }

    /// Stops all rings. Returns their positions, for [`Self::start`].
    ///
    /// # Errors
    /// A refusal of the back end.
    pub fn stop(&mut self) -> Result<Vec<u16>, GuestError> {
        let rings = 0..self.layout.rings.len() as u16; // at most 256
        let entries = self.options.ring_entries;
        let position = |base| match self.agreement.ring_format() {
            RingFormat::Split => base,
            RingFormat::Packed => position_of_wire(base, entries),
        };
        rings.map(|index| Ok(position(self.front.get_vring_base(index)?))).collect()
    }

    /// Starts all rings, with their contents, at the positions `bases` from [`Self::stop`].
    ///
    /// # Errors
    /// A refusal of the back end; [`GuestError::Options`] if bases are missing.
    pub fn start(&mut self, bases: &[u16]) -> Result<(), GuestError> {
        if bases.len() != self.layout.rings.len() {
            return Err(GuestError::Options(format!(
                "{} positions for {} rings",
                bases.len(),
                self.layout.rings.len()
            )));
        }
        for (index, (base, addresses)) in (0..).zip(bases.iter().zip(&self.layout.rings)) {
            let pair = &self.pairs[usize::from(index / 2)];
            let eventfds = if index % 2 == 0 { &pair.rx.eventfds } else { &pair.tx.eventfds };
            let entries = self.options.ring_entries;
            let format = self.agreement.ring_format();
            let setup = RingSetup { index, entries, base: *base, format, addresses: *addresses, eventfds };
            start_ring(&mut self.front, &setup)?;
        }
        enable_rings(&mut self.front, &self.agreement, bases.len() as u16)?;
        self.pairs.iter_mut().try_for_each(|pair| pair.rx.flush().map(drop))
    }

    pub(crate) fn ring_memory(&self, index: u16) -> Result<RingMemory, GuestError> {
        let entries = u32::from(self.options.ring_entries);
        let addresses = self.layout.rings[usize::from(index)];
        Ok(RingMemory::of(self.agreement.ring_format(), &self.memory.map, entries, addresses)?)
    }

    fn ring(&self, index: u16) -> Result<DriverRing, GuestError> {
        let event_idx = self.agreement.has(features::EVENT_IDX);
        let ring = DriverRing::starting_at(self.ring_memory(index)?, event_idx, self.options.start_position);
        Ok(ring.in_order(self.agreement.has(features::IN_ORDER)))
    }

    fn queue_pair(&self, pair: u16) -> Result<QueuePair, GuestError> {
        let slots = &self.layout.pairs[usize::from(pair)];
        let header_bytes = self.agreement.header_bytes();
        let sent_header_bytes = self.agreement.sent_header_bytes();
        let shape = RxShape {
            header_bytes,
            mergeable: self.agreement.has(features::MRG_RXBUF),
            buffers: self.options.rx_buffers,
            cuts: self.options.rx_cuts.clone(),
            guard: self.options.rx_guard,
        };
        let rx = RxQueue::new(2 * pair, self.ring(2 * pair)?, RingEventFds::new()?, slots, shape);
        rx.fill_guard(&self.memory.map)?;
        let indirect = self.options.indirect && self.agreement.has(features::INDIRECT_DESC);
        let tx_ring = self.ring(2 * pair + 1)?;
        let tx =
            TxQueue::new(2 * pair + 1, tx_ring, RingEventFds::new()?, slots, (sent_header_bytes, indirect));
        Ok(QueuePair { rx, tx })
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

    /// The guest's address: the back end's choice, or else that in the options.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        if self.agreement.has(features::MAC) { self.agreement.config.mac } else { self.options.mac }
    }

    /// Queue pairs.
    #[must_use]
    pub fn queue_pairs(&self) -> u16 {
        self.options.queue_pairs
    }

    /// Sums over all queues.
    #[must_use]
    pub fn counters(&self) -> GuestCounters {
        self.pairs.iter().fold(GuestCounters::default(), |sum, pair| GuestCounters {
            sent_frames: sum.sent_frames + pair.tx.frames,
            sent_bytes: sum.sent_bytes + pair.tx.bytes,
            received_frames: sum.received_frames + pair.rx.frames,
            received_bytes: sum.received_bytes + pair.rx.bytes,
        })
    }

    #[inline]
    fn pair(&mut self, queue: u16) -> Result<(&MemoryMap, &mut QueuePair), GuestError> {
        let pair = self.pairs.get_mut(usize::from(queue)).ok_or(GuestError::NoSuchQueue(queue))?;
        Ok((&self.memory.map, pair))
    }

    /// Adds a frame to a transmit ring, in one descriptor; [`Self::flush`] publishes it. Returns false if the ring is
    /// full: [`Self::reclaim`].
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`], [`GuestError::NoSuchQueue`].
    #[inline]
    pub fn send(&mut self, queue: u16, frame: &[u8], offload: Offload) -> Result<bool, GuestError> {
        let (map, pair) = self.pair(queue)?;
        pair.tx.send(map, frame, (offload, PacketHash::default()), &[])
    }

    /// Like [`Self::send`], with the packet's hash if the back end accepts hashes (see [`Self::tells_hashes`]). For tests of back ends:
    /// the driver process sends by the parts of a guest, as its lanes have threads of their own.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_hashed(
        &mut self,
        queue: u16,
        frame: &[u8],
        offload: Offload,
        hash: PacketHash,
    ) -> Result<bool, GuestError> {
        let (map, pair) = self.pair(queue)?;
        pair.tx.send(map, frame, (offload, hash), &[])
    }

    /// Whether frames are sent with hashes: requested (PACKET_HASH among the options' protocol features) and
    /// negotiated.
    #[must_use]
    pub fn tells_hashes(&self) -> bool {
        self.agreement.sent_header_bytes() == hash::HEADER_BYTES
    }

    /// Like [`Self::send`], in several descriptors: `cuts` are the bytes of all except the last one, including the
    /// virtio-net header; through an indirect table if options and features say so. For tests of back ends.
    ///
    /// # Errors
    /// As [`Self::send`], and [`GuestError::TooManyParts`].
    pub fn send_parts(
        &mut self,
        queue: u16,
        frame: &[u8],
        offload: Offload,
        cuts: &[u32],
    ) -> Result<bool, GuestError> {
        let (map, pair) = self.pair(queue)?;
        pair.tx.send(map, frame, (offload, PacketHash::default()), cuts)
    }

    /// Publishes the frames in a queue's transmit ring, and kicks the back end if it requests that. Returns whether it
    /// did.
    ///
    /// # Errors
    /// [`GuestError::System`] if the eventfd fails.
    #[inline]
    pub fn flush(&mut self, queue: u16) -> Result<bool, GuestError> {
        self.pair(queue)?.1.tx.flush()
    }

    /// Takes back the buffers of frames that the back end has used; returns their number.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    #[inline]
    pub fn reclaim(&mut self, queue: u16) -> Result<usize, GuestError> {
        self.pair(queue)?.1.tx.reclaim()
    }

    /// Frames of a queue that the back end has not used.
    ///
    /// # Errors
    /// [`GuestError::NoSuchQueue`].
    pub fn in_flight(&mut self, queue: u16) -> Result<u16, GuestError> {
        Ok(self.pair(queue)?.1.tx.ring.in_flight())
    }

    /// Receives the next frame of a queue into `into`, which gets its length. Its buffers become available again:
    /// published 16 at a time, or once there is no further frame.
    ///
    /// # Errors
    /// [`GuestError::Ring`] and [`GuestError::BrokenFrame`].
    #[inline]
    pub fn recv(&mut self, queue: u16, into: &mut Vec<u8>) -> Result<Option<ReceivedFrame>, GuestError> {
        let (map, pair) = self.pair(queue)?;
        pair.rx.receive(map, into)
    }

    /// Sleeps until a frame was received on any queue, for at most `timeout`; returns whether there is one.
    ///
    /// # Errors
    /// [`GuestError::HungUp`] if the back end is gone and no frame is left.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, GuestError> {
        let deadline = Deadline::after(timeout);
        self.pairs.iter_mut().try_for_each(|pair| pair.rx.flush().map(drop))?;
        while !self.received()? {
            if deadline.is_over() {
                return Ok(false);
            }
            sleep(&self.front, self.call_fds(), deadline)?;
        }
        self.pairs.iter_mut().for_each(|pair| pair.rx.ring.suppress_calls());
        Ok(true)
    }

    /// Clears signals and enables further ones; returns whether there is a frame.
    fn received(&mut self) -> Result<bool, GuestError> {
        self.pairs.iter_mut().try_fold(false, |ready, pair| {
            pair.rx.eventfds.take_calls()?;
            Ok(pair.rx.ring.arm_calls() || ready)
        })
    }

    /// Sleeps until the back end has used a frame of a queue's transmit ring, for at most `timeout`; returns whether
    /// there is one to reclaim. For tests of back ends: the product's guests poll.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_sent(&mut self, queue: u16, timeout: Option<Duration>) -> Result<bool, GuestError> {
        let deadline = Deadline::after(timeout);
        let pair = self.pairs.get_mut(usize::from(queue)).ok_or(GuestError::NoSuchQueue(queue))?;
        let tx = &mut pair.tx;
        loop {
            tx.eventfds.take_calls()?;
            if tx.ring.arm_calls() {
                tx.ring.suppress_calls();
                return Ok(true);
            }
            if deadline.is_over() {
                return Ok(false);
            }
            sleep(&self.front, std::iter::once(tx.eventfds.call_fd()), deadline)?;
        }
    }

    /// The eventfds by which the back end signals received frames, one for each queue pair.
    pub fn call_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pairs.iter().map(|pair| pair.rx.eventfds.call_fd())
    }

    /// The connection, for requests that the guest has no method for.
    pub fn front(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    /// The file of the guest's memory, which tests truncate.
    #[must_use]
    pub fn memory_file(&self) -> BorrowedFd<'_> {
        self.memory.file.as_fd()
    }

    /// The guest's memory, all of it as region 0 (rings included).
    #[must_use]
    pub fn memory(&self) -> &MemoryMap {
        &self.memory.map
    }

    /// The bare transmit ring of a queue, for tests of back ends.
    ///
    /// # Errors
    /// [`GuestError::NoSuchQueue`].
    pub fn transmit_ring(&mut self, queue: u16) -> Result<&mut DriverRing, GuestError> {
        Ok(&mut self.pair(queue)?.1.tx.ring)
    }

    /// The bare receive ring of a queue, for tests of back ends.
    ///
    /// # Errors
    /// [`GuestError::NoSuchQueue`].
    pub fn receive_ring(&mut self, queue: u16) -> Result<&mut DriverRing, GuestError> {
        Ok(&mut self.pair(queue)?.1.rx.ring)
    }

    /// Kicks both rings of a queue even if kicks are suppressed, for tests of back ends.
    ///
    /// # Errors
    /// [`GuestError::NoSuchQueue`], [`GuestError::System`].
    pub fn kick(&mut self, queue: u16) -> Result<(), GuestError> {
        let pair = self.pair(queue)?.1;
        pair.rx.eventfds.kick()?;
        Ok(pair.tx.eventfds.kick()?)
    }
}

fn front_end(stream: UnixStream) -> std::io::Result<FrontEnd> {
    let mut front = FrontEnd::new(stream)?;
    front.set_reply_timeout(REPLY_TIMEOUT)?;
    Ok(front)
}
