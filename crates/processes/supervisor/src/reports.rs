//! Read-only access to all parts, for answers.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;

use lasthop_api::device_patterns::DevicePatterns;
use lasthop_api::facts::ControllerFacts;
use lasthop_api::report::{DevicePortReport, FdbLine, FdbReport, StatsReport, SwitchInside};
use lasthop_api::sched::{SchedReport, ViewMode};
use lasthop_api::settings::SwitchSettings;

use lasthop_api::switches::SwitchName;
use lasthop_placement::ThreadPlacement;
use lasthop_runtime::fault::Fault;
use lasthop_shares::Shares;
use serde_json::Value;

use super::Supervisor;
use super::controller::{ControllerProcess, is_controlled};
use super::datapath_clients::DatapathClients;
use super::driver::Driver;
use super::port::Port;
use super::port_table::PortTable;
use super::question::{ControllerAnswer, to_json};
use super::scheduler::Scheduler;
use super::stage::Stage;
use super::standby::Standby;
use super::switch_process::SwitchProcess;
use super::switch_table::SwitchTable;

/// All parts. The methods, which make answers and texts, are with the requests that use them.
pub(super) struct Reports<'a> {
    pub(super) dir: &'a Path,
    pub(super) settings: &'a SwitchSettings,
    pub(super) control_group: &'a Option<String>,
    pub(super) datapath_devices: &'a Option<DevicePatterns>,
    pub(super) switches: &'a SwitchTable,
    pub(super) ports: &'a PortTable,
    pub(super) switch: &'a SwitchProcess,
    pub(super) driver: &'a Driver,
    pub(super) controller: &'a ControllerProcess,
    pub(super) scheduler: &'a Scheduler,
    pub(super) placement: &'a ThreadPlacement,
    pub(super) shares: &'a Shares,
    pub(super) standby: &'a Standby,
    pub(super) datapath_clients: &'a DatapathClients,
}

impl Supervisor {
    /// The read-only view of all parts.
    pub(super) fn reports(&self) -> Reports<'_> {
        Reports {
            dir: &self.dir,
            settings: &self.settings,
            control_group: &self.control_group,
            datapath_devices: &self.datapath_devices,
            switches: &self.switches,
            ports: &self.ports.table,
            switch: &self.out.switch_process,
            driver: &self.ports.driver,
            controller: &self.controller,
            scheduler: &self.scheduler,
            placement: &self.placement,
            shares: &self.shares,
            standby: &self.standby,
            datapath_clients: &self.datapath_clients,
        }
    }
}

