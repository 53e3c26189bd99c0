//! `lasthop ovs relay` beside an operator who applies files and removes ports.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use lasthop_rig::{Switch, eventually};

/// A relay between two ends that are the test's: one asks as ovs-vswitchd does, one answers as its database.
struct Relay {
    child: Child,
    _daemon: UnixStream,
    _server: UnixStream,
}

impl Relay {
    /// A relay of a database with one guest's interface.
    fn start(switch: &Switch, interface: &str) -> Self {
        let base = switch.base.path().canonicalize().expect("it is there");
        let (database, listen) = (base.join("db.sock"), base.join("relay.sock"));
        let listener = UnixListener::bind(&database).expect("bound");
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
        command.arg("--dir").arg(switch.dir()).args(["ovs", "relay"]);
        command.arg("--database").arg(&database).arg("--listen").arg(&listen).stderr(Stdio::null());
        let child = command.spawn().expect("the binary runs");
        let mut daemon = eventually("the relay", || UnixStream::connect(&listen).ok());
        let (mut server, _) = listener.accept().expect("the relay connects");
        let tables = json!({"Interface": [{"columns": ["name", "type", "options"]}]});
        let question =
            json!({"id": 1, "method": "monitor_cond", "params": ["Open_vSwitch", ["all"], tables]});
        daemon.write_all(question.to_string().as_bytes()).expect("written");
        assert!(server.read(&mut [0; 4096]).expect("the question") > 0);
        let options = json!(["map", [["vhost-server-path", base.join("guest.sock")]]]);
        let row = json!({"name": interface, "type": "dpdkvhostuserclient", "options": options});
        let tables = json!({"Interface": {"7b2e4a1c-0000-4000-8000-000000000001": {"initial": row}}});
        let answer = json!({"id": 1, "error": null, "result": tables});
        server.write_all(answer.to_string().as_bytes()).expect("written");
        Self { child, _daemon: daemon, _server: server }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn guests_of_openstack_stay_when_a_file_is_applied_and_come_back_when_they_are_removed() {
    let switch = Switch::start(&["--switch", "ovs-system,module=flow,controller=external", "--vnic", "hand"]);
    let relay = Relay::start(&switch, "vhu1");
    let is_there = || switch.ask(&["port", "show", "vhu1"]).code == Some(0);
    eventually("its vnic", || is_there().then_some(()));
    assert_eq!(switch.json(&["port", "show", "vhu1"])["settings"]["made_by"], "ovs-relay");
    let file = switch.base.path().join("lasthop.toml");
    std::fs::write(&file, "[[vnic]]\nname = \"vm1\"\n").expect("written");
    let apply = ["apply", "-c", file.to_str().expect("text")];
    let kept = "kept: vhu1, made by ovs-relay\nkept: switch ovs-system, which port vhu1 is on\n";
    let plan = format!("- port hand\n+ port vm1\n{kept}1 added, 1 removed, 0 changed\n");
    assert_eq!(switch.ask(&apply).ok(), plan);
    assert!(is_there(), "{}", switch.log());
    assert!(switch.ask(&apply).ok().contains("nothing to do"));
    let written = switch.ask(&["config", "show"]).ok();
    assert!(
        written.contains("vm1") && !written.contains("vhu1"),
        "the relay makes it, not the file: {written}"
    );
    switch.ask(&["port", "del", "vhu1"]).ok();
    eventually("the vnic again", || is_there().then_some(()));
    drop(relay);
}
