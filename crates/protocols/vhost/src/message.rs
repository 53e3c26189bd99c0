//! Messages: a header of three 32-bit words, then a body, all in the host's byte order.

use crate::ProtocolError;

/// Bytes of a header: request, flags, size of the body.
pub const HEADER_BYTES: usize = 12;
/// Bytes of the largest accepted body. The largest defined one, a configuration space, has 268.
pub const BODY_BYTES_MAX: u32 = 4096;
/// Memory regions in one table, and so file descriptors with one message.
pub const TABLE_REGIONS_MAX: usize = 8;
/// Bytes of a table with that number of regions.
pub const TABLE_BYTES_MAX: usize = 8 + 32 * TABLE_REGIONS_MAX;
/// Bytes of the configuration space that a front end may ask for.
pub const CONFIG_BYTES_MAX: u32 = 256;

/// The version in the low two bits of the flags.
pub const VERSION: u32 = 1;
/// Flags: the bits of the version.
pub const VERSION_MASK: u32 = 3;
/// Flag: this is a reply.
pub const FLAG_REPLY: u32 = 4;
/// Flag: the sender wants a reply, even if the request has none.
pub const FLAG_NEED_REPLY: u32 = 8;
/// In the word of SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR: no file descriptor comes with it.
pub const VRING_NO_FD: u64 = 0x100;
/// In the same word: the bits of the ring's index.
pub const VRING_INDEX_MASK: u64 = 0xff;

/// Numbers of the requests of a front end.
pub mod request {
    macro_rules! requests {
        ($($name:ident = $number:literal,)*) => {
            $(#[doc = concat!("Request ", stringify!($number), ".")] pub const $name: u32 = $number;)*
            const NAMES: &[(u32, &str)] = &[$(($name, stringify!($name)),)*];
        };
    }

    requests! {
        GET_FEATURES = 1,
        SET_FEATURES = 2,
        SET_OWNER = 3,
        RESET_OWNER = 4,
        SET_MEM_TABLE = 5,
        SET_LOG_BASE = 6,
        SET_LOG_FD = 7,
        SET_VRING_NUM = 8,
        SET_VRING_ADDR = 9,
        SET_VRING_BASE = 10,
        GET_VRING_BASE = 11,
        SET_VRING_KICK = 12,
        SET_VRING_CALL = 13,
        SET_VRING_ERR = 14,
        GET_PROTOCOL_FEATURES = 15,
        SET_PROTOCOL_FEATURES = 16,
        GET_QUEUE_NUM = 17,
        SET_VRING_ENABLE = 18,
        SEND_RARP = 19,
        NET_SET_MTU = 20,
        SET_BACKEND_REQ_FD = 21,
        IOTLB_MSG = 22,
        SET_VRING_ENDIAN = 23,
        GET_CONFIG = 24,
        SET_CONFIG = 25,
        CREATE_CRYPTO_SESSION = 26,
        CLOSE_CRYPTO_SESSION = 27,
        POSTCOPY_ADVISE = 28,
        POSTCOPY_LISTEN = 29,
        POSTCOPY_END = 30,
        GET_INFLIGHT_FD = 31,
        SET_INFLIGHT_FD = 32,
        GPU_SET_SOCKET = 33,
        RESET_DEVICE = 34,
        VRING_KICK = 35,
        GET_MAX_MEM_SLOTS = 36,
        ADD_MEM_REG = 37,
        REM_MEM_REG = 38,
        SET_STATUS = 39,
        GET_STATUS = 40,
    }

    /// The name of a request in the vhost-user specification.
    #[must_use]
    pub fn name(number: u32) -> String {
        let known = NAMES.iter().find(|(known, _)| *known == number);
        known.map_or_else(|| format!("request {number}"), |(_, name)| (*name).to_owned())
    }
}

/// The start of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// See [`request`].
    pub request: u32,
    /// Version and `FLAG_*`.
    pub flags: u32,
    /// Bytes of the body.
    pub size: u32,
}

