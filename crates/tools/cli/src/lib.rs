//! The command line of the switch: its words, its questions to a running switch, its answers as text.
//!
//! **Purpose.** [`parse`] says which part of the system a command line asks for ([`Part`]). A command of a user runs here: most
//! ask the supervisor over the control socket and show the answer; `lasthop run` becomes the supervisor; `lasthop doctor` looks at
//! the machine, too, and names the broken link of a guest's network.
//!
//! **Contract.** An answer is text for people, or JSON as docs/user/control-api.md has it. Errors are one sentence with the
//! remedy. Words of others (names of files, of processes, of guests) cannot steer a terminal.
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
mod doctor;
mod output;
mod ovs;
mod packet;
mod permissions;
mod rates;
mod remedy;
mod show;
mod usage;

pub use commands::{Invocation, Part, parse};
