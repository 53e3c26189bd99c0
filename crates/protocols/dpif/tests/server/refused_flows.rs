//! Flows that are refused to a client whose program does not wait for answers.

use std::collections::BTreeSet;

use lasthop_dpif::bounds::REFUSED_FLOWS_MAX;
use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::FlowMessage;
use lasthop_dpif::private::{RUNS_AHEAD, number};
use lasthop_dpif::server::{Family, PeerId};
use lasthop_flow::Ufid;
use proptest::prelude::*;

use crate::wire::{
    ACK, CREATE, DEL, DUMP, ECHO, GET, NEW, SET, Wire, flow, flow_request, new_datapath, request,
};

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
/// linux/openvswitch.h: `OVS_FLOW_ATTR_ACTIONS`.
const ACTIONS: u16 = 2;
/// The fields that revalidators omit: all but the name and the counters.
const BRIEF: u32 = 7;

/// A datapath, a client of handlers that do not wait, and one of revalidators.
fn with_handlers() -> (Wire, PeerId, PeerId) {
    let mut wire = Wire::new();
    let (handlers, revalidators) = (wire.client(), wire.client());
    wire.ask(revalidators, new_datapath("dp0", 9));
    assert_eq!(wire.ask(handlers, number(RUNS_AHEAD, 0, 1)).errors, [0; 0]);
    (wire, handlers, revalidators)
}

impl Wire {
    fn refused_late(&self) -> u64 {
        self.server.records()[&DatapathId(1)].refused_late
    }
}

/// A flow of this name, with the match of another number.
fn named(name: u32, matches: u32) -> FlowMessage {
    FlowMessage { key: flow(matches, Vec::new()).key, ..flow(name, Vec::new()) }
}

fn install(name: u32, matches: u32) -> Vec<u8> {
    flow_request(NEW, CREATE, &named(name, matches))
}

/// A request with only the name.
fn by_name(command: u8, name: u32) -> Vec<u8> {
    let actions = (command == SET).then(Vec::new);
    let flags = if command == DEL { ECHO } else { ACK };
    flow_request(command, flags, &FlowMessage { key: None, actions, ..flow(name, Vec::new()) })
}

fn list(wire: &mut Wire, id: PeerId, omitted: u32) -> Vec<FlowMessage> {
    let wanted = FlowMessage { datapath: 1, omitted: Some(omitted), ..FlowMessage::default() };
    let answers = wire.ask(id, request(Family::Flow, GET, DUMP, 1, |writer| wanted.encode(writer)));
    assert!(answers.has_done);
    answers.flows()
}

/// The names in a list, and those in it that were last used at the start of the machine.
fn names(flows: &[FlowMessage]) -> (Vec<Ufid>, Vec<Ufid>) {
    let name = |flow: &FlowMessage| flow.ufid.expect("a name");
    let is_idle = |flow: &&FlowMessage| flow.stats.is_some_and(|stats| stats.used_ms == 1);
    (flows.iter().map(name).collect(), flows.iter().filter(is_idle).map(name).collect())
}

fn ufid(name: u32) -> Ufid {
    flow(name, Vec::new()).ufid.expect("it has one")
}

#[test]
fn a_brief_list_has_a_refused_flow_as_idle_until_it_is_removed() {
    let (mut wire, handlers, id) = with_handlers();
    assert_eq!(wire.ask(handlers, install(1, 1)).errors, [0; 0]);
    assert_eq!(wire.ask(handlers, install(2, 1)).errors, [EEXIST]);
    assert_eq!(wire.refused_late(), 1);
    assert_eq!(names(&list(&mut wire, id, BRIEF)), (vec![ufid(1), ufid(2)], vec![ufid(2)]));
    assert_eq!(names(&list(&mut wire, id, 0)).0, [ufid(1)], "it is no flow");
    assert_eq!(wire.ask(id, by_name(SET, 2)).errors, [EEXIST], "the reason, and not ENOENT");
    assert_eq!(wire.ask(id, by_name(DEL, 2)).errors, [EEXIST]);
    assert_eq!(names(&list(&mut wire, id, BRIEF)).0, [ufid(1)]);
    assert_eq!(wire.ask(id, by_name(DEL, 2)).errors, [ENOENT]);
    assert_eq!(wire.ask(id, by_name(DEL, 1)).errors, [0; 0]);
}

#[test]
fn a_flow_with_an_unknown_action_is_heard_of_too() {
    let (mut wire, handlers, id) = with_handlers();
    let unknown = request(Family::Flow, NEW, CREATE, 1, |writer| {
        named(2, 2).encode(writer);
        writer.put(ACTIONS, &[8, 0, 250, 0, 0, 0, 0, 0]);
    });
    let [errno] = wire.ask(handlers, unknown).errors[..] else { panic!("it is refused") };
    assert!(errno > 0);
    assert_eq!(wire.refused_late(), 1);
    assert_eq!(names(&list(&mut wire, id, BRIEF)), (vec![ufid(2)], vec![ufid(2)]));
    assert_eq!(wire.ask(id, by_name(SET, 2)).errors, [errno], "the reason");
}

