//! `lasthop ovs`: the command line, and the messages about its results.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::ask::ApiRequest;
use super::client::ask;
use crate::output::print;
use lasthop_api::modules::FLOW;
use lasthop_api::port::BackendKind;
use lasthop_api::report::{
    ConfigReport, ControlClient, PortFilter, PortStatus, PortStatusList, SwitchList, SwitchReport,
};
use lasthop_api::switches::{ControllerKind, SwitchName};
use lasthop_doctor::remedy::addressed;
use lasthop_ovs::{self as ovs, ControlledVnic, Places, Status, Unit, VhostUser};
use lasthop_runtime::fault::Fault;

/// Where TripleO and the charms of OpenStack have VMMs make their sockets.
const DIRECTORIES: [&str; 2] = ["/var/lib/vhost_sockets", "/run/libvirt-vhost-user"];
/// Nova asks for as many as the guest has CPUs, and QEMU fails beyond the number.
const QUEUES: u16 = 16;

#[derive(Debug, Subcommand)]
pub(super) enum OvsCommand {
    /// Run the installed ovsdb-server and ovs-vswitchd over this switch, in the foreground, until a signal ends it
    Run {
        /// Open vSwitch's configuration, made if it does not exist [default: RUNDIR/ovs/conf.db, lost at a reboot]
        #[arg(long, value_name = "FILE")]
        database: Option<PathBuf>,
        #[command(flatten)]
        vhost_user: VhostUserChoice,
    },
    /// Have the system's own Open vSwitch service use this switch from its next start on (systemd)
    Install {
        /// Only show the drop-in for its unit
        #[arg(long)]
        print: bool,
        #[command(flatten)]
        vhost_user: VhostUserChoice,
        /// Where units are [default: /etc/systemd/system]
        #[arg(long, value_name = "DIR")]
        units: Option<PathBuf>,
    },
    /// Undo `install`: the service uses the kernel's datapath again
    Uninstall {
        /// Directory of units [default: /etc/systemd/system]
        #[arg(long, value_name = "DIR")]
        units: Option<PathBuf>,
    },
    /// Relay a database to ovs-vswitchd with vnics in the place of OVS-DPDK's vhost-user ports; `run` and `install` start it
    Relay {
        /// The socket of the database
        #[arg(long, value_name = "SOCKET")]
        database: PathBuf,
        /// The socket for ovs-vswitchd
        #[arg(long, value_name = "SOCKET")]
        listen: PathBuf,
        #[command(flatten)]
        settings: VhostUserSettings,
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

/// Whether vnics are made, and how.
#[derive(Debug, Args)]
pub(super) struct VhostUserChoice {
    /// Make vnics of interfaces of type dpdkvhostuser and dpdkvhostuserclient, as OpenStack and libvirt add them
    #[arg(long)]
    vhost_user: bool,
    #[command(flatten)]
    settings: VhostUserSettings,
}

/// How vnics are made.
#[derive(Debug, Args)]
pub(super) struct VhostUserSettings {
    /// A directory for sockets of VMMs, beside Open vSwitch's own; may be repeated [default: /var/lib/vhost_sockets, /run/libvirt-vhost-user]
    #[arg(long, value_name = "DIR")]
    vhost_user_dir: Vec<PathBuf>,
    /// Queue pairs that a guest may use
    #[arg(long, value_name = "NUMBER", default_value_t = QUEUES, value_parser = clap::value_parser!(u16).range(1..=32))]
    vhost_user_queues: u16,
    /// The group of sockets that the switch makes (type dpdkvhostuser) [default: that of the switch]
    #[arg(long, value_name = "GROUP")]
    vhost_user_group: Option<String>,
}

impl VhostUserChoice {
    /// The words after `lasthop ovs relay`, if vnics are to be made.
    fn words(&self) -> Result<Option<Vec<String>>, Fault> {
        let VhostUserSettings { vhost_user_dir, vhost_user_queues, vhost_user_group } = &self.settings;
        if !self.vhost_user {
            let has_settings =
                !vhost_user_dir.is_empty() || vhost_user_group.is_some() || *vhost_user_queues != QUEUES;
            return if has_settings {
                Err(Fault::params("--vhost-user-... has no effect without --vhost-user"))
            } else {
                Ok(None)
            };
        }
        let mut words = Vec::new();
        for dir in vhost_user_dir {
            let dir = std::path::absolute(dir).map_err(|error| Fault::internal("find a directory", error))?;
            words.push(format!("--vhost-user-dir={}", dir.display()));
        }
        words.push(format!("--vhost-user-queues={vhost_user_queues}"));
        words.extend(vhost_user_group.iter().map(|group| format!("--vhost-user-group={group}")));
        Ok(Some(words))
    }
}

impl VhostUserSettings {
    fn read(self) -> VhostUser {
        let defaults = || DIRECTORIES.map(PathBuf::from).to_vec();
        let directories = if self.vhost_user_dir.is_empty() { defaults() } else { self.vhost_user_dir };
        VhostUser { directories, queues: self.vhost_user_queues, socket_group: self.vhost_user_group }
    }
}

impl ApiRequest {
    /// The vhost-user ports; `None` without an answer.
    fn guests(&self) -> Option<Vec<ControlledVnic>> {
        let filter = PortFilter { backend: Some(BackendKind::VhostUser) };
        let list: PortStatusList = ask(&self.dir, "port.list", &filter).ok()?;
        let config: Option<ConfigReport> = ask(&self.dir, "config.show", &json!({})).ok();
        let is_for_outside = |name: &SwitchName| {
            let Some(config) = &config else { return true };
            if name.is_default() {
                return config.settings.controller == Some(ControllerKind::External);
            }
            config.switches.iter().any(|switch| switch.name == *name && switch.has_outside_controller())
        };
        let is_of_flow = |name: &SwitchName| {
            let Some(config) = &config else { return true };
            if name.is_default() {
                return config.settings.module.as_ref().is_none_or(|module| module.as_str() == FLOW);
            }
            config.switches.iter().any(|switch| switch.name == *name && switch.module.as_str() == FLOW)
        };
        let guest = |vnic: PortStatus| ControlledVnic {
            is_of_flow: is_of_flow(&vnic.settings.common.switch),
            is_for_outside: is_for_outside(&vnic.settings.common.switch),
            switch: vnic.settings.common.switch.to_string(),
            name: vnic.name,
        };
        Some(list.ports.into_iter().map(guest).collect())
    }

    /// The controllers of switches with an external one; `None` if there is no such switch, or no answer.
    fn control_clients(&self) -> Option<Vec<ControlClient>> {
        let list: SwitchList = ask(&self.dir, "switch.list", &json!({})).ok()?;
        let is_outside = |switch: &SwitchReport| switch.controller == Some(ControllerKind::External);
        list.switches.into_iter().find(is_outside).map(|switch| switch.clients)
    }

    pub(super) fn ovs(&self, command: OvsCommand) -> Result<ExitCode, Fault> {
        match command {
            OvsCommand::Run { database, vhost_user } => {
                let database = database.map(std::path::absolute).transpose();
                let database = database.map_err(|error| Fault::internal("find the database", error))?;
                let places = Places::new(&self.dir, database, vhost_user.words()?);
                ovs::run(&self.dir, &places).map(|()| ExitCode::SUCCESS)
            }
            OvsCommand::Relay { database, listen, settings } => {
                let ask = |method: &str, params: &Value| ask(&self.dir, method, params);
                ovs::relay(&self.dir, &ask, &database, &listen, &settings.read()).map(|()| ExitCode::SUCCESS)
            }
            OvsCommand::Install { print: true, vhost_user, .. } => {
                let (text, relay) = Unit::texts(&self.dir, vhost_user.words()?.as_deref())?;
                print(&[text, relay.unwrap_or_default()].concat()).map(|()| ExitCode::SUCCESS)
            }
            OvsCommand::Install { units, vhost_user, .. } => {
                let change =
                    Unit::new(units.as_deref()).install(&self.dir, vhost_user.words()?.as_deref())?;
                self.show(&change, ovs::UnitChange::text)
            }
            OvsCommand::Uninstall { units } => {
                self.show(&Unit::new(units.as_deref()).uninstall()?, ovs::UnitChange::text)
            }
            OvsCommand::Status { ovs_rundir } => {
                // A switch that has not answered once is not asked again: each question takes time.
                let guests = self.guests();
                let clients = guests.as_ref().and_then(|_| self.control_clients());
                let guests = guests.unwrap_or_default();
                let status = Status::look(&self.dir, ovs_rundir.as_deref(), &guests, clients.as_deref());
                self.show(&status, |status| addressed(&status.text(), &self.dir))?;
                Ok(ExitCode::from(u8::from(!status.is_ok())))
            }
            OvsCommand::Exec { words } => Err(ovs::exec(&self.dir, &words)),
        }
    }
}
