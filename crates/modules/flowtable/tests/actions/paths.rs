//! Outputs of copies, and headers that are pushed on them.

use lasthop_flow::{
    Action, CheckLength, Conntrack, Ethernet, Hash, HashAlgorithm, Masked, MplsTag, Rewrite, SampleAction,
    Userspace, Vlan,
};
use lasthop_flowtable::{FlowModule, FlowSelector, MeterRate};
use lasthop_module_api::{DropReason, Mac, UpcallReason};
use lasthop_wire::Offload;
use lasthop_wire::key::CtWords;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use proptest::prelude::*;

use crate::packets::{Net, Spec, any_spec};
use crate::support::{Outcome, all_of, install, module, outcome, result};

fn run(actions: Vec<Action>) -> Outcome {
    outcome(&module(actions), &Spec::plain().frame(), Offload::default())
}

fn ports(outcome: &Outcome) -> Vec<u16> {
    outcome.copies.iter().map(|(port, ..)| *port).collect()
}

proptest! {
    #[test]
    fn tags_go_on_and_off(spec in any_spec(), tci: u16) {
        let push = |tpid, tci| Action::PushVlan(Vlan { tpid, tci: tci | 0x1000 });
        let [high, low] = (tci & !0x1000).to_be_bytes();
        let [a, b] = spec.ethertype().to_be_bytes();
        let tagged = spec.frame_with(&[0x88, 0xa8, 0, 9, 0x81, 0, high, low, a, b]);
        let actions = vec![push(0x8100, tci), push(0x88a8, 9)];
        prop_assert_eq!(result(actions.clone(), &spec.frame()), Ok(tagged));
        let back = [actions, vec![Action::PopVlan, Action::PopVlan, Action::PopVlan]].concat();
        prop_assert_eq!(result(back, &spec.frame()), Ok(spec.frame()));
    }

    #[test]
    fn labels_go_on_and_off(spec in any_spec(), entries: [u32; 2]) {
        let push = |lse| Action::PushMpls(MplsTag { lse, ether_type: 0x8847, is_l3: true });
        let bytes = [&[0x88, 0x47][..], &entries[1].to_be_bytes(), &entries[0].to_be_bytes()].concat();
        let pushed: Vec<_> = entries.map(push).to_vec();
        prop_assert_eq!(result(pushed.clone(), &spec.frame()), Ok(spec.frame_with(&bytes)));
        let pops = vec![Action::PopMpls(0x8847), Action::PopMpls(spec.ethertype())];
        prop_assert_eq!(result([pushed, pops].concat(), &spec.frame()), Ok(spec.frame()));
    }

    #[test]
    fn ethernet_headers_go_off_and_on(spec in any_spec(), macs: [[u8; 6]; 2]) {
        let push = Action::PushEthernet(Ethernet { src: Mac(macs[0]), dst: Mac(macs[1]) });
        let wanted = Spec { macs, ..spec.clone() }.frame();
        prop_assert_eq!(result(vec![Action::PopEthernet, push], &spec.frame()), Ok(wanted));
        prop_assert_eq!(result(vec![Action::PopEthernet], &spec.frame()), Err(DropReason::ActionImpossible));
    }
}

#[test]
fn each_copy_is_as_the_packet_was_at_its_output() {
    let push = Action::PushVlan(Vlan { tpid: 0x8100, tci: 0x1005 });
    let outcome = run(vec![
        Action::Output(2),
        push,
        Action::Output(3),
        Action::Output(4),
        Action::PopVlan,
        Action::Output(5),
    ]);
    let tagged = Spec::plain().frame_with(&[0x81, 0, 0, 5, 8, 0]);
    let frames: Vec<_> = outcome.copies.iter().map(|(_, bytes, _)| bytes.clone()).collect();
    assert_eq!(ports(&outcome), [2, 3, 4, 5]);
    assert_eq!(frames, [Spec::plain().frame(), tagged.clone(), tagged, Spec::plain().frame()]);
    assert_eq!(outcome.drops, []);
}

