//! What the inner processes give up before they meet a guest: the way to everything but what they were handed.
//!
//! **Purpose.** [`enter`] turns the calling process into one that has descriptors, memory and threads, and no way to files,
//! sockets, other programs and other processes. Each layer does that by another means, so that a hole in one is covered by
//! the next, and a kernel that lacks one has the others.
//!
//! **Contract.** Called once, before the process has a second thread: all that comes later inherits it. What was possible is
//! told as a list of [`Layer`]s. With [`Mode::Auto`] a layer that this kernel or container refuses is left out; with
//! [`Mode::Strict`] that is an error.
//!
//! **Not checked.** What arrives later over sockets: a front end can hand over descriptors of any kind, and what they are is
//! checked where they are taken (`vhost`, `guestmem`).
//!
//! **Threading.** One thread calls; a forbidden system call of any thread ends the process.
//!
//! ```text
//!   enter:  namespaces ─> empty root ─> limits ─> capabilities ─> no new privileges ─> landlock ─> system calls
//!           needs the privileges that       are given up here     ^                                  └ nothing of the left
//!           the process was started with                          └ from here on any user's            works from here on
//! ```

mod calls;
mod capabilities;
mod landlock;
mod layer;
mod limits;
mod mode;
mod namespaces;
mod refusal;
mod root;
mod seccomp;
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};

use serde::Serialize;

use crate::fault::{Fault, Kind};

pub(crate) use calls::name_of;
pub(crate) use layer::{Layer, summary};
pub(crate) use mode::Mode;
pub(crate) use refusal::ForbiddenCall;

/// Whose list of system calls it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Moves packets between guests.
    Switch,
    /// Moves frames between devices and the switch.
    Driver,
    /// Decides for switches of module flow.
    Controller,
}

/// The calls that a process needs once and no more, as a filter that is ready to be installed.
#[derive(Debug)]
pub(crate) struct Spent {
    program: seccompiler::BpfProgram,
    mode: Mode,
}

impl Spent {
    /// For a process of this role with these layers; none if its calls are not filtered.
    ///
    /// # Errors
    /// With [`Mode::Strict`], when there is no such filter.
    pub(crate) fn of(role: Role, mode: Mode, layers: &[Layer]) -> Result<Option<Self>, Fault> {
        let is_filtered = layers.iter().any(|layer| layer.on && layer.name == CALLS);
        let own = seccomp::Own { process: std::process::id(), names: None };
        match seccomp::spent(role, own) {
            Ok(program) => Ok(is_filtered.then_some(Self { program, mode })),
            Err(error) if is_filtered && mode == Mode::Strict => Err(unspent(&error)),
            Err(_) => Ok(None),
        }
    }

    /// Takes them away from the calling thread and from all that it starts.
    ///
    /// # Errors
    /// With [`Mode::Strict`], when the kernel takes no such filter. Otherwise what is in the list of calls holds in any case.
    pub(crate) fn take_away(&self) -> Result<(), Fault> {
        match sys::filter(&self.program) {
            Err(error) if self.mode == Mode::Strict => Err(unspent(&error)),
            _ => Ok(()),
        }
    }

    /// As [`Self::take_away`], for a process that shares memory with this one: whether it may go on. Allocates nothing.
    pub(crate) fn is_taken_away(&self) -> bool {
        sys::filter(&self.program).is_ok() || self.mode != Mode::Strict
    }
}

/// The layer that filters calls.
const CALLS: &str = "system calls";

/// What the process keeps of the world outside.
#[derive(Debug)]
pub(crate) struct Kept<'fd> {
    /// The channel to the supervisor. A forbidden call is told there.
    pub(crate) channel: BorrowedFd<'fd>,
}

/// Gives everything up that `role` has no use for, as far as this kernel allows; `tell` makes the message about a
/// forbidden call.
///
/// # Errors
/// With [`Mode::Strict`], when a layer cannot be had.
pub(crate) fn enter<M: Serialize>(
    role: Role,
    mode: Mode,
    kept: &Kept<'_>,
    tell: impl Fn(ForbiddenCall) -> M,
) -> Result<Vec<Layer>, Fault> {
    if mode == Mode::Off {
        return Ok(Vec::new());
    }
    look_up();
    // The driver process takes descriptors from nobody but the supervisor.
    let names = if role == Role::Switch { root::descriptor_names() } else { None };
    let mut layers = namespaces::separate();
    layers.push(Layer::new("empty root", root::empty(&layers)));
    layers.push(Layer::new("limits", limits::lower(role)));
    layers.push(Layer::new("capabilities", capabilities::drop_all()));
    layers.push(Layer::new("no new privileges", capabilities::renounce_new()));
    layers.push(Layer::new("landlock", landlock::restrict()));
    let told = refusal::tell(kept.channel, tell);
    let calls = told.and_then(|()| seccomp::restrict(role, names.as_ref().map(AsFd::as_fd)));
    layers.push(Layer::new(CALLS, calls));
    if let Some(names) = names {
        lasthop_foreign::keep_descriptor_names(names);
    }
    match layers.iter().find(|layer| !layer.on) {
        Some(missing) if mode == Mode::Strict => Err(unmet(missing)),
        _ => Ok(layers),
    }
}

/// What rustix asks the system for once, it shall have asked for: where the vDSO is, and what is in the auxiliary vector.
fn look_up() {
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let _ = rustix::param::page_size();
}

fn unspent(error: &dyn std::fmt::Display) -> Fault {
    let detail = format!("those that are needed at the start only stay allowed: {error}");
    unmet(&Layer::new(CALLS, Err(detail)))
}

fn unmet(missing: &Layer) -> Fault {
    let Layer { name, detail, .. } = missing;
    Fault::new(
        Kind::Internal,
        format!(
            "its sandbox lacks a layer, {name}: {detail}; without --sandbox=strict it runs with the others"
        ),
    )
}
