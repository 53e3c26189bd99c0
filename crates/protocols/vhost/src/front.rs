//! The other side of a session: the front end of a VMM, or of a guest in user space.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_foreign::{ForeignFd, Origin};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use thiserror::Error;

use crate::ProtocolError;
use crate::fds::{receive, send};
use crate::features::protocol;
use crate::message::{
    ConfigMessage, FLAG_NEED_REPLY, FLAG_REPLY, HEADER_BYTES, InflightMessage, MemoryRegionMessage,
    MessageHeader, RingAddressMessage, RingStateMessage, TABLE_REGIONS_MAX, VRING_NO_FD, VhostMessage,
    request,
};

/// Default time limit for a reply: a back end is local, but may share a busy core.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call to a back end failed.
#[derive(Debug, Error)]
pub enum FrontError {
    /// The back end closed the connection.
    #[error("the back end closed the connection during {0}")]
    HungUp(String),
    /// The reply did not come in time.
    #[error("the back end did not reply to {0} in time")]
    TimedOut(String),
    /// The back end acknowledged a request with a failure.
    #[error("the back end refused {0}; its log tells why")]
    Refused(String),
    /// A reply to another request.
    #[error("the back end replied to {0} with something else")]
    WrongReply(String),
    /// A reply that is no valid message.
    #[error("the back end broke the vhost-user protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// Arguments that cannot be sent.
    #[error("{0}")]
    Argument(&'static str),
    /// The system failed the connection.
    #[error("the connection to the back end failed: {0}")]
    Io(#[from] io::Error),
}

/// A connection to a back end, blocking: each call sends one request and waits for its reply or acknowledgement, if it
/// has one. Once REPLY_ACK is negotiated, every request without a reply of its own is acknowledged.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    reply_ack: bool,
}

impl FrontEnd {
    /// Makes a front end on a connected socket, which becomes blocking.
    ///
    /// # Errors
    /// If the socket's options cannot be set.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        let mut front = Self { socket, reply_ack: false };
        front.set_reply_timeout(REPLY_TIMEOUT)?;
        Ok(front)
    }

