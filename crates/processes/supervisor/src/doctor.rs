//! The method "doctor": the supervisor's own facts, and the switch process's answer.

use std::collections::HashMap;

use serde_json::Value;

use lasthop_api::facts::{ExternalFacts, Facts, Inspection, MoveFacts, SessionFacts, SwitchFacts, VnicFacts};
use lasthop_api::report::{FdbReport, PortFilter, PortReport, PortStatus, StatsReport};
use lasthop_api::switches::FailMode;
use lasthop_runtime::fault::Fault;

use super::question::{ControllerAnswer, to_json};
use super::reports::Reports;
use super::warnings::WarningContext;

impl Reports<'_> {
    /// All facts together.
    pub(super) fn facts(
        &self,
        name: Option<&str>,
        inside: Option<Inspection>,
        told: &ControllerAnswer,
    ) -> Result<Value, Fault> {
        let is_asked = |vnic: &VnicFacts| name.is_none_or(|name| vnic.name() == name);
        let ports = self.device_ports(inside.as_ref());
        let mut vnics: Vec<VnicFacts> = self.vnic_facts(inside.as_ref());
        // Other ports' addresses and settings matter for this one, too: they may conflict.
        if name.is_some() {
            for vnic in vnics.iter_mut().filter(|vnic| !is_asked(vnic)) {
                vnic.session = None;
            }
        }
        vnics.sort_by(|one, other| one.port.name.cmp(&other.port.name));
        let external = inside.as_ref().and_then(|inside| self.external_facts(inside));
        let mut switch = self.switch_facts();
        let scarce = inside.iter().flat_map(|inside| inside.scarce_workers.iter().copied());
        // The switch process may claim anything.
        switch.scarce_workers = scarce.take(switch.workers).collect();
        let (fdb, mut moves) = inside.map(|inside| (inside.fdb, inside.moves)).unwrap_or_default();
        let fdb = self.with_controlled(told, None, FdbReport::whole(fdb)).entries;
        moves.extend(told.moves.iter().cloned());
        let moves = MoveFacts::merged(moves);
        // Without the switch process the controller was not asked either.
        let controller = switch.deaf.is_none().then(|| self.controller_facts(told)).flatten();
        to_json(&Facts { switch, controller, external, vnics, ports, fdb, moves })
    }

    pub(super) fn external_facts(&self, inside: &Inspection) -> Option<ExternalFacts> {
        let all: Vec<_> = self.switches.all.iter().filter(|switch| switch.has_outside_controller()).collect();
        let facts = ExternalFacts {
            switches: all.iter().map(|switch| switch.name.to_string()).collect(),
            is_secure: all.iter().any(|switch| switch.fail_mode() == FailMode::Secure),
            is_asked: inside.is_asked,
            clients: self.datapath_clients.of(&inside.callers),
        };
        (!all.is_empty()).then_some(facts)
    }

    pub(super) fn switch_facts(&self) -> SwitchFacts {
        let settings = &self.settings;
        SwitchFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            switch_pid: self.switch.process.pid(),
            up_ms: self.switch.process.up().map(|up| up.as_millis() as u64),
            restarts: self.switch.process.restarts(),
            last_end: self.switch.process.last_end(),
            deaf: self.switch.deafness(),
            module: settings.module.as_str().to_owned(),
            workers: settings.workers.0,
            cpus: settings.cpus.as_ref().map(ToString::to_string),
            scarce_workers: Vec::new(),
            sandboxes: self.sandboxes(),
            scheduler: self.sched_report_if_on(),
        }
    }

    /// Ports over devices and taps, without features and rings.
    fn device_ports(&self, inside: Option<&Inspection>) -> Vec<PortStatus> {
        let mut all = self.list_ports(PortFilter::default(), &stats_of(inside)).ports;
        all.retain(|port| port.device.is_some());
        for port in &mut all {
            port.features.clear();
            let inside = port.device.as_mut().and_then(|device| device.inside.as_mut());
            inside.into_iter().for_each(|inside| *inside = bare(inside));
        }
        all
    }

    pub(super) fn vnic_facts(&self, inside: Option<&Inspection>) -> Vec<VnicFacts> {
        let stats = stats_of(inside);
        let sessions = inside.map(|inside| inside.sessions.as_slice()).unwrap_or_default();
        let sessions: HashMap<&str, &SessionFacts> =
            sessions.iter().map(|(name, session)| (name.as_str(), session)).collect();
        let warnings = WarningContext::new(self.ports.all.values(), &stats);
        let vnics = self.ports.all.values().filter(|port| port.device().is_none());
        let facts = vnics.map(|port| {
            let name = port.spec.name().as_str();
            let mut status = self.describe(port, &warnings);
            status.features.clear();
            status.guest.iter_mut().for_each(|guest| guest.rings.clear());
            let session = sessions.get(name).map(|session| (*session).clone());
            // The session's own report has more.
            let counters = warnings.inside(port).map(bare);
            let switch = self.switches.all.iter().find(|switch| switch.name == port.spec.common.switch);
            let module = switch.map(|switch| switch.module.as_str().to_owned()).unwrap_or_default();
            VnicFacts { port: status, module, connection: port.connection(), session, counters }
        });
        facts.collect()
    }
}

/// Counters without features and rings.
fn bare(counted: &PortReport) -> PortReport {
    PortReport { features: Vec::new(), rings: Vec::new(), ..counted.clone() }
}

fn stats_of(inside: Option<&Inspection>) -> StatsReport {
    let ports = inside.map(|inside| inside.ports.clone()).unwrap_or_default();
    StatsReport { ports, ..StatsReport::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_that_two_have_seen_count_together() {
        let moved = |from: &str, to: &str, count, age_ms| MoveFacts {
            mac: "02:00:00:00:00:01".to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            count,
            age_ms,
        };
        let told =
            MoveFacts::merged(vec![moved("c", "a", 2, 5), moved("a", "b", 1, 90), moved("b", "a", 2, 10)]);
        assert_eq!(told, [moved("b", "a", 3, 10), moved("c", "a", 2, 5)]);
    }
}
