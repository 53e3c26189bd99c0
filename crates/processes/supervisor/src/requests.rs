//! The methods of the control interface (docs/user/control-api.md).

use lasthop_modules::FDB_ENTRIES_MAX;
use serde::Deserialize;
use serde_json::Value;

use lasthop_api::modules::{FLOW, FdbEntries};
use lasthop_api::names;
use lasthop_api::orders::Answer;
use lasthop_api::port::PortSpec;
use lasthop_api::report::{
    ConfigReport, FlushReport, SandboxReport, StatsReport, VersionReport, VlansReport, VnicList, VnicReport,
    VnicVlans,
};
use lasthop_api::rpc;
use lasthop_api::sched::SchedTrace;
use lasthop_api::settings::Settings;
use lasthop_api::vnic::VnicSpec;
use lasthop_listeners::{Asker, RequestLine};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::sandbox::Layer;

use super::Supervisor;
use super::capture::Stream;
use super::port::Port;
use super::question::{ControllerAnswer, Question, to_json};
use super::reports::Reports;
use super::warnings::WarningContext;

/// All methods.
const METHODS: &[&str] = &[
    "switch.add",
    "switch.set",
    "switch.del",
    "switch.list",
    "vnic.add",
    "vnic.del",
    "vnic.set",
    "vnic.list",
    "vnic.show",
    "port.add",
    "port.del",
    "port.list",
    "port.show",
    "vlan.show",
    "fdb.show",
    "fdb.add",
    "fdb.del",
    "fdb.flush",
    "acl.list",
    "acl.add",
    "acl.del",
    "acl.set",
    "stats",
    "capture",
    "profile",
    "doctor",
    "sched.show",
    "sched.trace",
    "sched.set",
    "config.show",
    "version",
    "upgrade",
];
/// The state of a vnic that was just made.
const STATE_NEW: &str = "waiting for guest";
/// A vnic's state when there is no switch process to ask, or it does not answer.
const STATE_DOWN: &str = "no answer from the switch process";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MaybeNamed {
    name: Option<String>,
}

impl Supervisor {
    /// A client sent something, or is gone.
    pub(super) fn hear_client(&mut self, client: u32, is_over: bool) {
        for line in self.clients.read(client, is_over, &self.out.poller) {
            self.serve_line(line);
        }
    }

    /// Writes the answers, and serves the requests that those clients have sent in the meantime.
    pub(super) fn proceed_with_clients(&mut self) {
        while let Some(line) = self.clients.next_line(&self.out.poller) {
            self.serve_line(line);
        }
    }

    fn serve_line(&mut self, (client, line): RequestLine) {
        match rpc::read_call(&line) {
            Err((id, fault)) => self.clients.answer(Asker { client, id: Some(id) }, Err(fault)),
            Ok(call) => {
                let asker = Asker { client, id: call.id };
                match self.call(&call.method, call.params, &asker) {
                    Ok(None) => {}
                    Ok(Some(value)) => self.clients.answer(asker, Ok(value)),
                    Err(fault) => self.clients.answer(asker, Err(fault)),
                }
            }
        }
    }

