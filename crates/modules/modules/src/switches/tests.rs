use lasthop_module_api::{Mac, PortPolicy};

use super::*;
use crate::testing::{Lab, frame, mac};
use crate::{Bridge, BridgeSettings, Dummy};

const RED: SwitchId = SwitchId(1);
const BLUE: SwitchId = SwitchId(2);
const NO_DESTINATION: Result<Vec<u16>, DropReason> = Err(DropReason::NoDestination);

fn bridge() -> Arc<dyn Module> {
    Arc::new(Bridge::new(&BridgeSettings::with_entries(64)))
}

/// A default bridge, a bridge `RED` and a dummy `BLUE`.
fn switches() -> Switches {
    Switches::new(bridge()).with(RED, bridge()).with(BLUE, Arc::new(Dummy::default()))
}

fn settings(port: u16, switch: SwitchId, mac: Option<Mac>) -> PortSettings {
    PortSettings {
        name: format!("vm{port}"),
        switch,
        policy: PortPolicy { mac, ..PortPolicy::default() },
        ..PortSettings::default()
    }
}

fn add(switches: &Switches, port: u16, switch: SwitchId) {
    switches.port_added(PortId(port), &settings(port, switch, None)).expect("a new port is accepted");
}

/// Ports 1 and 2 are in the default switch, 3 to 5 in `RED`, 6 and 7 in `BLUE`.
fn lab() -> Lab<Switches> {
    let switches = switches();
    let of = |port| [SwitchId::DEFAULT, RED, BLUE][usize::from(port > 2) + usize::from(port > 5)];
    (1..=7).for_each(|port| add(&switches, port, of(port)));
    Lab::new(switches)
}

#[test]
fn floods_stay_within_the_switch() {
    let mut lab = lab();
    for (from, to) in
        [(1, vec![2]), (2, vec![1]), (3, vec![4, 5]), (5, vec![3, 4]), (6, vec![7]), (7, vec![6])]
    {
        assert_eq!(lab.send(from, frame(from as u8, 99)), Ok(to));
    }
}

#[test]
fn the_same_addresses_are_learned_in_each_switch_apart() {
    let mut lab = lab();
    for port in [1, 2, 3, 4] {
        let _ = lab.send(port, frame(2 - (port % 2) as u8, 99));
    }
    assert_eq!(lab.send(1, frame(1, 2)), Ok(vec![2]));
    assert_eq!(lab.send(3, frame(1, 2)), Ok(vec![4]), "not flooded to 5");
    let fdb: Vec<_> = lab.module.fdb(lab.now_ns).iter().map(|entry| (entry.mac, entry.port.0)).collect();
    assert_eq!(fdb, [(mac(1), 1), (mac(2), 2), (mac(1), 3), (mac(2), 4)], "by switch, then by address");
    assert_eq!(
        lab.module.counters().iter().find(|(name, _)| *name == "fdb_learned"),
        Some(&("fdb_learned", 4))
    );
    let learned = |switch| lab.module.module(switch).expect("it is there").counters()[0];
    assert_eq!([SwitchId::DEFAULT, RED].map(learned), [("fdb_learned", 2); 2]);
}

#[test]
fn a_static_address_is_taken_in_its_own_switch_only() {
    let switches = switches();
    let add = |port, switch| switches.port_added(PortId(port), &settings(port, switch, Some(mac(9))));
    assert_eq!((add(1, SwitchId::DEFAULT), add(2, RED)), (Ok(()), Ok(())));
    assert!(add(3, RED).expect_err("twice").contains("the address of \"vm2\" already"));
    assert_eq!(switches.ports(RED).collect::<Vec<_>>(), [PortId(2)], "the refused one is in no switch");
    let mut lab = Lab::new(switches);
    assert_eq!(lab.send(3, frame(9, 1)), NO_DESTINATION);
}

