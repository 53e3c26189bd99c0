//! Our text of flows equals that of ovs-dpctl.

use std::collections::BTreeSet;

use lasthop_dpif::client::Client;
use lasthop_dpif::datapath::{Datapath, FlowInstall};
use lasthop_dpif::format::{self, Style};
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::server::{DatapathRecord, Server};
use lasthop_flow::{Action, FlowKey, Match, Tunnel, Ufid};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::rig::{FIRST, Rig, has_dpctl};
use crate::values;

/// Enough to include every kind of field, mask and action, in several datagrams.
const FLOWS: usize = 300;

/// A mask as control planes write it: nested or a list where the key is.
fn as_written(key: &FlowKey, mut mask: FlowKey) -> FlowKey {
    let entries = mask.mpls.iter().copied().chain(std::iter::repeat(u32::MAX));
    mask.mpls = entries.take(key.mpls.len()).collect();
    mask.nsh = key.nsh.as_ref().map(|_| mask.nsh.unwrap_or_default());
    mask.tunnel = key.tunnel.as_ref().map(|key| {
        let mask = mask.tunnel.unwrap_or_default();
        Box::new(Tunnel { options: key.options.clone(), ..*mask })
    });
    mask
}

/// Whether Open vSwitch 3.1 knows all actions: there the number of the later `drop` is another action's.
fn is_known(actions: &[Action]) -> bool {
    !format!("{actions:?}").contains("Drop(")
}

fn flows(runner: &mut TestRunner) -> Vec<FlowInstall> {
    let sample = |runner: &mut TestRunner| {
        let (key, mask) = values::key_and_mask().new_tree(runner).expect("a value").current();
        let actions = values::actions().new_tree(runner).expect("a value").current();
        (key, mask, actions)
    };
    let install = |at: usize, (key, mask, actions): (FlowKey, FlowKey, Vec<Action>)| {
        let mask = (!at.is_multiple_of(4)).then(|| as_written(&key, mask));
        let mut ufid = [7; 16];
        ufid[..8].copy_from_slice(&at.to_be_bytes());
        let matches = Match { key, mask };
        FlowInstall { ufid: Some(Ufid(ufid)), matches, actions, is_probe: false, is_new: true }
    };
    let samples = std::iter::repeat_with(|| sample(runner)).filter(|(_, _, actions)| is_known(actions));
    samples.take(FLOWS).enumerate().map(|(at, sample)| install(at, sample)).collect()
}

/// A rig whose first datapath has these flows.
fn rig(flows: Vec<FlowInstall>) -> Rig {
    let mut rig = Rig::new();
    rig.dpctl(&["add-dp", "dp0"]);
    let (mut server, mut datapath) = (Server::new(), MemoryDatapath::new());
    let record = DatapathRecord::named("dp0");
    assert_eq!(server.restore([(FIRST, record)].into(), &mut datapath), Vec::<String>::new());
    while datapath.flows_flush(FIRST, 0).is_some() {}
    rig.restart(server, datapath, flows);
    rig
}

fn compare(rig: &Rig, arguments: &[&str], style: Style<'_>) {
    let expected = rig.dpctl(arguments);
    let mut client = Client::connect(&rig.socket()).expect("a server");
    let flows = client.flows(FIRST.0).expect("a datapath");
    assert_eq!(flows.len(), FLOWS);
    let ours: BTreeSet<String> = flows.iter().map(|flow| format::flow(flow, 0, style)).collect();
    let theirs: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
    let differences =
        ours.difference(&theirs).zip(theirs.difference(&ours)).map(|(our, their)| around(our, their));
    let differences: Vec<_> = differences.collect();
    assert!(
        differences.is_empty(),
        "{} differ: {:#?}",
        differences.len(),
        &differences[..differences.len().min(8)]
    );
    assert_eq!(ours, theirs);
}

/// The texts around the first difference of two lines.
fn around(our: &str, their: &str) -> (String, String) {
    let at = our.bytes().zip(their.bytes()).take_while(|(our, their)| our == their).count();
    let cut = |line: &str| line.chars().skip(at.saturating_sub(40)).take(100).collect();
    (cut(our), cut(their))
}

#[test]
fn flows_look_the_same() {
    if !has_dpctl() {
        return;
    }
    let rig = rig(flows(&mut TestRunner::deterministic()));
    compare(&rig, &["dump-flows", "dp0"], Style::default());
    compare(&rig, &["dump-flows", "-m", "dp0"], Style { is_verbose: true, ..Style::default() });
}
