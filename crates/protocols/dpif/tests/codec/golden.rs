//! Bytes from the stock programs of Open vSwitch (3.1.0); golden/record records them again.

use std::collections::BTreeMap;

use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::family::{
    CtLimitMessage, DatapathMessage, FlowMessage, MeterMessage, PacketMessage, VportMessage,
};
use lasthop_dpif::format::{self, Style};
use lasthop_dpif::message::{Messages, NetlinkMessage};
use lasthop_dpif::server::Family;
use lasthop_dpif::{Errno, Refusal};

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().as_chunks::<2>().0;
    let byte =
        |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).expect("text"), 16).expect("a byte");
    digits.iter().map(byte).collect()
}

fn flow(datagram: &[u8]) -> FlowMessage {
    let message = Messages::new(datagram).next().expect("one");
    let (datapath, attrs) = message.generic().expect("generic").datapath().expect("of a datapath");
    FlowMessage::decode(datapath, attrs).expect("it was taken when it was recorded")
}

#[test]
fn flows_print_as_in_ovs_dpctl() {
    for line in include_str!("golden/dpctl.txt").lines() {
        let [key, actions, datagram] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let flow = flow(&bytes(datagram));
        let found = flow.key.as_ref().expect("it has one");
        assert_eq!(format::key(found, flow.mask.as_ref(), Style::default()), key);
        assert_eq!(format::actions(flow.actions.as_deref().expect("it has some"), Style::default()), actions);
        let mut writer = Writer::default();
        flow.encode(&mut writer);
        let again = writer.finish().expect("short");
        assert_eq!(FlowMessage::decode(flow.datapath, Attrs::new(&again)), Ok(flow));
    }
}

fn read(message: &NetlinkMessage<'_>) -> Result<(), Refusal> {
    let (datapath, attrs) = message.generic()?.datapath()?;
    match Family::of(message.header.kind).expect("a family of ours") {
        Family::Datapath => DatapathMessage::decode(datapath, attrs).map(drop),
        Family::Vport => VportMessage::decode(datapath, attrs).map(drop),
        Family::Flow => FlowMessage::decode(datapath, attrs).map(drop),
        Family::Packet => PacketMessage::decode(datapath, attrs).map(drop),
        Family::Meter => MeterMessage::decode(datapath, attrs).map(drop),
        Family::CtLimit => CtLimitMessage::decode(datapath, attrs).map(drop),
    }
}

#[test]
fn requests_of_ovs_vswitchd_are_understood_except_probes() {
    const CONTROL: u16 = 0x10;
    const NETFILTER_MIN: u16 = 0x100;
    let (mut refused, mut understood) = (Vec::new(), BTreeMap::new());
    for line in include_str!("golden/vswitchd.txt").lines() {
        let datagram = bytes(line);
        for message in Messages::new(&datagram) {
            let kind = message.header.kind;
            if kind == CONTROL || kind >= NETFILTER_MIN {
                continue;
            }
            match read(&message) {
                Ok(()) => *understood.entry(kind).or_insert(0) += 1,
                Err(refusal) => refused.push((Family::of(kind), refusal.errno)),
            }
        }
    }
    // By these probes it finds unsupported features: three VLAN tags, ND extensions, and samples nested too
    // deep.
    assert!(
        !refused.is_empty()
            && refused.iter().all(|(_, errno)| [Errno::EINVAL, Errno::EOVERFLOW].contains(errno))
    );
    assert!(
        refused.iter().all(|(family, _)| matches!(family, Some(Family::Flow | Family::Packet))),
        "{refused:?}"
    );
    assert!(refused.len() <= 3, "{refused:?}");
    let families = [Family::Datapath, Family::Vport, Family::Flow, Family::Packet, Family::Meter];
    for family in families {
        assert!(understood.get(&family.id()).is_some_and(|count| *count > 2), "{family:?}: {understood:?}");
    }
}