#[test]
fn copies_take_their_changes_along() {
    let push = Action::PushVlan(Vlan { tpid: 0x8100, tci: 0x1005 });
    let clone = Action::Clone(vec![push, Action::Output(2)]);
    let outcome = run(vec![clone, Action::Output(3)]);
    assert_eq!(outcome.copies[0].1.len(), outcome.copies[1].1.len() + 4);
    let always = SampleAction { probability: u32::MAX, actions: vec![Action::Output(7)] };
    let never = SampleAction { probability: 0, actions: vec![Action::Output(8)] };
    assert_eq!(ports(&run(vec![Action::Sample(always), Action::Sample(never), Action::Output(9)])), [7, 9]);
    let half = SampleAction { probability: u32::MAX / 2, actions: vec![Action::Output(7)] };
    let module = module(vec![Action::Sample(half)]);
    let taken = (0..1000).filter(|_| !outcome_of(&module).copies.is_empty()).count();
    assert!((350..650).contains(&taken), "{taken} of 1000");
}

fn outcome_of(module: &FlowModule) -> Outcome {
    outcome(module, &Spec::plain().frame(), Offload::default())
}

#[test]
fn an_output_is_cut_and_the_next_one_is_whole() {
    let outcome = run(vec![
        Action::Truncate(20),
        Action::Output(2),
        Action::Output(3),
        Action::Truncate(1),
        Action::Output(4),
    ]);
    let lens: Vec<_> = outcome.copies.iter().map(|(_, _, len)| *len).collect();
    assert_eq!(lens, [20, u32::MAX, 14]);
}

#[test]
fn the_length_decides_and_that_of_a_segment_for_frames_to_be_cut() {
    let check = |len_bytes| {
        let (greater, less_equal) = (vec![Action::Output(2)], vec![Action::Output(3)]);
        vec![Action::CheckLength(CheckLength { len_bytes, greater, less_equal }), Action::Output(9)]
    };
    let len = Spec::plain().frame().len() as u16;
    assert_eq!(ports(&run(check(len - 1))), [2, 9]);
    assert_eq!(ports(&run(check(len))), [3, 9]);
    let frame = Spec { is_tcp: true, payload: vec![0; 3000], ..Spec::plain() }.frame();
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
    };
    assert_eq!(ports(&outcome(&module(check(1054)), &frame, offload)), [3, 9]);
    assert_eq!(ports(&outcome(&module(check(1053)), &frame, offload)), [2, 9]);
    let tag = MplsTag { lse: 0, ether_type: 0x8847, is_l3: true };
    let mpls = outcome(&module(vec![Action::PushMpls(tag), Action::Output(2)]), &frame, offload);
    assert_eq!((mpls.copies.len(), &mpls.drops[..]), (0, &[DropReason::BadGso][..]));
}

#[test]
fn actions_behind_a_length_check_see_the_packet_as_it_was() {
    let check = |greater| Action::CheckLength(CheckLength { len_bytes: 20, greater, less_equal: Vec::new() });
    let push = || Action::PushVlan(Vlan { tpid: 0x8100, tci: 0x1005 });
    let ct = Action::Ct(Box::new(Conntrack { zone: Some(5), ..Conntrack::default() }));
    let plain = [(9, Spec::plain().frame(), u32::MAX)];
    let changed = run(vec![check(vec![push(), ct.clone(), Action::Truncate(30)]), Action::Output(9)]);
    assert_eq!(changed.copies, plain);
    let dropped = run(vec![check(vec![Action::drop_for(DropReason::Isolated)]), Action::Output(9)]);
    assert_eq!(dropped.copies, plain);
    let tracked = run(vec![check(vec![ct]), Action::Recirc(1)]);
    assert_eq!(tracked.upcalls[0].0.metadata.ct, CtWords::default());
    let last = run(vec![check(vec![push(), Action::Output(2)])]);
    assert_eq!(last.copies[0].1.len(), Spec::plain().frame().len() + 4);
    let last = run(vec![check(vec![Action::drop_for(DropReason::Isolated)])]);
    assert_eq!(last.drops, [DropReason::Isolated]);
}