impl Reports<'_> {
    /// The same counters with those that the switch process does not know.
    pub(super) fn with_processes(&self, stats: StatsReport) -> StatsReport {
        let device = |port: &Port| {
            let (name, counters) = (port.spec.name().to_string(), (&port.device()?.counters).into());
            Some(DevicePortReport { name, counters })
        };
        let restarts = [
            ("switch", self.switch.process.restarts()),
            ("driver", self.driver.process.restarts()),
            ("controller", self.controller.process.restarts()),
        ];
        StatsReport {
            devices: self.ports.all.values().filter_map(device).collect(),
            restarts: restarts.map(|(name, count)| (name.to_owned(), count)).into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..stats
        }
    }

    /// The answer to "sched.show".
    pub(super) fn sched_report(&self, stats: &StatsReport) -> SchedReport {
        let report = self.scheduler.report(|number| self.ports.name_of(number), stats);
        let placement = self.placement.report(|number| self.ports.name_of(number));
        SchedReport { shares: self.shares.report(), placement, caches: self.placement.caches(), ..report }
    }

    /// For the doctor; `None` if the view is off.
    pub(super) fn sched_report_if_on(&self) -> Option<SchedReport> {
        (self.scheduler.setting == ViewMode::Auto).then(|| self.sched_report(&StatsReport::default()))
    }

    /// Replaces the switch process's tables of embedded controllers' switches by the controller's: those switches learn
    /// only while it is away. Those whose addresses are unknown, as the controller process does not answer, are named.
    pub(super) fn with_controlled(
        &self,
        controller: &ControllerAnswer,
        wanted: Option<&str>,
        fdb: FdbReport,
    ) -> FdbReport {
        let known: BTreeSet<&SwitchName> = controller.inside.iter().map(|inside| &inside.name).collect();
        let others = fdb.entries.into_iter().filter(|line| !known.contains(&line.switch));
        let own = controller.fdb.iter();
        let own = own.filter(|line| wanted.is_none_or(|wanted| line.switch.as_str() == wanted)).cloned();
        let mut entries: Vec<FdbLine> = others.chain(own).collect();
        let place = |line: &SwitchName| self.switches.all.iter().position(|switch| switch.name == *line);
        // The addresses of one switch are sorted already.
        entries.sort_by_key(|line| place(&line.switch));
        let unanswered = self.unanswered(controller).into_iter();
        let unanswered = unanswered.filter(|name| wanted.is_none_or(|wanted| name.as_str() == wanted));
        FdbReport { entries, unanswered: unanswered.collect() }
    }

    /// The switches of a controller process that is up and did not answer.
    fn unanswered(&self, controller: &ControllerAnswer) -> Vec<SwitchName> {
        if controller.has_answered || !self.controller.process.is_up() {
            return Vec::new();
        }
        let controlled = self.switches.all.iter().filter(|switch| is_controlled(switch));
        controlled.map(|switch| switch.name.clone()).collect()
    }

    /// The answer to "switch.list". Numbers of addresses that only a silent controller process knows are left out.
    pub(super) fn switch_list(
        &self,
        controller: &ControllerAnswer,
        inside: Vec<SwitchInside>,
    ) -> Result<Value, Fault> {
        let mut list = self.list_switches(&controller.with_controlled(inside));
        let unanswered = self.unanswered(controller);
        for switch in list.switches.iter_mut().filter(|switch| unanswered.contains(&switch.name)) {
            switch.addresses = None;
        }
        to_json(&list)
    }

    /// The facts of the controller process for `lasthop doctor`, after it was asked; `None` if no switch needs it.
    pub(super) fn controller_facts(&self, told: &ControllerAnswer) -> Option<ControllerFacts> {
        let process = &self.controller.process;
        let is_needed = self.switches.all.iter().any(is_controlled);
        is_needed.then(|| ControllerFacts {
            pid: process.pid(),
            up_ms: process.up().map(|up| up.as_millis() as u64),
            restarts: process.restarts(),
            last_end: process.last_end(),
            has_answered: told.has_answered,
            counters: told.inside.iter().fold(BTreeMap::new(), |mut sums, switch| {
                switch
                    .counters
                    .iter()
                    .for_each(|(name, count)| *sums.entry(name.clone()).or_default() += count);
                sums
            }),
        })
    }

    /// The state for the service manager at this stage: one line, as `systemctl status` shows it.
    pub(super) fn status_text(&self, stage: &Stage) -> String {
        match stage {
            Stage::Starting => String::new(),
            Stage::Serving if self.switch.process.is_up() => self.health_text(),
            Stage::Serving => {
                let how = self.switch.process.last_end().map(|end| end.why).unwrap_or_default();
                format!("the switch process {how}; it is started again")
            }
            Stage::Ending { .. } | Stage::Leaving { .. } | Stage::Over(_) => "the switch ends".to_owned(),
        }
    }

    fn health_text(&self) -> String {
        let attached = self.ports.all.values().filter(|port| port.is_attached()).count();
        let text = format!("{}; {attached} attached", self.sizes_text());
        match (self.switch.process.restarts(), self.switch.process.last_end()) {
            (times @ 1.., Some(end)) => {
                format!(
                    "{text}; the switch process was started again {times} time{}, the last one {}",
                    if times == 1 { "" } else { "s" },
                    end.why
                )
            }
            _ => text,
        }
    }
}
