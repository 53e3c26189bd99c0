//! A vhost-user front end that a guest has compromised: it sends any message that a test wants.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment, memfd};
use lasthop_ring::{DriverRing, RingAddresses, RingMemory};
use lasthop_vhost::features::{self, protocol};
use lasthop_vhost::front::{FrontEnd, FrontError};
use lasthop_vhost::message::{
    HEADER_BYTES, MemoryRegionMessage, MessageHeader, RingAddressMessage, VhostMessage,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Switch, eventually};

/// The guest address of the memory with rings and buffers.
pub const GUEST_ADDR: u64 = 0x1_0000_0000;
pub const USER_ADDR: u64 = 0x7000_0000_0000;
pub const RING_ENTRIES: u16 = 256;
/// The most descriptors of one sendmsg(2) (SCM_MAX_FD).
pub const SENT_FDS_MAX: usize = 253;
/// Protocol features that a session needs for several queues and single regions. No reply is requested.
const PROTOCOL_FEATURES: u64 = protocol::MQ
    | protocol::CONFIG
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::INFLIGHT_SHMFD
    | protocol::BACKEND_REQ;
pub const FEATURES: u64 = features::VERSION_1 | features::MRG_RXBUF | features::PROTOCOL_FEATURES;
/// The distance of two rings in bytes, and the positions of a ring's three areas.
const RING_BYTES: u64 = 0x3000;
/// The distance of two buffers in bytes.
const BUFFER_BYTES: u32 = 2048;
const NET_HEADER_BYTES: usize = 12;

/// The socket of a vnic, and a front end on it for valid requests.
pub struct Rogue {
    pub stream: UnixStream,
    pub front: FrontEnd,
}

impl Rogue {
    pub fn connect(switch: &Switch, vnic: &str) -> Self {
        Self::at(&switch.dir(), vnic)
    }

    /// For a rogue in its own thread, which knows the switch's directory.
    pub fn at(dir: &Path, vnic: &str) -> Self {
        let path = dir.join(format!("{vnic}.sock"));
        let stream = eventually("the vnic's socket", || UnixStream::connect(&path).ok());
        Self::over(stream)
    }

    pub fn over(stream: UnixStream) -> Self {
        let front = FrontEnd::new(stream.try_clone().expect("a descriptor")).expect("a socket");
        let mut rogue = Self { stream, front };
        rogue.set_patience(Duration::from_secs(120));
        rogue
    }

    /// The time limit of a write, and of reading a reply.
    pub fn set_patience(&mut self, patience: Duration) {
        self.front.set_reply_timeout(patience).expect("a socket");
    }

