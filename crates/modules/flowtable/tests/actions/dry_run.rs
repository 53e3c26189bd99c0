//! Random tables and random packets: a dry run has the result of the data path, and changes nothing.

use lasthop_flow::{
    Action, CheckLength, Conntrack, Ethernet, FlowKey, Hash, HashAlgorithm, Ipv4, Masked, Match, Nat,
    NatRange, NatSource, Ports, Rewrite, SampleAction, Tunnel, TunnelOptions, Userspace, Vlan,
};
use lasthop_flowtable::{DryEvent, DryRun, FlowModule, FlowSpec, MeterRate, describe};
use lasthop_module_api::{Batch, DropReason, Hashes, Header, Module, PortId, Verdicts};
use lasthop_wire::{Metadata, Offload};
use proptest::prelude::*;

use crate::packets::{Net, Spec};
use crate::support::{NOW_NS, told, untimely};

/// Together 100,000 packets.
const TABLES: u32 = 200;
const PACKETS: usize = 500;
const PORTS: u16 = 6;
/// A number that flows name and no port has.
const NO_PORT: u16 = 7;
const PASSES: u32 = 4;
const METER: u32 = 3;
const MS_NS: u64 = 1_000_000;

/// Numbers that look random (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn port(&mut self) -> u32 {
        1 + self.below(u64::from(NO_PORT)) as u32
    }

    /// A packet of one of few hosts.
    fn frame(&mut self) -> Vec<u8> {
        let (from, to) = (self.below(3) as u8, self.below(3) as u8);
        let net = match self.below(4) {
            0 => {
                let address = |host: u8| {
                    [[0x20, 1], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0, host]].concat()
                };
                let address = |host: u8| <[u8; 16]>::try_from(address(host)).expect("16 bytes");
                Net::V6 { src: address(from), dst: address(to), label: 0, tclass: 0, hlimit: 64 }
            }
            _ => Net::V4 { src: [10, 0, 0, from], dst: [10, 0, 0, to], tos: 0, ttl: self.of(&[1, 64]) },
        };
        let ports = [1000 + self.below(2) as u16, 53];
        let ports = if self.one_in(2) { ports } else { [ports[1], ports[0]] };
        let payload = vec![7; self.of(&[0, 20, 300])];
        let is_tcp = self.one_in(2);
        let mut frame = Spec { net, ports, is_tcp, payload, ..Spec::plain() }.frame();
        if self.one_in(4) {
            frame.splice(12..12, [0x81, 0, 0, self.below(3) as u8]);
        }
        match self.below(20) {
            0 => frame.truncate(14 + self.below(30) as usize),
            1 => frame[12..14].copy_from_slice(&[0x08, 0x06]),
            // More fragments follow, of IPv4.
            2 => frame[20] |= 0x20,
            _ => {}
        }
        frame
    }

    fn conntrack(&mut self) -> Action {
        let zone = Some(self.of(&[1, 2]));
        let conntrack = match self.below(5) {
            0 | 1 => Conntrack { zone, ..Conntrack::default() },
            2 => Conntrack { zone, nat: Some(Nat::default()), ..Conntrack::default() },
            3 => Conntrack { zone, is_commit: true, mark: Some(Masked::exact(5)), ..Conntrack::default() },
            _ => {
                let range = NatRange { ip_min: Some([192, 0, 2, 1].into()), ..NatRange::default() };
                let nat = Nat { source: Some(NatSource::Src), range, ..Nat::default() };
                Conntrack { zone, is_commit: true, nat: Some(nat), ..Conntrack::default() }
            }
        };
        Action::Ct(Box::new(conntrack))
    }

    fn rewrite(&mut self) -> Rewrite {
        match self.below(4) {
            0 => Rewrite::Mark(Masked { value: 3, mask: 3 }),
            1 => {
                let value =
                    Ethernet { dst: lasthop_module_api::Mac([2, 0, 0, 0, 0, 9]), ..Ethernet::default() };
                Rewrite::Ethernet(Masked::exact(value))
            }
            2 => {
                let mask = Ipv4 { ttl: 0xff, ..Ipv4::default() };
                Rewrite::Ipv4(Masked { value: Ipv4 { ttl: 9, ..Ipv4::default() }, mask })
            }
            _ => {
                let mask = Ports { src: 0, dst: u16::MAX };
                Rewrite::Udp(Masked { value: Ports { src: 0, dst: 99 }, mask })
            }
        }
    }

    fn tunnel(&mut self) -> Rewrite {
        let options = self.of(&[TunnelOptions::None, TunnelOptions::Geneve(vec![1, 2, 3, 0])]);
        Rewrite::Tunnel(Box::new(Tunnel {
            id: Some(self.below(9)),
            ipv4_dst: Some([10, 9, 9, 9].into()),
            options,
            ..Tunnel::default()
        }))
    }

    fn actions(&mut self, depth: u32) -> Vec<Action> {
        let count = 1 + self.below(4);
        (0..count).map(|_| self.action(depth)).collect()
    }

    fn action(&mut self, depth: u32) -> Action {
        let hash = Hash { algorithm: HashAlgorithm::L4, basis: 1 };
        match self.below(if depth > 0 { 20 } else { 17 }) {
            0..=4 => Action::Output(self.port()),
            5 | 6 => Action::Recirc(self.below(u64::from(PASSES)) as u32),
            7 | 8 => self.conntrack(),
            9 => Action::PushVlan(Vlan { tpid: 0x8100, tci: 0x1000 | self.below(4) as u16 }),
            10 => Action::PopVlan,
            11 => Action::Set(self.rewrite()),
            12 => Action::Set(self.tunnel()),
            13 => self.of(&[Action::CtClear, Action::Truncate(60), Action::Hash(hash), Action::Meter(METER)]),
            14 => Action::drop_for(self.of(&[DropReason::AclDenied, DropReason::FlowDrop])),
            15 => Action::Userspace(Userspace::default()),
            16 => Action::Meter(METER),
            17 => Action::Clone(self.actions(depth - 1)),
            18 => {
                let probability = self.of(&[0, u32::MAX]);
                Action::Sample(SampleAction { probability, actions: self.actions(depth - 1) })
            }
            _ => Action::CheckLength(CheckLength {
                len_bytes: 100,
                greater: self.actions(depth - 1),
                less_equal: self.actions(depth - 1),
            }),
        }
    }

    /// The fields that flows of one pass, port and kind of packet look at. They are the same for all of them, so that no two flows match
    /// one packet.
    fn mask(&mut self, key: &FlowKey) -> FlowKey {
        let mut mask = FlowKey {
            recirc_id: Some(u32::MAX),
            in_port: Some(u32::MAX),
            ether_type: key.ether_type.map(|_| u16::MAX),
            vlans: key.vlans.iter().map(|_| Vlan { tpid: u16::MAX, tci: 0x1000 }).collect(),
            ..FlowKey::default()
        };
        mask.ethernet = Some(Ethernet::default());
        if self.one_in(2) {
            let ones = Ipv4 { dst: [0xff; 4].into(), frag: 0xff, ..Ipv4::default() };
            mask.ipv4 = key.ipv4.map(|_| ones);
        }
        if self.one_in(3) {
            mask.ct.state = Some(0x21);
        }
        mask
    }
}