#[test]
fn recirculation_finds_flows_by_the_changed_packet() {
    let module = FlowModule::default();
    let hash = Hash { algorithm: HashAlgorithm::L4, basis: 7 };
    let mark = Rewrite::Mark(Masked { value: 0x50, mask: 0xf0 });
    let push = Action::PushMpls(MplsTag { lse: 0x100, ether_type: 0x8847, is_l3: true });
    let first = vec![Action::Set(mark), Action::Hash(hash), push, Action::Recirc(5), Action::Output(9)];
    install(&module, all_of(Some(0x0800), 0), first);
    let mut second = all_of(Some(0x8847), 5);
    second.key.mark = Some(0x50);
    second.mask.iter_mut().for_each(|mask| mask.mark = Some(u32::MAX));
    install(&module, second, vec![Action::Output(3)]);
    for _ in 0..2 {
        assert_eq!(ports(&outcome_of(&module)), [3, 9], "also when the cache knows both");
    }
    let dumped = module.table().dump(0, 10).0;
    assert!(dumped.iter().all(|(_, _, stats)| stats.packets == 2), "{dumped:?}");
}

#[test]
fn a_packet_whose_fields_a_tag_pushes_out_of_the_image_is_dropped() {
    // Destination options of 64 bytes: the UDP header ends 126 bytes into the frame, and 130 with a tag. The image has
    // 128.
    let net = Net::V6 { src: [1; 16], dst: [2; 16], label: 0, tclass: 0, hlimit: 9 };
    let mut frame = Spec { net, ..Spec::plain() }.frame();
    (frame[20], frame[18], frame[19]) = (60, 0, 92);
    frame.splice(54..54, [&[17, 7][..], &[0; 62]].concat());
    let push = Action::PushVlan(Vlan { tpid: 0x8100, tci: 0x1005 });
    let module = module(vec![push, Action::Recirc(1)]);
    install(&module, all_of(None, 1), vec![Action::Output(3)]);
    install(&module, all_of(Some(0x86dd), 1), vec![Action::Output(3)]);
    assert_eq!(outcome(&module, &frame, Offload::default()).drops, [DropReason::ActionImpossible]);
}

/// A flow that looks at ports would take the packet for one without, and so would the control plane.
#[test]
fn a_packet_whose_ports_are_behind_the_image_meets_no_flow_and_no_control_plane() {
    let net = Net::V6 { src: [1; 16], dst: [2; 16], label: 0, tclass: 0, hlimit: 9 };
    let usual = Spec { net, ..Spec::plain() }.frame();
    let with_options = |bytes: u8| {
        let mut frame = usual.clone();
        (frame[20], frame[19]) = (60, frame[19] + bytes);
        let mut options = vec![0; bytes.into()];
        (options[0], options[1]) = (17, bytes / 8 - 1);
        frame.splice(54..54, options);
        frame
    };
    let empty = FlowModule::for_workers(1);
    let full = FlowModule::for_workers(1);
    install(&full, all_of(Some(0x86dd), 0), vec![Action::Output(3)]);
    for _ in 0..2 {
        let sees = |module, bytes| outcome(module, &with_options(bytes), Offload::default());
        assert_eq!(sees(&empty, 72).drops, [DropReason::ActionImpossible]);
        assert_eq!(sees(&full, 72).drops, [DropReason::ActionImpossible]);
        assert_eq!(ports(&sees(&full, 64)), [3]);
    }
    assert_eq!(outcome(&empty, &with_options(64), Offload::default()).upcalls.len(), 1);
}

#[test]
fn packets_that_recirculate_for_ever_are_stopped() {
    let module = module(vec![Action::Recirc(1)]);
    install(&module, all_of(None, 1), vec![Action::Recirc(1), Action::Recirc(1), Action::Recirc(1)]);
    let outcome = outcome_of(&module);
    assert_eq!(outcome.copies, []);
    assert!(outcome.drops.contains(&DropReason::ActionBudget), "{:?}", outcome.drops);
}

#[test]
fn each_copy_of_a_flood_may_recirculate() {
    // As the embedded controller's floods to ports with rules.
    let track = |zone| Action::Ct(Box::new(Conntrack { zone: Some(zone), ..Conntrack::default() }));
    let flood = |ports: u16| (2..2 + ports).flat_map(|port| [track(port), Action::Recirc(port.into())]);
    let reached = |ports: u16, others: Vec<Action>| {
        let module = module([flood(ports).collect(), others].concat());
        for port in 2..2 + ports {
            install(&module, all_of(None, port.into()), vec![Action::Output(port.into())]);
        }
        outcome_of(&module)
    };
    let outcome = reached(40, vec![Action::Output(1)]);
    assert_eq!((ports(&outcome), &outcome.drops[..]), ((2..42).chain([1]).collect(), &[][..]));
    assert_eq!(ports(&reached(1022, vec![])).len(), 1022, "all other ports of a switch");
}