    /// Sends any bytes with any descriptors; returns the number of bytes sent.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        send_with_fds(self.stream.as_fd(), bytes, fds)
    }

    /// Sends a message of any number with any body and any descriptors.
    pub fn send(&self, number: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = VhostMessage::new(number, body.to_vec()).encode();
        let sent = self.send_bytes(&bytes, fds)?;
        io::Write::write_all(&mut &self.stream, &bytes[sent..])
    }

    /// The same in pieces of `piece` bytes; the descriptors come with the first one.
    pub fn send_in_pieces(
        &self,
        message: &VhostMessage,
        piece: usize,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = message.encode();
        for (number, part) in bytes.chunks(piece).enumerate() {
            self.send_bytes(part, if number == 0 { fds } else { &[] })?;
        }
        Ok(())
    }

    /// The next reply; an error if the switch hung up, or none comes in time.
    pub fn answer(&self) -> io::Result<VhostMessage> {
        let mut header = [0; HEADER_BYTES];
        (&self.stream).read_exact(&mut header)?;
        let header = MessageHeader::decode(header);
        let mut body = vec![0; header.size as usize];
        (&self.stream).read_exact(&mut body)?;
        Ok(VhostMessage { request: header.request, flags: header.flags, body })
    }

    /// Waits until the switch has read everything that was sent.
    pub fn await_turn(&mut self) {
        self.front.get_features().expect("an answer");
    }

    /// Whether the switch hung up.
    pub fn is_ended(&self) -> bool {
        let mut bytes = [0; 4096];
        self.stream.set_nonblocking(true).expect("a socket");
        let end = loop {
            match (&self.stream).read(&mut bytes) {
                Ok(1..) => {}
                Ok(0) => break true,
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        self.stream.set_nonblocking(false).expect("a socket");
        end
    }

    pub fn await_end(&self) {
        eventually("the end of the session", || self.is_ended().then_some(()));
    }

    /// Negotiates the features that a session needs.
    pub fn negotiate(&mut self) {
        self.try_to_negotiate(FEATURES).expect("answers");
    }

    /// The same, with chosen features, with a switch that may have ended the session.
    pub fn try_to_negotiate(&mut self, agreed: u64) -> Result<(), FrontError> {
        self.front.set_owner()?;
        self.front.get_features()?;
        let offered = self.front.get_protocol_features()?;
        self.front.set_protocol_features(offered & PROTOCOL_FEATURES)?;
        self.front.set_features(agreed)
    }

    /// Sends regions of memory: first the desk, then others.
    pub fn share(&mut self, desk: &Desk, more: &[(MemoryRegionMessage, BorrowedFd<'_>)]) {
        self.try_to_share(desk, more).expect("sent");
    }

    pub fn try_to_share(
        &mut self,
        desk: &Desk,
        more: &[(MemoryRegionMessage, BorrowedFd<'_>)],
    ) -> Result<(), FrontError> {
        let (mut regions, mut fds) = (vec![desk.region()], vec![desk.file.as_fd()]);
        for (region, fd) in more {
            regions.push(*region);
            fds.push(*fd);
        }
        self.front.set_mem_table(&regions, &fds)
    }

    /// Starts a ring of the desk with any descriptors, or none, and enables it.
    pub fn start_ring(
        &mut self,
        index: u16,
        kick: Option<BorrowedFd<'_>>,
        call: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.start_ring_at(index, index, (kick, call))
    }

    /// The same with a ring at the addresses of another one of the desk.
    pub fn start_ring_at(
        &mut self,
        index: u16,
        place: u16,
        (kick, call): (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>),
    ) -> io::Result<()> {
        let address = Self::address(index, place);
        let front = &mut self.front;
        let told = (|| {
            front.set_vring_num(index, RING_ENTRIES)?;
            front.set_vring_base(index, 0)?;
            front.set_vring_addr(address)?;
            front.set_vring_call(index, call)?;
            front.set_vring_kick(index, kick)?;
            front.set_vring_enable(index, true)
        })();
        told.map_err(io::Error::other)
    }

    /// A ring at the addresses of this ring of the desk or of another one.
    pub fn address(index: u16, place: u16) -> RingAddressMessage {
        let RingAddresses { descriptors, available, used } = ring_addresses(place);
        let index = index.into();
        RingAddressMessage { index, descriptors, available, used, ..RingAddressMessage::default() }
    }

    /// A complete normal session with `pairs` running pairs of rings, with eventfds.
    pub fn attach(switch: &Switch, vnic: &str, pairs: u16) -> (Self, Desk) {
        let session = Self::start(&switch.dir(), vnic, pairs);
        eventually("the rogue's rings", || (switch.port(vnic)["state"] == "running").then_some(()));
        session
    }

    /// The same, without a check that they run.
    pub fn start(dir: &Path, vnic: &str, pairs: u16) -> (Self, Desk) {
        let (mut rogue, desk) = (Self::at(dir, vnic), Desk::new(pairs));
        rogue.negotiate();
        rogue.share(&desk, &[]);
        for index in 0..2 * pairs {
            rogue.start_ring(index, Some(desk.kick.as_fd()), Some(desk.call.as_fd())).expect("sent");
        }
        rogue.await_turn();
        (rogue, desk)
    }

    /// Stops and starts all rings repeatedly, by setting features; reads no reply.
    pub fn toggle_features(&mut self, times: usize) -> io::Result<()> {
        for time in 0..times {
            let agreed = if time % 2 == 0 { FEATURES & !features::MRG_RXBUF } else { FEATURES };
            self.front.set_features(agreed).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Sends bytes with descriptors over a UNIX socket.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)), "too many descriptors");
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

pub fn event_fd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

pub fn kick(eventfd: BorrowedFd<'_>) {
    // A full one has a pending kick.
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// A region of memory for a message, at the beginning of its file.
pub fn region(guest_addr: u64, size: u64) -> MemoryRegionMessage {
    MemoryRegionMessage { guest_addr, size, user_addr: USER_ADDR + guest_addr, offset: 0 }
}

/// A memfd of `size` bytes, none of which is allocated yet.
pub fn sparse_memory(size: u64) -> OwnedFd {
    memfd("rogue", size).expect("a memfd")
}

fn ring_addresses(index: u16) -> RingAddresses {
    let at = USER_ADDR + u64::from(index) * RING_BYTES;
    RingAddresses { descriptors: at, available: at + 0x1000, used: at + 0x2000 }
}

/// The memory in which a rogue acts as the guest: rings, and a buffer for each entry of each transmit ring.
pub struct Desk {
    pub file: OwnedFd,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    len_bytes: u64,
    map: MemoryMap,
    /// Transmit rings, one of each pair.
    rings: Vec<DriverRing>,
}

impl Desk {
    pub fn new(pairs: u16) -> Self {
        let buffers_bytes = u64::from(pairs) * u64::from(RING_ENTRIES) * u64::from(BUFFER_BYTES);
        let len_bytes = 2 * u64::from(pairs) * RING_BYTES + buffers_bytes;
        let file = sparse_memory(len_bytes);
        let mapping = Arc::new(Mapping::of_file(file.as_fd(), 0, len_bytes).expect("memory"));
        let region = Region { guest_addr: GUEST_ADDR, user_addr: USER_ADDR, mapping };
        let map = MemoryMap::new(vec![region]).expect("one region");
        let ring = |pair| {
            let memory = RingMemory::new(&map, RING_ENTRIES.into(), ring_addresses(2 * pair + 1));
            DriverRing::new(memory.expect("a ring"), false)
        };
        let rings = (0..pairs).map(ring).collect();
        Self { file, kick: event_fd(), call: event_fd(), len_bytes, map, rings }
    }

    pub fn region(&self) -> MemoryRegionMessage {
        MemoryRegionMessage { guest_addr: GUEST_ADDR, size: self.len_bytes, user_addr: USER_ADDR, offset: 0 }
    }

    /// Bytes of its memory.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Writes to its memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let segment = Segment { offset: at, len: bytes.len() as u32, region: 0 };
        self.map.write(segment, 0, bytes).expect("within the desk");
    }

    /// Pairs of rings.
    pub fn pairs(&self) -> u16 {
        self.rings.len() as u16
    }

    /// Puts a frame into a transmit ring and kicks; returns whether there was room.
    pub fn send(&mut self, pair: u16, frame: &[u8]) -> bool {
        let buffer = self.free_buffer(pair);
        let Some(offset) = buffer else { return false };
        let bytes = [&[0; NET_HEADER_BYTES], frame].concat();
        let segment = Segment { offset, len: BUFFER_BYTES, region: 0 };
        self.map.write(segment, 0, &bytes).expect("within the desk");
        self.publish(pair, &[(GUEST_ADDR + offset, bytes.len() as u32)])
    }

    /// Puts a chain of buffers anywhere in the guest's memory into a transmit ring and kicks; returns whether there was
    /// room.
    pub fn publish(&mut self, pair: u16, buffers: &[(u64, u32)]) -> bool {
        self.reclaim(pair);
        let ring = &mut self.rings[usize::from(pair)];
        let is_in = ring.add(buffers, &[], 0).is_some();
        ring.publish();
        kick(self.kick.as_fd());
        is_in
    }

    /// Takes back used buffers; returns the number of frames.
    pub fn reclaim(&mut self, pair: u16) -> usize {
        let ring = &mut self.rings[usize::from(pair)];
        std::iter::from_fn(|| ring.take_used().expect("a sound ring")).count()
    }

    /// A transmit ring, for invalid entries.
    pub fn ring(&mut self, pair: u16) -> &mut DriverRing {
        &mut self.rings[usize::from(pair)]
    }

    fn free_buffer(&mut self, pair: u16) -> Option<u64> {
        self.reclaim(pair);
        let head = self.rings[usize::from(pair)].next_head()?;
        let rings_bytes = 2 * self.rings.len() as u64 * RING_BYTES;
        let number = u64::from(pair) * u64::from(RING_ENTRIES) + u64::from(head);
        Some(rings_bytes + number * u64::from(BUFFER_BYTES))
    }
}

/// The bytes of a message with any header.
pub fn message_of_size(number: u32, size: u32, body: &[u8]) -> Vec<u8> {
    let header = [number, 1, size].map(u32::to_ne_bytes).concat();
    [header, body.to_vec()].concat()
}
