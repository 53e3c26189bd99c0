//! The sandbox that inner processes enter before they meet a guest: they keep nothing but the descriptors they were handed.
//!
//! **Purpose.** [`enter`] turns the calling process into one that has descriptors, memory and threads, and no way to files,
//! sockets, other programs and other processes. Each layer does that by another means, so that a hole in one is covered by
//! the next, and a kernel that lacks one has the others.
//!
//! **Contract.** Called once, before the process has a second thread: all later ones inherit it. The result is a list of
//! [`Layer`]s. With [`SandboxMode::Auto`] a layer that this kernel or container refuses is left out; with [`SandboxMode::Strict`] that is
//! an error.
//!
//! **Not checked.** Messages that arrive later over sockets: a front end can hand over descriptors of any kind, and their kind is
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

pub use calls::name_of;
pub use layer::{Layer, summary};
pub use mode::SandboxMode;
pub use refusal::ForbiddenCall;

/// The process of a list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Moves packets between guests.
    Switch,
    /// Moves frames between devices and the switch.
    Driver,
    /// Decides for switches of module flow.
    Controller,
}

/// The calls that a process needs once and no more, as a filter that is ready to be installed.
#[derive(Debug)]
pub struct Spent {
    program: seccompiler::BpfProgram,
    mode: SandboxMode,
}

impl Spent {
    /// For a process of this role with these layers; none if its calls are not filtered.
    ///
    /// # Errors
    /// With [`SandboxMode::Strict`], when there is no such filter.
    pub fn of(role: ProcessRole, mode: SandboxMode, layers: &[Layer]) -> Result<Option<Self>, Fault> {
        let is_filtered = layers.iter().any(|layer| layer.on && layer.name == CALLS);
        let own = seccomp::Own { process: std::process::id(), names: None };
        match seccomp::spent(role, own) {
            Ok(program) => Ok(is_filtered.then_some(Self { program, mode })),
            Err(error) if is_filtered && mode == SandboxMode::Strict => Err(unspent(&error)),
            Err(_) => Ok(None),
        }
    }

    /// Takes them away from the calling thread and from all that it starts.
    ///
    /// # Errors
    /// With [`SandboxMode::Strict`], when the kernel takes no such filter. Otherwise the list of calls holds in any case.
    pub fn take_away(&self) -> Result<(), Fault> {
        match sys::filter(&self.program) {
            Err(error) if self.mode == SandboxMode::Strict => Err(unspent(&error)),
            _ => Ok(()),
        }
    }

    /// As [`Self::take_away`], for a process that shares memory with this one: whether it may go on. Allocates nothing.
    pub fn is_taken_away(&self) -> bool {
        sys::filter(&self.program).is_ok() || self.mode != SandboxMode::Strict
    }
}

/// The layer that filters calls.
const CALLS: &str = "system calls";

/// The descriptor that the process keeps.
#[derive(Debug)]
pub struct KeptFds<'fd> {
    /// The channel to the supervisor. A forbidden call is told there.
    pub channel: BorrowedFd<'fd>,
}

/// Gives everything up that `role` has no use for, as far as this kernel allows; `tell` makes the message about a
/// forbidden call.
///
/// # Errors
/// With [`SandboxMode::Strict`], when a layer cannot be had.
pub fn enter<M: Serialize>(
    role: ProcessRole,
    mode: SandboxMode,
    kept: &KeptFds<'_>,
    tell: impl Fn(ForbiddenCall) -> M,
) -> Result<Vec<Layer>, Fault> {
    if mode == SandboxMode::Off {
        return Ok(Vec::new());
    }
    look_up();
    // The driver process takes descriptors from the supervisor only.
    let names = if role == ProcessRole::Switch { root::descriptor_names() } else { None };
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
        Some(missing) if mode == SandboxMode::Strict => Err(unmet(missing)),
        _ => Ok(layers),
    }
}

/// Has rustix ask the system now for what it asks once: the place of the vDSO, and the auxiliary vector.
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
