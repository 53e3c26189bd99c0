//! `lasthop check` checks a file; `lasthop apply` changes a running switch to match it.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::output::{print, print_json};
use crate::show;
use lasthop_api::acl;
use lasthop_api::fdb::{check_count, check_port_of};
use lasthop_api::port::change::Change;
use lasthop_api::port::{Name, PortSpec, check_members};
use lasthop_api::report::ConfigReport;
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::SwitchChange;
use lasthop_api::{rundir, switches};
use lasthop_config::kept::Kept;
use lasthop_config::plan;
use lasthop_config::plan::{Plan, Step};
use lasthop_config::{Config, Mistake};
use lasthop_runtime::fault::Fault;

use super::ask::ApiRequest;
use super::client::ask;

/// Exit status when the switch differs from the file: with `--dry-run`, or since a change takes a restart.
const DIFFERS: u8 = 3;

/// The file of the service.
const SERVICE_FILE: &str = "/etc/lasthop/lasthop.toml";

/// Writes the JSON schema of the file.
pub(super) fn schema() -> Result<ExitCode, Fault> {
    print(&lasthop_config::json_schema())?;
    Ok(ExitCode::SUCCESS)
}

/// Checks a file like `run` does, and reports all mistakes.
pub(super) fn check(file: Option<&Path>, dir: Option<&Path>, json: bool) -> Result<ExitCode, Fault> {
    let service = Path::new(SERVICE_FILE);
    if file.is_none() && !service.exists() {
        return Err(Fault::params(format!(
            "there is no {SERVICE_FILE}, the service's file; name another one: lasthop check -c FILE"
        )));
    }
    let file = file.unwrap_or(service);
    // Without a run directory the default socket paths are unknown, but not wrong.
    let dir = rundir::choose(dir).unwrap_or_default();
    let mistakes = match lasthop_config::read_all(file)? {
        Ok(config) => beyond_the_file(&config, &dir),
        Err(mistakes) => mistakes,
    };
    if json {
        print_json(&json!({"valid": mistakes.is_empty(), "mistakes": mistakes}))?;
    } else if mistakes.is_empty() {
        print(&format!("{} is valid", file.display()))?;
    } else {
        print(&mistakes.iter().map(|mistake| located(file, mistake)).collect::<String>())?;
    }
    Ok(if mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn located(file: &Path, mistake: &Mistake) -> String {
    let file = file.display();
    if mistake.line == 0 { format!("{file}: {}\n", mistake.message) } else { format!("{file}:{mistake}\n") }
}

/// Faults of the file's switches and of its ports' switches. Flags may name further switches for `run`.
fn wrong_switches(config: &Config) -> Vec<Fault> {
    let all = config.all_switches();
    let members = config.ports.iter().filter_map(|port| check_members(&all, [port]).err());
    switches::check_all(&all).err().into_iter().chain(members).collect()
}

/// Faults of the file's static entries.
fn wrong_entries(config: &Config) -> Vec<Fault> {
    match check_count(&config.fdb) {
        Err(fault) => vec![fault],
        Ok(()) => config.fdb.iter().filter_map(|entry| check_port_of(entry, &config.ports).err()).collect(),
    }
}

/// Faults of the file's rules: ports of switches that do not enforce them.
fn wrong_rules(config: &Config) -> Vec<Fault> {
    let all = config.all_switches();
    let check = |port: &PortSpec| acl::check_switch_of(&config.acl, &all, port);
    config.ports.iter().filter_map(|port| check(port).err()).collect()
}

/// Faults that depend on this machine or on the whole file.
fn beyond_the_file(config: &Config, dir: &Path) -> Vec<Mistake> {
    let settings = SwitchSettings::new(config.settings.clone()).err();
    let ports = config.ports.iter().filter_map(|port| {
        let fault = lasthop_supervisor::check_port(port, dir).err()?;
        Some(Fault { message: format!("port \"{}\": {}", port.name(), fault.message), ..fault })
    });
    let group = lasthop_supervisor::check_control_group(config.settings.control_group.as_deref()).err();
    let all = settings
        .into_iter()
        .chain(group)
        .chain(wrong_switches(config))
        .chain(ports)
        .chain(wrong_entries(config));
    let all = all.chain(config.refused_by_modules()).chain(wrong_rules(config));
    all.map(|fault| Mistake::of_machine(fault.message)).collect()
}

impl ApiRequest {
    /// Changes the switch to match the file, or only shows the steps.
    pub(super) fn apply(&self, file: &Path, is_dry: bool) -> Result<ExitCode, Fault> {
        let config = lasthop_config::read(file)?;
        let wrong = wrong_switches(&config).into_iter().chain(wrong_entries(&config));
        wrong.chain(config.refused_by_modules()).chain(wrong_rules(&config)).next().map_or(Ok(()), Err)?;
        let mut running: ConfigReport = ask(&self.dir, "config.show", &json!({}))?;
        let wanted = wanted(config, &self.dir);
        let kept = Kept::take(&mut running, &wanted);
        let plan = Plan::new(&running, &wanted);
        if self.json {
            let applied = !is_dry && !plan.is_empty();
            print_json(
                &json!({"steps": plan.steps, "kept": kept, "applied": applied, "needs_restart": plan.needs_restart()}),
            )?;
        } else {
            print(&(plan::lines(&plan) + &kept.lines()))?;
        }
        if !is_dry {
            self.carry_out(&plan)?;
        }
        if !self.json {
            print(&sum(&plan, file, is_dry))?;
        }
        let differs = if is_dry { !plan.is_empty() } else { plan.needs_restart() };
        Ok(if differs { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
    }

    pub(super) fn config(&self) -> Result<ExitCode, Fault> {
        let running: ConfigReport = ask(&self.dir, "config.show", &json!({}))?;
        self.show(&running, show::config)
    }

    /// Removals first: they make room for additions.
    fn carry_out(&self, plan: &Plan) -> Result<(), Fault> {
        for step in &plan.steps {
            match step {
                Step::Remove { name } => self.remove(name)?,
                Step::Anew { port, .. } => self.remove(port.name())?,
                _ => {}
            }
        }
        for step in &plan.steps {
            match step {
                Step::RemoveSwitch { name } => self.order("switch.del", &json!({"name": name}))?,
                Step::SetSwitch { switch, .. } => {
                    self.order("switch.set", &json!(SwitchChange::to(switch)))?
                }
                Step::AddSwitch { switch } => self.order("switch.add", &json!(switch))?,
                Step::Forget { entry } => self.order("fdb.del", &json!(entry))?,
                _ => {}
            }
        }
        for name in plan.addresses_to_free() {
            self.order("port.set", &json!({"name": name, "mac": null}))?;
        }
        for step in &plan.steps {
            match step {
                Step::Change { name, changes } => self.order("port.set", &keys(name, changes))?,
                Step::Anew { port, .. } | Step::Add { port } => self.order("port.add", &json!(port))?,
                _ => {}
            }
        }
        for step in &plan.steps {
            match step {
                Step::Enter { entry } => self.order("fdb.add", &json!(entry))?,
                Step::SetAcl { rules, .. } => self.order("acl.set", &json!({"rules": rules}))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn remove(&self, name: &Name) -> Result<(), Fault> {
        self.order("port.del", &json!({"name": name}))
    }

    fn order(&self, method: &str, params: &Value) -> Result<(), Fault> {
        let done: Result<Value, Fault> = ask(&self.dir, method, params);
        done.map(drop).map_err(|fault| {
            let why = format!("{}; later steps were not done: remedy this, then apply again", fault.message);
            Fault { message: why, ..fault }
        })
    }
}

fn keys(name: &Name, changes: &[Change]) -> Value {
    let keys = changes.iter().map(|change| (change.key.clone(), change.to.clone()));
    Value::Object(keys.chain([("name".to_owned(), json!(name))]).collect())
}

/// The file's configuration, in the form of a running one.
fn wanted(config: Config, dir: &Path) -> ConfigReport {
    let ports = config.ports.into_iter().map(|port| port.without_default_socket(dir)).collect();
    let Config { settings, switches, fdb, acl, .. } = config;
    ConfigReport { settings, switches, ports, fdb, acl, ..ConfigReport::default() }
}

fn sum(plan: &Plan, file: &Path, is_dry: bool) -> String {
    let file = file.display();
    match (plan.is_empty(), is_dry) {
        (true, _) => format!("nothing to do: the switch is as {file} says"),
        (false, true) => format!("{} if this were applied", plan::sum(plan)),
        (false, false) => plan::sum(plan),
    }
}
