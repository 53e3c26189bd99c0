//! The system calls that each process may make, each with the reason why. All others end the process.
//!
//! A list is held to the code from both sides by `tests/sandbox.rs`: all that a process does is done under its list, and
//! each entry that nothing needs is found there, unless it is [`Call::kept`] and says for what.

pub(super) mod common;
pub(super) mod controller;
pub(super) mod driver;
mod names;
pub(super) mod switch;

use super::ProcessRole;

pub use names::name_of;

/// A system call of this machine's kind: name and number.
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
    /// With which arguments: one of these sets of conditions holds. None: with any.
    pub(super) terms: &'static [Terms],
    /// Its purpose.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers and tests"))]
    pub(super) why: &'static str,
    /// Tests need not meet it: another C library, machine or moment does.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    pub(super) kept: bool,
    /// It is needed before there is any guest, and forbidden from then on: see [`super::Spent`].
    pub(super) is_once: bool,
}

/// Conditions on arguments that hold together.
pub(super) type Terms = &'static [Term];

/// A condition on one argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// Its number, 0 to 5.
    pub(super) argument: u8,
    pub(super) is: Value,
}

/// The allowed values of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// This number, of 32 bits: the kernel takes it as an int.
    Int(u32),
    /// Any other number of 32 bits.
    NotInt(u32),
    /// This number, of 64 bits: the kernel takes it as a long or a pointer.
    Long(u64),
    /// These bits of 64, and others as they may be.
    Bits { mask: u64, value: u64 },
    /// The process's own number.
    OwnProcess,
    /// The descriptor under which /proc/self/fd is kept open.
    DescriptorNames,
}

/// A call that is neither made nor the end: it fails with ENOSYS, as if the kernel did not have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal(pub(super) Call);

impl Call {
    /// With any arguments.
    pub(super) const fn any((name, number): Named, why: &'static str) -> Self {
        Self { name, number, terms: &[], why, kept: false, is_once: false }
    }

    /// With arguments of which one of `terms` holds.
    pub(super) const fn with((name, number): Named, terms: &'static [Terms], why: &'static str) -> Self {
        Self { name, number, terms, why, kept: false, is_once: false }
    }

    /// One that not each test machine needs.
    pub(super) const fn kept(self) -> Self {
        Self { kept: true, ..self }
    }

    /// One that is needed before there is any guest.
    pub(super) const fn once(self) -> Self {
        Self { is_once: true, ..self }
    }

    /// One that fails.
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

/// Of sendto(2): to the other end, not to anybody by address.
const NO_ADDRESS: Terms = &[Term { argument: 4, is: Value::Long(0) }];

impl ProcessRole {
    #[cfg(test)]
    pub(super) const ALL: [Self; 3] = [Self::Switch, Self::Driver, Self::Controller];

    /// The calls that it may make.
    pub(super) fn calls(self) -> impl Iterator<Item = &'static Call> {
        let own = match self {
            Self::Switch => switch::CALLS,
            Self::Driver => driver::CALLS,
            Self::Controller => controller::CALLS,
        };
        common::CALLS.iter().chain(own)
    }

    /// The calls that fail with an error.
    pub(super) fn refusals(self) -> &'static [Refusal] {
        common::REFUSALS
    }
}
