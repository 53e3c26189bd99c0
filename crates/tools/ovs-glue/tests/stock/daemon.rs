//! ovs-vswitchd and its database in their own network namespace, which has the devices that ovs-vswitchd needs.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{Rig, has_dpctl, library, skipped};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The daemon's bridge, two ports and its datapath's own port are devices, which the daemon does not create here.
const START: &str = "for name in ovs-system br0 p1 p2; do ip tuntap add $name mode tap || exit 1; done; \
                     exec env LD_PRELOAD=\"$GLUE\" ovs-vswitchd \"$DATABASE\" -voff";
/// The time limit for events that the daemon causes by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Daemon {
    directory: tempfile::TempDir,
    children: Vec<Child>,
}

impl Daemon {
    pub(crate) fn start(rig: &Rig) -> Self {
        let mut daemon = Self { directory: tempfile::tempdir().expect("a directory"), children: Vec::new() };
        let database = daemon.path("conf.db");
        daemon.run("ovsdb-tool", &["create", &database, SCHEMA]);
        let remote = format!("--remote=p{}", daemon.remote());
        daemon.spawn(daemon.command("ovsdb-server").args([&database, &remote, "-voff"]));
        let mut command = daemon.command("unshare");
        command.args(["--net", "sh", "-c", START]).env("GLUE", library()).env("DATABASE", daemon.remote());
        daemon.spawn(command.env("LASTHOP_DATAPATH", rig.socket()));
        daemon
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("text").to_owned()
    }

    fn remote(&self) -> String {
        format!("unix:{}", self.path("db.sock"))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, self.directory.path());
        }
        command
    }

    fn spawn(&mut self, command: &mut Command) {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it is installed");
        self.children.push(child);
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            self.command(program).args(arguments).output().expect("it is installed");
        assert!(status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("text")
    }

    /// Changes the database and waits until the daemon has applied the change.
    pub(crate) fn vsctl(&self, arguments: &[&str]) -> String {
        let remote = format!("--db={}", self.remote());
        self.run("ovs-vsctl", &[&["--timeout=20", "-voff", "--retry", &remote], arguments].concat())
    }

    /// The daemon's description of its datapath.
    pub(crate) fn appctl(&self, arguments: &[&str]) -> String {
        let entries = std::fs::read_dir(self.directory.path()).expect("it is there");
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let is_control = |path: &Path| path.extension().is_some_and(|extension| extension == "ctl");
        let mut controls =
            paths.filter(|path| is_control(path) && path.to_string_lossy().contains("vswitchd"));
        let control = controls.next().expect("the daemon runs");
        self.run(
            "ovs-appctl",
            &[&["--timeout=20", "-t", control.to_str().expect("text")], arguments].concat(),
        )
    }

    pub(crate) fn expect_ports(&self, names: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.appctl(&["dpctl/show", "system@ovs-system"]);
            let ports: Vec<_> = shown.lines().filter_map(|line| line.trim().strip_prefix("port ")).collect();
            let found: Vec<_> = ports.iter().filter_map(|port| port.split([' ', '(']).nth(1)).collect();
            if found == names {
                return;
            }
            assert!(Instant::now() < deadline, "{names:?} are not there: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            // A daemon that ended by itself cannot be killed, but has to be reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether root, namespaces and the programs are available.
pub(crate) fn can_run() -> bool {
    let quietly = |arguments: &[&str]| {
        let (program, arguments) = arguments.split_first().expect("a program");
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let can = quietly(&["unshare", "--net", "ip", "tuntap", "add", "lasthop0", "mode", "tap"])
        && quietly(&["ovsdb-tool", "--version"])
        && Path::new(SCHEMA).exists();
    if !can {
        skipped("network namespaces, tap devices and ovsdb-tool are needed");
    }
    can
}

#[test]
fn ports_come_and_go_also_while_the_switch_is_another_one() {
    if !has_dpctl() || !can_run() {
        return;
    }
    let mut rig = Rig::new();
    let daemon = Daemon::start(&rig);
    daemon.vsctl(&["add-br", "br0"]);
    daemon.vsctl(&["add-port", "br0", "p1"]);
    daemon.expect_ports(&["ovs-system", "br0", "p1"]);
    let features = daemon.appctl(&["dpif/show-dp-features", "br0"]);
    for feature in
        ["Masked set action: Yes", "Ufid: Yes", "Max VLAN headers: 2", "Max MPLS depth: 3", "Recirc: Yes"]
    {
        assert!(features.contains(feature), "{feature}: {features}");
    }
    rig.restart_after(|| ());
    daemon.expect_ports(&["ovs-system", "br0", "p1"]);
    daemon.vsctl(&["add-port", "br0", "p2"]);
    daemon.expect_ports(&["ovs-system", "br0", "p1", "p2"]);
    daemon.vsctl(&["del-port", "p1"]);
    daemon.expect_ports(&["ovs-system", "br0", "p2"]);
    daemon.vsctl(&[
        "add-port",
        "br0",
        "vx",
        "--",
        "set",
        "interface",
        "vx",
        "type=vxlan",
        "options:remote_ip=10.0.0.9",
    ]);
    daemon.expect_ports(&["ovs-system", "br0", "vxlan_sys_4789", "p2"]);
    daemon.vsctl(&["del-br", "br0"]);
    assert_eq!(daemon.appctl(&["dpctl/dump-dps"]), "", "the datapath goes with the last bridge");
}