/// A table of random flows, of which no two match one packet.
fn table(dice: &mut Dice) -> FlowModule {
    let module = FlowModule::for_workers(1);
    module.set_number(PortId(NO_PORT), None);
    assert!(module.table().set_meter(METER, MeterRate { rate: 20, burst: 0, is_kbps: false }).is_ok());
    let mut masks: Vec<(FlowKey, FlowKey)> = Vec::new();
    for _ in 0..120 {
        let (frame, metadata) =
            (dice.frame(), Metadata { in_port: 1 + dice.below(2) as u16, ..Metadata::default() });
        let metadata = Metadata { recirc_id: dice.below(u64::from(PASSES)) as u32, ..metadata };
        let mut key = describe(&frame, &metadata);
        let kind = FlowKey {
            recirc_id: key.recirc_id,
            in_port: key.in_port,
            ether_type: key.ether_type,
            vlans: key.vlans.iter().map(|vlan| Vlan { tci: 0, ..*vlan }).collect(),
            ..FlowKey::default()
        };
        let known = masks.iter().find(|(other, _)| *other == kind).map(|(_, mask)| mask.clone());
        let mask = known.unwrap_or_else(|| {
            let mask = dice.mask(&key);
            masks.push((kind, mask.clone()));
            mask
        });
        key.ct.state = Some(dice.of(&[0, 0x21, 0x22, 0x31]));
        let actions = dice.actions(2);
        // One that is there already is left as it is.
        let _ = module.table().install(FlowSpec {
            ufid: None,
            matching: Match { key, mask: Some(mask) },
            actions,
            is_probe: false,
        });
    }
    module
}

