//! With any ports, addresses and frames, flows treat packets like the bridge.

use lasthop_controller::{Controller, StaticAddress};
use lasthop_module_api::{Mac, Module, PortId, PortKind, PortPolicy, PortSettings, PortVlans, Vid};
use lasthop_modules::{Bridge, BridgeSettings};
use proptest::prelude::*;

use crate::support::{
    Copies, Decided, Rig, SECOND_NS, SWITCH, config, decide, frame, mac, pair_flows_max, set_pair_flows_max,
};

const PORTS: u16 = 5;
const MACS: u8 = 8;
/// Few VLANs, so that ports share them; only trunks of all VLANs carry the last one.
const VIDS: u16 = 4;

#[derive(Clone, Debug)]
enum Step {
    Send(u16, Vec<u8>),
    Wait(u64),
    Replace(u16, PortSettings),
    SetMac(u16, Option<u8>),
    Enter(u16, u8, Option<u16>),
    Flush(Option<u16>, Option<u16>),
}

fn vid(number: u16) -> Vid {
    number.try_into().expect("a VLAN")
}

fn vlans() -> impl Strategy<Value = PortVlans> {
    let native = || prop::option::of((1..VIDS).prop_map(vid));
    let list = prop::sample::subsequence((1..VIDS).collect::<Vec<_>>(), 1..3).prop_map(|list| {
        list.iter().map(u16::to_string).collect::<Vec<_>>().join("+").parse().expect("a list")
    });
    prop_oneof![
        3 => Just(PortVlans::Any),
        2 => (1..VIDS).prop_map(|number| PortVlans::Access(vid(number))),
        2 => (list, native()).prop_map(|(list, native)| PortVlans::Trunk { carried: Some(list), native }),
        1 => native().prop_map(|native| PortVlans::Trunk { carried: None, native }),
    ]
}

fn port() -> impl Strategy<Value = PortSettings> {
    let kind = prop_oneof![
        3 => Just(PortKind::Inside),
        1 => Just(PortKind::Uplink),
        1 => Just(PortKind::TransitUplink),
    ];
    let own = prop::option::weighted(0.2, 1..=MACS);
    let macs_max = prop::option::weighted(0.3, 0..3_u32);
    (vlans(), any::<bool>(), kind, own, macs_max).prop_map(|(vlans, isolated, kind, own, macs_max)| {
        let mac = own.map(|number| Mac(mac(number)));
        let policy = PortPolicy { mac, vlans, is_isolated: isolated, ..PortPolicy::default() };
        PortSettings { policy, kind, macs_max, ..PortSettings::default() }
    })
}

fn destination() -> impl Strategy<Value = [u8; 6]> {
    prop_oneof![
        8 => (1..=MACS + 1).prop_map(mac),
        1 => Just([0xff; 6]),
        1 => Just([0x33, 0x33, 0, 0, 0, 1]),
        1 => Just([1, 0x80, 0xc2, 0, 0, 0x0e]),
        1 => Just([1, 0x80, 0xc2, 0, 0, 0x10]),
        1 => any::<[u8; 6]>(),
    ]
}

fn source() -> impl Strategy<Value = [u8; 6]> {
    prop_oneof![
        20 => (1..=MACS).prop_map(mac),
        1 => Just([0; 6]),
        1 => Just([3, 0, 0, 0, 0, 1]),
        1 => any::<[u8; 6]>(),
    ]
}