impl MessageHeader {
    /// Decodes three words, without checks.
    #[must_use]
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let mut fields = Fields(&bytes);
        let mut word = || fields.u32().unwrap_or_default();
        Self { request: word(), flags: word(), size: word() }
    }

    /// Checks the header before the body is read.
    ///
    /// # Errors
    /// [`ProtocolError::Version`] and [`ProtocolError::BodyTooLarge`].
    pub fn check(self) -> Result<Self, ProtocolError> {
        if self.flags & VERSION_MASK != VERSION {
            return Err(ProtocolError::Version(self.flags & VERSION_MASK));
        }
        if self.size > BODY_BYTES_MAX {
            return Err(ProtocolError::BodyTooLarge(request::name(self.request), self.size));
        }
        Ok(self)
    }
}

/// One message without its file descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostMessage {
    /// See [`request`].
    pub request: u32,
    /// Version and `FLAG_*`.
    pub flags: u32,
    /// The body; at most [`BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
}

impl VhostMessage {
    /// A request with a body and no flags but the version.
    #[must_use]
    pub fn new(request: u32, body: Vec<u8>) -> Self {
        Self { request, flags: VERSION, body }
    }

    /// A reply to a request of this number.
    #[must_use]
    pub fn reply(request: u32, body: Vec<u8>) -> Self {
        Self { request, flags: VERSION | FLAG_REPLY, body }
    }

    /// A reply of one 64-bit word.
    #[must_use]
    pub fn reply_u64(request: u32, value: u64) -> Self {
        Self::reply(request, value.to_ne_bytes().to_vec())
    }

    /// Whether the sender asks for an acknowledgement.
    #[must_use]
    pub fn needs_reply(&self) -> bool {
        self.flags & FLAG_NEED_REPLY != 0
    }

    /// Header and body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.body.len());
        for word in [self.request, self.flags, self.body.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.body);
        bytes
    }

    /// Parses the body with `read`; further bytes are ignored, since structures may grow.
    fn parse<T>(&self, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Result<T, ProtocolError> {
        read(&mut Fields(&self.body)).ok_or_else(|| self.short_body())
    }

    /// The error for a body that ends too early.
    #[must_use]
    pub fn short_body(&self) -> ProtocolError {
        ProtocolError::BodyTooShort(request::name(self.request), self.body.len())
    }

    /// Parses the body as one 64-bit word.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`].
    pub fn u64(&self) -> Result<u64, ProtocolError> {
        self.parse(|fields| fields.u64())
    }

    /// Parses the body as a ring's index and a number.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`].
    pub fn ring_state(&self) -> Result<RingStateMessage, ProtocolError> {
        self.parse(|fields| Some(RingStateMessage { index: fields.u32()?, value: fields.u32()? }))
    }

    /// The body of SET_VRING_ADDR.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`].
    pub fn ring_address(&self) -> Result<RingAddressMessage, ProtocolError> {
        self.parse(RingAddressMessage::decode)
    }

    /// The body of SET_MEM_TABLE: a count, padding, then regions. The body may have room for more than the count says, as
    /// some front ends send a table of fixed size; it may not have less.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`], [`ProtocolError::BodyTooLarge`], [`ProtocolError::TooManyRegions`].
    pub fn memory_table(&self) -> Result<Vec<MemoryRegionMessage>, ProtocolError> {
        if self.body.len() > TABLE_BYTES_MAX {
            return Err(ProtocolError::BodyTooLarge(request::name(self.request), self.body.len() as u32));
        }
        let count = self.parse(|fields| fields.u32())?;
        if count as usize > TABLE_REGIONS_MAX {
            return Err(ProtocolError::TooManyRegions(count));
        }
        self.parse(|fields| {
            fields.u64()?;
            (0..count).map(|_| MemoryRegionMessage::decode(fields)).collect()
        })
    }

    /// The body of ADD_MEM_REG and REM_MEM_REG: padding, then a region.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`].
    pub fn memory_region(&self) -> Result<MemoryRegionMessage, ProtocolError> {
        self.parse(|fields| {
            fields.u64()?;
            MemoryRegionMessage::decode(fields)
        })
    }

    /// The body of GET_INFLIGHT_FD and SET_INFLIGHT_FD.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`].
    pub fn inflight(&self) -> Result<InflightMessage, ProtocolError> {
        self.parse(|fields| {
            Some(InflightMessage {
                size_bytes: fields.u64()?,
                offset_bytes: fields.u64()?,
                rings: fields.u16()?,
                entries: fields.u16()?,
            })
        })
    }

    /// The fixed part of the body of GET_CONFIG and SET_CONFIG.
    ///
    /// # Errors
    /// [`ProtocolError::BodyTooShort`].
    pub fn config(&self) -> Result<ConfigMessage, ProtocolError> {
        self.parse(|fields| {
            Some(ConfigMessage { offset: fields.u32()?, size: fields.u32()?, flags: fields.u32()? })
        })
    }
}