#[test]
fn a_refused_flow_ends_when_it_is_installed_asked_for_or_flushed() {
    let (mut wire, handlers, id) = with_handlers();
    wire.ask(handlers, install(1, 1));
    let refuse = |wire: &mut Wire| {
        assert_eq!(wire.ask(handlers, install(2, 1)).errors, [EEXIST]);
        assert_eq!(list(wire, id, BRIEF).len(), 2);
    };
    refuse(&mut wire);
    assert_eq!(wire.ask(id, by_name(GET, 2)).errors, [ENOENT]);
    assert_eq!(list(&mut wire, id, BRIEF).len(), 1);
    refuse(&mut wire);
    assert_eq!(wire.ask(handlers, install(2, 2)).errors, [0; 0]);
    assert_eq!(names(&list(&mut wire, id, BRIEF)), (vec![ufid(1), ufid(2)], vec![]));
    wire.ask(id, by_name(DEL, 2));
    refuse(&mut wire);
    wire.ask(id, flow_request(DEL, ACK, &FlowMessage { datapath: 1, ..FlowMessage::default() }));
    assert_eq!(list(&mut wire, id, BRIEF), []);
    wire.ask(handlers, install(1, 1));
    refuse(&mut wire);
    wire.server.datapath_lost("dp0", &mut wire.datapath);
    wire.ask(id, new_datapath("dp0", 9));
    assert_eq!(wire.ask(id, by_name(DEL, 2)).errors, [ENODEV], "the number is another one");
}

#[test]
fn other_clients_hear_of_their_refusals_at_once() {
    let (mut wire, handlers, id) = with_handlers();
    wire.ask(handlers, install(1, 1));
    assert_eq!(wire.ask(id, install(2, 1)).errors, [EEXIST]);
    assert_eq!(list(&mut wire, id, BRIEF).len(), 1);
    // After the end of a switch process the next one may have the flow already.
    assert_eq!(wire.ask(handlers, install(1, 1)).errors, [EEXIST]);
    assert_eq!(names(&list(&mut wire, id, BRIEF)), (vec![ufid(1)], vec![]));
    assert_eq!(wire.refused_late(), 0);
}

#[test]
fn refused_flows_are_bounded_and_their_list_has_many_datagrams() {
    let (mut wire, handlers, id) = with_handlers();
    wire.ask(handlers, install(0, 1));
    let count = REFUSED_FLOWS_MAX as u32 + 10;
    for name in 1..=count {
        wire.ask(handlers, install(name, 1));
    }
    assert_eq!(wire.refused_late(), u64::from(count));
    let (all, idle) = names(&list(&mut wire, id, BRIEF));
    assert_eq!((all.len(), idle.len()), (1 + REFUSED_FLOWS_MAX, REFUSED_FLOWS_MAX));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "each once");
}

/// A step of ovs-vswitchd, about one of its flows.
#[derive(Clone, Debug)]
enum Step {
    /// A handler installs a flow, unless there is one of that name for it, and does not wait.
    Install(u32, u32),
    Change(u32),
    Remove(u32),
    /// A revalidator lists all, and removes those that are idle.
    Revalidate,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..8_u32;
    prop_oneof![
        4 => (name(), 0..4_u32).prop_map(|(name, matches)| Step::Install(name, matches)),
        1 => name().prop_map(Step::Change),
        1 => name().prop_map(Step::Remove),
        1 => Just(Step::Revalidate),
    ]
}

/// The names of flows that ovs-vswitchd has for installed, by the server's answers.
#[derive(Default)]
struct Believed(BTreeSet<u32>);

impl Believed {
    fn take(&mut self, step: &Step, (wire, handlers, id): (&mut Wire, PeerId, PeerId)) {
        match *step {
            Step::Install(name, matches) if self.0.insert(name) => {
                let _unread = wire.ask(handlers, install(name, matches));
            }
            Step::Install(..) => {}
            Step::Change(name) if self.0.contains(&name) => {
                assert_ne!(wire.ask(id, by_name(SET, name)).errors, [ENOENT], "it warns of {name}");
            }
            Step::Remove(name) if self.0.remove(&name) => {
                assert_ne!(wire.ask(id, by_name(DEL, name)).errors, [ENOENT], "it warns of {name}");
            }
            Step::Change(_) | Step::Remove(_) => {}
            Step::Revalidate => {
                let (mut all, idle) = names(&list(wire, id, BRIEF));
                all.sort_unstable();
                assert_eq!(all, self.0.iter().map(|name| ufid(*name)).collect::<Vec<_>>());
                let idle: Vec<u32> =
                    self.0.iter().copied().filter(|name| idle.contains(&ufid(*name))).collect();
                idle.iter().for_each(|name| self.take(&Step::Remove(*name), (wire, handlers, id)));
            }
        }
    }
}

proptest! {
    /// After any refusals ovs-vswitchd warns of no unknown flow, its lists have the flows that it expects, and after one list it has
    /// the datapath's flows.
    #[test]
    fn ovs_hears_of_each_refusal(steps in prop::collection::vec(step(), 0..60)) {
        let (mut wire, handlers, id) = with_handlers();
        let mut believed = Believed::default();
        for step in steps.iter().chain(&[Step::Revalidate]) {
            believed.take(step, (&mut wire, handlers, id));
        }
        let (mut there, _) = names(&list(&mut wire, id, 0));
        there.sort_unstable();
        prop_assert_eq!(there, believed.0.iter().map(|name| ufid(*name)).collect::<Vec<_>>());
        prop_assert_eq!(wire.datapath.flow_count(DatapathId(1)), believed.0.len());
    }
}