    /// Executes a request. None: the answer comes later.
    fn call(&mut self, method: &str, params: Value, asker: &Asker) -> Result<Option<Value>, Fault> {
        match method {
            "switch.set" => self.switch_set(&rpc::params(params)?, asker),
            "switch.add" => self.switches.add(rpc::params(params)?, asker, &mut self.out).map(|()| None),
            "switch.del" => {
                let name = rpc::params::<Named>(params)?.name;
                self.switches.delete(&name, asker, &self.ports.table, &mut self.out)
            }
            "switch.list" => rpc::params(params).and_then(|Nothing {}| self.ask(Question::Switches, asker)),
            "vnic.add" => {
                self.ports.add_vnic(rpc::params(params)?, asker, &self.switches, &mut self.out).map(|()| None)
            }
            "vnic.del" => {
                let number = self.ports.table.find_vnic(&rpc::params::<Named>(params)?.name)?;
                Ok(self.delete(number, asker))
            }
            "vnic.set" => self.ports.vnic_set(params, asker, &mut self.out),
            "vnic.list" => rpc::params(params).and_then(|Nothing {}| self.ask(Question::List, asker)),
            "vnic.show" => {
                let Named { name } = rpc::params(params)?;
                self.ports.table.find_vnic(&name)?;
                self.ask(Question::Show { name }, asker)
            }
            "port.add" => {
                self.ports.add_port(rpc::params(params)?, asker, &self.switches, &mut self.out).map(|()| None)
            }
            "port.del" => {
                let number = self.ports.table.find_removable(&rpc::params::<Named>(params)?.name)?;
                Ok(self.delete(number, asker))
            }
            "port.list" => {
                let Nothing {} = rpc::params(params)?;
                self.ask(Question::Ports { name: None }, asker)
            }
            "port.show" => {
                let Named { name } = rpc::params(params)?;
                self.ports.table.find_device_port(&name)?;
                self.ask(Question::Ports { name: Some(name) }, asker)
            }
            "vlan.show" => rpc::params(params).and_then(|Nothing {}| self.reports().vlan_show().map(Some)),
            "fdb.add" | "fdb.del" | "fdb.flush" | "fdb.show" => self.call_fdb(method, params, asker),
            "acl.list" => {
                let Nothing {} = rpc::params(params)?;
                to_json(&self.switches.acl_report(&self.ports.table)).map(Some)
            }
            "acl.add" | "acl.del" | "acl.set" => {
                self.switches.change_rules(method, params, &self.ports.table, &mut self.out.store).map(Some)
            }
            "upgrade" => self.upgrade(rpc::params(params)?, asker).map(|()| None),
            "stats" => {
                let name = self.ports.table.checked(rpc::params::<MaybeNamed>(params)?.name)?;
                self.ask(Question::Stats { name }, asker)
            }
            "capture" => {
                let stream = Stream::capture(&rpc::params(params)?, &self.ports.table)?;
                self.order_stream(stream, asker).map(|()| None)
            }
            "profile" => self.order_stream(Stream::profile(&rpc::params(params)?)?, asker).map(|()| None),
            "doctor" => {
                let name = self.ports.table.checked(rpc::params::<MaybeNamed>(params)?.name)?;
                self.ask(Question::Doctor { name }, asker)
            }
            "sched.show" => rpc::params(params).and_then(|Nothing {}| self.ask(Question::Scheduler, asker)),
            "sched.trace" => rpc::params(params).and_then(|Nothing {}| self.sched_trace(asker)),
            "sched.set" => self.scheduler.set(&rpc::params(params)?).map(Some),
            "config.show" => rpc::params(params).and_then(|Nothing {}| self.reports().config().map(Some)),
            "version" => rpc::params(params).and_then(|Nothing {}| self.reports().version().map(Some)),
            _ => Err(no_such_method(method)),
        }
    }

    fn call_fdb(&mut self, method: &str, params: Value, asker: &Asker) -> Result<Option<Value>, Fault> {
        let (switches, ports) = (&self.switches, &self.ports.table);
        match method {
            "fdb.add" => switches.add_entry(rpc::params(params)?, asker, ports, &mut self.out),
            "fdb.del" => switches.delete_entry(rpc::params(params)?, asker, ports, &mut self.out),
            "fdb.flush" => self.ask(ports.flush(rpc::params(params)?)?, asker),
            _ => self.ask(switches.fdb_question(rpc::params(params)?)?, asker),
        }
    }

    /// The switch has taken a port, or has not.
    pub(super) fn port_added(
        &mut self,
        number: u32,
        is_new: bool,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        self.ports.added(number, is_new, result, &mut self.out)?;
        match self.ports.table.all.get(&number) {
            Some(port) if port.device().is_none() => {
                to_json(&VnicReport::new(&port.spec, port.path.clone(), STATE_NEW))
            }
            _ => self.reports().describe_port(number, &StatsReport::default()),
        }
    }

    /// Takes a vnic or port away, with its static entries. None: the answer comes later.
    fn delete(&mut self, number: u32, asker: &Asker) -> Option<Value> {
        let name = self.ports.table.name_of(number).unwrap_or_default();
        let is_done = self.ports.delete(number, asker, &mut self.out);
        self.switches.forget_entries_of(&name, &mut self.out.store);
        is_done.then_some(Value::Bool(true))
    }

