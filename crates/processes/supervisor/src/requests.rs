//! The methods of the control interface (docs/user/control-api.md).

use lasthop_modules::FDB_ENTRIES_MAX;
use log::debug;
use serde::Deserialize;
use serde_json::Value;

use lasthop_api::explain::ExplainSpec;
use lasthop_api::modules::{FLOW, FdbEntries};
use lasthop_api::names;
use lasthop_api::orders::{Answer, Order};
use lasthop_api::placement::CalibrateParams;
use lasthop_api::port::{BackendKind, PortSpec, VnicForm};
use lasthop_api::report::{
    ConfigReport, FlushReport, PortFilter, SandboxReport, StatsReport, VersionReport, VlansReport, VnicVlans,
};
use lasthop_api::rpc;
use lasthop_api::sched::QueueMove;
use lasthop_api::sched_part::SchedPart;
use lasthop_api::settings::Settings;
use lasthop_listeners::{Caller, RequestLine};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::sandbox::Layer;

use super::Supervisor;
use super::capture::Stream;
use super::question::{ControllerAnswer, ExplainQuestion, OrderPurpose, Question, strange_answer, to_json};
use super::reports::Reports;

/// All methods; `vnic.…` are the old names for vhost-user ports.
const METHODS: &[&str] = &[
    "switch.add",
    "switch.set",
    "switch.del",
    "switch.list",
    "port.add",
    "port.del",
    "port.set",
    "port.list",
    "port.show",
    "vnic.add",
    "vnic.del",
    "vnic.set",
    "vnic.list",
    "vnic.show",
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
    "explain",
    "sched.show",
    "sched.trace",
    "sched.table",
    "sched.set",
    "sched.move",
    "sched.calibrate",
    "config.show",
    "version",
    "upgrade",
];
/// Requests that are served in a row; then others have their turn. A client may send many at once, and need not read the
/// replies.
const PER_TURN_MAX: usize = 64;
/// The state of a new vhost-user port.
const STATE_NEW: &str = "waiting for guest";
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
    /// Handles a client that sent something, or is gone.
    pub(super) fn hear_client(&mut self, client: u32, is_over: bool) {
        if let Some(line) = self.clients.read(client, is_over, &self.out.poller) {
            self.serve_line(line);
        }
    }

    /// Writes the replies, and serves the requests that those clients have sent meanwhile: some of them, if there are
    /// many.
    pub(super) fn proceed_with_clients(&mut self) {
        for _ in 0..PER_TURN_MAX {
            let Some(line) = self.clients.next_line(&self.out.poller) else { return };
            self.serve_line(line);
        }
    }

    fn serve_line(&mut self, (client, line): RequestLine) {
        match rpc::read_call(&line) {
            Err((id, fault)) => {
                self.clients.answer(Caller { client, id: Some(id), in_vnic_form: false }, Err(fault))
            }
            Ok(call) => {
                let in_vnic_form = call.method.starts_with("vnic.");
                let caller = Caller { client, id: call.id, in_vnic_form };
                debug!(limited = true; "request {}", call.method);
                match self.call(&call.method, call.params, &caller) {
                    Ok(None) => {}
                    Ok(Some(value)) => self.clients.answer(caller, Ok(value)),
                    Err(fault) => self.clients.answer(caller, Err(fault)),
                }
            }
        }
    }

    /// Executes a request. `None`: the reply comes later.
    fn call(&mut self, method: &str, params: Value, caller: &Caller) -> Result<Option<Value>, Fault> {
        match method {
            "switch.set" => self.switch_set(&rpc::params(params)?, caller),
            "switch.add" => self.switches.add(rpc::params(params)?, caller, &mut self.out).map(|()| None),
            "switch.del" => {
                let name = rpc::params::<Named>(params)?.name;
                self.switches.delete(&name, caller, &self.ports.table, &mut self.out)
            }
            "switch.list" => rpc::params(params).and_then(|Nothing {}| self.ask(Question::Switches, caller)),
            "vnic.add" => {
                let VnicForm(spec) = rpc::params(params)?;
                self.ports.add(spec, caller, &self.switches, &mut self.out).map(|()| None)
            }
            "port.add" => {
                self.ports.add(rpc::params(params)?, caller, &self.switches, &mut self.out).map(|()| None)
            }
            "vnic.del" | "port.del" => {
                let name = rpc::params::<Named>(params)?.name;
                let number = self.ports.table.find_in_form(&name, caller.in_vnic_form)?;
                self.ports.table.check_removable(number)?;
                Ok(self.ports.delete(number, caller, &mut self.switches, &mut self.out))
            }
            "vnic.set" | "port.set" => self.ports.set(params, caller, &self.switches, &mut self.out),
            "vnic.list" => {
                let Nothing {} = rpc::params(params)?;
                let filter = PortFilter { backend: Some(BackendKind::VhostUser) };
                self.ask(Question::Ports { name: None, filter }, caller)
            }
            "port.list" => self.ask(Question::Ports { name: None, filter: rpc::params(params)? }, caller),
            "vnic.show" | "port.show" => {
                let Named { name } = rpc::params(params)?;
                let number = self.ports.table.find_in_form(&name, caller.in_vnic_form)?;
                let backend = self.ports.table.all.get(&number).map(|port| port.spec.kind());
                self.ask(Question::Ports { name: Some(name), filter: PortFilter { backend } }, caller)
            }
            "vlan.show" => rpc::params(params).and_then(|Nothing {}| self.reports().vlan_show().map(Some)),
            "fdb.add" | "fdb.del" | "fdb.flush" | "fdb.show" => self.call_fdb(method, params, caller),
            "acl.list" => {
                let Nothing {} = rpc::params(params)?;
                to_json(&self.switches.acl_report(&self.ports.table)).map(Some)
            }
            "acl.add" | "acl.del" | "acl.set" => {
                let (ports, store) = (&self.ports.table, &mut self.out.store);
                let changed = self.switches.change_rules(method, params, ports, store)?;
                self.await_rules(changed, caller)
            }
            "upgrade" => self.upgrade(rpc::params(params)?, caller).map(|()| None),
            "stats" => {
                let name = self.ports.table.checked(rpc::params::<MaybeNamed>(params)?.name)?;
                self.ask(Question::Stats { name }, caller)
            }
            "capture" | "profile" => {
                let stream = Stream::asked(method, params, &self.ports.table)?;
                stream.order(caller, &mut self.clients, &mut self.datapath_clients, &mut self.out)
            }
            "doctor" => {
                let name = self.ports.table.checked(rpc::params::<MaybeNamed>(params)?.name)?;
                self.ask(Question::Doctor { name }, caller)
            }
            "explain" => self.explain(rpc::params(params)?, caller),
            _ if method.starts_with("sched.") => self.call_sched(method, params, caller),
            "config.show" => rpc::params(params).and_then(|Nothing {}| self.reports().config().map(Some)),
            "version" => rpc::params(params).and_then(|Nothing {}| self.reports().version().map(Some)),
            _ => Err(no_such_method(method)),
        }
    }

    fn call_sched(&mut self, method: &str, params: Value, caller: &Caller) -> Result<Option<Value>, Fault> {
        match method {
            "sched.show" => rpc::params(params).and_then(|Nothing {}| self.ask(Question::Scheduler, caller)),
            "sched.trace" => rpc::params(params).and_then(|Nothing {}| self.sched(SchedPart::Trace, caller)),
            "sched.table" => rpc::params(params).and_then(|Nothing {}| self.sched(SchedPart::Table, caller)),
            "sched.move" => self.ask_to_move(rpc::params(params)?, caller),
            "sched.set" => {
                self.scheduler.set(&rpc::params(params)?, &mut self.shares, &mut self.placement).map(Some)
            }
            "sched.calibrate" => {
                let CalibrateParams { measured } = rpc::params(params)?;
                self.placement.measure(measured).map(|()| Some(Value::Bool(true)))
            }
            _ => Err(no_such_method(method)),
        }
    }

    fn call_fdb(&mut self, method: &str, params: Value, caller: &Caller) -> Result<Option<Value>, Fault> {
        let (switches, ports) = (&self.switches, &self.ports.table);
        match method {
            "fdb.add" => switches.add_entry(rpc::params(params)?, caller, ports, &mut self.out),
            "fdb.del" => switches.delete_entry(rpc::params(params)?, caller, ports, &mut self.out),
            "fdb.flush" => self.ask(ports.flush(rpc::params(params)?)?, caller),
            _ => self.ask(switches.fdb_question(rpc::params(params)?)?, caller),
        }
    }

    /// Handles the switch's reply about a new port.
    pub(super) fn port_added(
        &mut self,
        number: u32,
        is_new: bool,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        self.ports.added(number, is_new, result, &mut self.out)?;
        let mut made = self.reports().describe_port(number, &StatsReport::default())?;
        if made.guest.is_some() {
            made.state = STATE_NEW.to_owned();
        }
        to_json(&made)
    }

    fn explain(&mut self, spec: ExplainSpec, caller: &Caller) -> Result<Option<Value>, Fault> {
        spec.frame()?;
        self.ports.table.checked(Some(spec.from.clone()))?;
        self.ask(Question::Explain(Box::new(ExplainQuestion::new(spec))), caller)
    }

    fn ask_to_move(&mut self, wanted: QueueMove, caller: &Caller) -> Result<Option<Value>, Fault> {
        self.ports.table.checked(Some(wanted.port.clone()))?;
        self.ask(Question::MoveQueue(wanted), caller)
    }

    /// Moves a queue, if the switch process knows that order, by its answer to `Know`.
    pub(super) fn move_queue(
        &mut self,
        wanted: QueueMove,
        known: Result<Answer, Fault>,
        caller: Option<Caller>,
    ) {
        let switch = &mut self.out.switch_process;
        match (known.and_then(Answer::moves_queues), caller) {
            (Ok(()), caller) => switch.order(Order::MoveQueue(wanted), OrderPurpose::QueueMoved, caller),
            (Err(fault), Some(caller)) => self.clients.answer(caller, Err(fault)),
            (Err(_), None) => {}
        }
    }

    fn sched(&mut self, part: SchedPart, caller: &Caller) -> Result<Option<Value>, Fault> {
        if !self.scheduler.reports(part, &self.out.switch_process) {
            // It got no view, or its version has no such report.
            return part.nothing().map(Some);
        }
        self.ask(Question::Sched(part), caller)
    }
}

