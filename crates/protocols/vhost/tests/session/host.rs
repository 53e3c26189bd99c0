//! A session on a socketpair, the front end's end of it, and a device that records its calls.

use std::collections::BTreeMap;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use lasthop_foreign::{ForeignFd, Origin};
use lasthop_guestmem::{MemoryMap, memfd};
use lasthop_vhost::front::{encode_memory_region, encode_memory_table};
use lasthop_vhost::message::{
    FLAG_NEED_REPLY, HEADER_BYTES, MemoryRegionMessage, MessageHeader, RingAddressMessage, RingStateMessage,
    VRING_NO_FD, VhostMessage, request,
};
use lasthop_vhost::{Device, Offer, RingStart, Session, SessionEnd, features};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Guest and user address of the first region, and its size.
pub(crate) const GUEST: u64 = 0x10_0000;
pub(crate) const USER: u64 = 0x7000_0000;
pub(crate) const BYTES: u64 = 0x10_0000;
/// Entries of every ring in these tests.
pub(crate) const ENTRIES: u16 = 256;

pub(crate) const OFFERED: u64 =
    features::CSUM | features::GUEST_CSUM | features::MRG_RXBUF | features::EVENT_IDX | features::VERSION_1;

/// A recorded call of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Features(u64),
    /// Number of regions in the map.
    Memory(usize),
    Start {
        index: u16,
        base: u16,
        kick: bool,
        call: bool,
        enabled: bool,
    },
    Stop(u16),
    Enabled(u16, bool),
    Signal(u16, bool),
    Mtu(u16),
    /// Private ones: the session tells of no others.
    ProtocolFeatures(u64),
}

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) calls: Vec<Call>,
    pub(crate) maps: Vec<Arc<MemoryMap>>,
    pub(crate) running: BTreeMap<u16, RingStart>,
    /// Heads that each ring fetches before it is stopped.
    pub(crate) progress: u16,
    /// The error of `start_ring`.
    pub(crate) failure: Option<String>,
}

/// A device that records its calls.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) offer: Offer,
    notes: Arc<Mutex<Notes>>,
}

impl Recorder {
    pub(crate) fn new(features: u64, queue_pairs: u16) -> Self {
        let mac = Some([0x52, 0x54, 0, 1, 2, 3]);
        Self {
            offer: Offer { features, queue_pairs, mac, mtu: Some(9000), private: 0 },
            notes: Arc::default(),
        }
    }

    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap()
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.notes().calls)
    }
}

impl Device for Recorder {
    fn offer(&self) -> Offer {
        self.offer
    }

    fn set_features(&mut self, features: u64) {
        self.notes().calls.push(Call::Features(features));
    }

    fn set_protocol_features(&mut self, features: u64) {
        self.notes().calls.push(Call::ProtocolFeatures(features));
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        let mut notes = self.notes();
        assert!(notes.running.is_empty(), "memory changes under running rings");
        notes.calls.push(Call::Memory(map.regions().len()));
        notes.maps.push(map);
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        let mut notes = self.notes();
        if let Some(failure) = &notes.failure {
            return Err(failure.clone());
        }
        let (kick, call, enabled) = (start.kick.is_some(), start.call.is_some(), start.enabled);
        notes.calls.push(Call::Start { index, base: start.ring.base(), kick, call, enabled });
        assert!(notes.running.insert(index, start).is_none(), "ring {index} was started twice");
        Ok(())
    }

    fn stop_ring(&mut self, index: u16) -> Option<u16> {
        let mut notes = self.notes();
        notes.calls.push(Call::Stop(index));
        let mut start = notes.running.remove(&index)?;
        start.ring.take(notes.progress);
        Some(start.ring.base())
    }

    fn set_ring_enabled(&mut self, index: u16, enabled: bool) {
        assert!(self.notes().running.contains_key(&index));
        self.notes().calls.push(Call::Enabled(index, enabled));
    }

    fn set_ring_call(&mut self, index: u16, call: Option<lasthop_vhost::ForeignFd>) {
        assert!(self.notes().running.contains_key(&index));
        self.notes().calls.push(Call::Signal(index, call.is_some()));
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.notes().calls.push(Call::Mtu(mtu));
    }
}

/// A front end that sends raw messages, and the session that serves it.
pub(crate) struct Host {
    pub(crate) front: UnixStream,
    pub(crate) session: Option<Session<Recorder>>,
    pub(crate) device: Recorder,
    /// Flags of all messages.
    pub(crate) flags: u32,
}

impl Host {
    pub(crate) fn new(device: Recorder) -> Self {
        let (front, back) = UnixStream::pair().unwrap();
        front.set_nonblocking(true).unwrap();
        // A separate origin: the process's own counts descriptors of other tests' sessions, too.
        let socket = ForeignFd::new(back.into(), &Origin::new("session"));
        let session = Session::new(socket, device.clone()).unwrap();
        Self { front, session: Some(session), device, flags: 1 }
    }

    /// One queue pair and the usual features.
    pub(crate) fn plain() -> Self {
        Self::new(Recorder::new(OFFERED, 1))
    }

    /// Like `plain`, with REPLY_ACK negotiated and set in every message.
    pub(crate) fn acknowledged() -> Self {
        let mut host = Self::plain();
        host.negotiate_acks();
        host
    }

    pub(crate) fn negotiate_acks(&mut self) {
        self.flags = 1 | FLAG_NEED_REPLY;
        assert_eq!(self.tell_u64(request::SET_PROTOCOL_FEATURES, 1 << 3), Some(0));
    }

