//! `lasthop ovs`: the command line, and the messages about its results.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::ask::ApiRequest;
use super::client::ask;
use crate::output::print;
use crate::ovs::{self, Guest, Places, Status, Unit};
use crate::remedy::addressed;
use lasthop_api::port::BackendKind;
use lasthop_api::report::{
    ConfigReport, ControlClient, PortFilter, PortStatusList, SwitchList, SwitchReport,
};
use lasthop_api::switches::{ControllerKind, SwitchName};
use lasthop_runtime::fault::Fault;

#[derive(Debug, Subcommand)]
pub(super) enum OvsCommand {
    /// Run the installed ovsdb-server and ovs-vswitchd over this switch, in the foreground, until a signal ends it
    Run {
        /// Open vSwitch's configuration, made if it does not exist [default: RUNDIR/ovs/conf.db, lost at a reboot]
        #[arg(long, value_name = "FILE")]
        database: Option<PathBuf>,
    },
    /// Have the system's own Open vSwitch service use this switch from its next start on (systemd)
    Install {
        /// Only show the drop-in for its unit
        #[arg(long)]
        print: bool,
        /// Directory of units [default: /etc/systemd/system]
        #[arg(long, value_name = "DIR")]
        units: Option<PathBuf>,
    },
    /// Undo `install`: the service uses the kernel's datapath again
    Uninstall {
        /// Directory of units [default: /etc/systemd/system]
        #[arg(long, value_name = "DIR")]
        units: Option<PathBuf>,
    },
    /// Show the requirements that are met, and those that are missing; exits with 1 if one is missing
    Status {
        /// Directory of Open vSwitch's sockets [default: $OVS_RUNDIR, else that of the running ovs-vswitchd]
        #[arg(long, value_name = "DIR")]
        ovs_rundir: Option<PathBuf>,
    },
    /// Run a program with this switch in the place of the kernel's datapath: lasthop ovs exec ovs-dpctl show
    Exec {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        words: Vec<String>,
    },
}

impl ApiRequest {
    /// The vhost-user ports; empty without an answer.
    fn guests(&self) -> Vec<Guest> {
        let filter = PortFilter { backend: Some(BackendKind::VhostUser) };
        let list: Option<PortStatusList> = ask(&self.dir, "port.list", &filter).ok();
        let config: Option<ConfigReport> = ask(&self.dir, "config.show", &json!({})).ok();
        let is_for_outside = |name: &SwitchName| {
            let Some(config) = &config else { return true };
            if name.is_default() {
                return config.settings.controller == Some(ControllerKind::External);
            }
            config.switches.iter().any(|switch| switch.name == *name && switch.has_outside_controller())
        };
        let vnics = list.into_iter().flat_map(|list| list.ports);
        vnics
            .map(|vnic| Guest {
                is_for_outside: is_for_outside(&vnic.settings.common.switch),
                switch: vnic.settings.common.switch.to_string(),
                name: vnic.name,
            })
            .collect()
    }

    /// The controllers of switches with an external one; `None` if there is no such switch, or no answer.
    fn control_clients(&self) -> Option<Vec<ControlClient>> {
        let list: SwitchList = ask(&self.dir, "switch.list", &json!({})).ok()?;
        let is_outside = |switch: &SwitchReport| switch.controller == Some(ControllerKind::External);
        list.switches.into_iter().find(is_outside).map(|switch| switch.clients)
    }

    pub(super) fn ovs(&self, command: OvsCommand) -> Result<ExitCode, Fault> {
        match command {
            OvsCommand::Run { database } => {
                let database = database.map(std::path::absolute).transpose();
                let database = database.map_err(|error| Fault::internal("find the database", error))?;
                ovs::run(&self.dir, &Places::new(&self.dir, database)).map(|()| ExitCode::SUCCESS)
            }
            OvsCommand::Install { print: true, .. } => {
                print(&Unit::text(&self.dir)?).map(|()| ExitCode::SUCCESS)
            }
            OvsCommand::Install { units, .. } => {
                self.show(&Unit::new(units.as_deref()).install(&self.dir)?, ovs::UnitChange::text)
            }
            OvsCommand::Uninstall { units } => {
                self.show(&Unit::new(units.as_deref()).uninstall()?, ovs::UnitChange::text)
            }
            OvsCommand::Status { ovs_rundir } => {
                let status = Status::look(
                    &self.dir,
                    ovs_rundir.as_deref(),
                    &self.guests(),
                    self.control_clients().as_deref(),
                );
                self.show(&status, |status| addressed(&status.text(), &self.dir))?;
                Ok(ExitCode::from(u8::from(!status.is_ok())))
            }
            OvsCommand::Exec { words } => Err(ovs::exec(&self.dir, &words)),
        }
    }
}
