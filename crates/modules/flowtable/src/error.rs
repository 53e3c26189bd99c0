//! The reasons that a flow cannot be installed.

use std::fmt;

use lasthop_flow::UnsupportedOptions;

/// A part of a flow that is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedFlow {
    /// The switch does not implement it.
    Unsupported(&'static str),
    /// It exceeds a bound on one packet's work.
    TooLong(&'static str),
}

impl fmt::Display for UnsupportedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(f, "{what}: not supported"),
            Self::TooLong(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for UnsupportedFlow {}

impl From<UnsupportedOptions> for UnsupportedFlow {
    fn from(UnsupportedOptions(what): UnsupportedOptions) -> Self {
        Self::Unsupported(what)
    }
}

/// The reason that a flow could not be installed, changed or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// A flow with this name or the same match exists.
    Exists,
    /// No flow has this name or this match.
    Unknown,
    /// A bound of the table is reached.
    NoRoom(&'static str),
    /// A part of the flow is not supported.
    Refused(UnsupportedFlow),
}

impl From<UnsupportedFlow> for InstallError {
    fn from(refused: UnsupportedFlow) -> Self {
        Self::Refused(refused)
    }
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => {
                f.write_str("a flow with this name or match exists; replace it or remove it first")
            }
            Self::Unknown => f.write_str("there is no such flow"),
            Self::NoRoom(why) => f.write_str(why),
            Self::Refused(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for InstallError {}