#[test]
fn a_port_changes_within_its_switch() {
    let mut lab = lab();
    let change = |lab: &Lab<Switches>, port, switch, n| {
        lab.module.port_changed(PortId(port), &settings(port, switch, Some(mac(n))))
    };
    assert_eq!((change(&lab, 1, SwitchId::DEFAULT, 1), change(&lab, 3, RED, 1)), (Ok(()), Ok(())));
    assert!(change(&lab, 4, RED, 1).expect_err("twice").contains("\"vm3\""));
    assert!(change(&lab, 3, BLUE, 1).expect_err("another switch").contains("add it again"));
    assert_eq!(lab.send(3, frame(9, 4)), Err(DropReason::SourceSpoofed));
}

#[test]
fn entries_go_to_the_switch_of_their_port() {
    let mut lab = lab();
    for port in [2, 4] {
        assert_eq!(lab.module.fdb_add(mac(9), None, PortId(port)), Ok(()));
    }
    assert_eq!(lab.send(1, frame(1, 9)), Ok(vec![2]));
    assert_eq!(lab.send(3, frame(1, 9)), Ok(vec![4]));
    assert!(lab.module.fdb_add(mac(8), None, PortId(6)).is_err(), "a dummy has no table");
    assert!(lab.module.fdb_del(mac(9), None, PortId(99)).expect_err("no such port").contains("port 99"));
    assert_eq!(lab.module.fdb_flush(None, None), Ok(2), "address 1 in both bridges");
    assert_eq!(lab.module.fdb_del(mac(9), None, PortId(4)), Ok(()));
    assert_eq!(lab.send(3, frame(1, 9)), Ok(vec![4, 5]));
    assert_eq!(lab.module.fdb_flush(Some(PortId(1)), None), Ok(0));
    assert_eq!(lab.module.fdb_flush(Some(PortId(3)), None), Ok(1));
}

