//! `lasthop ovs status`: what is there of all that it takes, and what is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lasthop_control::client::{Client, ClientError};
use serde::Serialize;

use super::processes::{Daemon, daemons};
use super::programs::Programs;
use super::{Unit, library};
use crate::fault::Fault;
use crate::rundir::{datapath_socket, option};

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    is_ok: bool,
    text: String,
}

/// All of them.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    ok: bool,
    checks: Vec<Check>,
}

impl Check {
    fn new(name: &'static str, result: Result<String, String>) -> Self {
        let is_ok = result.is_ok();
        Self { name, is_ok, text: result.unwrap_or_else(|text| text) }
    }
}

impl Status {
    /// Of the switch in `dir`, whose vnics are `guests`, and Open vSwitch's sockets in `run`, or where its tools look.
    pub(crate) fn look(dir: &Path, run: Option<PathBuf>, guests: &[String]) -> Self {
        let programs = Programs::find();
        let version = told(programs.as_ref(), |found| format!("Open vSwitch {}", found.version));
        let mut checks = vec![
            Check::new("programs", version),
            Check::new("library", told(library::find().as_ref(), |path| path.display().to_string())),
            Check::new("switch", datapaths(dir).map_err(|error| no_datapaths(dir, &error))),
            Check::new("daemon", daemon(&daemons(), &datapath_socket(dir), dir)),
        ];
        let unit = Unit::new(None);
        if unit.exists() {
            checks.push(Check::new("service", Ok(format!("{} is installed", unit.path().display()))));
        }
        checks.extend(programs.ok().and_then(|programs| limits(&programs.tool, run, guests)));
        Self { ok: checks.iter().all(|check| check.is_ok), checks }
    }

    /// Whether nothing is missing.
    pub(crate) fn is_ok(&self) -> bool {
        self.ok
    }

    /// A line each.
    pub(crate) fn text(&self) -> String {
        let line = |check: &Check| {
            format!("{:8} {:9} {}\n", if check.is_ok { "ok" } else { "missing" }, check.name, check.text)
        };
        self.checks.iter().map(line).collect()
    }
}

fn told<T>(found: Result<&T, &Fault>, text: impl Fn(&T) -> String) -> Result<String, String> {
    found.map(text).map_err(ToString::to_string)
}

fn datapaths(dir: &Path) -> Result<String, ClientError> {
    let mut client = Client::connect(&datapath_socket(dir))?;
    let mut lines = Vec::new();
    for datapath in client.datapaths()? {
        let ports = client.ports(datapath.datapath)?.len();
        let flows = datapath.stats.unwrap_or_default().flows;
        lines.push(format!("{}: {ports} ports, {flows} flows", datapath.name.unwrap_or_default()));
    }
    Ok(if lines.is_empty() { "no datapath yet".to_owned() } else { lines.join("; ") })
}

fn no_datapaths(dir: &Path, error: &ClientError) -> String {
    let (path, option) = (datapath_socket(dir), option(dir));
    format!(
        "nobody answers at {}: {error}; start a switch: lasthop run{option} --module flow",
        path.display()
    )
}

fn daemon(daemons: &[Daemon], socket: &Path, dir: &Path) -> Result<String, String> {
    let start = format!("start it by: lasthop ovs run{0}, or for good: lasthop ovs install{0}", option(dir));
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

/// Limits that Open vSwitch sets on devices of the kernel, as far as no packet passes them: policing of all but internal ports, and QoS
/// of guests.
fn limits(tool: &Path, run: Option<PathBuf>, guests: &[String]) -> Option<Check> {
    let ask = |table: &str, conditions: &[&str]| -> Option<Vec<String>> {
        let mut command = Command::new(tool);
        command.args(["--timeout=5", "--bare", "--columns=name", "find", table]).args(conditions);
        if let Some(run) = &run {
            command.env("OVS_RUNDIR", run);
        }
        let output = command.stdin(Stdio::null()).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
    };
    let policed = ask("Interface", &["ingress_policing_rate>0", "type!=internal"])?;
    let mut shaped = ask("Port", &["qos!=[]"])?;
    // What leaves by a device does so through its queues.
    shaped.retain(|name| guests.contains(name));
    no_limits(&policed, &shaped).map(|text| Check::new("limits", Err(text)))
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
        assert_eq!(status.text(), "ok       a         b\nmissing  c         d\n");
    }
}
