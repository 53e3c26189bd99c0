//! Compares the bridge with VLANs with a simple model, down to the bytes that each receiver gets.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::vlans::settings;
use super::*;
use crate::testing::tagged;

const PORTS: u16 = 5;
const MACS: u8 = 8;
/// Few VLANs, so that ports share them; only trunks of all VLANs carry 4.
const VIDS: u16 = 4;

/// One port of the model.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) words: String,
    /// The VLAN of untagged frames.
    pub(super) untagged: Option<u16>,
    /// The VLANs of tagged frames.
    tagged: Vec<u16>,
    isolated: bool,
    kind: Kind,
}

/// The kind of a port, in the words of `settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inside,
    Uplink,
    Transit,
}

impl Port {
    pub(super) fn passes_all(&self) -> bool {
        self.untagged == Some(0)
    }

    /// The reason that no frame passes from one port to the other.
    pub(super) fn barrier(&self, other: &Self) -> Option<DropReason> {
        let is_uplink = |port: &Self| port.kind != Kind::Inside;
        let is_transit = |port: &Self| port.kind == Kind::Transit;
        match () {
            () if self.isolated && other.isolated => Some(DropReason::Isolated),
            () if is_uplink(self) && is_uplink(other) && !(is_transit(self) && is_transit(other)) => {
                Some(DropReason::NoTransit)
            }
            () => None,
        }
    }

    /// Whether both ports have the same VLAN settings.
    fn carries_what(&self, other: &Self) -> bool {
        let tagged = |port: &Self| port.tagged.iter().copied().collect::<BTreeSet<u16>>();
        self.untagged == other.untagged && tagged(self) == tagged(other)
    }

    pub(super) fn carries(&self, vid: u16) -> bool {
        self.untagged == Some(vid) || self.tagged.contains(&vid)
    }
}

