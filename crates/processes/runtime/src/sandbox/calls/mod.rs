//! The system calls that each process may make, each with its reason. Any other call ends the process.
//!
//! `tests/sandbox.rs` compares the lists with the code in both directions: everything that a process does is done under
//! its list, and an entry that no process needs is reported, unless it is [`Call::kept`] for a stated reason.

pub(super) mod common;
mod names;
pub(super) mod roles;

use super::ProcessRole;

pub use names::name_of;

/// A system call of this architecture: name and number.
pub(super) type Named = (&'static str, i64);

/// `call!(SYS_read)`: name and number of read(2).
macro_rules! call {
    ($name:ident) => {
        (stringify!($name).split_at("SYS_".len()).1, libc::$name)
    };
}
use call;

/// One entry of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: i64,
    /// Conditions on the arguments: one set of these must hold. Empty for any arguments.
    pub(super) terms: &'static [Terms],
    /// Its purpose.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers and tests"))]
    pub(super) why: &'static str,
    /// Whether tests need not use it, since another C library, machine or situation does.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    pub(super) kept: bool,
    /// Whether it is needed before there is any guest, and forbidden afterwards: see [`super::Spent`].
    pub(super) is_once: bool,
}

/// Conditions on arguments that must all hold.
pub(super) type Terms = &'static [Term];

/// A condition on one argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// Number of the argument, 0 to 5.
    pub(super) argument: u8,
    pub(super) is: Value,
}

/// The allowed values of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// This 32-bit number: the kernel takes it as an int.
    Int(u32),
    /// Any other 32-bit number.
    NotInt(u32),
    /// This 64-bit number: the kernel takes it as a long or a pointer.
    Long(u64),
    /// These bits of 64; others are ignored.
    Bits { mask: u64, value: u64 },
    /// The process's own id.
    OwnProcess,
    /// The descriptor of /proc/self/fd.
    DescriptorNames,
}

/// A call that neither succeeds nor ends the process: it fails with ENOSYS, as if the kernel did not have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal(pub(super) Call);

impl Call {
    /// A call with any arguments.
    pub(super) const fn any((name, number): Named, why: &'static str) -> Self {
        Self { name, number, terms: &[], why, kept: false, is_once: false }
    }

    /// A call for which one of `terms` must hold.
    pub(super) const fn with((name, number): Named, terms: &'static [Terms], why: &'static str) -> Self {
        Self { name, number, terms, why, kept: false, is_once: false }
    }

    /// Marks a call that not every test machine uses.
    pub(super) const fn kept(self) -> Self {
        Self { kept: true, ..self }
    }

    /// Marks a call that is needed before there is any guest.
    pub(super) const fn once(self) -> Self {
        Self { is_once: true, ..self }
    }

    /// Makes it a call that fails.
    const fn refused(self) -> Refusal {
        Refusal(self)
    }
}

const fn int(argument: u8, value: i32) -> Term {
    Term { argument, is: Value::Int(value as u32) }
}

const fn bits(argument: u8, mask: u64, value: u64) -> Term {
    Term { argument, is: Value::Bits { mask, value } }
}

/// For sendto(2): to the connected peer, without an address.
const NO_ADDRESS: Terms = &[Term { argument: 4, is: Value::Long(0) }];

impl ProcessRole {
    #[cfg(test)]
    pub(super) const ALL: [Self; 3] = [Self::Switch, Self::Driver, Self::Controller];

    /// The calls that the process may make.
    pub(super) fn calls(self) -> impl Iterator<Item = &'static Call> {
        let own = match self {
            Self::Switch => roles::SWITCH_CALLS,
            Self::Driver => roles::DRIVER_CALLS,
            Self::Controller => roles::CONTROLLER_CALLS,
        };
        common::CALLS.iter().chain(own)
    }

    /// The calls that fail with an error.
    pub(super) fn refusals(self) -> &'static [Refusal] {
        common::REFUSALS
    }
}
