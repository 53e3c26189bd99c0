//! `lasthop ovs status`: the parts that Open vSwitch needs, and which of them are missing.

use std::collections::BTreeMap;
use std::path::Path;

use lasthop_dpif::client::{Client, ClientError};
use serde::Serialize;

use crate::Unit;
use crate::install::has_kernel_datapath;
use crate::programs::{self, Daemon, Database, Programs, daemons};
use lasthop_api::readable::count;
use lasthop_api::report::ControlClient;
use lasthop_api::rundir::{datapath_socket, option};
use lasthop_api::silence::{PATIENCE, is_vain, no_answer};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::procfs;

const LEFTOVER: &str = "the kernel's datapath ovs-system has devices, so the switch cannot have devices of their names: restart ovs-vswitchd after \
                        lasthop ovs install, or remove it: ovs-dpctl del-dp ovs-system";

/// A checked part.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    is_ok: bool,
    /// It exists, and has no effect.
    is_warning: bool,
    text: String,
}

/// A vnic and its switch's controller.
#[derive(Clone, Debug)]
pub struct ControlledVnic {
    /// The vnic's name.
    pub name: String,
    /// The name of its switch.
    pub switch: String,
    /// Whether that has the module flow, so that Open vSwitch can control it.
    pub is_of_flow: bool,
    /// Whether Open vSwitch may use its ports.
    pub is_for_outside: bool,
}

/// All checks.
#[derive(Debug, Serialize)]
pub struct Status {
    ok: bool,
    checks: Vec<Check>,
}

impl Check {
    fn new(name: &'static str, result: Result<String, String>) -> Self {
        let is_ok = result.is_ok();
        Self { name, is_ok, is_warning: false, text: result.unwrap_or_else(|text| text) }
    }

    fn warning(name: &'static str, text: String) -> Self {
        Self { name, is_ok: false, is_warning: true, text }
    }

    fn word(&self) -> &'static str {
        match (self.is_ok, self.is_warning) {
            (true, _) => "ok",
            (false, true) => "warning",
            (false, false) => "missing",
        }
    }
}

impl Status {
    /// Checks the switch in `dir` with its vnics `guests`, and the Open vSwitch that controls it, whose sockets are in
    /// `run` if given. `clients` are the controllers of switches with an external one; `None` if there is no such
    /// switch.
    pub fn look(
        dir: &Path,
        run: Option<&Path>,
        guests: &[ControlledVnic],
        clients: Option<&[ControlClient]>,
    ) -> Self {
        let programs = Programs::find();
        let version = told(programs.as_ref(), |found| format!("Open vSwitch {}", found.version));
        let mut checks = vec![
            Check::new("programs", version),
            Check::new("library", told(programs::library().as_ref(), |path| path.display().to_string())),
            Check::new("switch", datapaths(dir).map_err(|error| no_datapaths(dir, &error))),
            Check::new("daemon", daemon(&daemons(&datapath_socket(dir)), &datapath_socket(dir), dir)),
        ];
        checks.extend(clients.map(|clients| controller(clients, &datapath_socket(dir), dir)));
        checks.extend(vnics(guests, dir).map(|result| Check::new("vnics", result)));
        let unit = Unit::new(None);
        if unit.exists() {
            checks.push(Check::new("service", Ok(format!("{} is installed", unit.path().display()))));
        }
        checks.extend(has_kernel_datapath().then(|| Check::warning("kernel", LEFTOVER.to_owned())));
        checks.extend(Database::find(dir, run).and_then(|database| limits(&database, guests)));
        Self { ok: checks.iter().all(|check| check.is_ok || check.is_warning), checks }
    }

    /// Whether nothing is missing.
    pub fn is_ok(&self) -> bool {
        self.ok
    }

    /// One line for each.
    pub fn text(&self) -> String {
        let line = |check: &Check| format!("{:8} {:10} {}\n", check.word(), check.name, check.text);
        self.checks.iter().map(line).collect()
    }
}

fn told<T>(found: Result<&T, &Fault>, text: impl Fn(&T) -> String) -> Result<String, String> {
    found.map(text).map_err(ToString::to_string)
}

fn datapaths(dir: &Path) -> Result<String, ClientError> {
    let mut client = Client::connect_unless(&datapath_socket(dir), is_vain)?;
    let mut lines = Vec::new();
    for datapath in client.datapaths()? {
        let ports = client.ports(datapath.datapath)?.len();
        let flows = datapath.stats.unwrap_or_default().flows;
        let (ports, flows) = (count(ports, "port"), count(flows as usize, "flow"));
        lines.push(format!("{}: {ports}, {flows}", datapath.name.unwrap_or_default()));
    }
    Ok(if lines.is_empty() { "no datapath yet".to_owned() } else { lines.join("; ") })
}

