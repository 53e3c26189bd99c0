//! The protocol as a state machine: takes a message, calls the device, and returns a reply or nothing.

mod succession;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_foreign::{ForeignFd, is_eventfd, is_unix_socket};
use lasthop_guestmem::MemoryMap;
use lasthop_ring::RingAddresses;

use crate::channel::BackendChannel;
use crate::fds::set_nonblocking;
use crate::features::{self, PROTOCOL_FEATURES, protocol};
use crate::inflight::{self, Inflight};
use crate::message::{
    CONFIG_BYTES_MAX, ConfigMessage, FLAG_REPLY, RingStateMessage, VRING_INDEX_MASK, VRING_NO_FD,
    VhostMessage, request,
};
use crate::rings::{Kick, Numbered, RingView, Rings, Shared};
use crate::saved::{FdNumbers, SavedRegion};
use crate::{
    Device, MEMORY_SLOTS_MAX, MTU_BYTES_MIN, Offer, ProtocolError, RequestError, SavedSession, SessionEnd,
    SessionMemory, memory,
};

/// Requests that a session refused, for diagnosis.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Requests refused by an acknowledgement.
    pub refused: u64,
    /// Requests ignored, since they are unknown or belong to a feature that was not offered.
    pub ignored: u64,
    /// Why the last one was refused, or why a ring waits.
    pub last: Option<RequestError>,
}

/// A front end's progress, for diagnosis.
#[derive(Clone, Debug, Default)]
pub struct SessionView {
    /// Messages that it sent.
    pub messages: u64,
    /// Virtio features offered to it.
    pub offered: u64,
    /// Virtio features that it last acknowledged; 0 before its driver has.
    pub features: u64,
    /// Protocol features that it acknowledged.
    pub protocol_features: u64,
    /// The device status (virtio 1.2, 2.1), if the front end reports it.
    pub status: u8,
    /// The guest's memory, once it is set.
    pub memory: Option<Arc<MemoryMap>>,
    /// All rings of the device, the control ring last if there is one.
    pub rings: Vec<RingView>,
    /// Number of refused requests.
    pub refused: u64,
    /// Number of ignored requests.
    pub ignored: u64,
}

/// The state of one front end, without its socket. Dropping it stops all rings in order.
#[derive(Debug)]
pub struct Protocol<D: Device> {
    device: D,
    offer: Offer,
    shared: Shared,
    rings: Rings,
    protocol_features: u64,
    status: u8,
    link_up: bool,
    backend_channel: BackendChannel,
    refusals: Refusals,
    messages: u64,
    mtu: Option<u16>,
    /// The descriptor that goes with the next reply.
    reply_fd: Option<OwnedFd>,
    /// The regions of the memory map, with their files' numbers.
    regions: Vec<SavedRegion>,
    fd_numbers: FdNumbers,
    /// The last update.
    told: SavedSession,
}

/// The result of a request.
enum Served {
    /// Served; acknowledged on request.
    Done,
    /// Served, with a reply of its own.
    Reply(Vec<u8>),
    /// Ignored.
    Ignored,
}

impl Served {
    fn word(value: u64) -> Self {
        Self::Reply(value.to_ne_bytes().to_vec())
    }
}

impl<D: Device> Protocol<D> {
    /// The state of a newly connected front end.
    #[must_use]
    pub fn new(device: D) -> Self {
        let (offer, link_up) = (device.offer(), device.is_link_up());
        Self {
            device,
            offer,
            shared: Shared::default(),
            rings: Rings::new(offer.rings()),
            protocol_features: 0,
            status: 0,
            link_up,
            backend_channel: BackendChannel::default(),
            refusals: Refusals::default(),
            messages: 0,
            mtu: None,
            reply_fd: None,
            regions: Vec::new(),
            fd_numbers: FdNumbers::default(),
            told: SavedSession::default(),
        }
    }

    /// Like `new`, with memory from which a successor may continue.
    #[must_use]
    pub fn with_memory(device: D, kept: SessionMemory) -> Self {
        let mut protocol = Self::new(device);
        protocol.shared.kept = Some(kept);
        protocol.fd_numbers = FdNumbers::new(0);
        protocol
    }

