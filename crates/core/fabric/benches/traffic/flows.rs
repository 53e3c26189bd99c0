//! A flow table that finds receivers by their addresses, behind masks of other flows.

use std::collections::BTreeSet;

use lasthop_flow::{Action, Ethernet, FlowKey, Match};
use lasthop_flowtable::{FlowModule, FlowSpec};
use lasthop_module_api::{Header, Mac};

use super::frames::Frame;
use super::{Plan, SENDER};

fn install(module: &FlowModule, key: FlowKey, mask: FlowKey, port: u32) {
    let (matching, actions) = (Match { key, mask: Some(mask) }, vec![Action::Output(port)]);
    module.table().install(FlowSpec { ufid: None, matching, actions, is_probe: false }).unwrap();
}

/// One flow for each pair of addresses, by these, input port and EtherType; `other_masks` other ones.
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
        // The address of a port ends with its number.
        install(&module, key, by_address(None), u32::from(dst.0[5]));
    }
    module
}
