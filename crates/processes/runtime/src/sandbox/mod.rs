//! The sandbox that inner processes enter before they serve a guest: they keep only the descriptors that they were
//! given.
//!
//! **Purpose.** [`enter`] leaves the calling process with descriptors, memory and threads, but without access to files,
//! new sockets, other programs and other processes. The layers use different means, so that one covers a hole in
//! another, and a kernel without one still has the others.
//!
//! **Contract.** Call it once, before the process has a second thread: all later ones inherit the sandbox. The result
//! is a list of [`Layer`]s. With [`SandboxMode::Auto`] a layer that this kernel or container refuses is omitted; with
//! [`SandboxMode::Strict`] that is an error.
//!
//! **Not checked.** Later messages over sockets: a front end can send descriptors of any kind; the code that receives
//! them checks their kind (`vhost`, `guestmem`).
//!
//! **Threading.** One thread calls; a forbidden system call of any thread ends the process.
//!
//! ```text
//!   enter:  namespaces ─> empty root ─> limits ─> capabilities ─> no new privileges ─> landlock ─> system calls
//!           needs the privileges that       are dropped here      ^                                  └ the steps to the
//!           the process was started with                          └ from here on any user's            left fail afterwards
//! ```

mod calls;
mod landlock;
mod layer;
mod namespaces;
mod privileges;
mod seccomp;
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};

use serde::Serialize;

use crate::fault::{Fault, Kind};

pub use calls::name_of;
pub use layer::{Layer, SandboxMode, summary};
pub use seccomp::ForbiddenCall;

/// A process with its own list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Moves packets between guests.
    Switch,
    /// Moves frames between devices and the switch.
    Driver,
    /// Decides for switches of module flow.
    Controller,
}

/// A filter, ready to be installed, against the calls that a process needs only once.
#[derive(Debug)]
pub struct Spent {
    program: seccompiler::BpfProgram,
    mode: SandboxMode,
}

impl Spent {
    /// The filter for a process of this role with these layers; `None` if its calls are not filtered.
    ///
    /// # Errors
    /// With [`SandboxMode::Strict`], if there is no such filter.
    pub fn of(role: ProcessRole, mode: SandboxMode, layers: &[Layer]) -> Result<Option<Self>, Fault> {
        let is_filtered = layers.iter().any(|layer| layer.on && layer.name == CALLS);
        let own = seccomp::Own { process: std::process::id(), names: None };
        match seccomp::spent(role, own) {
            Ok(program) => Ok(is_filtered.then_some(Self { program, mode })),
            Err(error) if is_filtered && mode == SandboxMode::Strict => Err(unspent(&error)),
            Err(_) => Ok(None),
        }
    }

    /// Forbids the calls to the calling thread and to all threads that it starts.
    ///
    /// # Errors
    /// With [`SandboxMode::Strict`], if the kernel refuses the filter. Otherwise the list of calls is in effect anyway.
    pub fn take_away(&self) -> Result<(), Fault> {
        match sys::filter(&self.program) {
            Err(error) if self.mode == SandboxMode::Strict => Err(unspent(&error)),
            _ => Ok(()),
        }
    }

    /// Like [`Self::take_away`], for a process that shares memory with this one; returns whether it may continue.
    /// Allocates nothing.
    pub fn is_taken_away(&self) -> bool {
        sys::filter(&self.program).is_ok() || self.mode != SandboxMode::Strict
    }
}

/// The layer that filters calls.
const CALLS: &str = "system calls";

/// The descriptors that the process keeps.
#[derive(Debug)]
pub struct KeptFds<'fd> {
    /// The channel to the supervisor, where a forbidden call is reported.
    pub channel: BorrowedFd<'fd>,
}

/// Drops everything that `role` does not need, as far as this kernel allows; `tell` makes the message about a forbidden
/// call.
///
/// # Errors
/// With [`SandboxMode::Strict`], if a layer is not available.
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
    // The driver process gets descriptors from the supervisor only.
    let names = if role == ProcessRole::Switch { namespaces::descriptor_names() } else { None };
    let mut layers = namespaces::separate();
    layers.push(Layer::new("empty root", namespaces::empty_root(&layers)));
    layers.push(Layer::new("limits", privileges::lower_limits()));
    layers.push(Layer::new("capabilities", privileges::drop_all()));
    layers.push(Layer::new("no new privileges", privileges::renounce_new()));
    layers.push(Layer::new("landlock", landlock::restrict()));
    let told = seccomp::tell(kept.channel, tell);
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

/// Makes rustix read the addresses of the vDSO and the auxiliary vector now, which it does once.
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
