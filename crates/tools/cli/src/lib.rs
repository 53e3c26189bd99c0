//! The command line of the switch: parses it, asks a running switch, and shows the answers.
//!
//! **Purpose.** [`parse`] returns the part of the system that a command line starts ([`Part`]). A command of a user
//! runs here: most ask the supervisor over the control socket and show the answer; `lasthop run` becomes the
//! supervisor; `lasthop doctor` also examines the machine, and names the broken link of a guest's network.
//!
//! **Contract.** An answer is text for users, or JSON as in docs/user/control-api.md. Errors are one sentence with the
//! remedy. Names of files, processes and guests cannot control a terminal.
//!
//! **Not checked.** Specifications: `lasthop-api` parses them, the supervisor decides.
//!
//! **Threading.** One thread.
//!
//! ```text
//!   words ──commands──> control socket ──reports──> show ──> output
//!              ├ doctor: facts, /proc, sockets ──> findings
//!              └ run: supervisor
//! ```
#![deny(unsafe_code)] // files called sys.rs alone may have some

mod blocks;
mod commands;
mod counters;
mod output;
mod packet;
mod qemu_version;
mod rates;
mod show;
mod usage;

pub use commands::{Invocation, Part, parse};
