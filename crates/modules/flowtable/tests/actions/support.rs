//! A module with one flow that matches everything, or some.

use lasthop_flow::{Action, Ethernet, FlowKey, Match};
use lasthop_flowtable::{FlowModule, FlowSpec};
use lasthop_module_api::{Batch, DropReason, Hashes, Header, Module, PortId, Upcall, Verdicts};
use lasthop_wire::Offload;

pub(crate) const FROM: PortId = PortId(1);
pub(crate) const NOW_NS: u64 = 1 << 40;

/// The results of a packet: copies with their ports and bytes, upcalls, drops.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) copies: Vec<(u16, Vec<u8>, u32)>,
    pub(crate) offloads: Vec<Offload>,
    pub(crate) upcalls: Vec<(Upcall, Vec<u8>)>,
    pub(crate) drops: Vec<DropReason>,
}

/// A key that any frame of an EtherType has, and the mask that says so.
pub(crate) fn all_of(ether_type: Option<u16>, recirc_id: u32) -> Match {
    let key = FlowKey {
        recirc_id: Some(recirc_id),
        ethernet: Some(Ethernet::default()),
        ether_type,
        ..FlowKey::default()
    };
    let mask =
        FlowKey { recirc_id: Some(u32::MAX), ether_type: ether_type.map(|_| u16::MAX), ..FlowKey::default() };
    Match { key, mask: Some(mask) }
}

pub(crate) fn install(module: &FlowModule, matching: Match, actions: Vec<Action>) {
    module
        .table()
        .install(FlowSpec { ufid: None, matching, actions, is_probe: false })
        .expect("the flow is all right");
}

/// A module that does `actions` to untagged frames of any kind.
pub(crate) fn module(actions: Vec<Action>) -> FlowModule {
    let module = FlowModule::for_workers(1);
    install(&module, all_of(None, 0), actions);
    module
}

/// The results of `module` for a frame; it sees the first 128 bytes.
pub(crate) fn outcome(module: &FlowModule, frame: &[u8], offload: Offload) -> Outcome {
    outcome_from(module, FROM, (frame, offload), NOW_NS)
}

/// The same for a frame that comes in by a port at a time.
pub(crate) fn outcome_from(
    module: &FlowModule,
    port: PortId,
    (frame, offload): (&[u8], Offload),
    now_ns: u64,
) -> Outcome {
    let header = Header::new(&frame[..frame.len().min(128)], frame.len() as u32, offload);
    let mut verdicts = Verdicts::default();
    module.decide(&Batch { port, headers: &[header], hashes: &Hashes::NONE }, now_ns, &mut verdicts);
    let outputs = verdicts.outputs().to_vec();
    let image = |index: u16| match usize::from(index).checked_sub(32) {
        None => &header,
        Some(made) => &verdicts.images()[made],
    };
    let whole = |index: u16| {
        let image = image(index);
        [image.bytes(), &frame[image.covers_bytes() as usize..]].concat()
    };
    let outputs = outputs.iter();
    Outcome {
        copies: outputs
            .clone()
            .map(|output| (output.port.0, whole(output.image), output.truncate_len_bytes))
            .collect(),
        offloads: outputs.map(|output| image(output.image).offload).collect(),
        upcalls: verdicts.upcalls().iter().map(|upcall| (*upcall, whole(upcall.image))).collect(),
        drops: verdicts.drops().iter().map(|(_, reason)| *reason).collect(),
    }
}

/// The frames that come out of port 2.
pub(crate) fn result(actions: Vec<Action>, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    let actions = [actions, vec![Action::Output(2)]].concat();
    let outcome = outcome(&module(actions), frame, Offload::default());
    match &outcome.copies[..] {
        [(2, bytes, u32::MAX)] => Ok(bytes.clone()),
        _ => Err(outcome.drops[0]),
    }
}
