//! `lasthop`: one binary for all processes of the switch.
//!
//! **Purpose.** The command line selects the process. `lasthop run` is the supervisor; it starts this binary again as switch
//! process, driver process and controller process. All other commands ask a running supervisor.
//!
//! **Contract.** The exit status is that of the process; an error is one sentence on standard error.
//!
//! **Not checked.** That the supervisor started an inner process: one that a user starts has no channel.
//!
//! **Threading.** That of the process.
//!
//! ```text
//!   lasthop COMMAND ──asks──> lasthop run (supervisor) ──starts──> switch-process, driver-process, controller-process
//! ```
#![forbid(unsafe_code)]

use std::process::ExitCode;

use lasthop_cli::Part;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::{logging, signals};

fn main() -> ExitCode {
    signals::unblock();
    logging::begin();
    match start() {
        Ok(code) => code,
        Err(error) => {
            logging::failure(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode, Fault> {
    match lasthop_cli::parse() {
        Part::Command(command) => return command.run(),
        Part::SwitchProcess(settings) => {
            logging::set_relayed();
            lasthop_dataplane::run(&settings)?;
        }
        Part::DriverProcess { polling, sandbox } => {
            logging::set_relayed();
            lasthop_driver::run(polling, sandbox)?;
        }
        Part::ControllerProcess { sandbox } => {
            logging::set_relayed();
            lasthop_controller::run(sandbox)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