/// All that could have changed.
fn state(module: &FlowModule) -> String {
    let table = module.table();
    let (flows, _) = table.dump(0, usize::MAX);
    let stats: Vec<_> = flows.iter().map(|(slot, _, stats)| (*slot, *stats)).collect();
    let connections = table.connections_made().map(|all| {
        let mut records = Vec::new();
        all.dump(0, None, 0, usize::MAX, &mut records);
        (all.len(), all.counters(), records)
    });
    format!("{stats:?} {:?} {:?} {connections:?}", module.counters(), table.meter_stats(METER))
}

fn is_chance(event: &DryEvent) -> bool {
    matches!(event, DryEvent::Tracked(tracked) if tracked.request.nat.is_some_and(|nat| nat.source.is_some()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: TABLES, ..ProptestConfig::default() })]

    #[test]
    fn a_dry_run_predicts_the_way_of_packets(seed in any::<u64>()) {
        let (mut dice, mut memory) = (Dice(seed), DryRun::default());
        let module = table(&mut dice);
        let mut now_ns = NOW_NS;
        for number in 0..PACKETS {
            now_ns += dice.of(&[0, MS_NS, 100 * MS_NS, 40_000 * MS_NS]);
            let frame = dice.frame();
            let port = PortId(1 + dice.below(u64::from(PORTS)) as u16);
            let header = Header::new(&frame[..frame.len().min(128)], frame.len() as u32, Offload::default());
            let is_compared = number % 50 == 0;
            let before = is_compared.then(|| state(&module));
            let story = module.dry_run(&mut memory, (port.0, &header), &[], now_ns).expect("no answers");
            let predicted = untimely(&told(story.verdicts, &header, &frame));
            let is_chance = story.events.iter().any(is_chance);
            prop_assert_eq!(before, is_compared.then(|| state(&module)));
            let mut verdicts = Verdicts::default();
            module.decide(&Batch { port, headers: &[header], hashes: &Hashes::NONE }, now_ns, &mut verdicts);
            verdicts.upcalls().iter().for_each(|upcall| module.settle(upcall.ticket));
            let outcome = untimely(&told(&mut verdicts, &header, &frame));
            if is_chance {
                // The port of a new connection may have been another one.
                let shape = |outcome: &crate::support::Outcome| {
                    let copies: Vec<_> = outcome.copies.iter().map(|(port, bytes, cut)| (*port, bytes.len(), *cut)).collect();
                    (copies, outcome.upcalls.len(), outcome.drops.clone())
                };
                prop_assert_eq!(shape(&predicted), shape(&outcome));
            } else {
                prop_assert_eq!(predicted, outcome);
            }
        }
    }
}