    fn sched_trace(&mut self, asker: &Asker) -> Result<Option<Value>, Fault> {
        if !self.scheduler.is_traced_by(&self.out.switch) {
            // It was not told of any view, or is of a version without traces.
            return to_json(&SchedTrace::default()).map(Some);
        }
        self.ask(Question::SchedTrace, asker)
    }
}

impl Reports<'_> {
    pub(super) fn vlan_show(&self) -> Result<Value, Fault> {
        let mut vnics: Vec<_> = self.ports.all.values().map(|port| VnicVlans::of(&port.spec)).collect();
        vnics.sort_by(|one, other| one.name.cmp(&other.name));
        to_json(&VlansReport { vnics })
    }

    pub(super) fn config(&self) -> Result<Value, Fault> {
        let settings = &self.settings;
        let is_flow = settings.module.as_str() == FLOW;
        let settings = Settings {
            module: Some(settings.module.clone()),
            cpus: settings.cpus.clone(),
            fdb_entries: Some(settings.fdb_entries.unwrap_or(FdbEntries(FDB_ENTRIES_MAX))),
            controller: is_flow.then(|| settings.controller.unwrap_or_default()),
            fail_mode: settings.fail_mode.filter(|_| is_flow),
            upcalls: settings.upcalls,
            workers: Some(settings.workers),
            hysteresis_us: Some(settings.hysteresis),
            sandbox: Some(settings.sandbox),
            control_group: self.control_group.clone(),
            datapath_devices: self.datapath_devices.clone(),
            scheduler_view: self.scheduler.setting(),
        };
        let spec = |port: &Port| port.spec.clone().without_default_socket(self.dir);
        let vnics = self.ports.all.values().filter(|port| port.device().is_none());
        let mut vnics: Vec<VnicSpec> = vnics.map(spec).collect();
        vnics.sort_by(|one, other| one.name.cmp(&other.name));
        let mut ports: Vec<PortSpec> = self
            .ports
            .all
            .values()
            .filter(|port| !port.is_requested())
            .filter_map(|port| Some(port.device()?.spec.clone()))
            .collect();
        ports.sort_by(|one, other| one.name.cmp(&other.name));
        let switches = self.switches.all.iter().filter(|switch| !switch.name.is_default()).cloned().collect();
        let (fdb, acl) = (self.switches.static_entries.clone(), self.switches.acl.clone());
        to_json(&ConfigReport { settings, switches, vnics, ports, fdb, acl })
    }

    pub(super) fn version(&self) -> Result<Value, Fault> {
        to_json(&VersionReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            module: self.settings.module.as_str().to_owned(),
            driver_pid: self.driver.process.pid(),
            sandboxes: self.sandboxes(),
        })
    }

    /// The rights that the running inner processes have given up.
    pub(super) fn sandboxes(&self) -> Vec<SandboxReport> {
        let told = [
            ("switch", self.switch.process.sandbox()),
            ("driver", self.driver.process.sandbox()),
            ("controller", self.controller.process.sandbox()),
        ];
        let report = |(process, layers): (&str, Option<&[Layer]>)| {
            let (process, mode) = (process.to_owned(), self.settings.sandbox);
            Some(SandboxReport { process, mode, layers: layers?.to_vec() })
        };
        told.into_iter().filter_map(report).collect()
    }

    /// Makes the answer to a question out of the switch's, and the controller's part.
    pub(super) fn conclude(
        &self,
        question: &Question,
        controller: &ControllerAnswer,
        answer: Answer,
    ) -> Result<Value, Fault> {
        match (question, answer) {
            (Question::Fdb { switch }, Answer::Fdb(fdb)) => {
                to_json(&self.with_controlled(controller, switch.as_deref(), fdb))
            }
            (Question::Flush(_), Answer::Flushed(flushed)) => {
                to_json(&FlushReport { flushed: flushed + controller.flushed })
            }
            (Question::Switches, Answer::Switches(inside)) => {
                self.list_switches(&controller.with_controlled(inside))
            }
            (Question::Stats { name }, Answer::Stats(stats)) => to_json(&only(stats, name.as_deref())),
            (Question::Doctor { name }, Answer::Inspection(inside)) => {
                self.facts(name.as_deref(), Some(inside), controller)
            }
            (Question::SchedTrace, Answer::SchedTrace(trace)) => to_json(&trace),
            (Question::Scheduler, Answer::Stats(stats)) => to_json(&self.sched_report(&stats)),
            (Question::List, Answer::Stats(stats)) => self.list(&stats),
            (Question::Ports { name }, Answer::Stats(stats)) => self.describe_ports(name.as_deref(), &stats),
            (Question::Show { name }, Answer::Stats(stats)) => {
                let number = self.ports.find(name)?;
                let warnings = WarningContext::new(self.ports.all.values(), &stats);
                self.ports
                    .all
                    .get(&number)
                    .map_or(Ok(Value::Null), |port| to_json(&describe(port, &stats, &warnings)))
            }
            _ => Err(Fault::new(Kind::Internal, "the switch process answered something else than was asked")),
        }
    }

    pub(super) fn list(&self, stats: &StatsReport) -> Result<Value, Fault> {
        let warnings = WarningContext::new(self.ports.all.values(), stats);
        let vnics = self.ports.all.values().filter(|port| port.device().is_none());
        let mut vnics: Vec<_> = vnics.map(|port| describe(port, stats, &warnings)).collect();
        vnics.sort_by(|one, other| one.name.cmp(&other.name));
        for vnic in &mut vnics {
            vnic.features.clear();
            vnic.rings.clear();
        }
        to_json(&VnicList { vnics })
    }
}

