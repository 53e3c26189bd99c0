//! The one error of this binary: a sentence for the user, and its number in the control interface.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The kind of a fault; each has its JSON-RPC error code (docs/user/control-api.md lists them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The line is not JSON.
    Parse,
    /// The line is JSON but no request.
    Request,
    /// There is no such method.
    Method,
    /// A parameter, option, key or value is wrong.
    Params,
    /// An internal failure.
    Internal,
    /// The switch refuses.
    Refused,
    /// There is no vnic of that name.
    NoSuchVnic,
    /// There is no switch of that name.
    NoSuchSwitch,
    /// The name is taken.
    NameTaken,
    /// A socket or directory cannot be used.
    Socket,
    /// The switch process is not running or does not answer.
    SwitchDown,
    /// A bound was reached.
    Limit,
}

impl Kind {
    /// The kind with this number.
    pub fn of_code(code: i64) -> Option<Self> {
        const ALL: &[Kind] = &[
            Kind::Parse,
            Kind::Request,
            Kind::Method,
            Kind::Params,
            Kind::Internal,
            Kind::Refused,
            Kind::NoSuchVnic,
            Kind::NoSuchSwitch,
            Kind::NameTaken,
            Kind::Socket,
            Kind::SwitchDown,
            Kind::Limit,
        ];
        ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// The number for JSON-RPC: -327xx are the specification's own, -320xx are ours.
    pub fn code(self) -> i64 {
        match self {
            Self::Parse => -32700,
            Self::Request => -32600,
            Self::Method => -32601,
            Self::Params => -32602,
            Self::Internal => -32603,
            Self::Refused => -32000,
            Self::NoSuchVnic => -32001,
            Self::NameTaken => -32002,
            Self::Socket => -32003,
            Self::SwitchDown => -32004,
            Self::Limit => -32005,
            Self::NoSuchSwitch => -32006,
        }
    }
}

/// One clear sentence that names the thing and the remedy.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("{message}")]
pub struct Fault {
    /// The kind, for programs.
    pub kind: Kind,
    /// The sentence, for users.
    pub message: String,
}

impl Fault {
    /// A fault of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A wrong parameter, option, key or value.
    pub fn params(message: impl Into<String>) -> Self {
        Self::new(Kind::Params, message)
    }

    /// A socket or directory that cannot be used.
    pub fn socket(message: impl Into<String>) -> Self {
        Self::new(Kind::Socket, message)
    }

    /// A refusal by the switch.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Kind::Refused, message)
    }

    /// A failed system call, which only fails when the machine is in trouble.
    pub fn internal(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(Kind::Internal, format!("cannot {what}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes through all kinds: a new one does not compile before it is here.
    fn next(kind: Kind) -> Option<Kind> {
        Some(match kind {
            Kind::Parse => Kind::Request,
            Kind::Request => Kind::Method,
            Kind::Method => Kind::Params,
            Kind::Params => Kind::Internal,
            Kind::Internal => Kind::Refused,
            Kind::Refused => Kind::NoSuchVnic,
            Kind::NoSuchVnic => Kind::NoSuchSwitch,
            Kind::NoSuchSwitch => Kind::NameTaken,
            Kind::NameTaken => Kind::Socket,
            Kind::Socket => Kind::SwitchDown,
            Kind::SwitchDown => Kind::Limit,
            Kind::Limit => return None,
        })
    }

    #[test]
    fn each_kind_comes_back_from_its_number() {
        for kind in std::iter::successors(Some(Kind::Parse), |kind| next(*kind)) {
            assert_eq!(Kind::of_code(kind.code()), Some(kind));
        }
        assert_eq!(Kind::of_code(-32099), None);
    }
}