/// A ring's index with a number: SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_ENABLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStateMessage {
    /// Index of the ring.
    pub index: u32,
    /// Entries, position, or an enable flag.
    pub value: u32,
}

impl RingStateMessage {
    /// Two words.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        [self.index.to_ne_bytes(), self.value.to_ne_bytes()].concat()
    }
}

/// A ring's addresses in the front end's own address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddressMessage {
    /// Index of the ring.
    pub index: u32,
    /// Bit 0: writes to the used ring are logged.
    pub flags: u32,
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
    /// Guest address for the log.
    pub log: u64,
}

impl RingAddressMessage {
    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            index: fields.u32()?,
            flags: fields.u32()?,
            descriptors: fields.u64()?,
            used: fields.u64()?,
            available: fields.u64()?,
            log: fields.u64()?,
        })
    }

    /// 40 bytes.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = [self.index.to_ne_bytes(), self.flags.to_ne_bytes()].concat();
        for address in [self.descriptors, self.used, self.available, self.log] {
            bytes.extend(address.to_ne_bytes());
        }
        bytes
    }
}

/// A region of guest memory; its file comes as a file descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRegionMessage {
    /// First guest physical address.
    pub guest_addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// First address in the front end's own address space.
    pub user_addr: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
}

impl MemoryRegionMessage {
    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            guest_addr: fields.u64()?,
            size: fields.u64()?,
            user_addr: fields.u64()?,
            offset: fields.u64()?,
        })
    }

    /// 32 bytes.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let words = [self.guest_addr, self.size, self.user_addr, self.offset];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// The layout of the in-flight file, and its numbers of rings and entries: GET_INFLIGHT_FD, SET_INFLIGHT_FD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InflightMessage {
    /// Bytes to map; 0 in a request.
    pub size_bytes: u64,
    /// Offset in the file, in bytes; 0 in a request.
    pub offset_bytes: u64,
    /// Number of rings.
    pub rings: u16,
    /// Entries of each ring.
    pub entries: u16,
}

impl InflightMessage {
    /// Encodes 24 bytes, including the structure's padding: QEMU accepts no other size.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let words = [self.size_bytes.to_ne_bytes(), self.offset_bytes.to_ne_bytes()];
        let halves = [self.rings.to_ne_bytes(), self.entries.to_ne_bytes()];
        [words.as_flattened(), halves.as_flattened(), &[0; 4]].concat()
    }
}

/// A range of the configuration space; its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigMessage {
    /// Offset of the first byte.
    pub offset: u32,
    /// Number of bytes.
    pub size: u32,
    /// Reason of a write; 0 for a read.
    pub flags: u32,
}

impl ConfigMessage {
    /// Bytes of the fixed fields.
    pub const BYTES: usize = 12;

    /// Three words, then the bytes of the range.
    #[must_use]
    pub fn encode(self, bytes: &[u8]) -> Vec<u8> {
        let words = [self.offset.to_ne_bytes(), self.size.to_ne_bytes(), self.flags.to_ne_bytes()];
        [words.as_flattened(), bytes].concat()
    }
}

/// Reads fields from the front of a body.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}
