//! A flow table that knows the traffic's receivers by their addresses, behind masks of somebody else's making.

use lasthop_flow::{Action, Ethernet, FlowKey, Match};
use lasthop_flowtable::{Flow, FlowModule};
use lasthop_verdict::Mac;

use super::{Plan, SENDER};

fn install(module: &FlowModule, destination: Mac, mask: FlowKey, port: u32) {
    let ethernet = Ethernet { src: Mac([0; 6]), dst: destination };
    let key = FlowKey { ethernet: Some(ethernet), priority: Some(u32::MAX), ..FlowKey::default() };
    let matching = Match { key, mask: Some(mask) };
    let actions = vec![Action::Output(port)];
    module.table().install(Flow { ufid: None, matching, actions, is_probe: false }).unwrap();
}

/// One flow for each receiver, by destination address, input port and EtherType; `other_masks` other ones.
pub fn module(plan: &Plan, other_masks: u16) -> FlowModule {
    let module = FlowModule::for_workers(1);
    let by_address = |priority| FlowKey {
        in_port: Some(u32::MAX),
        ethernet: Some(Ethernet { src: Mac([0; 6]), dst: Mac([0xff; 6]) }),
        ether_type: Some(0),
        priority,
        ..FlowKey::default()
    };
    for other in 0..other_masks {
        let [high, low] = other.to_be_bytes();
        // No packet has a priority.
        install(&module, Mac([4, 0, 0, 0, high, low]), by_address(Some(u32::from(other) + 1)), 9);
    }
    for receiver in 0..plan.receivers {
        let port = SENDER.0 + 1 + receiver;
        let address = Mac([2, 0, 0, 0, 0, port as u8]);
        let ethernet = Ethernet { src: Mac([0; 6]), dst: address };
        let key =
            FlowKey { in_port: Some(u32::from(SENDER.0)), ethernet: Some(ethernet), ..FlowKey::default() };
        let matching = Match { key, mask: Some(by_address(None)) };
        let actions = vec![Action::Output(u32::from(port))];
        module.table().install(Flow { ufid: None, matching, actions, is_probe: false }).unwrap();
    }
    module
}