fn no_datapaths(dir: &Path, error: &ClientError) -> String {
    if matches!(error, ClientError::Late) {
        return no_answer(dir, PATIENCE).message;
    }
    let (path, option) = (datapath_socket(dir), option(dir));
    format!(
        "no program answers at {}: {error}; start a switch: lasthop{option} run --controller external",
        path.display()
    )
}

/// The process that receives misses. Before the first bridge there is none.
fn controller(clients: &[ControlClient], socket: &Path, dir: &Path) -> Check {
    let stopped = clients.iter().filter_map(|client| client.pid).find(|pid| procfs::is_stopped(*pid));
    if let Some(pid) = stopped {
        let text = format!("process {pid} is connected and stopped (T): continue it: kill -CONT {pid}");
        return Check::new("controller", Err(text));
    }
    if clients.is_empty() {
        let socket = socket.display();
        return Check::warning(
            "controller",
            format!(
                "no process takes packets of no flow at {socket}, so they are dropped or bridged (fail-mode); start it: \
                 lasthop{} ovs run; if it runs, it has no bridge: ovs-vsctl add-br br0",
                option(dir)
            ),
        );
    }
    let names: Vec<String> = clients.iter().map(ControlClient::text).collect();
    Check::new("controller", Ok(names.join("; ")))
}

/// Vnics that Open vSwitch can use as ports; none is a fault if there are vnics.
fn vnics(guests: &[ControlledVnic], dir: &Path) -> Option<Result<String, String>> {
    let ours: Vec<&str> =
        guests.iter().filter(|guest| guest.is_for_outside).map(|guest| guest.name.as_str()).collect();
    guests.first()?;
    if !ours.is_empty() {
        return Some(Ok(format!("{} can be ports of its bridges", ours.join(", "))));
    }
    let is_any_of_flow = guests.iter().any(|guest| guest.is_of_flow);
    let mut switches: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for guest in guests.iter().filter(|guest| guest.is_of_flow || !is_any_of_flow) {
        switches.entry(&guest.switch).or_default().push(&guest.name);
    }
    let named: Vec<String> = switches
        .iter()
        .map(|(switch, names)| format!("{} on switch \"{switch}\"", names.join(", ")))
        .collect();
    let keys = if is_any_of_flow { "controller=external" } else { "module=flow,controller=external" };
    let command = |switch: &&str| format!("lasthop{} switch set {switch} {keys}", option(dir));
    let commands: Vec<String> = switches.keys().map(command).collect();
    let why = if is_any_of_flow { "whose controller is not external" } else { "which has no controller" };
    Some(Err(format!(
        "{}, {why}: Open vSwitch cannot have them; {}",
        named.join(", "),
        commands.join(", or ")
    )))
}

fn daemon(daemons: &[Daemon], socket: &Path, dir: &Path) -> Result<String, String> {
    let start = format!("start it by: lasthop{0} ovs run, or for good: lasthop{0} ovs install", option(dir));
    if let Some(ours) = daemons.iter().find(|daemon| daemon.socket.as_deref() == Some(socket)) {
        return Ok(format!("ovs-vswitchd (process {}) has this switch as its datapath", ours.pid));
    }
    match daemons.first() {
        None => Err(format!("ovs-vswitchd does not run, or is another user's; {start}")),
        Some(Daemon { pid, socket: None }) => {
            Err(format!("ovs-vswitchd (process {pid}) uses the kernel or DPDK; {start}"))
        }
        Some(Daemon { pid, socket: Some(other) }) => {
            Err(format!("ovs-vswitchd (process {pid}) uses the switch at {}", other.display()))
        }
    }
}

/// Limits that Open vSwitch sets on devices of the kernel without effect, since no packet passes them: policing of all
/// except internal ports, and QoS of guests.
fn limits(database: &Database, guests: &[ControlledVnic]) -> Option<Check> {
    let ask = |table: &str, conditions: &[&str]| -> Option<Vec<String>> {
        let words = [&["--bare", "--columns=name", "find", table], conditions].concat();
        Some(database.ask(&words)?.split_whitespace().map(str::to_owned).collect())
    };
    let policed = ask("Interface", &["ingress_policing_rate>0", "type!=internal"])?;
    let mut shaped = ask("Port", &["qos!=[]"])?;
    // Frames that leave by a device pass its queues.
    shaped.retain(|name| guests.iter().any(|guest| guest.name == *name));
    no_limits(&policed, &shaped).map(|text| Check::warning("limits", text))
}

