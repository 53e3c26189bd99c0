//! A flow table that finds receivers by address, behind masks of other flows.

use std::collections::BTreeSet;

use lasthop_flow::ct_state::{ESTABLISHED, NEW, TRACKED};
use lasthop_flow::{Action, Conntrack, CtKey, Ethernet, FlowKey, Match, Nat, NatRange, NatSource, Vlan};
use lasthop_flowtable::{FlowModule, FlowSpec};
use lasthop_module_api::{Batch, Hashes, Header, Mac, Module, Verdicts};
use lasthop_wire::headers::PROTO_UDP;

use super::frames::{Frame, TCP_ACK, TCP_SYN, TRANSLATED, handshake, over_ipv6, over_udp, tagged};
use super::{Plan, SENDER};

/// The zone of tracked connections.
const ZONE: u16 = 5;

fn install(module: &FlowModule, key: FlowKey, mask: FlowKey, port: u32) {
    install_list(module, key, mask, vec![Action::Output(port)]);
}

fn install_list(module: &FlowModule, key: FlowKey, mask: FlowKey, actions: Vec<Action>) {
    let matching = Match { key, mask: Some(mask) };
    module.table().install(FlowSpec { ufid: None, matching, actions, is_probe: false }).unwrap();
}

/// One flow for each pair of addresses, matching addresses, input port and EtherType; `other_masks` further ones.
pub fn module(plan: &Plan, other_masks: u16) -> FlowModule {
    let module = FlowModule::for_workers(1);
    let by_address = |priority| FlowKey {
        in_port: Some(u32::MAX),
        ethernet: Some(Ethernet { src: Mac([0xff; 6]), dst: Mac([0xff; 6]) }),
        ether_type: Some(0),
        priority,
        ..FlowKey::default()
    };
    for other in 0..other_masks {
        let [high, low] = other.to_be_bytes();
        let ethernet = Some(Ethernet { src: Mac([0; 6]), dst: Mac([4, 0, 0, 0, high, low]) });
        // No packet has a priority.
        let key = FlowKey { ethernet, priority: Some(u32::MAX), ..FlowKey::default() };
        install(&module, key, by_address(Some(u32::from(other) + 1)), 9);
    }
    let macs = |frame: &Frame| Header::new(&frame.bytes[..14], 14, frame.offload).macs().expect("addresses");
    for (dst, src) in plan.frames.iter().map(macs).collect::<BTreeSet<_>>() {
        let ethernet = Some(Ethernet { src, dst });
        let key = FlowKey { in_port: Some(u32::from(SENDER.0)), ethernet, ..FlowKey::default() };
        // The last byte of a port's address is its number.
        install(&module, key, by_address(None), u32::from(dst.0[5]));
    }
    module
}

/// A firewall for traffic between two addresses: `ct,recirc`, and a second pass that matches `ct_state`. The frames'
/// connections are established.
pub fn tracked_module(plan: &Plan, is_translated: bool) -> FlowModule {
    let module = FlowModule::for_workers(1);
    let frame = &plan.frames[0];
    let (dst, src) = Header::new(&frame.bytes[..14], 14, frame.offload).macs().expect("addresses");
    let (is_tagged, is_ipv6) = (frame.bytes[12..14] == [0x81, 0], frame.bytes[12..14] == [0x86, 0xdd]);
    let is_udp = frame.bytes[12..14] == [8, 0] && frame.bytes[23] == PROTO_UDP;
    let vlans = |tpid, tci| is_tagged.then_some(Vlan { tpid, tci }).into_iter().collect();
    let pass = |recirc_id, state: Option<(u32, u32)>| {
        let ct = |state| CtKey { state, ..CtKey::default() };
        let key = FlowKey {
            recirc_id: Some(recirc_id),
            in_port: Some(u32::from(SENDER.0)),
            ethernet: Some(Ethernet { src, dst }),
            vlans: vlans(0x8100, 0x1005),
            ct: ct(state.map(|(bits, _)| bits)),
            ..FlowKey::default()
        };
        let mask = FlowKey {
            recirc_id: Some(u32::MAX),
            in_port: Some(u32::MAX),
            ethernet: Some(Ethernet { src: Mac([0xff; 6]), dst: Mac([0xff; 6]) }),
            ether_type: Some(0),
            vlans: vlans(0xffff, 0x1fff),
            ct: ct(state.map(|(_, mask)| mask)),
            ..FlowKey::default()
        };
        (key, mask)
    };
    let ct = |is_commit, nat| {
        let zone = Some(ZONE);
        Action::Ct(Box::new(Conntrack { zone, is_commit, nat, ..Conntrack::default() }))
    };
    let range = NatRange { ip_min: Some(TRANSLATED.into()), ..NatRange::default() };
    let source = Nat { source: Some(NatSource::Src), range, ..Nat::default() };
    let (known, new) = if is_translated { (Some(Nat::default()), Some(source)) } else { (None, None) };
    let output = Action::Output(u32::from(dst.0[5]));
    let flows = [
        (pass(0, None), vec![ct(false, known), Action::Recirc(1)]),
        (pass(1, Some((TRACKED | NEW, TRACKED | NEW))), vec![ct(true, new), output.clone()]),
        (pass(1, Some((TRACKED | ESTABLISHED, TRACKED | ESTABLISHED))), vec![output]),
    ];
    for ((key, mask), actions) in flows {
        install_list(&module, key, mask, actions);
    }
    for number in 0..plan.frames.len() as u8 / 2 {
        for (is_reply, flags) in [(false, TCP_SYN), (true, TCP_SYN | TCP_ACK), (false, TCP_ACK)] {
            let frame = handshake(number, is_reply, is_translated, flags);
            let Frame { bytes, offload } = match (is_tagged, is_ipv6) {
                (true, _) => tagged(frame),
                (_, true) => over_ipv6(frame),
                _ if is_udp => over_udp(frame),
                _ => frame,
            };
            let headers = [Header::new(&bytes, bytes.len() as u32, offload)];
            let batch = Batch { port: SENDER, headers: &headers, hashes: &Hashes::NONE };
            let mut verdicts = Verdicts::default();
            module.decide(&batch, 1 << 40, &mut verdicts);
            assert_eq!(verdicts.outputs().len(), 1, "{:?}", verdicts.drops());
        }
    }
    assert_eq!(module.table().connections().len() as usize, plan.frames.len() / 2);
    module
}