    /// Sets the time limit for replies; not zero.
    ///
    /// # Errors
    /// If the socket's option cannot be set.
    pub fn set_reply_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(timeout))?;
        self.socket.set_write_timeout(Some(timeout))
    }

    /// The socket, for waiting until the back end hangs up.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The virtio features that the back end offers.
    ///
    /// # Errors
    /// See [`FrontError`], as for all calls.
    pub fn get_features(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_FEATURES)
    }

    /// Acknowledges virtio features.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_features(&mut self, features: u64) -> Result<(), FrontError> {
        self.tell_u64(request::SET_FEATURES, features, &[])
    }

    /// The protocol features that the back end offers.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_protocol_features(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_PROTOCOL_FEATURES)
    }

    /// Acknowledges protocol features, see [`protocol`]. With REPLY_ACK among them, this request is acknowledged already.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), FrontError> {
        self.reply_ack = features & protocol::REPLY_ACK != 0;
        self.tell_u64(request::SET_PROTOCOL_FEATURES, features, &[])
    }

    /// Largest number of rings that the back end serves (for some back ends: queue pairs).
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_queue_num(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_QUEUE_NUM)
    }

    /// Takes ownership of the device.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_owner(&mut self) -> Result<(), FrontError> {
        self.tell(request::SET_OWNER, Vec::new(), &[])
    }

    /// Sets the guest memory: one file descriptor for each region, at most 8.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_mem_table(
        &mut self,
        regions: &[MemoryRegionMessage],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontError> {
        if regions.len() > TABLE_REGIONS_MAX {
            return Err(FrontError::Argument("a memory table has at most 8 regions"));
        }
        self.tell(request::SET_MEM_TABLE, encode_memory_table(regions), fds)
    }

    /// Adds a region to guest memory. For tests of back ends: our own guests share one table.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn add_mem_reg(&mut self, region: MemoryRegionMessage, fd: BorrowedFd<'_>) -> Result<(), FrontError> {
        self.tell(request::ADD_MEM_REG, encode_memory_region(region), &[fd])
    }

    /// Removes a region from guest memory. For tests of back ends, as above.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn rem_mem_reg(&mut self, region: MemoryRegionMessage) -> Result<(), FrontError> {
        self.tell(request::REM_MEM_REG, encode_memory_region(region), &[])
    }

    /// Largest number of regions that the back end accepts one by one. For tests of back ends: our own guests share few regions.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_max_mem_slots(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_MAX_MEM_SLOTS)
    }

    /// Sets the number of a ring's entries.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_vring_num(&mut self, index: u16, entries: u16) -> Result<(), FrontError> {
        self.tell_ring(request::SET_VRING_NUM, index, entries)
    }

    /// Sets the position at which a ring starts.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_vring_base(&mut self, index: u16, base: u16) -> Result<(), FrontError> {
        self.tell_ring(request::SET_VRING_BASE, index, base)
    }

    /// Sets a ring's addresses.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_vring_addr(&mut self, address: RingAddressMessage) -> Result<(), FrontError> {
        self.tell(request::SET_VRING_ADDR, address.encode(), &[])
    }

    /// Starts a ring, with the eventfd for kicks; without one the back end must poll.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_vring_kick(&mut self, index: u16, kick: Option<BorrowedFd<'_>>) -> Result<(), FrontError> {
        self.tell_eventfd(request::SET_VRING_KICK, index, kick)
    }

    /// Sets the eventfd for calls; without one the front end polls.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_vring_call(&mut self, index: u16, call: Option<BorrowedFd<'_>>) -> Result<(), FrontError> {
        self.tell_eventfd(request::SET_VRING_CALL, index, call)
    }

    /// Enables or disables a ring.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_vring_enable(&mut self, index: u16, enabled: bool) -> Result<(), FrontError> {
        self.tell_ring(request::SET_VRING_ENABLE, index, u16::from(enabled))
    }

    /// Stops a ring, and returns its position.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_vring_base(&mut self, index: u16) -> Result<u16, FrontError> {
        let asked = RingStateMessage { index: u32::from(index), value: 0 };
        let reply = self.ask(request::GET_VRING_BASE, asked.encode())?.ring_state()?;
        if reply.index != asked.index {
            return Err(FrontError::WrongReply(request::name(request::GET_VRING_BASE)));
        }
        Ok(reply.value as u16) // the position of a split ring is 16 bits wide
    }

    /// The first `len` bytes of the configuration space (virtio 1.2, 5.1.4), at most 256.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_config(&mut self, len: usize) -> Result<Vec<u8>, FrontError> {
        let range = ConfigMessage { offset: 0, size: len as u32, flags: 0 };
        let mut reply = self.ask(request::GET_CONFIG, range.encode(&vec![0; len]))?;
        if reply.body.len() != ConfigMessage::BYTES + len {
            return Err(FrontError::Refused(request::name(request::GET_CONFIG)));
        }
        Ok(reply.body.split_off(ConfigMessage::BYTES))
    }

    /// Sets the link's MTU in bytes.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_mtu(&mut self, mtu: u16) -> Result<(), FrontError> {
        self.tell_u64(request::NET_SET_MTU, u64::from(mtu), &[])
    }

    /// Sets the device status (virtio 1.2, 2.1); 0 resets the device.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_status(&mut self, status: u8) -> Result<(), FrontError> {
        self.tell_u64(request::SET_STATUS, u64::from(status), &[])
    }

    /// The back end's device status. For tests of back ends: our own guests set it and need no answer.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_status(&mut self) -> Result<u8, FrontError> {
        self.ask_u64(request::GET_STATUS).map(|status| status as u8) // virtio's status is 8 bits wide
    }

    /// Requests an in-flight file, for this number of rings with this number of entries.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn get_inflight_fd(
        &mut self,
        rings: u16,
        entries: u16,
    ) -> Result<(InflightMessage, OwnedFd), FrontError> {
        let asked = InflightMessage { rings, entries, ..InflightMessage::default() };
        let (number, mut fds) = (request::GET_INFLIGHT_FD, Vec::new());
        self.send(&VhostMessage::new(number, asked.encode()), &[])?;
        let told = self.reply_with_fds(number, &mut fds)?.inflight()?;
        let fd = fds.pop().ok_or_else(|| FrontError::WrongReply(request::name(number)))?;
        Ok((told, fd.into_trusted()))
    }

    /// Passes that file to the back end, before rings start.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn set_inflight_fd(
        &mut self,
        inflight: InflightMessage,
        fd: BorrowedFd<'_>,
    ) -> Result<(), FrontError> {
        self.tell(request::SET_INFLIGHT_FD, inflight.encode(), &[fd])
    }

    /// Stops all rings and forgets negotiated features; memory is kept.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn reset_device(&mut self) -> Result<(), FrontError> {
        self.tell(request::RESET_DEVICE, Vec::new(), &[])
    }

    fn tell_ring(&mut self, number: u32, index: u16, value: u16) -> Result<(), FrontError> {
        let state = RingStateMessage { index: u32::from(index), value: u32::from(value) };
        self.tell(number, state.encode(), &[])
    }

    fn tell_eventfd(
        &mut self,
        number: u32,
        index: u16,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontError> {
        if index > 0xff {
            return Err(FrontError::Argument("eventfds can be set for rings 0 to 255 only"));
        }
        let flag = if fd.is_some() { 0 } else { VRING_NO_FD };
        self.tell_u64(number, u64::from(index) | flag, fd.as_slice())
    }

    fn tell_u64(&mut self, number: u32, value: u64, fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        self.tell(number, value.to_ne_bytes().to_vec(), fds)
    }

    /// Sends a request that has no reply of its own.
    fn tell(&mut self, number: u32, body: Vec<u8>, fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        let mut message = VhostMessage::new(number, body);
        if !self.reply_ack {
            return self.send(&message, fds);
        }
        message.flags |= FLAG_NEED_REPLY;
        self.send(&message, fds)?;
        match self.reply_to(number)?.u64()? {
            0 => Ok(()),
            _ => Err(FrontError::Refused(request::name(number))),
        }
    }

    fn ask_u64(&mut self, number: u32) -> Result<u64, FrontError> {
        Ok(self.ask(number, Vec::new())?.u64()?)
    }

    /// Sends a request that has a reply of its own.
    fn ask(&mut self, number: u32, body: Vec<u8>) -> Result<VhostMessage, FrontError> {
        self.send(&VhostMessage::new(number, body), &[])?;
        self.reply_to(number)
    }

    fn send(&mut self, message: &VhostMessage, fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        let bytes = message.encode();
        let mut sent = 0;
        while sent < bytes.len() {
            let with = if sent == 0 { fds } else { &[] };
            match send(self.socket.as_fd(), &bytes[sent..], with) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failure(error, message.request)),
            }
        }
        Ok(())
    }

    fn reply_to(&mut self, number: u32) -> Result<VhostMessage, FrontError> {
        self.reply_with_fds(number, &mut Vec::new())
    }

    fn reply_with_fds(&mut self, number: u32, fds: &mut Vec<ForeignFd>) -> Result<VhostMessage, FrontError> {
        let mut bytes = [0; HEADER_BYTES];
        self.fill(&mut bytes, number, fds)?;
        let header = MessageHeader::decode(bytes).check()?;
        let mut body = vec![0; header.size as usize]; // checked to be at most BODY_BYTES_MAX
        self.fill(&mut body, number, fds)?;
        if header.request != number || header.flags & FLAG_REPLY == 0 {
            return Err(FrontError::WrongReply(request::name(number)));
        }
        Ok(VhostMessage { request: number, flags: header.flags, body })
    }

    fn fill(&mut self, into: &mut [u8], number: u32, fds: &mut Vec<ForeignFd>) -> Result<(), FrontError> {
        let mut filled = 0;
        while filled < into.len() {
            match receive(self.socket.as_fd(), &mut into[filled..], Origin::own(), fds) {
                Ok(received) if received.bytes == 0 => return Err(FrontError::HungUp(request::name(number))),
                Ok(received) => filled += received.bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failure(error, number)),
            }
        }
        Ok(())
    }
}

fn failure(error: io::Error, number: u32) -> FrontError {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, WouldBlock};
    match error.kind() {
        BrokenPipe | ConnectionReset => FrontError::HungUp(request::name(number)),
        TimedOut | WouldBlock => FrontError::TimedOut(request::name(number)),
        _ => FrontError::Io(error),
    }
}

/// The body of SET_MEM_TABLE, for exactly these regions.
#[must_use]
pub fn encode_memory_table(regions: &[MemoryRegionMessage]) -> Vec<u8> {
    let mut body = [(regions.len() as u32).to_ne_bytes(), [0; 4]].concat();
    body.extend(regions.iter().flat_map(|region| region.encode()));
    body
}

/// The body of ADD_MEM_REG and REM_MEM_REG.
#[must_use]
pub fn encode_memory_region(region: MemoryRegionMessage) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(region.encode());
    body
}
