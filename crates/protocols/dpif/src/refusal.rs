//! A refused request, as in netlink: an error number, and a sentence for extended acknowledgements.

use std::fmt;

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Errno = Errno($number);)*
        }
    };
}

/// An error number of Linux, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

errnos! {
    /// Not permitted.
    EPERM = 1;
    /// No such flow, meter or family.
    ENOENT = 2;
    /// Try again later.
    EAGAIN = 11;
    /// No memory, or no room.
    ENOMEM = 12;
    /// In use.
    EBUSY = 16;
    /// Exists already.
    EEXIST = 17;
    /// No such port, device or datapath.
    ENODEV = 19;
    /// Invalid.
    EINVAL = 22;
    /// Number too large.
    EFBIG = 27;
    /// Limit reached.
    ENOSPC = 28;
    /// A number out of its range, or an attribute of the wrong length.
    ERANGE = 34;
    /// Nested too deeply.
    EOVERFLOW = 75;
    /// Longer than a message may be.
    EMSGSIZE = 90;
    /// Not implemented, on purpose.
    EOPNOTSUPP = 95;
    /// A message was lost.
    ENOBUFS = 105;
    /// Timed out.
    ETIMEDOUT = 110;
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// A request that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The errno for the requester.
    pub errno: Errno,
    /// The reason, for extended acknowledgements; empty if the number tells enough.
    pub why: &'static str,
}

impl Refusal {
    /// A refusal with a sentence.
    #[must_use]
    pub const fn new(errno: Errno, why: &'static str) -> Self {
        Self { errno, why }
    }

    /// EINVAL with a sentence.
    #[must_use]
    pub const fn invalid(why: &'static str) -> Self {
        Self::new(Errno::EINVAL, why)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self { errno, why: "" }
    }
}

impl From<lasthop_flow::MatchError> for Refusal {
    fn from(refused: lasthop_flow::MatchError) -> Self {
        Self::invalid(refused.0)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            "" => self.errno.fmt(f),
            why => write!(f, "{why} ({})", self.errno),
        }
    }
}

impl std::error::Error for Refusal {}