    pub(crate) fn session(&mut self) -> &mut Session<Recorder> {
        self.session.as_mut().unwrap()
    }

    pub(crate) fn ready(&mut self) -> Result<(), SessionEnd> {
        self.session().ready()
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.front, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()));
    }

    pub(crate) fn send(&self, number: u32, body: Vec<u8>, fds: &[BorrowedFd<'_>]) {
        self.send_bytes(&VhostMessage { request: number, flags: self.flags, body }.encode(), fds);
    }

    /// The next reply, if there is one.
    pub(crate) fn reply(&mut self) -> Option<VhostMessage> {
        let mut bytes = [0; HEADER_BYTES];
        self.front.read_exact(&mut bytes).ok()?;
        let header = MessageHeader::decode(bytes).check().unwrap();
        let mut body = vec![0; header.size as usize];
        self.front.read_exact(&mut body).unwrap();
        assert_eq!(header.flags, 5, "version 1, reply");
        Some(VhostMessage { request: header.request, flags: header.flags, body })
    }

    /// Sends a message, and serves it.
    pub(crate) fn try_tell(
        &mut self,
        number: u32,
        body: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<VhostMessage>, SessionEnd> {
        self.send(number, body, fds);
        self.ready()?;
        let reply = self.reply();
        assert!(reply.as_ref().is_none_or(|reply| reply.request == number));
        assert!(self.reply().is_none(), "one reply at most");
        Ok(reply)
    }

    /// The word of the reply or acknowledgement, if there is one.
    pub(crate) fn tell(&mut self, number: u32, body: Vec<u8>, fds: &[BorrowedFd<'_>]) -> Option<u64> {
        let reply = self.try_tell(number, body, fds).unwrap();
        reply.map(|reply| reply.u64().unwrap())
    }

    pub(crate) fn tell_u64(&mut self, number: u32, value: u64) -> Option<u64> {
        self.tell(number, value.to_ne_bytes().to_vec(), &[])
    }

    pub(crate) fn ask(&mut self, number: u32) -> Option<u64> {
        self.tell(number, Vec::new(), &[])
    }

    pub(crate) fn tell_ring(&mut self, number: u32, index: u32, value: u32) -> Option<u64> {
        self.tell(number, RingStateMessage { index, value }.encode(), &[])
    }

    /// SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR with a new eventfd.
    pub(crate) fn tell_eventfd(&mut self, number: u32, index: u64) -> Option<u64> {
        let fd = event();
        self.tell(number, index.to_ne_bytes().to_vec(), &[fd.as_fd()])
    }

    pub(crate) fn tell_no_fd(&mut self, number: u32, index: u64) -> Option<u64> {
        self.tell_u64(number, index | VRING_NO_FD)
    }

    pub(crate) fn tell_memory(&mut self, regions: &[MemoryRegionMessage], fds: &[&OwnedFd]) -> Option<u64> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.tell(request::SET_MEM_TABLE, encode_memory_table(regions), &fds)
    }

    pub(crate) fn tell_region(
        &mut self,
        number: u32,
        region: MemoryRegionMessage,
        fds: &[&OwnedFd],
    ) -> Option<u64> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.tell(number, encode_memory_region(region), &fds)
    }

    /// Sets everything that a ring needs, except memory and kick.
    pub(crate) fn lay_out(&mut self, index: u32) {
        self.tell_ring(request::SET_VRING_NUM, index, u32::from(ENTRIES));
        self.tell_ring(request::SET_VRING_BASE, index, 0);
        self.tell(request::SET_VRING_ADDR, addresses(index, USER).encode(), &[]);
    }

    /// One region of memory, and both rings of the first pair running.
    pub(crate) fn run_pair(&mut self) -> OwnedFd {
        let file = memory_file();
        self.tell_memory(&[region()], &[&file]);
        for index in 0..2 {
            self.lay_out(index);
            self.tell_eventfd(request::SET_VRING_CALL, u64::from(index));
            self.tell_eventfd(request::SET_VRING_KICK, u64::from(index));
        }
        assert_eq!(self.device.notes().running.len(), 2);
        self.device.calls();
        file
    }

    pub(crate) fn running(&self) -> Vec<u16> {
        self.device.notes().running.keys().copied().collect()
    }

    pub(crate) fn base_of(&mut self, index: u32) -> u32 {
        let body = RingStateMessage { index, value: 0 }.encode();
        let reply = self.try_tell(request::GET_VRING_BASE, body, &[]).unwrap().unwrap();
        let state = reply.ring_state().unwrap();
        assert_eq!(state.index, index);
        state.value
    }

    /// The reason for the last refusal.
    pub(crate) fn last_refusal(&mut self) -> String {
        self.session().refusals().last.as_ref().unwrap().to_string()
    }
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

pub(crate) fn memory_file() -> OwnedFd {
    memfd("guest", BYTES).unwrap()
}

pub(crate) fn region() -> MemoryRegionMessage {
    MemoryRegionMessage { guest_addr: GUEST, size: BYTES, user_addr: USER, offset: 0 }
}

/// The addresses of ring `index`, in the memory at user address `start`.
pub(crate) fn addresses(index: u32, start: u64) -> RingAddressMessage {
    let start = start + u64::from(index) * 0x4000;
    RingAddressMessage {
        index,
        descriptors: start,
        available: start + 0x1000,
        used: start + 0x2000,
        ..RingAddressMessage::default()
    }
}

pub(crate) fn started(index: u16, base: u16, enabled: bool) -> Call {
    Call::Start { index, base, kick: true, call: true, enabled }
}
