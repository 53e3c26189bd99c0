//! `lasthop ovs status`: mistakes that it names, and daemons that it ignores.

use std::path::Path;
use std::process::{Child, Command};

use lasthop_rig::namespaces::may;
use lasthop_rig::{Switch, eventually};

#[test]
fn a_forgotten_external_controller_is_told_and_its_remedy_works() {
    let switch = Switch::start(&["--module", "flow", "--vnic", "one", "--vnic", "two"]);
    let said = switch.ask(&["ovs", "status"]).out;
    assert!(said.contains("one, two on switch \"default\", whose controller is not external"), "{said}");
    let line = said.lines().find(|line| line.contains(" vnics ")).expect("a line of vnics");
    let (_, remedy) = line.split_once("lasthop --dir ").expect("a remedy, for this switch");
    let words: Vec<&str> = remedy.split(' ').skip(1).collect();
    switch.ask(&words).ok();
    let said = switch.ask(&["ovs", "status"]).out;
    assert!(said.contains("one, two can be ports"), "{said}");
}

#[test]
fn vnics_of_all_switches_of_module_flow_are_told_and_no_others() {
    let switches = ["--module", "flow", "--switch", "bridged,module=bridge", "--switch", "third,module=flow"];
    let vnics = ["b1,switch=bridged", "vm1", "vm2", "vm3,switch=third"].map(|vnic| ["--vnic", vnic]).concat();
    let switch = Switch::start(&[&switches[..], &vnics].concat());
    let said = switch.ask(&["ovs", "status"]).out;
    let line = said.lines().find(|line| line.contains(" vnics ")).expect("a line of vnics");
    assert!(line.contains("vm1, vm2 on switch \"default\", vm3 on switch \"third\", whose"), "{said}");
    assert!(!line.contains("b1"), "{said}");
    let commands: Vec<&str> = line.split("lasthop --dir ").skip(1).collect();
    assert_eq!(commands.len(), 2, "{said}");
    for command in commands {
        let words: Vec<&str> =
            command.split(' ').skip(1).take(4).map(|word| word.trim_matches(',')).collect();
        switch.ask(&words).ok();
    }
    let said = switch.ask(&["ovs", "status"]).out;
    assert!(said.contains("vm1, vm2, vm3 can be ports"), "{said}");
}

#[test]
fn vnics_of_a_bridge_alone_are_told_with_a_remedy_that_works() {
    let switch = Switch::start(&["--module", "bridge", "--vnic", "b1"]);
    let said = switch.ask(&["ovs", "status"]).out;
    let line = said.lines().find(|line| line.contains(" vnics ")).expect("a line of vnics");
    assert!(line.starts_with("missing") && line.contains("b1 on switch \"default\""), "{said}");
    let (_, remedy) = line.split_once("lasthop --dir ").expect("a remedy, for this switch");
    switch.ask(&remedy.split(' ').skip(1).collect::<Vec<_>>()).ok();
    let said = switch.ask(&["ovs", "status"]).out;
    assert!(said.contains("b1 can be ports"), "{said}");
}

/// A process with the name of Open vSwitch's daemon, in a network and a mount namespace of its own.
struct FakeDaemon(Child);

impl FakeDaemon {
    fn start(program: &Path) -> Self {
        let mut command = Command::new("unshare");
        let child =
            command.args(["--net", "--mount"]).arg(program).arg("600").spawn().expect("util-linux has it");
        let name = format!("/proc/{}/comm", child.id());
        eventually("its name", || {
            let text = std::fs::read_to_string(&name).unwrap_or_default();
            (text == "ovs-vswitchd\n").then_some(())
        });
        Self(child)
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_daemon_of_another_namespace_is_not_taken_for_one_of_this_machine() {
    if !may() {
        return;
    }
    let switch = Switch::start(&["--module", "flow", "--controller", "external", "--vnic", "one"]);
    let program = switch.base.path().join("ovs-vswitchd");
    std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
    let (near, far) = (FakeDaemon::start(&program), FakeDaemon::start(&program));
    let status = || {
        let mut command = Command::new("nsenter");
        command.args([
            "--net",
            "--mount",
            "-t",
            &near.0.id().to_string(),
            env!("CARGO_BIN_EXE_lasthop"),
            "--dir",
        ]);
        let output = command.arg(switch.dir()).args(["ovs", "status"]).output().expect("util-linux has it");
        let said = String::from_utf8(output.stdout).expect("text");
        said.lines().find(|line| line.contains(" daemon ")).expect("a line of the daemon").to_owned()
    };
    let said = status();
    assert!(said.contains(&format!("(process {}) uses the kernel or DPDK", near.0.id())), "{said}");
    let said = switch.ask(&["ovs", "status"]).out;
    for fake in [&near, &far] {
        assert!(!said.contains(&format!("process {}", fake.0.id())), "{said}");
    }
}
