//! Commands of ovs-dpctl, and their effects on the datapath.

use crate::rig::{FIRST, Rig, has_dpctl};

const FLOW: &str = "in_port(0),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),\
                    ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=1,dst=53)";

#[test]
fn datapaths_come_and_go() {
    if !has_dpctl() {
        return;
    }
    let rig = Rig::new();
    rig.dpctl(&["add-dp", "dp0"]);
    assert!(rig.dpctl_refused(&["add-dp", "dp0"]).contains("File exists"));
    let shown = rig.dpctl(&["show"]);
    assert!(shown.contains("system@dp0:") && shown.contains("port 0: dp0 (internal)"), "{shown}");
    assert_eq!(rig.dpctl(&["dump-dps"]).trim(), "system@dp0");
    rig.dpctl(&["del-dp", "dp0"]);
    assert_eq!(rig.dpctl(&["dump-dps"]), "");
    assert!(rig.dpctl_refused(&["del-dp", "dp0"]).contains("No such device"));
}

#[test]
fn flows_come_change_and_go() {
    if !has_dpctl() {
        return;
    }
    let mut rig = Rig::new();
    rig.dpctl(&["add-dp", "dp0"]);
    rig.dpctl(&["add-flow", "dp0", FLOW, "push_vlan(vid=5,pcp=0),0,recirc(3)"]);
    let line = rig.dpctl(&["dump-flows", "dp0"]);
    let expected = "packets:0, bytes:0, used:never, actions:push_vlan(vid=5,pcp=0),0,recirc(0x3)";
    assert_eq!(line.trim(), format!("{FLOW}, {expected}"));
    assert!(rig.dpctl_refused(&["add-flow", "dp0", FLOW, "1"]).contains("File exists"));
    rig.dpctl(&["mod-flow", "dp0", FLOW, "2"]);
    assert!(rig.dpctl(&["dump-flows", "dp0"]).trim().ends_with("actions:2"));
    rig.dpctl(&["del-flow", "dp0", FLOW]);
    assert!(rig.dpctl_refused(&["del-flow", "dp0", FLOW]).contains("No such file"));
    rig.dpctl(&["add-flow", "dp0", FLOW, "1"]);
    rig.dpctl(&["del-flows", "dp0"]);
    assert_eq!(rig.end().1.flow_count(FIRST), 0);
}

#[test]
fn keys_that_are_not_complete_are_refused() {
    if !has_dpctl() {
        return;
    }
    let rig = Rig::new();
    rig.dpctl(&["add-dp", "dp0"]);
    let refused = rig.dpctl_refused(&["add-flow", "dp0", "in_port(0),eth(),eth_type(0x0800)", "1"]);
    assert!(refused.contains("Invalid argument"), "{refused}");
}