#[test]
fn a_port_that_moves_leaves_nothing_behind() {
    let mut lab = lab();
    assert_eq!(lab.send(5, frame(5, 99)), Ok(vec![3, 4]));
    lab.module.port_removed(PortId(5));
    assert_eq!(lab.send(5, frame(5, 99)), NO_DESTINATION);
    assert_eq!(lab.send(3, frame(3, 5)), Ok(vec![4]));
    add(&lab.module, 5, SwitchId::DEFAULT);
    assert_eq!(lab.send(3, frame(3, 5)), Ok(vec![4]), "not where it is now");
    assert_eq!(lab.send(5, frame(5, 3)), Ok(vec![1, 2]));
    assert_eq!(lab.module.ports(RED).map(|port| port.0).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn packets_of_the_switch_itself_go_to_the_default_one() {
    let mut lab = lab();
    assert_eq!(lab.send(0, frame(50, 99)), Ok(vec![1, 2]));
    lab.module.port_removed(PortId::INTERNAL);
    assert_eq!(lab.send(0, frame(50, 99)), Ok(vec![1, 2]));
    assert!(lab.module.ports(SwitchId::DEFAULT).all(|port| port != PortId::INTERNAL));
}

#[test]
fn the_old_table_and_the_new_one_share_their_ports() {
    let old = Switches::new(bridge());
    let new = old.with(RED, bridge());
    (1..=2).for_each(|port| add(&new, port, RED));
    let mut new = Lab::new(new);
    assert_eq!(new.send(1, frame(1, 99)), Ok(vec![2]));
    let mut old = Lab::new(old);
    assert_eq!(old.send(1, frame(1, 99)), NO_DESTINATION, "a switch that this worker has not heard of");
    assert!(
        old.module.port_added(PortId(3), &settings(3, RED, None)).expect_err("none").contains("add it first")
    );
}

#[test]
fn numbers_of_removed_switches_are_given_again() {
    let switches = switches();
    assert_eq!(switches.vacancy(), Some(SwitchId(3)));
    let switches = switches.without(RED);
    assert!(switches.module(RED).is_none() && switches.module(BLUE).is_some());
    assert_eq!(switches.vacancy(), Some(RED));
    assert_eq!(switches.with(RED, bridge()).vacancy(), Some(SwitchId(3)));
    let last = SwitchId(SWITCHES_MAX as u16 - 1);
    let full = (1..=last.0)
        .map(SwitchId)
        .fold(Switches::new(bridge()), |all, switch| all.with(switch, Arc::new(Dummy::default())));
    assert_eq!((full.vacancy(), full.without(last).vacancy()), (None, Some(last)));
}

#[test]
fn a_number_that_is_taken_or_too_high_is_refused() {
    let lab = lab();
    for switch in [SwitchId::DEFAULT, RED, BLUE] {
        assert!(lab.module.port_added(PortId(4), &settings(4, switch, None)).is_err(), "{switch:?}");
    }
    let too_high = lab.module.port_added(PortId(PORTS_MAX as u16), &settings(1, RED, None));
    assert!(too_high.expect_err("no room").contains("1023"));
    lab.module.port_removed(PortId(u16::MAX));
}

#[test]
fn one_batch_is_decided_whole_by_one_module() {
    let mut lab = lab();
    let frames = [frame(6, 1), Vec::new(), frame(1, 2)];
    assert_eq!(lab.send_batch(6, &frames), [Ok(vec![7]), Ok(vec![7]), Ok(vec![7])], "a dummy");
    let fates = lab.send_batch(1, &frames);
    assert_eq!(fates, [Ok(vec![2]), Err(DropReason::TooShort), Ok(vec![2])], "a bridge");
}

/// A method that `Switches` does not override would not reach the modules of the switches.
#[test]
fn every_method_of_a_module_is_handed_on() {
    let contract = include_str!("../../../../core/module-api/src/lib.rs");
    let contract = contract.split("pub trait Module").nth(1).and_then(|rest| rest.split("\n}").next());
    let methods: Vec<&str> = contract
        .expect("the trait is there")
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("fn ")?.split('(').next())
        .collect();
    assert!(methods.contains(&"decide") && methods.contains(&"fdb"), "{methods:?}");
    let own =
        include_str!("../switches.rs").split("impl Module for Switches").nth(1).expect("it is a module");
    let missing: Vec<_> = methods.iter().filter(|name| !own.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "Switches does not hand on {missing:?}");
}

/// Random ports join, leave and send: no two switches may mix.
mod random {
    use proptest::prelude::*;

    use super::*;

    const PORTS: u16 = 12;

    #[derive(Clone, Debug)]
    enum Step {
        Toggle(u16, u16),
        Send(u16, u8, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => (1..PORTS, 0..3_u16).prop_map(|(port, switch)| Step::Toggle(port, switch)),
            3 => (0..PORTS, 1..6_u8, 1..6_u8).prop_map(|(port, from, to)| Step::Send(port, from, to)),
        ]
    }

    proptest! {
        #[test]
        fn no_frame_leaves_its_switch(steps in proptest::collection::vec(step(), 1..200)) {
            let mut lab = Lab::new(switches());
            let mut homes = [None; PORTS as usize];
            homes[0] = Some(0);
            for step in steps {
                match step {
                    Step::Toggle(port, switch) => {
                        let home = &mut homes[usize::from(port)];
                        if home.take().is_some() {
                            lab.module.port_removed(PortId(port));
                        } else {
                            add(&lab.module, port, SwitchId(switch));
                            *home = Some(switch);
                        }
                    }
                    Step::Send(port, from, to) => {
                        let outputs = lab.send(port, frame(from, to)).unwrap_or_default();
                        let home = homes[usize::from(port)];
                        let all_at_home = outputs.iter().all(|to| homes[usize::from(*to)] == home);
                        prop_assert!(all_at_home, "{port} of {home:?}: {outputs:?}, {homes:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_leaves_a_port_in_no_switch() {
    let mut lab = Lab::new(Unattached);
    for port in [1, 2] {
        lab.add(port).expect("a port");
    }
    for (from, source, destination) in [(1, 1, 2), (2, 2, 1), (1, 1, 2)] {
        assert_eq!(lab.send(from, frame(source, destination)), Err(DropReason::NoDestination));
    }
}
