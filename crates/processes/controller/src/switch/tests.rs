use lasthop_flow::{Ethernet, FlowKey};
use lasthop_module_api::{PortKind, PortPolicy, SwitchId};

use super::*;

/// Few, so that the table is full soon.
const FEW: usize = 400;
const VICTIM: u32 = 9;

fn settings(name: &str) -> PortSettings {
    PortSettings {
        name: name.to_owned(),
        switch: SwitchId::default(),
        policy: PortPolicy::default(),
        macs_max: Some(0),
        kind: PortKind::Inside,
    }
}

fn switch() -> Switch {
    let mut switch = Switch::new(&SwitchConfig::named("red"));
    switch.flows_max = FEW;
    for number in [1, 2, 3, 4, VICTIM] {
        let name = format!("vm{number}");
        switch.set_port(settings(&name));
        switch.set_number(&name, number);
    }
    switch.changes.clear();
    switch
}

fn key(port: u32, source: u64) -> FlowKey {
    let mac = |bits: u64| {
        let [_, _, bytes @ ..] = bits.to_be_bytes();
        Mac(bytes)
    };
    let (src, dst) = (mac(0x02_00_00_00_00_00 | source), mac(0x02_00_00_00_ff_ff));
    FlowKey {
        in_port: Some(port),
        ethernet: Some(Ethernet { src, dst }),
        ether_type: Some(0x88b5),
        ..FlowKey::default()
    }
}

/// Installs flows for packets of a port; returns the number of installed and evicted ones.
fn install(switch: &mut Switch, port: u32, sources: std::ops::Range<u64>) -> (usize, usize) {
    sources.for_each(|source| drop(switch.miss(&key(port, source << 16 | u64::from(port)), 1)));
    let changes: Vec<_> = std::iter::from_fn(|| switch.take_change()).collect();
    let is_install = |change: &&DatapathChange| matches!(change, DatapathChange::Install { .. });
    let is_removal = |change: &&DatapathChange| matches!(change, DatapathChange::Remove { .. });
    (changes.iter().filter(is_install).count(), changes.iter().filter(is_removal).count())
}

#[test]
fn four_ports_that_take_all_flows_leave_room_for_others() {
    let mut switch = switch();
    for port in 1..=4 {
        let installed = install(&mut switch, port, 0..300);
        assert_eq!(installed, (FEW / FLOWS_PORT_SHARE, 0), "its share");
    }
    assert_eq!(switch.flow_count(), FEW);
    assert_eq!(install(&mut switch, VICTIM, 0..30), (30, 30), "each of its flows");
    assert_eq!(install(&mut switch, VICTIM, 0..30), (0, 0), "and they stay");
    for port in 1..=4 {
        assert_eq!(install(&mut switch, port, 300..600), (0, 0), "none of theirs makes room");
    }
    assert_eq!((switch.flow_count(), switch.flows.sum(VICTIM), switch.counts.evicted), (FEW, 30, 30));
    // Up to half as many as the port with most flows has.
    let (more, _) = install(&mut switch, VICTIM, 30..300);
    assert_eq!(switch.flows.sum(VICTIM), 30 + more);
    assert!((40..=50).contains(&(30 + more)), "{more}");
}

#[test]
fn a_name_that_another_flow_has_is_not_taken_for_the_flow() {
    let mut switch = switch();
    let mut made_for = |port: u32| {
        switch.miss(&key(port, 1 << 16), 1);
        let Some(DatapathChange::Install { ufid }) = switch.take_change() else { panic!("a flow") };
        let (matches, actions) =
            switch.parts(ufid).map(|(matches, actions)| (matches, actions.to_vec())).expect("it");
        switch.remove(ufid);
        switch.changes.clear();
        (ufid, matches, actions)
    };
    let ((_, matches, actions), (name, _, _)) = (made_for(1), made_for(VICTIM));
    // Port 1's flow has the name that the victim's would get.
    switch.adopt(name, &matches, actions, FlowStats::default(), 1);
    assert!(switch.flows.get(name).is_some_and(|flow| flow.frame.port == 1), "adopted");
    switch.changes.clear();
    for now_ns in [2, 10 * COUNTING_NS] {
        switch.miss(&key(VICTIM, 1 << 16), now_ns);
        assert_eq!(switch.take_change(), None, "neither under its name nor with its actions");
    }
}

#[test]
fn names_are_another_switchs_secret() {
    let frame = Frame::of(&key(1, 1 << 16)).expect("a frame");
    let [one, other] = [switch(), switch()].map(|switch| switch.flows.name(&frame, &Looked::default()));
    assert!(flows::is_ours(one) && flows::is_ours(other));
    assert_ne!(one, other);
}
