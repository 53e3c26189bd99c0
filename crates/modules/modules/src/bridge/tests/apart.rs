//! For random frames and configurations: no frame leaves its VLAN. None passes between isolated ports, or between
//! uplinks unless both allow it.

use lasthop_module_api::{BATCH_PACKETS_MAX, Hashes, Output};
use lasthop_wire::Offload;
use lasthop_wire::vnet::F_NEEDS_CSUM;
use proptest::prelude::*;

use super::vlan_model::{Port, port};
use super::vlans::settings;
use super::*;

const PORTS: u16 = 5;
const MACS: u8 = 6;

#[derive(Clone, Debug)]
struct Raw {
    source: u8,
    destination: Option<u8>,
    tags: Vec<(u16, u16)>,
    /// Largest length of the frame in bytes.
    len: usize,
    csum_start: Option<u16>,
}

impl Raw {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = frame_of(mac(self.source), self.destination.map_or(BROADCAST, mac));
        for (ethertype, tci) in self.tags.iter().rev() {
            let tag = [ethertype.to_be_bytes(), tci.to_be_bytes()].concat();
            bytes.splice(12..12, tag);
        }
        bytes.truncate(self.len);
        bytes
    }

    fn header(&self) -> Header {
        let bytes = self.bytes();
        let offload = self.csum_start.map_or_else(Offload::default, |csum_start| Offload {
            flags: F_NEEDS_CSUM,
            csum_start,
            ..Offload::default()
        });
        Header::new(&bytes, bytes.len() as u32, offload)
    }
}

fn raw() -> impl Strategy<Value = Raw> {
    let ethertype = prop_oneof![4 => Just(0x8100_u16), 1 => Just(0x88a8), 1 => Just(0x9100)];
    let vid = prop_oneof![6 => 0..5_u16, 1 => Just(4095_u16)];
    let tag = (ethertype, vid, 0..16_u16).prop_map(|(kind, vid, priority)| (kind, priority << 12 | vid));
    let len = prop_oneof![4 => Just(60_usize), 1 => 12..30_usize];
    let destination = prop::option::weighted(0.8, 1..=MACS + 1);
    let csum_start = prop::option::weighted(0.2, 14..24_u16);
    (1..=MACS, destination, prop::collection::vec(tag, 0..4), len, csum_start).prop_map(
        |(source, destination, tags, len, csum_start)| Raw { source, destination, tags, len, csum_start },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Send(u16, Vec<Raw>),
    Replace(u16, Port, Option<u8>),
    Change(u16, Option<u8>),
    Add(u16, u8, Option<u16>),
    Delete(u16, u8, Option<u16>),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 1..=PORTS;
    let vid = || prop::option::of(1..5_u16);
    prop_oneof![
        20 => (at(), prop::collection::vec(raw(), 1..6)).prop_map(|(at, frames)| Step::Send(at, frames)),
        1 => (at(), port(), prop::option::of(1..=MACS)).prop_map(|(at, by, mac)| Step::Replace(at, by, mac)),
        1 => (at(), prop::option::of(1..=MACS)).prop_map(|(at, mac)| Step::Change(at, mac)),
        2 => (at(), 1..=MACS, vid()).prop_map(|(at, mac, vid)| Step::Add(at, mac, vid)),
        1 => (at(), 1..=MACS, vid()).prop_map(|(at, mac, vid)| Step::Delete(at, mac, vid)),
        1 => (0..400 * SECOND_NS).prop_map(Step::Wait),
    ]
}

/// The VLAN of a frame that `port` receives; `None` if the port does not accept it.
fn vid_of(port: &Port, bytes: &[u8]) -> Option<u16> {
    match bytes {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x81, 0x00, high, low, ..] => {
            match u16::from_be_bytes([*high, *low]) & 0xfff {
                0 => port.untagged,
                vid => (port.passes_all() || port.carries(vid)).then_some(vid),
            }
        }
        _ => port.untagged,
    }
}

fn assert_apart(ports: &[Port], from: u16, sent: &Raw, output: &Output, header: &Header) {
    let of = |number: u16| &ports[usize::from(number) - 1];
    let (sender, receiver) = (of(from), of(output.port.0));
    let vid = vid_of(sender, &sent.bytes());
    assert!(output.port.0 != from && sender.barrier(receiver).is_none(), "{sent:?}: {output:?}");
    assert!(vid.is_some(), "{sent:?} of {sender:?} is not to be taken");
    // A frame from the receiver in this form would belong to the same VLAN.
    assert_eq!(vid_of(receiver, header.bytes()), vid, "{sent:?} of {sender:?} to {receiver:?}");
    if !receiver.passes_all() && receiver.untagged == vid {
        assert!(header.bytes()[12..14] != [0x81, 0], "{sent:?} of {sender:?} to {receiver:?} has a tag");
    }
    let behind = header.bytes().len() as u64;
    assert!(u64::from(header.frame_len_bytes()) == behind && behind >= 14);
}

fn send(lab: &Lab<Bridge>, verdicts: &mut Verdicts, ports: &[Port], from: u16, frames: &[Raw]) {
    let headers: Vec<Header> = frames.iter().map(Raw::header).collect();
    verdicts.clear();
    lab.module.decide(
        &Batch { port: PortId(from), headers: &headers, hashes: &Hashes::NONE },
        lab.now_ns,
        verdicts,
    );
    for output in verdicts.outputs().to_vec() {
        let image = usize::from(output.image);
        let header = match image.checked_sub(BATCH_PACKETS_MAX) {
            None => &headers[image],
            Some(made) => &verdicts.images()[made],
        };
        assert_apart(ports, from, &frames[usize::from(output.packet)], &output, header);
    }
}

fn with_mac(number: u16, port: &Port, address: Option<u8>) -> PortSettings {
    let mut settings = settings(number, &port.words);
    settings.policy.mac = address.map(mac);
    settings
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_leaves_its_vlan(
        mut ports in prop::collection::vec(port(), usize::from(PORTS)),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut lab = lab(256, &[]);
        let mut verdicts = Verdicts::default();
        for (number, port) in (1..).zip(&ports) {
            lab.module.port_added(PortId(number), &settings(number, &port.words)).expect("a new port is accepted");
        }
        for step in steps {
            let vlan = |vid: Option<u16>| vid.map(|vid| vid.try_into().expect("a VLAN"));
            match step {
                Step::Send(from, frames) => send(&lab, &mut verdicts, &ports, from, &frames),
                Step::Replace(at, by, address) => {
                    lab.module.port_removed(PortId(at));
                    let added = lab.module.port_added(PortId(at), &with_mac(at, &by, address));
                    if added.is_err() {
                        lab.module.port_removed(PortId(at));
                        lab.module.port_added(PortId(at), &settings(at, &by.words)).expect("without an address");
                    }
                    ports[usize::from(at) - 1] = by;
                }
                Step::Change(at, address) => {
                    let _ = lab.module.port_changed(PortId(at), &with_mac(at, &ports[usize::from(at) - 1], address));
                }
                Step::Add(at, address, vid) => _ = lab.module.fdb_add(mac(address), vlan(vid), PortId(at)),
                Step::Delete(at, address, vid) => _ = lab.module.fdb_del(mac(address), vlan(vid), PortId(at)),
                Step::Wait(ns) => lab.now_ns += ns,
            }
            assert_counts(&lab.module, &[1, 2, 3, 4, 5]);
        }
    }
}