impl Reports<'_> {
    pub(super) fn vlan_show(&self) -> Result<Value, Fault> {
        let mut vnics: Vec<_> =
            self.ports.all.values().map(|port| VnicVlans::of(&port.spec.common)).collect();
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
            busy_poll_cpus: Some(settings.busy_poll_cpus),
            sandbox: Some(settings.sandbox),
            control_group: self.control_group.clone(),
            datapath_devices: self.datapath_devices.clone(),
            scheduler_view: self.scheduler.setting(),
            helper_cpus: settings.helper_cpus.clone(),
            offload: settings.offload,
            placement: self.placement.setting(),
            placement_batches: self.placement.threshold(),
            shares: self.shares.setting(),
            standby: self.standby.setting(),
            tunnel_gro: Some(self.ports.tunnels.gro),
            huge_pages: Some(settings.huge_pages),
            receive_steering: Some(settings.receive_steering),
            pair_flows: Some(settings.pair_flows),
        };
        let own = self.ports.all.values().filter(|port| !port.is_requested());
        let mut ports: Vec<PortSpec> =
            own.map(|port| port.spec.clone().without_default_socket(self.dir)).collect();
        ports.sort_by(|one, other| one.name().cmp(other.name()));
        let vnics = ports.iter().filter(|port| port.is_vhost_user()).cloned().map(VnicForm).collect();
        let switches = self.switches.all.iter().filter(|switch| !switch.name.is_default()).cloned().collect();
        let (fdb, acl) = (self.switches.static_entries.clone(), self.switches.acl.clone());
        to_json(&ConfigReport { settings, switches, ports, vnics, fdb, acl })
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

    /// The restrictions of the running inner processes.
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

    /// Makes the answer to a question from the switch's and the controller's part.
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
            (Question::Switches, Answer::Switches(inside)) => self.switch_list(controller, inside),
            (Question::Stats { name }, Answer::Stats(stats)) => {
                to_json(&self.with_processes(stats).only(name.as_deref()))
            }
            (Question::Doctor { name }, Answer::Inspection(inside)) => {
                self.facts(name.as_deref(), Some(inside), controller)
            }
            (Question::Sched(_), Answer::SchedTrace(trace)) => to_json(&trace),
            (Question::Sched(_), Answer::SchedTable(table)) => to_json(&table),
            (Question::Scheduler, Answer::Stats(stats)) => to_json(&self.sched_report(&stats)),
            (Question::Ports { name: Some(name), .. }, Answer::Stats(stats)) => {
                to_json(&self.describe_port(self.ports.find(name)?, &stats)?)
            }
            (Question::Ports { name: None, filter }, Answer::Stats(stats)) => {
                to_json(&self.list_ports(*filter, &stats))
            }
            _ => Err(strange_answer()),
        }
    }
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
        let one = stats.clone().only(Some("b"));
        assert_eq!(one.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(one.ports[0].features.is_empty());
        assert_eq!(stats.only(None).ports.len(), 2);
    }

    #[test]
    fn parameters_that_nobody_asked_for_are_refused() {
        assert!(rpc::params::<Nothing>(json!({})).is_ok() && rpc::params::<Nothing>(Value::Null).is_ok());
        let fault = rpc::params::<Named>(json!({"name": "a", "nam": 1})).err().expect("refused");
        assert!(fault.message.contains("unknown key \"nam\""), "{fault}");
    }
}