fn no_limits(policed: &[String], shaped: &[String]) -> Option<String> {
    let named = |setting: &str, names: &[String]| {
        (!names.is_empty()).then(|| format!("{setting} of {}", names.join(", ")))
    };
    let settings = [named("ingress_policing_rate", policed), named("qos", shaped)];
    let settings = settings.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    (!settings.is_empty()).then(|| {
        format!(
            "{settings} limit nothing: Open vSwitch sets them on the kernel's devices of these names, which the packets do not pass; use \
             OpenFlow meters, which the switch enforces"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_daemon_of_the_kernel_is_not_ours() {
        let (socket, dir) = (Path::new("/run/lasthop/datapath.sock"), Path::new("/run/lasthop"));
        let ours = Daemon { pid: 7, socket: Some(socket.to_owned()) };
        let kernels = Daemon { pid: 8, socket: None };
        let others = Daemon { pid: 9, socket: Some(PathBuf::from("/run/other.sock")) };
        assert!(daemon(&[kernels.clone(), ours], socket, dir).is_ok_and(|text| text.contains("process 7")));
        assert!(daemon(&[kernels], socket, dir).is_err_and(|text| text.contains("uses the kernel")));
        assert!(daemon(&[others], socket, dir).is_err_and(|text| text.contains("/run/other.sock")));
        assert!(daemon(&[], socket, dir).is_err_and(|text| text.contains("lasthop ovs run")));
    }

    #[test]
    fn vnics_that_open_vswitch_cannot_have_are_told_with_the_remedy() {
        let guest_of = |name: &str, switch: &str, is_of_flow, is_for_outside| ControlledVnic {
            name: name.into(),
            switch: switch.into(),
            is_of_flow,
            is_for_outside,
        };
        let guest = |name: &str, is_for_outside| guest_of(name, "default", true, is_for_outside);
        let look = |guests: &[ControlledVnic]| vnics(guests, Path::new("/run/lasthop"));
        assert_eq!(look(&[]), None);
        let forgotten =
            look(&[guest("vm1", false), guest("vm2", false)]).expect("vnics").expect_err("no port");
        assert!(forgotten.starts_with("vm1, vm2 on switch \"default\""), "{forgotten}");
        assert!(forgotten.ends_with("lasthop switch set default controller=external"), "{forgotten}");
        assert!(
            look(&[guest("vm1", false), guest("vm2", true)])
                .expect("vnics")
                .is_ok_and(|text| text.starts_with("vm2 can"))
        );
        let bridged = guest_of("b1", "two", false, false);
        let others = [guest("vm1", false), guest_of("vm3", "six", true, false)];
        let forgotten = look(&[std::slice::from_ref(&bridged), &others[..]].concat())
            .expect("vnics")
            .expect_err("no port");
        assert!(
            forgotten.starts_with("vm1 on switch \"default\", vm3 on switch \"six\", whose"),
            "{forgotten}"
        );
        let commands =
            "switch set default controller=external, or lasthop switch set six controller=external";
        assert!(forgotten.ends_with(commands), "{forgotten}");
        let forgotten = look(&[bridged]).expect("vnics").expect_err("no port");
        assert!(forgotten.ends_with("lasthop switch set two module=flow,controller=external"), "{forgotten}");
    }

    #[test]
    fn who_decides_is_named_and_nobody_is_a_warning() {
        let (socket, dir) = (Path::new("/run/lasthop/datapath.sock"), Path::new("/run/lasthop"));
        let nobody = controller(&[], socket, dir);
        assert!(nobody.is_warning && nobody.text.contains("/run/lasthop/datapath.sock"), "{nobody:?}");
        let client =
            ControlClient { pid: Some(i32::MAX), name: Some("ovs-vswitchd".into()), connected_ms: 7000 };
        let there = controller(&[client], socket, dir);
        assert!(there.is_ok && there.text.starts_with("ovs-vswitchd (process "), "{there:?}");
        assert!(there.text.ends_with("connected for 7 s"), "{there:?}");
    }

    #[test]
    fn limits_that_limit_nothing_are_named() {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(no_limits(&[], &[]), None);
        let told = |policed, shaped| no_limits(&names(policed), &names(shaped)).expect("something is set");
        assert!(
            told("vm1 eth1", "vm2")
                .starts_with("ingress_policing_rate of vm1, eth1 and qos of vm2 limit nothing")
        );
        assert!(told("", "vm2").starts_with("qos of vm2 limit nothing"));
    }

    #[test]
    fn one_thing_missing_is_enough() {
        let checks = vec![Check::new("a", Ok("b".to_owned())), Check::new("c", Err("d".to_owned()))];
        let status = Status { ok: checks.iter().all(|check| check.is_ok), checks };
        assert!(!status.is_ok());
        assert_eq!(status.text(), "ok       a          b\nmissing  c          d\n");
        assert_eq!(Check::warning("e", "f".to_owned()).word(), "warning");
    }
}
