//! The subcommands that ask a running switch and show its answer.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lasthop_api::facts::Facts;
use lasthop_api::fdb::{Flush, StaticEntry};
use lasthop_api::report::{
    FdbReport, FlushReport, StatsReport, SwitchList, SwitchReport, VersionReport, VlansReport, WorkersReport,
};
use lasthop_api::sched::{PolicyChange, QueueMove, QueuePlace, SchedReport, SchedTrace};
use lasthop_api::sched_table::SchedTable;
use lasthop_api::switches::SwitchChange;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_supervisor::upgraded_text;
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{self, ask, ask_within};
use super::pattern::{PORT_LIST, Pattern};
use super::{FdbCommand, SchedCommand, SwitchCommand};
use crate::output::{print, print_json};
use crate::show::{self, Sort};
use lasthop_doctor::remedy::addressed;
use lasthop_doctor::{Diagnosis, Scope, examine};

/// Longest wait for an upgrade: longer than the supervisor's wait for both programs, which has the better message.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(120);

/// Interval for the workers' load.
const LOOK: Duration = Duration::from_millis(500);

/// Whether the command names one thing, so that the answer is not a list.
pub(super) fn is_one(names: &[Pattern]) -> bool {
    matches!(names, [only] if !only.is_of_many())
}

/// Where to send requests, and how to show answers.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) dir: PathBuf,
    pub(super) json: bool,
}

impl ApiRequest {
    /// Shows one answer as itself, several as a list.
    pub(super) fn show_each<T: Serialize>(
        &self,
        each: &[T],
        is_one: bool,
        text: impl Fn(&T) -> String,
    ) -> Result<ExitCode, Fault> {
        match (each, self.json) {
            ([one], _) if is_one => self.show(one, text),
            (_, true) => self.show(&each, |_| String::new()),
            (_, false) => {
                print(&each.iter().map(text).collect::<Vec<_>>().join("\n")).map(|()| ExitCode::SUCCESS)
            }
        }
    }

    pub(super) fn fdb(&self, command: FdbCommand) -> Result<ExitCode, Fault> {
        match command {
            FdbCommand::Show { switch } => {
                let params = switch.map_or_else(|| json!({}), |switch| json!({"switch": switch}));
                let fdb: FdbReport = ask(&self.dir, "fdb.show", &params)?;
                self.show(&fdb, show::fdb)
            }
            FdbCommand::Add(entry) => self.change("fdb.add", "added", entry.into()),
            FdbCommand::Del(entry) => self.change("fdb.del", "deleted", entry.into()),
            FdbCommand::Flush { port, vlan } => {
                let done: FlushReport = ask(&self.dir, "fdb.flush", &Flush { port, vlan })?;
                self.show(&done, |FlushReport { flushed }| {
                    let noun = if *flushed == 1 { "address" } else { "addresses" };
                    format!("forgot {flushed} learned {noun}")
                })
            }
        }
    }

    fn change(&self, method: &str, done: &str, entry: StaticEntry) -> Result<ExitCode, Fault> {
        let answer: Value = ask(&self.dir, method, &entry)?;
        self.show(&answer, |_| format!("{done} {} of {}", entry.mac, entry.port))
    }

    pub(super) fn vlan(&self) -> Result<ExitCode, Fault> {
        let vlans: VlansReport = ask(&self.dir, "vlan.show", &json!({}))?;
        self.show(&vlans, show::vlans)
    }

    /// Without `sort`, lines are sorted by name, and JSON is in the order of the switch.
    pub(super) fn stats(
        &self,
        names: &[Pattern],
        check: bool,
        sort: Option<Sort>,
    ) -> Result<ExitCode, Fault> {
        let mut stats = self.counters(names)?;
        if let Some(sort) = sort.or((!self.json).then_some(Sort::Name)) {
            stats.ports.sort_by(|one, other| sort.compare(one, other));
        }
        if check { self.check(&stats) } else { self.show(&stats, show::stats) }
    }

    pub(super) fn prometheus(&self, names: &[Pattern]) -> Result<ExitCode, Fault> {
        print(&show::prometheus(&self.counters(names)?))?;
        Ok(ExitCode::SUCCESS)
    }

    /// With `--json` shows the counters only; otherwise the workers' load at present.
    pub(super) fn workers(&self) -> Result<ExitCode, Fault> {
        let before = self.counters(&[])?;
        if self.json {
            print_json(&WorkersReport { workers: before.workers })?;
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK);
        self.show(&self.counters(&[])?, |now| show::workers(&before, now))
    }

