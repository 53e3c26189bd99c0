//! The stock ovs-dpctl, which uses the switch as its datapath.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, receive, send};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually};

const PROGRAM: &str = "ovs-dpctl";

/// Whether all prerequisites are there.
#[expect(clippy::print_stdout, reason = "tests say what they leave out")]
fn can_run() -> bool {
    let is_there = Command::new(PROGRAM).arg("--version").output().is_ok_and(|told| told.status.success());
    if !is_there {
        println!("skipped: {PROGRAM} is not installed (apt-get install openvswitch-switch)");
    }
    is_there && may()
}

/// `cargo test` does not build it, since nothing links to it; `tools/test` builds it first.
fn library() -> PathBuf {
    let directory = Path::new(env!("CARGO_BIN_EXE_lasthop")).parent().expect("a directory");
    let library = directory.join("liblasthop_ovs_glue.so");
    let shown = library.display();
    assert!(library.exists(), "{shown} is not there; build it with: cargo build -p lasthop-ovs-glue");
    library
}

/// A switch in a namespace where vnics have devices of the same names, as OVS expects.
struct Rig {
    switch: Switch,
    namespace: Namespace,
}

impl Rig {
    fn new() -> Self {
        let namespace = Namespace::new();
        let words = ["--module", "flow", "--controller", "external", "--vnic", "one", "--vnic", "two"];
        let switch = Switch::start_in(namespace.name(), &words);
        Self { switch, namespace }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.name(), "env"]);
        command.arg(format!("LD_PRELOAD={}", library().display()));
        command.arg(format!("LASTHOP_DATAPATH={}", self.switch.path("datapath.sock").display()));
        command.args([PROGRAM, "--timeout=30", "-voff"]).args(words);
        command.output().expect("it runs")
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{PROGRAM} {words:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{PROGRAM} {words:?} has to fail");
        String::from_utf8(output.stderr).expect("text")
    }

    /// The lines of a dump, without fields that change by themselves.
    fn flows(&self, words: &[&str]) -> Vec<String> {
        let told = self.ok(words);
        let steady = |line: &str| {
            let (start, rest) = line.split_once(", used:").expect("when it was used");
            let (_, actions) = rest.split_once(", actions:").expect("actions");
            format!("{start}, actions:{actions}")
        };
        let mut lines: Vec<String> = told.lines().map(steady).collect();
        lines.sort();
        lines
    }
}

const EXPERIMENTAL: &str = "eth(),eth_type(0x88b5)";

fn from(port: u32) -> String {
    format!("in_port({port}),{EXPERIMENTAL}")
}

#[test]
fn it_makes_a_datapath_of_vnics_and_their_packets_go_by_its_flows() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let (mut one, mut two) = (guest(&rig.switch, "one", ONE), guest(&rig.switch, "two", TWO));
    rig.ok(&["add-dp", "dp7"]);
    assert!(rig.refused(&["add-dp", "dp7"]).contains("File exists"));
    rig.ok(&["add-if", "dp7", "one", "two"]);
    assert!(rig.refused(&["add-if", "dp7", "three"]).contains("No such device"));
    let shown = rig.ok(&["show", "dp7"]);
    for line in ["system@dp7:", "port 0: dp7 (internal)", "port 1: one", "port 2: two"] {
        assert!(shown.lines().any(|shown| shown.trim() == line), "{line}: {shown}");
    }
    rig.ok(&["add-flow", "dp7", &from(1), "2"]);
    rig.ok(&["add-flow", "dp7", &from(2), "push_vlan(vid=5,pcp=0),1"]);
    assert!(rig.refused(&["add-flow", "dp7", &from(1), "2"]).contains("File exists"));
    for number in 0..10 {
        send(&mut one, &frame(TWO, ONE, number, 100));
        assert_eq!(receive(&mut two), frame(TWO, ONE, number, 100));
    }
    send(&mut two, &frame(ONE, TWO, 1, 60));
    assert_eq!(receive(&mut one)[12..16], [0x81, 0, 0, 5], "with a tag");
    let expected = [
        "in_port(1),eth(),eth_type(0x88b5), packets:10, bytes:1000, actions:2",
        "in_port(2),eth(),eth_type(0x88b5), packets:1, bytes:60, actions:push_vlan(vid=5,pcp=0),1",
    ];
    assert_eq!(rig.flows(&["dump-flows", "dp7"]), expected);
    rig.ok(&["mod-flow", "dp7", &from(2), "1"]);
    send(&mut two, &frame(ONE, TWO, 2, 60));
    assert_eq!(receive(&mut one), frame(ONE, TWO, 2, 60));
    let last = rig.ok(&["del-flow", "-s", "dp7", &from(2)]);
    assert!(last.contains("packets:2, bytes:120"), "with those of the first actions: {last}");
    assert!(rig.refused(&["del-flow", "dp7", &from(2)]).contains("No such file"));
    check_balance(&rig.switch);
}

#[test]
fn packets_of_no_flow_are_dropped_and_what_is_taken_away_is_gone() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let (mut one, mut two) = (guest(&rig.switch, "one", ONE), guest(&rig.switch, "two", TWO));
    rig.ok(&["add-dp", "dp8"]);
    rig.ok(&["add-if", "dp8", "one", "two"]);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    eventually("a drop", || (rig.switch.port("one")["rx_drops"]["no_flow"] == 1).then_some(()));
    let shown = rig.ok(&["show", "dp8"]);
    assert!(shown.contains("lookups: hit:0 missed:"), "{shown}");
    rig.ok(&["add-flow", "dp8", &from(1), "2"]);
    rig.ok(&["del-flows", "dp8"]);
    assert!(rig.ok(&["dump-flows", "-m", "dp8"]).is_empty());
    rig.ok(&["del-if", "dp8", "two"]);
    rig.ok(&["add-flow", "dp8", &from(1), "2"]);
    send(&mut one, &frame(TWO, ONE, 2, 60));
    eventually("nobody", || (rig.switch.port("one")["rx_drops"]["port_gone"] == 1).then_some(()));
    rig.ok(&["del-dp", "dp8"]);
    assert!(rig.ok(&["dump-dps"]).is_empty());
    // Both are known, in a switch whose external controller is away: no bridge replaces it.
    send(&mut one, &frame(TWO, ONE, 3, 60));
    eventually("one more", || (rig.switch.port("one")["rx_drops"]["no_flow"] == 2).then_some(()));
    rig.switch.ask(&["switch", "set", "default", "fail-mode=standalone"]).ok();
    send(&mut one, &frame(TWO, ONE, 4, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 4, 60), "a bridge, where that is said");
    check_balance(&rig.switch);
}
