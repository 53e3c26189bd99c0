use lasthop_guestmem::{ByteSize, MappingError};
use lasthop_ring::RingError;
use thiserror::Error;

use crate::message::{BODY_BYTES_MAX, TABLE_REGIONS_MAX};

/// Why a session ended. The text is for users.
#[derive(Debug, Error)]
pub enum SessionEnd {
    /// The front end closed the connection, as when its guest ends.
    #[error("the front end closed the connection")]
    HungUp,
    /// The front end broke the protocol: the position of the next message is unknown.
    #[error("the front end broke the vhost-user protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// Descriptors that it sent take long to close, so it must not send more of them.
    #[error(
        "file descriptors that the front end sent take long to close: sockets that linger, or files that it serves itself"
    )]
    SlowToClose,
    /// A request failed, and the front end had not asked for an acknowledgement.
    #[error("{0}")]
    Refused(#[from] RequestError),
    /// The front end asked where a ring stopped, and the device could not tell. After a failed request a front end takes
    /// the position from the used ring; a wrong answer would repeat packets or lose them.
    #[error(
        "ring {0} could not be stopped in time, so its position is not known; the front end has to connect again, or else restart the guest"
    )]
    LostPosition(u16),
    /// The system failed the connection.
    #[error("the connection to the front end failed: {0}")]
    Io(#[from] std::io::Error),
}

/// A message that a correct front end never sends.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A header with another version in its flags.
    #[error("message of protocol version {0}, only version 1 exists; is a vhost-user front end connected?")]
    Version(u32),
    /// A body larger than any defined one.
    #[error(
        "{0} with a body of {1} bytes, more than it can have (no message has more than {BODY_BYTES_MAX})"
    )]
    BodyTooLarge(String, u32),
    /// A body that ends before its last field.
    #[error("{0} with a body of {1} bytes, which is too short")]
    BodyTooShort(String, usize),
    /// More regions in one table than a message can carry.
    #[error("SET_MEM_TABLE with {0} regions, a table has at most {TABLE_REGIONS_MAX}")]
    TooManyRegions(u32),
    /// More file descriptors than a message can carry, or than this process may open.
    #[error(
        "message with more than {TABLE_REGIONS_MAX} file descriptors, or the limit of open files is reached (raise it: ulimit -n)"
    )]
    TooManyFds,
    /// A reply without a request.
    #[error("{0} is marked as a reply, but nothing was asked")]
    UnexpectedReply(String),
    /// A ring that the port does not have.
    #[error(
        "{request} names ring {index}, but the port's last one is {}; give the port more queue pairs, or the VM fewer queues",
        rings.saturating_sub(1)
    )]
    NoSuchRing {
        /// Name of the request.
        request: String,
        /// The ring it names.
        index: u64,
        /// Rings of the port.
        rings: u16,
    },
    /// The front end sends requests and does not read the replies.
    #[error("requests keep coming, but {0} bytes of replies wait to be read")]
    RepliesUnread(usize),
}

/// Why a request was refused. The session continues if the front end asked for an acknowledgement.
#[derive(Debug, Error)]
pub enum RequestError {
    /// A memory region without a file.
    #[error(
        "front end sent no file descriptor for its memory: start the VM with shared memory (QEMU: -object memory-backend-memfd,share=on; libvirt: <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>; Cloud Hypervisor: --memory shared=on)"
    )]
    NotShared,
    /// Another number of file descriptors than the request needs.
    #[error("{request} with {got} file descriptors, {needed} needed")]
    FdCount {
        /// Name of the request.
        request: String,
        /// File descriptors that came.
        got: usize,
        /// File descriptors needed.
        needed: usize,
    },
    /// A kick, call or error descriptor that is no eventfd.
    #[error("{0} with a file descriptor that is not an eventfd; the front end must pass one")]
    NoEventFd(String),
    /// A back-end channel that is no UNIX stream.
    #[error("{0} with a file descriptor that is not a UNIX stream socket; the front end must pass one")]
    NoUnixStream(String),
    /// A region that cannot be mapped.
    #[error("{0}")]
    Mapping(#[from] MappingError),
    /// Memory regions that contradict each other.
    #[error("the front end's memory table is unusable: {0}")]
    MemoryTable(String),
    /// Memory regions that are too large in total.
    #[error(
        "the front end's memory regions have {} together, and its vnic allows {}; if the guest is as large as that, raise memory-max of the vnic",
        ByteSize(*.asked_bytes),
        ByteSize(*.max_bytes)
    )]
    MemoryMax {
        /// Total size of the regions, in bytes.
        asked_bytes: u64,
        /// Largest permitted size, in bytes.
        max_bytes: u64,
    },
    /// Feature bits that were not offered.
    #[error("the front end acknowledged features that were not offered: {0}")]
    NotOffered(String),
    /// A ring with impossible parameters.
    #[error("ring {0} is unusable: {1}")]
    Ring(u16, RingError),
    /// A position that a split ring cannot have.
    #[error("ring {0} is to start at position {1:#x}, beyond 0xffff: the front end expects packed rings")]
    RingBase(u16, u32),
    /// A ring that the device refused to start.
    #[error("ring {0} cannot be started: {1}")]
    Device(u16, String),
    /// A value that is neither 0 nor 1.
    #[error("SET_VRING_ENABLE of ring {0} with {1}, which is neither 0 nor 1")]
    Enable(u16, u32),
    /// An MTU that no Ethernet link has.
    #[error("MTU of {0} bytes is outside 68..=65535")]
    Mtu(u64),
    /// A request of a feature that was not offered, and that must not be ignored.
    #[error("{0} belongs to a feature that was not offered; live migration is not supported")]
    NotServed(String),
    /// An unusable in-flight file.
    #[error("the front end's file for chains in flight is unusable: {0}")]
    Inflight(String),
    /// A failed system call.
    #[error("{0} failed: {1}")]
    System(String, std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_too_many_is_told_from_the_last_one() {
        let error = ProtocolError::NoSuchRing { request: "SET_VRING_CALL".into(), index: 5, rings: 5 };
        assert!(error.to_string().starts_with("SET_VRING_CALL names ring 5, but the port's last one is 4; "));
    }
}