    /// Takes the descriptor that goes with the last reply, if it has one.
    pub fn take_reply_fd(&mut self) -> Option<OwnedFd> {
        self.reply_fd.take()
    }

    /// A snapshot, for diagnosis.
    #[must_use]
    pub fn view(&self) -> SessionView {
        SessionView {
            messages: self.messages,
            offered: self.offer.features,
            features: self.shared.features & !PROTOCOL_FEATURES,
            protocol_features: self.protocol_features,
            status: self.status,
            memory: self.shared.map.clone(),
            rings: self.rings.views(&self.shared),
            refused: self.refusals.refused,
            ignored: self.refusals.ignored,
        }
    }

    /// The device of the session.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Sets the link up or down. Returns true if the guest learns of it: its front end reads the configuration space
    /// (CONFIG) and could be told to read it again, and its driver uses the link status (STATUS).
    pub fn set_link(&mut self, up: bool) -> bool {
        self.link_up = up;
        self.reads_config() && self.backend_channel.tell_config_changed() && self.minds_status()
    }

    /// Whether [`set_link`](Self::set_link) reaches the guest, if its front end reads its messages.
    #[must_use]
    pub fn hears_of_link(&self) -> bool {
        self.reads_config() && self.backend_channel.kept().is_some() && self.minds_status()
    }

    fn reads_config(&self) -> bool {
        self.protocol_features & protocol::CONFIG != 0
    }

    fn minds_status(&self) -> bool {
        self.shared.features & features::STATUS != 0
    }

    /// Refused requests.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Serves one message that came with `fds`, and returns the reply. Closes file descriptors that the request does
    /// not need.
    ///
    /// # Errors
    /// A [`ProtocolError`], or a [`RequestError`] without a requested acknowledgement, ends the session.
    pub fn handle(
        &mut self,
        message: &VhostMessage,
        fds: Vec<ForeignFd>,
    ) -> Result<Option<VhostMessage>, SessionEnd> {
        self.messages += 1;
        if message.flags & FLAG_REPLY != 0 {
            return Err(ProtocolError::UnexpectedReply(request::name(message.request)).into());
        }
        // Whether to acknowledge is decided afterwards: SET_PROTOCOL_FEATURES itself may enable it.
        match self.serve(message, fds) {
            Ok(Served::Done) => Ok(self.acknowledgement(message, true)),
            Ok(Served::Reply(body)) => Ok(Some(VhostMessage::reply(message.request, body))),
            Ok(Served::Ignored) => {
                self.refusals.ignored += 1;
                Ok(self.acknowledgement(message, false))
            }
            Err(SessionEnd::Refused(refusal)) => self.refuse(message, refusal).map(Some),
            Err(end) => Err(end),
        }
    }

    /// The acknowledgement, if the front end requested one: 0 for success (REPLY_ACK).
    fn acknowledgement(&self, message: &VhostMessage, success: bool) -> Option<VhostMessage> {
        let wanted = message.needs_reply() && self.protocol_features & protocol::REPLY_ACK != 0;
        wanted.then(|| VhostMessage::reply_u64(message.request, u64::from(!success)))
    }

    fn refuse(&mut self, message: &VhostMessage, refusal: RequestError) -> Result<VhostMessage, SessionEnd> {
        let Some(reply) = self.acknowledgement(message, false) else { return Err(refusal.into()) };
        self.refusals.refused += 1;
        self.refusals.last = Some(refusal);
        Ok(reply)
    }