pub(super) fn port() -> impl Strategy<Value = Port> {
    let native = || prop::option::of(1..VIDS);
    let kind = prop_oneof![
        2 => Just((String::new(), Some(0), (1..=VIDS).collect())),
        2 => (1..VIDS).prop_map(|vid| (format!("vlan={vid}"), Some(vid), vec![])),
        2 => (prop::sample::subsequence((1..VIDS).collect::<Vec<_>>(), 1..3), native()).prop_map(|(list, native)| {
            let shown: Vec<_> = list.iter().map(u16::to_string).collect();
            let native_word = native.map_or_else(String::new, |vid| format!(",native={vid}"));
            let tagged = list.into_iter().chain(native).collect();
            (format!("trunk={}{native_word}", shown.join("+")), native, tagged)
        }),
        1 => (1..VIDS).prop_map(|vid| (format!("native={vid}"), Some(vid), (1..=VIDS).collect())),
        1 => Just(("trunk=all".to_owned(), None, (1..=VIDS).collect())),
    ];
    let leads = prop_oneof![3 => Just(Kind::Inside), 1 => Just(Kind::Uplink), 1 => Just(Kind::Transit)];
    (kind, any::<bool>(), leads).prop_map(|((mut words, untagged, tagged), isolated, kind)| {
        words += if isolated { ",isolated=true" } else { "" };
        words += match kind {
            Kind::Inside => "",
            Kind::Uplink => ",kind=uplink",
            Kind::Transit => ",kind=transit",
        };
        Port { words, untagged, tagged, isolated, kind }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Send { port: u16, tci: Option<u16>, source: u8, destination: u8 },
    Wait { ns: u64 },
    Replace { port: u16, by: Port },
    Change { port: u16, to: Port },
    Flush { port: Option<u16>, vid: Option<u16> },
}

fn step() -> impl Strategy<Value = Step> {
    let tci = (0..=VIDS, 0..16_u16).prop_map(|(vid, priority)| priority << 12 | vid);
    prop_oneof![
        20 => (1..=PORTS, prop::option::of(tci), 1..=MACS, 1..=MACS + 1)
            .prop_map(|(port, tci, source, destination)| Step::Send { port, tci, source, destination }),
        2 => (0..400 * SECOND_NS).prop_map(|ns| Step::Wait { ns }),
        1 => (1..=PORTS, port()).prop_map(|(port, by)| Step::Replace { port, by }),
        2 => (1..=PORTS, port()).prop_map(|(port, to)| Step::Change { port, to }),
        1 => (prop::option::of(1..=PORTS), prop::option::of(1..=VIDS)).prop_map(|(port, vid)| Step::Flush { port, vid }),
    ]
}

type Outputs = Result<Vec<(u16, Vec<u8>)>, DropReason>;

struct Model {
    ports: Vec<Port>,
    seen: HashMap<(u16, u8), (u16, u64)>,
}

impl Model {
    fn port(&self, port: u16) -> &Port {
        &self.ports[usize::from(port) - 1]
    }

    fn vid_of(&self, port: u16, tci: Option<u16>) -> Result<u16, DropReason> {
        let port = self.port(port);
        match tci.map(|tci| tci & 0xfff) {
            None | Some(0) => port.untagged.ok_or(DropReason::VlanUntagged),
            Some(_) if port.tagged.is_empty() => Err(DropReason::VlanTagged),
            Some(vid) if port.tagged.contains(&vid) => Ok(vid),
            Some(_) => Err(DropReason::VlanNotCarried),
        }
    }

    fn look(&self, vid: u16, mac: u8, now_ns: u64) -> Option<u16> {
        let (port, seen_ns) = self.seen.get(&(vid, mac))?;
        let units = |ns: u64| ns >> 26;
        (units(now_ns) - units(*seen_ns) <= units(AGEING_NS_DEFAULT)).then_some(*port)
    }

    /// The frame that `port` sends for a frame of VLAN `vid` that was received with `tci`.
    fn form(&self, port: u16, vid: u16, tci: Option<u16>, plain: &[u8]) -> Vec<u8> {
        let to = self.port(port);
        match tci {
            _ if to.untagged == Some(vid) && !to.passes_all() => plain.to_vec(),
            Some(tci) if vid == 0 => tagged(tci, plain),
            None if vid == 0 => plain.to_vec(),
            tci => tagged(tci.unwrap_or(0) & 0xf000 | vid, plain),
        }
    }

    fn send(&mut self, port: u16, tci: Option<u16>, macs: (u8, u8), plain: &[u8], now_ns: u64) -> Outputs {
        let vid = self.vid_of(port, tci)?;
        self.seen.insert((vid, macs.0), (port, now_ns));
        let barrier = |other: u16| self.port(port).barrier(self.port(other));
        let to = match self.look(vid, macs.1, now_ns) {
            Some(there) if there == port => return Err(DropReason::SamePort),
            Some(there) => barrier(there).map_or(Ok(vec![there]), Err)?,
            None => {
                let hears = |other: &u16| {
                    *other != port && barrier(*other).is_none() && self.port(*other).carries(vid)
                };
                (1..=PORTS).filter(hears).collect()
            }
        };
        let copies: Vec<_> = to.into_iter().map(|to| (to, self.form(to, vid, tci, plain))).collect();
        if copies.is_empty() { Err(DropReason::NoDestination) } else { Ok(copies) }
    }

    fn flush(&mut self, port: Option<u16>, vid: Option<u16>) {
        self.seen.retain(|(of, _), (at, _)| {
            port.is_some_and(|port| port != *at) || vid.is_some_and(|vid| vid != *of)
        });
    }

    fn fdb(&self, now_ns: u64) -> Vec<(Mac, Option<u16>, u16)> {
        let live = self.seen.keys().filter_map(|(vid, n)| {
            Some((mac(*n), Some(*vid).filter(|vid| *vid > 0), self.look(*vid, *n, now_ns)?))
        });
        let mut live: Vec<_> = live.collect();
        live.sort();
        live
    }
}

fn run(lab: &mut Lab<Bridge>, model: &mut Model, step: &Step) {
    match step.clone() {
        Step::Wait { ns } => lab.now_ns += ns,
        Step::Replace { port, by } => {
            lab.module.port_removed(PortId(port));
            lab.module.port_added(PortId(port), &settings(port, &by.words)).expect("a new port is accepted");
            model.flush(Some(port), None);
            model.ports[usize::from(port) - 1] = by;
        }
        Step::Change { port, to } => {
            lab.module
                .port_changed(PortId(port), &settings(port, &to.words))
                .expect("new settings are accepted");
            if !model.port(port).carries_what(&to) {
                model.flush(Some(port), None);
            }
            model.ports[usize::from(port) - 1] = to;
        }
        Step::Flush { port, vid } => {
            let vlan = vid.map(|vid| vid.try_into().expect("a VLAN"));
            lab.module.fdb_flush(port.map(PortId), vlan).expect("a bridge has a table");
            model.flush(port, vid);
        }
        Step::Send { port, tci, source, destination } => {
            let plain = frame(source, destination);
            let bytes = tci.map_or_else(|| plain.clone(), |tci| tagged(tci, &plain));
            let expected = model.send(port, tci, (source, destination), &plain, lab.now_ns);
            assert_eq!(lab.deliver(port, bytes), expected, "{step:?} with {:?}", model.ports);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_bridge_with_vlans_decides_as_the_model(
        ports in prop::collection::vec(port(), usize::from(PORTS)),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut lab = lab(1024, &[]);
        for (number, port) in (1..).zip(&ports) {
            lab.module.port_added(PortId(number), &settings(number, &port.words)).expect("a new port is accepted");
        }
        let mut model = Model { ports, seen: HashMap::new() };
        for step in &steps {
            run(&mut lab, &mut model, step);
            let listed: Vec<_> =
                lab.module.fdb(lab.now_ns).iter().map(|entry| (entry.mac, entry.vlan, entry.port.0)).collect();
            prop_assert_eq!(listed, model.fdb(lab.now_ns));
        }
        assert_counts(&lab.module, &[1, 2, 3, 4, 5]);
    }
}