#[test]
fn recirculations_are_bounded_in_depth_and_in_number() {
    let module = FlowModule::default();
    let last = 16;
    for id in 0..last {
        install(&module, all_of(None, id), vec![Action::Output(2), Action::Recirc(id + 1)]);
    }
    install(&module, all_of(None, last), vec![Action::Output(3)]);
    let all: Vec<u16> = (0..last).map(|_| 2).chain([3]).collect();
    assert_eq!(ports(&outcome_of(&module)), all, "as deep as is allowed");
    let again = vec![Action::Output(3), Action::Recirc(last + 1)];
    module.table().replace(FlowSelector::Key(&all_of(None, last).key), again).expect("it is there");
    let deeper = outcome_of(&module);
    assert_eq!((ports(&deeper), deeper.drops), (all, vec![DropReason::ActionBudget]));

    let twice = || vec![Action::Recirc(1), Action::Recirc(1), Action::Output(2)];
    let module = FlowModule::default();
    install(&module, all_of(None, 0), twice());
    install(&module, all_of(None, 1), twice());
    let wide = outcome_of(&module);
    assert_eq!(wide.copies.len(), 1 + 2048);
    assert!(wide.drops.contains(&DropReason::ActionBudget));
}

#[test]
fn lists_in_lists_do_not_use_up_the_stack() {
    let nested = || (0..16).fold(Action::Recirc(1), |inner, _| Action::Clone(vec![Action::Output(2), inner]));
    let module = module(vec![nested()]);
    install(&module, all_of(None, 1), vec![nested()]);
    let outcome = outcome_of(&module);
    assert!((17..=40).contains(&outcome.copies.len()), "{}", outcome.copies.len());
}

#[test]
fn hashes_are_never_zero_and_symmetric_ones_have_no_direction() {
    let modules = [HashAlgorithm::L4, HashAlgorithm::SymmetricL4]
        .map(|algorithm| module(vec![Action::Hash(Hash { algorithm, basis: 3 }), Action::Recirc(1)]));
    let hash_of = |module: &FlowModule, spec: Spec| {
        outcome(module, &spec.frame(), Offload::default()).upcalls[0].0.metadata.dp_hash
    };
    let [l4, symmetric] = &modules;
    let mut back = Spec::plain();
    back.net = Net::V4 { src: [10, 0, 0, 2], dst: [10, 0, 0, 1], tos: 0, ttl: 64 };
    back.ports = [53, 1000];
    assert_eq!(hash_of(symmetric, Spec::plain()), hash_of(symmetric, back.clone()));
    assert_ne!(hash_of(l4, Spec::plain()), hash_of(l4, back));
    assert_ne!(hash_of(l4, Spec::plain()), hash_of(l4, Spec { ports: [1000, 54], ..Spec::plain() }));
    assert_ne!(hash_of(l4, Spec::plain()), 0);
}

#[test]
fn fragments_of_a_packet_have_one_hash() {
    for algorithm in [HashAlgorithm::L4, HashAlgorithm::SymmetricL4] {
        let module = module(vec![Action::Hash(Hash { algorithm, basis: 3 }), Action::Recirc(1)]);
        let hash_of =
            |frame: &[u8]| outcome(&module, frame, Offload::default()).upcalls[0].0.metadata.dp_hash;
        let hashes4 = [[0x20, 0], [0x20, 9], [0, 18]].map(|bits| {
            let mut frame = Spec::plain().frame();
            frame[20..22].copy_from_slice(&bits);
            hash_of(&frame)
        });
        assert_eq!(hashes4, [hashes4[0]; 3]);
        assert_ne!(hashes4[0], hash_of(&Spec::plain().frame()), "whole ones go by their ports");
        let net = |last| Net::V6 { src: [1; 16], dst: [last; 16], label: 0, tclass: 0, hlimit: 9 };
        let fragment = |last, offset: u8, more: u8| {
            let udp = Spec { net: net(last), ..Spec::plain() }.frame().split_off(54);
            let rest = [&[17, 0, 0, offset << 3 | more, 0, 0, 0, 7][..], &udp].concat();
            hash_of(&Spec { net: net(last), ..Spec::plain() }.frame_of(44, &rest))
        };
        let hashes6 = [(0, 1), (9, 1), (18, 0)].map(|(offset, more)| fragment(2, offset, more));
        assert_eq!(hashes6, [hashes6[0]; 3]);
        assert_ne!(hashes6[0], fragment(3, 0, 1), "by address");
    }
}