    fn serve(&mut self, message: &VhostMessage, fds: Vec<ForeignFd>) -> Result<Served, SessionEnd> {
        match message.request {
            request::GET_FEATURES => return Ok(Served::word(self.offered_features())),
            request::GET_PROTOCOL_FEATURES => return Ok(Served::word(self.offered_protocol_features())),
            request::GET_QUEUE_NUM => return Ok(Served::word(u64::from(self.offer.queue_pairs) * 2)),
            request::GET_MAX_MEM_SLOTS => return Ok(Served::word(MEMORY_SLOTS_MAX as u64)),
            request::GET_STATUS => return Ok(Served::word(u64::from(self.status))),
            request::GET_CONFIG => return Ok(Served::Reply(self.config(message.config()?))),
            request::GET_VRING_BASE => return self.take_base(message),
            request::GET_INFLIGHT_FD => return self.make_inflight(message),
            request::SET_INFLIGHT_FD => self.set_inflight(message, &fds)?,
            request::SET_OWNER => {}
            request::SET_FEATURES => self.set_features(message.u64()?)?,
            request::SET_PROTOCOL_FEATURES => self.set_protocol_features(message.u64()?)?,
            request::NET_SET_MTU => self.set_mtu(message.u64()?)?,
            request::SET_STATUS => self.set_status(message.u64()? as u8), // virtio's status is 8 bits wide
            request::RESET_OWNER | request::RESET_DEVICE => self.reset(true),
            request::SET_MEM_TABLE | request::ADD_MEM_REG | request::REM_MEM_REG => {
                self.change_memory(message, &fds)?;
            }
            request::SET_VRING_NUM | request::SET_VRING_BASE | request::SET_VRING_ENABLE => {
                self.set_ring_state(message)?;
            }
            request::SET_VRING_ADDR => self.set_ring_addresses(message)?,
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                self.set_ring_eventfd(message, fds)?;
            }
            request::SET_BACKEND_REQ_FD => self.backend_channel.open(fds, &mut self.fd_numbers)?,
            // If these were ignored, a migration would continue and lose the guest's memory.
            request::SET_LOG_BASE | request::SET_LOG_FD => {
                return Err(RequestError::NotServed(request::name(message.request)).into());
            }
            _ => return Ok(Served::Ignored),
        }
        Ok(Served::Done)
    }

    fn offered_features(&self) -> u64 {
        self.offer.features | PROTOCOL_FEATURES
    }

    fn offered_protocol_features(&self) -> u64 {
        protocol::OFFERED | self.offer.private
    }

    fn set_features(&mut self, acked: u64) -> Result<(), RequestError> {
        let surplus = acked & !self.offered_features();
        if surplus != 0 {
            return Err(RequestError::NotOffered(features::names(surplus)));
        }
        self.use_features(acked);
        self.rings.start_all(&mut self.device, &self.shared)
    }

    /// Stops the rings if features change, since they were started with the old ones.
    fn use_features(&mut self, acked: u64) {
        if acked != self.shared.features {
            self.rings.stop_all(&mut self.device, &self.shared);
        }
        self.shared.features = acked;
        self.device.set_features(acked & !PROTOCOL_FEATURES);
    }

    fn set_protocol_features(&mut self, acked: u64) -> Result<(), RequestError> {
        let surplus = acked & !self.offered_protocol_features();
        if surplus != 0 {
            return Err(RequestError::NotOffered(protocol::names(surplus)));
        }
        if (acked ^ self.protocol_features) & self.offer.private == 0 {
            self.protocol_features = acked;
            return Ok(());
        }
        // Private features change the packets' format: rings were started without them.
        self.rings.stop_all(&mut self.device, &self.shared);
        self.protocol_features = acked;
        self.device.set_protocol_features(acked);
        self.rings.start_all(&mut self.device, &self.shared)
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), RequestError> {
        let usable = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MTU_BYTES_MIN);
        let usable = usable.ok_or(RequestError::Mtu(mtu))?;
        self.mtu = Some(usable);
        self.device.set_mtu(usable);
        Ok(())
    }

    fn set_status(&mut self, status: u8) {
        /// The driver is ready (virtio 1.2, 2.1).
        const DRIVER_OK: u8 = 4;
        self.status = status;
        if status == 0 {
            self.reset(false);
        }
        let has_memory = self.shared.map.as_ref().is_some_and(|map| !map.regions().is_empty());
        if status & DRIVER_OK != 0 && !has_memory {
            // A VMM without shared memory sends no region, and its guest waits for ever: report it to the operator.
            self.refusals.last = Some(RequestError::NotShared);
        }
    }

    /// Resets everything except memory, ring positions and protocol features.
    fn reset(&mut self, disable: bool) {
        self.status = 0;
        self.rings.reset(&mut self.device, &self.shared, disable);
        self.use_features(0);
    }

    /// The reply to GET_CONFIG: the requested range, or nothing if it is out of bounds.
    fn config(&self, asked: ConfigMessage) -> Vec<u8> {
        let end = asked.offset.checked_add(asked.size).filter(|end| *end <= CONFIG_BYTES_MAX);
        let Some(end) = end else { return Vec::new() };
        let mut config = self.offer.config(self.link_up).to_vec();
        config.resize(CONFIG_BYTES_MAX as usize, 0);
        asked.encode(&config[asked.offset as usize..end as usize])
    }

    /// Makes an in-flight file. The front end returns it before it starts rings, on this connection or another one.
    fn make_inflight(&mut self, message: &VhostMessage) -> Result<Served, SessionEnd> {
        let (file, reply) = inflight::create(message.inflight()?, self.rings.count())?;
        self.reply_fd = Some(file);
        Ok(Served::Reply(reply.encode()))
    }

    /// Sets the in-flight file: rings log there, and continue from the logs in it.
    fn set_inflight(&mut self, message: &VhostMessage, fds: &[ForeignFd]) -> Result<(), SessionEnd> {
        let [fd] = fds else {
            let (request, got) = (request::name(message.request), fds.len());
            return Err(RequestError::FdCount { request, got, needed: 1 }.into());
        };
        let asked = message.inflight()?;
        let number = self.fd_numbers.keep(fd);
        let inflight = Inflight::map(asked, fd, number, self.rings.count())?;
        self.rings.stop_all(&mut self.device, &self.shared);
        self.shared.inflight = Some(inflight);
        Ok(self.rings.start_all(&mut self.device, &self.shared)?)
    }

    fn change_memory(&mut self, message: &VhostMessage, fds: &[ForeignFd]) -> Result<(), SessionEnd> {
        let nothing = MemoryMap::default();
        let old = self.shared.map.as_deref().unwrap_or(&nothing);
        let bytes_max = self.device.memory_bytes_max();
        let (map, is_whole) = match message.request {
            request::SET_MEM_TABLE => {
                (Some(memory::replaced(old, &message.memory_table()?, fds, bytes_max)?), true)
            }
            request::ADD_MEM_REG => (memory::added(old, message.memory_region()?, fds, bytes_max)?, false),
            _ => (memory::removed(old, message.memory_region()?)?, false),
        };
        let Some(map) = map else { return Ok(()) };
        self.note_regions(message, fds)?;
        let started = self.use_memory(Arc::new(map));
        // To move a region, front ends remove and add it: meanwhile its rings wait.
        match started {
            Err(refusal @ RequestError::Ring(..)) if !is_whole => self.refusals.last = Some(refusal),
            other => other?,
        }
        Ok(())
    }

    /// Updates the regions after a memory message.
    fn note_regions(&mut self, message: &VhostMessage, fds: &[ForeignFd]) -> Result<(), ProtocolError> {
        let (regions, fd_numbers) = (&mut self.regions, &mut self.fd_numbers);
        match message.request {
            request::SET_MEM_TABLE => {
                let table = message.memory_table()?;
                *regions = table
                    .into_iter()
                    .zip(fds)
                    .map(|(r, fd)| SavedRegion::new(r, fd_numbers.keep(fd)))
                    .collect();
            }
            request::ADD_MEM_REG => {
                let added = message.memory_region()?;
                regions.extend(fds.first().map(|fd| SavedRegion::new(added, fd_numbers.keep(fd))));
            }
            _ => {
                let removed = message.memory_region()?;
                let at = regions.iter().position(|region| region.is_named_by(&removed));
                at.map(|at| regions.remove(at));
            }
        }
        Ok(())
    }

    fn use_memory(&mut self, map: Arc<MemoryMap>) -> Result<(), RequestError> {
        self.rings.stop_all(&mut self.device, &self.shared);
        self.shared.map = Some(Arc::clone(&map));
        self.device.set_memory(map);
        self.rings.start_all(&mut self.device, &self.shared)
    }

    fn ring_index(&self, message: &VhostMessage, index: u64) -> Result<u16, ProtocolError> {
        let rings = self.rings.count();
        if index < u64::from(rings) {
            return Ok(index as u16); // below a u16
        }
        Err(ProtocolError::NoSuchRing { request: request::name(message.request), index, rings })
    }

    fn ring_state(&self, message: &VhostMessage) -> Result<(u16, u32), ProtocolError> {
        let RingStateMessage { index, value } = message.ring_state()?;
        Ok((self.ring_index(message, u64::from(index))?, value))
    }

    fn take_base(&mut self, message: &VhostMessage) -> Result<Served, SessionEnd> {
        let (index, _) = self.ring_state(message)?;
        // A refusal would be taken for a position: its reply has the same length.
        let base = self
            .rings
            .take_base(index, &mut self.device, &self.shared)
            .ok_or(SessionEnd::LostPosition(index))?;
        let state = RingStateMessage { index: u32::from(index), value: base };
        Ok(Served::Reply(state.encode()))
    }

    fn set_ring_state(&mut self, message: &VhostMessage) -> Result<(), SessionEnd> {
        let (index, value) = self.ring_state(message)?;
        let (device, shared) = (&mut self.device, &self.shared);
        match message.request {
            request::SET_VRING_NUM => self.rings.set_entries(index, value, device, shared)?,
            request::SET_VRING_BASE => self.rings.set_base(index, value, device, shared)?,
            _ if value > 1 => return Err(RequestError::Enable(index, value).into()),
            _ => self.rings.set_enabled(index, value == 1, device, shared),
        }
        Ok(())
    }

    fn set_ring_addresses(&mut self, message: &VhostMessage) -> Result<(), SessionEnd> {
        let address = message.ring_address()?;
        let index = self.ring_index(message, u64::from(address.index))?;
        let addresses = RingAddresses {
            descriptors: address.descriptors,
            available: address.available,
            used: address.used,
        };
        Ok(self.rings.set_addresses(index, addresses, &mut self.device, &self.shared)?)
    }

    fn set_ring_eventfd(&mut self, message: &VhostMessage, fds: Vec<ForeignFd>) -> Result<(), SessionEnd> {
        let word = message.u64()?;
        let index = self.ring_index(message, word & VRING_INDEX_MASK)?;
        let fd = if word & VRING_NO_FD == 0 { Some(eventfd(message, fds)?) } else { None };
        let fd = fd.map(|fd| Numbered { number: self.fd_numbers.keep(&fd), fd });
        let (device, shared) = (&mut self.device, &self.shared);
        match message.request {
            request::SET_VRING_KICK => {
                self.rings.set_kick(index, fd.map_or(Kick::Polled, Kick::Fd), device, shared)?;
            }
            request::SET_VRING_CALL => self.rings.set_call(index, fd, device)?,
            // An error stops a ring and is shown in the port's state; no known front end listens to this descriptor.
            _ => drop(fd),
        }
        Ok(())
    }
}

impl<D: Device> Drop for Protocol<D> {
    fn drop(&mut self) {
        self.rings.stop_all(&mut self.device, &self.shared);
    }
}

/// Takes the one eventfd of a message, and makes it non-blocking, since no front end may block the switch. For calls a
/// UNIX socket is accepted, too, since User Mode Linux passes one end of a pair. Nothing else is accepted, since writes
/// must return: a process may read from a pipe or a network socket into memory whose pages are withheld. It holds a
/// lock meanwhile, and no signal ends a writer's wait for that lock.
fn eventfd(message: &VhostMessage, mut fds: Vec<ForeignFd>) -> Result<ForeignFd, RequestError> {
    let name = || request::name(message.request);
    let got = fds.len();
    let (Some(fd), 1) = (fds.pop(), got) else {
        return Err(RequestError::FdCount { request: name(), got, needed: 1 });
    };
    let is_kick = message.request == request::SET_VRING_KICK;
    if !is_eventfd(fd.as_fd()) && (is_kick || !is_unix_socket(fd.as_fd())) {
        return Err(RequestError::NoEventFd(name()));
    }
    set_nonblocking(fd.as_fd()).map_err(|error| RequestError::System(name(), error))?;
    Ok(fd)
}