    /// With `--json` shows the counters in any case; the exit status has the result.
    fn check(&self, stats: &StatsReport) -> Result<ExitCode, Fault> {
        if self.json {
            print_json(stats)?;
        }
        match show::conservation(stats) {
            Ok(line) if !self.json => print(&line)?,
            Ok(_) => {}
            Err(message) => return Err(Fault::new(Kind::Internal, message)),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns 1 if something is broken.
    pub(super) fn doctor(&self, patterns: &[Pattern]) -> Result<ExitCode, Fault> {
        let names = match is_one(patterns) {
            true => self.names_of(PORT_LIST, patterns), // the request for the facts refuses a missing one
            false => self.present(patterns),
        };
        let names = match names {
            Err(fault) if fault.kind == Kind::NoSuchVnic => return Err(fault),
            // The examination tells why there is no list.
            names => names.unwrap_or_default(),
        };
        let scope = if names.is_empty() { Scope::All } else { Scope::Ports(&names) };
        // The switch tells about one port or all.
        let params = if let [only] = &names[..] { json!({"name": only}) } else { json!({}) };
        let diagnosis = self.examine(scope, &params)?;
        self.show(&diagnosis, |diagnosis| show::for_screen(&addressed(&diagnosis.text(), &self.dir)))?;
        Ok(ExitCode::from(u8::from(!diagnosis.ok)))
    }

    /// Returns 2 if something is broken, 1 after a warning.
    pub(super) fn doctor_of_switch(&self) -> Result<ExitCode, Fault> {
        let diagnosis = self.examine(Scope::Switch, &json!({}))?;
        self.show(&diagnosis, |diagnosis| {
            show::for_screen(&addressed(&diagnosis.text_of_switch(), &self.dir))
        })?;
        Ok(ExitCode::from(diagnosis.severity()))
    }

    fn examine(&self, scope: Scope<'_>, params: &Value) -> Result<Diagnosis, Fault> {
        examine(&self.dir, scope, || ask::<Facts>(&self.dir, "doctor", params))
    }

    pub(super) fn upgrade(&self, binary: Option<PathBuf>) -> Result<ExitCode, Fault> {
        let resolved = binary.map(|binary| {
            std::path::absolute(&binary).map_err(|error| Fault::internal("find the program", error))
        });
        let params = resolved.transpose()?.map_or_else(|| json!({}), |binary| json!({"binary": binary}));
        let done: Value = ask_within(UPGRADE_PATIENCE, &self.dir, "upgrade", &params)?;
        self.show(&done, upgraded_text)
    }

    pub(super) fn version(&self) -> Result<ExitCode, Fault> {
        let version = env!("CARGO_PKG_VERSION");
        let asked: Result<VersionReport, Fault> = ask(&self.dir, "version", &json!({}));
        let (running, fault) = match asked {
            Ok(running) => (Some(running), None),
            // The switch runs, and does not answer.
            Err(fault) if fault.kind == Kind::SwitchDown => return Err(fault),
            Err(_) if client::has_none(&self.dir) => (None, None),
            Err(fault) => (None, Some(fault.message)),
        };
        self.show(&json!({"version": version, "running": running, "fault": fault}), |_| {
            show::version(version, running.as_ref(), fault.as_deref())
        })
    }

    pub(super) fn show<T: Serialize>(
        &self,
        value: &T,
        text: impl Fn(&T) -> String,
    ) -> Result<ExitCode, Fault> {
        if self.json {
            print_json(value)?
        } else {
            print(&text(value))?
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ApiRequest {
    pub(super) fn sched(&self, command: SchedCommand) -> Result<ExitCode, Fault> {
        match command {
            SchedCommand::Show { table: true } => {
                let table: SchedTable = ask(&self.dir, "sched.table", &json!({}))?;
                self.show(&table, show::sched_table)
            }
            SchedCommand::Show { table: false } => {
                let report: SchedReport = ask(&self.dir, "sched.show", &json!({}))?;
                self.show(&report, show::sched)
            }
            SchedCommand::Trace => {
                let trace: SchedTrace = ask(&self.dir, "sched.trace", &json!({}))?;
                self.show(&trace, show::sched_trace)
            }
            SchedCommand::Move { queue: QueuePlace { port, queue }, worker } => {
                let wanted = QueueMove { port, queue, worker };
                let done: Value = ask(&self.dir, "sched.move", &wanted)?;
                let QueueMove { port, queue, worker } = wanted;
                self.show(&done, |_| format!("queue {queue} of {port} is served by worker {worker}"))
            }
            SchedCommand::Calibrate(args) => self.calibrate(&args),
            SchedCommand::Set { change } => {
                let done: Value = ask(&self.dir, "sched.set", &change)?;
                let PolicyChange { policy, mode } = change;
                self.show(&done, |_| format!("policy {policy} is {mode}"))
            }
        }
    }
}

impl ApiRequest {
    pub(super) fn switch(&self, command: SwitchCommand) -> Result<ExitCode, Fault> {
        match command {
            SwitchCommand::Add { switch } => {
                let made: SwitchReport = ask(&self.dir, "switch.add", &switch)?;
                self.show(&made, show::switch_added)
            }
            SwitchCommand::Set { name, keys } => {
                let change = SwitchChange::parse(name, &keys)?;
                let set: SwitchReport = ask(&self.dir, "switch.set", &change)?;
                self.show(&set, |set| format!("switch {} is of module {}", set.name, set.module))
            }
            SwitchCommand::Del { names } => {
                // Each is told when it is gone, so that a refused one does not hide those before it.
                for name in names {
                    ask::<Value>(&self.dir, "switch.del", &json!({"name": name}))?;
                    if !self.json {
                        print(&format!("deleted switch {name}"))?;
                    }
                }
                if self.json {
                    print_json(&true)?;
                }
                Ok(ExitCode::SUCCESS)
            }
            SwitchCommand::List => {
                let list: SwitchList = ask(&self.dir, "switch.list", &json!({}))?;
                self.show(&list, show::switch_list)
            }
        }
    }
}
