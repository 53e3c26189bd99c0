//! Compares the bridge with a simple map, over random histories with simulated time.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const PORTS: [u16; 4] = [1, 2, 3, 4];
const MACS: u8 = 24;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { port: u16, source: u8, destination: u8 },
    Wait { ns: u64 },
    Replace { port: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    let port = || prop::sample::select(&PORTS[..]);
    prop_oneof![
        12 => (port(), 1..=MACS, 1..=MACS)
            .prop_map(|(port, source, destination)| Step::Send { port, source, destination }),
        2 => (0..400 * SECOND_NS).prop_map(|ns| Step::Wait { ns }),
        1 => port().prop_map(|port| Step::Replace { port }),
    ]
}

/// The port and the time at which each address was last seen.
#[derive(Default)]
struct Model {
    seen: HashMap<u8, (u16, u64)>,
}

impl Model {
    fn place(&self, mac: u8, now_ns: u64) -> Option<u16> {
        let (port, seen_ns) = self.seen.get(&mac)?;
        let units = |ns: u64| ns >> 26; // ages are counted in units of 2^26 ns
        (units(now_ns) - units(*seen_ns) <= units(AGEING_NS_DEFAULT)).then_some(*port)
    }

    fn send(&mut self, port: u16, source: u8, destination: u8, now_ns: u64) -> Result<Vec<u16>, DropReason> {
        self.seen.insert(source, (port, now_ns));
        match self.place(destination, now_ns) {
            Some(place) if place == port => Err(DropReason::SamePort),
            Some(place) => Ok(vec![place]),
            None => Ok(PORTS.into_iter().filter(|other| *other != port).collect()),
        }
    }

    fn replace(&mut self, port: u16) {
        self.seen.retain(|_, (place, _)| *place != port);
    }

    fn fdb(&self, now_ns: u64) -> Vec<(Mac, PortId)> {
        let live = self.seen.keys().filter_map(|n| Some((mac(*n), PortId(self.place(*n, now_ns)?))));
        let mut live: Vec<_> = live.collect();
        live.sort();
        live
    }
}

fn replace(lab: &mut Lab<Bridge>, port: u16) {
    lab.module.port_removed(PortId(port));
    lab.add(port).expect("the number is free again");
}

fn listed(lab: &Lab<Bridge>) -> Vec<(Mac, PortId)> {
    lab.module.fdb(lab.now_ns).iter().map(|entry| (entry.mac, entry.port)).collect()
}

/// Runs one step; `exact` says whether the table is large enough for every address.
fn run(lab: &mut Lab<Bridge>, model: &mut Model, step: Step, exact: bool) {
    match step {
        Step::Wait { ns } => lab.now_ns += ns,
        Step::Replace { port } => {
            replace(lab, port);
            model.replace(port);
        }
        Step::Send { port, source, destination } => {
            let fate = lab.send(port, frame(source, destination));
            let expected = model.send(port, source, destination, lab.now_ns);
            let flood: Vec<_> = PORTS.into_iter().filter(|other| *other != port).collect();
            assert!(
                fate == expected || (!exact && fate == Ok(flood)),
                "{step:?}: {fate:?} instead of {expected:?}"
            );
        }
    }
    assert_counts(&lab.module, &PORTS);
}

proptest! {
    #[test]
    fn a_large_table_decides_as_the_model(steps in prop::collection::vec(step(), 1..200)) {
        let (mut lab, mut model) = (lab(256, &PORTS), Model::default());
        for step in steps {
            run(&mut lab, &mut model, step, true);
            prop_assert_eq!(listed(&lab), model.fdb(lab.now_ns));
        }
    }

    /// A table that is too small may lack an address, but all of its entries are right and unique.
    #[test]
    fn a_small_table_floods_but_never_errs(steps in prop::collection::vec(step(), 1..200)) {
        let (mut lab, mut model) = (lab(8, &PORTS), Model::default());
        for step in steps {
            run(&mut lab, &mut model, step, false);
            let known = model.fdb(lab.now_ns);
            prop_assert!(listed(&lab).iter().all(|entry| known.contains(entry)));
            let mut keys: Vec<_> = lab.module.table.entries().map(|(_, key, _)| key).collect();
            keys.sort_unstable();
            prop_assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", keys);
        }
    }

    /// With a limit, learned addresses are right. There are never more than the limit, and never fewer than the live
    /// addresses allow.
    #[test]
    fn limits_hold(steps in prop::collection::vec((step(), 0..8u8), 1..200), max in 0..6u32) {
        let mut lab = lab(256, &[2]);
        let settings = PortSettings { name: "limited".into(), macs_max: Some(max), ..PortSettings::default() };
        lab.module.port_added(PortId(1), &settings).expect("a new port is accepted");
        for (step, source) in steps {
            let before = lab.module.stats();
            let live = listed(&lab);
            let Step::Send { .. } = step else {
                if let Step::Wait { ns } = step { lab.now_ns += ns; }
                continue;
            };
            lab.send(1, frame(source + 1, 99)).expect("flooded");
            let (after, of_port) = (lab.module.stats(), lab.module.ports.learned(PortId(1)));
            prop_assert!(of_port <= max);
            prop_assert!(after.limit_hit == before.limit_hit || of_port == max);
            let is_known = live.iter().any(|(known, _)| *known == mac(source + 1));
            prop_assert!(!is_known || after.limit_hit == before.limit_hit);
            assert_counts(&lab.module, &[1, 2]);
        }
    }
}