/// Tags, EtherType and payload. Drop eligibility is never set where a tag may be renamed: a flow key has no bit for it.
fn rest() -> impl Strategy<Value = Vec<u8>> {
    let tci = (0..=VIDS, 0..8_u16).prop_map(|(vid, priority)| (priority << 13 | vid).to_be_bytes());
    let tci = prop_oneof![10 => tci, 1 => Just([0x0f, 0xff])];
    let tag = (prop_oneof![5 => Just([0x81, 0x00]), 1 => Just([0x88, 0xa8])], tci);
    let tags = prop_oneof![
        4 => Just(vec![]),
        4 => prop::collection::vec(tag.clone(), 1),
        2 => prop::collection::vec(tag, 2..=3),
    ];
    const KINDS: &[u16] = &[0x0800, 0x0806, 0x86dd, 0x88cc, 0x0026, 0x8100, 0x88a8, 0x8847, 0x9100, 0x8101];
    let payload = prop_oneof![10 => Just(46_usize), 1 => 0..6_usize];
    (tags, prop::sample::select(KINDS), payload, any::<u8>()).prop_map(|(tags, kind, payload, byte)| {
        let tags = tags.into_iter().flat_map(|(tpid, tci)| [tpid, tci]).flatten();
        tags.chain(kind.to_be_bytes()).chain(vec![byte; payload]).collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let send = (1..=PORTS, destination(), source(), rest())
        .prop_map(|(port, destination, source, rest)| Step::Send(port, frame(destination, source, &rest)));
    prop_oneof![
        30 => send,
        2 => prop_oneof![0..3 * SECOND_NS, Just(20 * SECOND_NS), Just(400 * SECOND_NS)].prop_map(Step::Wait),
        1 => (1..=PORTS, port()).prop_map(|(port, by)| Step::Replace(port, by)),
        1 => (1..=PORTS, prop::option::of(1..=MACS)).prop_map(|(port, own)| Step::SetMac(port, own)),
        1 => (1..=PORTS, 1..=MACS, prop::option::of(1..VIDS)).prop_map(|(port, mac, vid)| Step::Enter(port, mac, vid)),
        1 => (prop::option::of(1..=PORTS), prop::option::of(1..=VIDS)).prop_map(|(port, vid)| Step::Flush(port, vid)),
    ]
}

fn name(port: u16) -> String {
    format!("p{port}")
}

/// The bridge, and a switch that has to behave the same.
struct Pair {
    bridge: Bridge,
    rig: Rig,
    ports: Vec<Option<PortSettings>>,
    statics: Vec<StaticAddress>,
}

impl Pair {
    fn new(ports: Vec<PortSettings>) -> Self {
        let mut controller = Controller::new(0);
        controller.set_switch(&config());
        // Far more than there are addresses; each step looks at all of them.
        let bridge = Bridge::new(&BridgeSettings { hash_key: [1, 2], ..BridgeSettings::with_entries(1024) });
        let mut pair = Self {
            bridge,
            rig: Rig::new(controller),
            ports: vec![None; usize::from(PORTS) + 1],
            statics: vec![],
        };
        pair.rig.settle();
        for (port, settings) in (1..).zip(ports) {
            pair.add(port, settings);
        }
        pair
    }

    fn add(&mut self, port: u16, settings: PortSettings) {
        let settings = PortSettings { name: name(port), ..settings };
        if self.bridge.port_added(PortId(port), &settings).is_err() {
            return; // its address is another port's: the switch would refuse it, and the controller would not get it
        }
        self.rig.tables.ports.insert(name(port), PortId(port));
        self.rig.controller.set_port(SWITCH, settings.clone());
        self.ports[usize::from(port)] = Some(settings);
        self.rig.settle();
    }

    fn remove(&mut self, port: u16) {
        if self.ports[usize::from(port)].take().is_none() {
            return;
        }
        self.bridge.port_removed(PortId(port));
        self.statics.retain(|entry| entry.port != name(port));
        self.rig.controller.set_statics(SWITCH, self.statics.clone());
        self.rig.controller.remove_port(SWITCH, &name(port));
        self.rig.tables.ports.remove(&name(port));
        self.rig.settle();
    }

    fn set_mac(&mut self, port: u16, own: Option<u8>) {
        let Some(settings) = &self.ports[usize::from(port)] else { return };
        let mut settings = settings.clone();
        settings.policy.mac = own.map(|number| Mac(mac(number)));
        if self.bridge.port_changed(PortId(port), &settings).is_ok() {
            self.rig.controller.set_port(SWITCH, settings.clone());
            self.ports[usize::from(port)] = Some(settings);
            self.rig.settle();
        }
    }

    fn enter(&mut self, port: u16, number: u8, vlan: Option<u16>) {
        let entry = StaticAddress { mac: Mac(mac(number)), vlan: vlan.map(vid), port: name(port) };
        let is_there = self.ports[usize::from(port)].is_some();
        if is_there && self.bridge.fdb_add(entry.mac, entry.vlan, PortId(port)).is_ok() {
            self.statics.push(entry);
            self.rig.controller.set_statics(SWITCH, self.statics.clone());
            self.rig.settle();
        }
    }

    fn flush(&mut self, port: Option<u16>, number: Option<u16>) {
        let there = self.bridge.fdb_flush(port.map(PortId), number.map(vid)).expect("it can");
        let name = port.map(name);
        let now_ns = self.rig.now_ns;
        let here = self.rig.controller.flush(SWITCH, name.as_deref(), number.map(vid), now_ns);
        // Aged entries may still be in the bridge's table.
        assert!(here <= there, "{here} of {there} were forgotten");
        self.rig.settle();
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> (Decided, Copies) {
        let mut wanted = decide(&self.bridge, port, frame, self.rig.now_ns);
        wanted.copies.sort();
        (wanted, self.rig.send(port, frame))
    }

    fn addresses(&self) -> (Vec<String>, Vec<String>) {
        let line = |mac: Mac, vlan: Option<u16>, port: &str, is_static: bool| {
            format!("{mac} {vlan:?} {port} {is_static}")
        };
        let now_ns = self.rig.now_ns;
        let there = self.bridge.fdb(now_ns).into_iter().filter(|entry| !entry.is_static);
        let there = there.map(|entry| line(entry.mac, entry.vlan, &name(entry.port.0), false)).collect();
        let here = self.rig.controller.addresses(SWITCH, now_ns).expect("it is served");
        let here = here.into_iter().filter(|entry| !entry.is_static);
        (there, here.map(|entry| line(entry.mac, entry.vlan, &entry.port, false)).collect())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(port, _) if self.ports[usize::from(port)].is_none() => {}
            Step::Send(port, frame) => {
                let (wanted, got) = self.send(port, &frame);
                assert_eq!(got, wanted.copies, "first, from {port}: {frame:02x?}");
                let before = self.rig.misses;
                let (wanted, got) = self.send(port, &frame);
                assert_eq!(got, wanted.copies, "by its flow, from {port}: {frame:02x?}");
                let is_lost_beside = !wanted.copies.is_empty();
                if !is_cut(&frame) && !is_lost_beside {
                    assert_eq!(self.rig.drops, wanted.drops, "why, from {port}: {frame:02x?}");
                }
                assert!(
                    self.rig.misses == before || is_cut(&frame),
                    "the second one is a miss, too: {frame:02x?}"
                );
            }
            Step::Wait(ns) => {
                self.rig.now_ns += ns;
                self.rig.settle();
            }
            Step::Replace(port, by) => {
                self.remove(port);
                self.add(port, by);
            }
            Step::SetMac(port, own) => self.set_mac(port, own),
            Step::Enter(port, mac, vid) => self.enter(port, mac, vid),
            Step::Flush(port, vid) => self.flush(port, vid),
        }
    }
}

/// Whether a frame ends in a tag; there are no flows for these.
fn is_cut(frame: &[u8]) -> bool {
    frame[12..14] == [0x81, 0] && frame.len() < 22
}

proptest! {
    // Each has up to 60 steps, and compares all addresses after each.
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn flows_do_what_the_bridge_does(
        ports in prop::collection::vec(port(), usize::from(PORTS)),
        steps in prop::collection::vec(step(), 1..60),
        pair_flows_max in pair_flows_max(),
    ) {
        set_pair_flows_max(pair_flows_max);
        let mut pair = Pair::new(ports);
        for step in steps {
            pair.step(step);
            let (there, here) = pair.addresses();
            prop_assert_eq!(here, there);
        }
    }
}
