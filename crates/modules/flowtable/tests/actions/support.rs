//! A module with one flow that matches everything, or only some packets.

use std::cell::RefCell;

use lasthop_flow::{Action, Ethernet, FlowKey, Match};
use lasthop_flowtable::{DryEvent, DryRun, FlowModule, FlowSpec};
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

/// A key for any frame of an EtherType, and its mask.
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

/// A module that executes `actions` on untagged frames of any kind.
pub(crate) fn module(actions: Vec<Action>) -> FlowModule {
    let module = FlowModule::for_workers(1);
    install(&module, all_of(None, 0), actions);
    module
}

/// The results of `module` for a frame, of which it sees the first 128 bytes.
pub(crate) fn outcome(module: &FlowModule, frame: &[u8], offload: Offload) -> Outcome {
    outcome_from(module, FROM, (frame, offload), NOW_NS)
}

thread_local! {
    static DRY_RUN: RefCell<DryRun> = RefCell::default();
}

/// The same for a frame that comes in by a port at a time. A dry run has predicted it.
pub(crate) fn outcome_from(
    module: &FlowModule,
    port: PortId,
    (frame, offload): (&[u8], Offload),
    now_ns: u64,
) -> Outcome {
    let header = Header::new(&frame[..frame.len().min(128)], frame.len() as u32, offload);
    let predicted = foretell(module, port, &header, frame, now_ns);
    let mut verdicts = Verdicts::default();
    module.decide(&Batch { port, headers: &[header], hashes: &Hashes::NONE }, now_ns, &mut verdicts);
    let outcome = told(&mut verdicts, &header, frame);
    if let Some(predicted) = predicted {
        assert_eq!(predicted, untimely(&outcome));
    }
    outcome
}

/// The outcome by a dry run; none if chance has a part in it, or packets that the control plane has.
pub(crate) fn foretell(
    module: &FlowModule,
    port: PortId,
    header: &Header,
    frame: &[u8],
    now_ns: u64,
) -> Option<Outcome> {
    if port == PortId::INTERNAL {
        return None; // its packets come with actions of their own
    }
    DRY_RUN.with_borrow_mut(|memory| {
        let story = module.dry_run(memory, (port.0, header), &[], now_ns).expect("no answers");
        let is_chance = |event: &DryEvent| match event {
            DryEvent::Sampled(probability) => ![0, u32::MAX].contains(probability),
            DryEvent::Tracked(tracked) => tracked.request.nat.is_some_and(|nat| nat.source.is_some()),
            _ => false,
        };
        let is_chance = story.events.iter().any(is_chance);
        (!is_chance).then(|| untimely(&told(story.verdicts, header, frame)))
    })
}

/// Without the number under which the control plane is asked.
pub(crate) fn untimely(outcome: &Outcome) -> Outcome {
    let upcalls =
        outcome.upcalls.iter().map(|(upcall, whole)| (Upcall { ticket: 0, ..*upcall }, whole.clone()));
    Outcome {
        copies: outcome.copies.clone(),
        offloads: outcome.offloads.clone(),
        upcalls: upcalls.collect(),
        drops: outcome.drops.clone(),
    }
}

/// The verdicts about a frame.
pub(crate) fn told(verdicts: &mut Verdicts, header: &Header, frame: &[u8]) -> Outcome {
    let outputs = verdicts.outputs().to_vec();
    let image = |index: u16| match usize::from(index).checked_sub(32) {
        None => header,
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

/// The frames that are sent to port 2.
pub(crate) fn result(actions: Vec<Action>, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    let actions = [actions, vec![Action::Output(2)]].concat();
    let outcome = outcome(&module(actions), frame, Offload::default());
    match &outcome.copies[..] {
        [(2, bytes, u32::MAX)] => Ok(bytes.clone()),
        _ => Err(outcome.drops[0]),
    }
}
