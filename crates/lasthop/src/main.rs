//! `lasthop`: the supervisor, the switch process and the command line in one binary.
//!
//! **Purpose.** `lasthop run` is the supervisor: it owns every path and every socket, starts the switch process (the
//! same binary in another role) and hands it connected sockets. All other subcommands ask a running supervisor.
//!
//! **Contract.** The switch process opens no path: what it needs comes over its standard input, a Unix socket. If
//! either process ends, the other one notices: the supervisor starts a new switch, a switch without supervisor ends.
//!
//! **Not checked.** Who connects to a port's socket: the permissions of the socket and its directory decide.
//!
//! **Threading.** The supervisor and the main thread of the switch are one `epoll` loop each; the threads that move
//! packets belong to the engine.
//!
//! ```text
//!   lasthop vnic add …  ──JSON-RPC──► control.sock ┐
//!                                                  supervisor ──frames + fds──► switch: vhost sessions, engine
//!   guest (VMM)  ──connects──► NAME.sock ──────────┘                              ▲
//!         └───────────────────────── vhost-user over the passed socket ───────────┘
//! ```
#![deny(unsafe_code)] // files called sys.rs alone may have some

mod capture;
mod cli;
mod clock;
mod config;
mod controller;
mod cpus;
mod descriptors;
mod device_patterns;
mod doctor;
mod driver;
mod fault;
mod fdb;
mod harmless;
mod hysteresis;
mod ipc;
mod links;
mod log;
mod mac;
mod names;
mod notify;
mod orders;
mod output;
mod ovs;
mod permissions;
mod plan;
mod poller;
mod port;
mod procfs;
mod rates;
mod report;
mod rpc;
mod rundir;
mod sandbox;
mod settings;
mod show;
mod signals;
mod supervisor;
mod switch;
mod switches;
mod upcalls;
mod vnic;
mod workers;

use std::process::ExitCode;

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            log::lines(log::Level::Error, format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<ExitCode> {
    log::begin();
    Ok(cli::run()?)
}