/// The counters without the part of `vnic.show`, and of one port only if it is named.
fn only(mut stats: StatsReport, name: Option<&str>) -> StatsReport {
    stats.ports.retain(|port| name.is_none_or(|name| port.name == name));
    for port in &mut stats.ports {
        port.features.clear();
        port.rings.clear();
        port.guest_mtu = None;
    }
    stats
}

pub(super) fn describe(port: &Port, stats: &StatsReport, warnings: &WarningContext<'_>) -> VnicReport {
    let name = port.spec.name.as_str();
    let inside = stats.ports.iter().find(|inside| inside.name == name);
    let state = inside.map_or(STATE_DOWN, |inside| inside.state.as_str());
    let mut vnic = VnicReport::new(&port.spec, port.path.clone(), state);
    vnic.warnings = warnings.warnings(port);
    vnic.uplinks_down = port.is_cut;
    vnic.last_refusal = port.last_refusal().map(str::to_owned);
    if let Some(inside) = inside {
        vnic.features.clone_from(&inside.features);
        vnic.rings.clone_from(&inside.rings);
    }
    vnic
}

fn no_such_method(method: &str) -> Fault {
    let hint = names::hint(method, METHODS.iter().copied());
    let methods = METHODS.join(", ");
    Fault::new(Kind::Method, format!("there is no method \"{method}\"{hint} (there are {methods})"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mistyped_method_is_refused_with_the_right_one() {
        let fault = no_such_method("vnic.lst");
        assert_eq!(fault.kind, Kind::Method);
        assert!(fault.message.contains("did you mean \"vnic.list\""), "{fault}");
    }

    #[test]
    fn counters_of_one_port_come_alone() {
        let port = |name: &str| lasthop_api::report::PortReport {
            name: name.to_owned(),
            features: vec!["CSUM".to_owned()],
            ..Default::default()
        };
        let stats =
            StatsReport { ports: vec![port("a"), port("b")], workers: Vec::new(), ..StatsReport::default() };
        let one = only(stats.clone(), Some("b"));
        assert_eq!(one.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(one.ports[0].features.is_empty());
        assert_eq!(only(stats, None).ports.len(), 2);
    }

    #[test]
    fn parameters_that_nobody_asked_for_are_refused() {
        assert!(rpc::params::<Nothing>(json!({})).is_ok() && rpc::params::<Nothing>(Value::Null).is_ok());
        let fault = rpc::params::<Named>(json!({"name": "a", "nam": 1})).err().expect("refused");
        assert!(fault.message.contains("unknown key \"nam\""), "{fault}");
    }
}