#[test]
fn packets_of_no_flow_and_those_of_userspace_actions_go_up() {
    let nobody = FlowModule::default();
    let outcome = outcome_of(&nobody);
    let (upcall, bytes) = &outcome.upcalls[0];
    assert_eq!((upcall.reason, bytes), (UpcallReason::Miss, &Spec::plain().frame()));
    assert_eq!((upcall.metadata.in_port, outcome.copies.len(), outcome.drops.len()), (1, 0, 0));
    let userspace = || Action::Userspace(Userspace::default());
    let outcome =
        run(vec![userspace(), Action::Truncate(30), Action::Clone(vec![userspace()]), Action::Output(2)]);
    let steps: Vec<_> =
        outcome.upcalls.iter().map(|(upcall, _)| (upcall.reason, upcall.truncate_len_bytes)).collect();
    let [(UpcallReason::Action { flow, step: 0 }, u32::MAX), (second, 30)] = steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!(second, UpcallReason::Action { flow, step: 1 });
    assert_eq!(ports(&outcome), [2]);
}

#[test]
fn an_upcall_names_the_flow_as_it_was_when_its_packet_met_it() {
    let ask = |port_id| vec![Action::Userspace(Userspace { port_id, ..Userspace::default() })];
    let module = module(ask(1));
    let flow_of = |outcome: &Outcome| match outcome.upcalls[0].0.reason {
        UpcallReason::Action { flow, .. } => flow,
        reason => panic!("{reason:?}"),
    };
    let matching = all_of(None, 0);
    let name = || FlowSelector::Key(&matching.key);
    let first = flow_of(&outcome_of(&module));
    module.table().replace(name(), ask(2)).expect("it is there");
    let second = flow_of(&outcome_of(&module));
    module.table().remove(name()).expect("it is there");
    install(&module, matching.clone(), ask(3));
    let third = flow_of(&outcome_of(&module));
    let named = |flow| module.table().named(flow).map(|flow| flow.actions.clone());
    assert_eq!([first, second, third].map(named), [1, 2, 3].map(|port_id| Some(ask(port_id))));
    assert_eq!(named(second ^ 1), None, "no flow was ever there");
}

#[test]
fn nothing_is_lost_without_a_name() {
    assert_eq!(run(vec![]).drops, [DropReason::FlowDrop]);
    assert_eq!(run(vec![Action::PopEthernet, Action::Output(2)]).drops, [DropReason::ActionImpossible]);
    let images: Vec<_> = (0..70)
        .flat_map(|tci| [Action::PushVlan(Vlan { tpid: 0x8100, tci }), Action::Output(2), Action::PopVlan])
        .collect();
    let outcome = run(images);
    assert_eq!(outcome.copies.len() + outcome.drops.len(), 70);
    assert!(outcome.drops.iter().all(|reason| *reason == DropReason::VerdictOverflow));
}

#[test]
fn meters_let_their_rate_through() {
    let module = module(vec![Action::Meter(3), Action::Output(2)]);
    module.table().set_meter(3, MeterRate { rate: 10, burst: 0, is_kbps: false }).expect("there is room");
    let outcomes: Vec<_> = (0..15).map(|_| outcome_of(&module)).collect();
    assert!(outcomes[..10].iter().all(|outcome| outcome.copies.len() == 1));
    assert!(outcomes[10..].iter().all(|outcome| outcome.drops == [DropReason::MeterExceeded]));
    let stats = module.table().meter_stats(3).expect("it was set");
    assert_eq!((stats.packets, stats.dropped_packets), (15, 5));
}

#[test]
fn a_drop_has_the_name_that_the_control_plane_gave_it() {
    let drops = |actions| run(actions).drops;
    assert_eq!(
        drops(vec![Action::drop_for(DropReason::Isolated), Action::Output(2)]),
        [DropReason::Isolated]
    );
    assert_eq!(drops(vec![Action::Drop(7)]), [DropReason::FlowDrop]);
    let sent = run(vec![Action::Output(2), Action::drop_for(DropReason::Isolated), Action::Output(3)]);
    assert_eq!((ports(&sent), sent.drops), (vec![2], vec![]), "what went before went");
}
