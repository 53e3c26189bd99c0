//! Tests headers of tunnels and services, MPLS entries before the whole packet, SCTP and neighbour discovery.

use etherparse::Icmpv6Type;
use lasthop_flow::{
    Action, Ethernet, FlowKey, Group, Masked, Match, MplsTag, NeighbourDiscovery, Nsh, NshContext, Ports,
    Rewrite, Tunnel,
};
use lasthop_flowtable::{FlowModule, FlowSpec};
use lasthop_module_api::{Batch, DropReason, Hashes, Header, Mac, Module, PortId, Verdicts};
use lasthop_wire::Offload;
use lasthop_wire::key::LinkLayer;
use lasthop_wire::tunnel::{OuterHeader, TUNNEL_BYTES, layer3};
use proptest::prelude::*;

use crate::packets::{Net, Spec, any_spec};
use crate::support::{FROM, NOW_NS, all_of, foretell, install, module, outcome, result, told, untimely};

const OUTER: Ethernet = Ethernet { src: Mac([2, 0, 0, 0, 0, 8]), dst: Mac([2, 0, 0, 0, 0, 9]) };

fn md1(fields: [u8; 2], path: u32, words: [u32; 4]) -> Nsh {
    let [flags, ttl] = fields;
    let (flags, ttl) = (flags & 3, ttl & 0x3f);
    Nsh { flags, ttl, md_type: 1, next_proto: 0, path, context: NshContext::Md1(words) }
}

/// The header in wire format, field by field.
fn bytes_of(header: &Nsh, next: u8) -> Vec<u8> {
    let mut bits = format!("00{:02b}{:06b}", header.flags, header.ttl);
    let context: Vec<u8> = match &header.context {
        NshContext::None => vec![],
        NshContext::Md1(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
        NshContext::Md2(bytes) => bytes.clone(),
    };
    bits += &format!("{:06b}{:08b}{next:08b}{:032b}", 2 + context.len() / 4, header.md_type, header.path);
    let number = |byte: &[u8]| byte.iter().fold(0, |byte, bit| (byte << 1) | (bit - b'0'));
    [bits.as_bytes().chunks(8).map(number).collect(), context].concat()
}

fn with_ethernet(rest: &[u8], ethertype: u16) -> Vec<u8> {
    [&OUTER.dst.0[..], &OUTER.src.0, &ethertype.to_be_bytes(), rest].concat()
}

fn push(header: &Nsh) -> Action {
    Action::PushNsh(Box::new(header.clone()))
}

fn any_header() -> impl Strategy<Value = Nsh> {
    let md2 = (any::<[u8; 2]>(), any::<u32>(), prop::collection::vec(any::<[u8; 4]>(), 0..=10));
    prop_oneof![
        any::<([u8; 2], u32, [u32; 4])>().prop_map(|(fields, path, words)| md1(fields, path, words)),
        md2.prop_map(|(fields, path, words)| {
            let context = NshContext::Md2(words.as_flattened().to_vec());
            Nsh { md_type: 2, context, ..md1(fields, path, [0; 4]) }
        }),
    ]
}

proptest! {
    #[test]
    fn service_headers_go_on_and_off(spec in any_spec(), header in any_header()) {
        let on = vec![push(&header), Action::PushEthernet(OUTER)];
        let wanted = with_ethernet(&[bytes_of(&header, 3), spec.frame()].concat(), 0x894f);
        prop_assert_eq!(result(on.clone(), &spec.frame()), Ok(wanted));
        let back = [on, vec![Action::PopEthernet, Action::PopNsh]].concat();
        prop_assert_eq!(result(back, &spec.frame()), Ok(spec.frame()));
    }

    #[test]
    fn fields_behind_a_service_header_are_reported(spec in any_spec(), header in any_header()) {
        let next = if spec.ethertype() == 0x0800 { 1 } else { 2 };
        let on = vec![Action::PopEthernet, push(&header), Action::PushEthernet(OUTER)];
        let wanted = with_ethernet(&[bytes_of(&header, next), spec.l3_bytes()].concat(), 0x894f);
        prop_assert_eq!(result(on, &spec.frame()), Ok(wanted));
        let off = vec![Action::PopEthernet, push(&header), Action::PopNsh, Action::PushEthernet(OUTER)];
        let wanted = with_ethernet(&spec.l3_bytes(), spec.ethertype());
        prop_assert_eq!(result(off, &spec.frame()), Ok(wanted));
    }

    #[test]
    fn service_headers_are_rewritten(
        spec in any_spec(),
        (fields, path, words) in any::<([u8; 2], u32, [u32; 4])>(),
        value in any::<([u8; 2], u32, [u32; 4])>(),
        mask in any::<([u8; 2], u32, [u32; 4])>(),
    ) {
        let header = md1(fields, path, words);
        let mixed = |old: u32, new: u32, mask: u32| old & !mask | new & mask;
        let byte = |at: usize| mixed(fields[at].into(), value.0[at].into(), mask.0[at].into()) as u8;
        let context = std::array::from_fn(|at| mixed(words[at], value.2[at], mask.2[at]));
        let then = md1([byte(0), byte(1)], mixed(path, value.1, mask.1), context);
        let group = |(fields, path, words)| Nsh { md_type: 0, ..md1(fields, path, words) };
        let set = Action::Set(Rewrite::Nsh(Box::new((group(value), group(mask)))));
        let [found, wanted] = [vec![push(&header), set], vec![push(&then)]]
            .map(|actions| result([actions, vec![Action::PushEthernet(OUTER)]].concat(), &spec.frame()));
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn labels_in_front_of_everything_go_on_and_off(spec in any_spec(), lse in any::<u32>()) {
        let tag = MplsTag { lse, ether_type: 0x8848, is_l3: false };
        let on = vec![Action::AddMpls(tag), Action::PushEthernet(OUTER)];
        let wanted = with_ethernet(&[&lse.to_be_bytes()[..], &spec.frame()].concat(), 0x8848);
        prop_assert_eq!(result(on.clone(), &spec.frame()), Ok(wanted));
        let back = [on, vec![Action::PopEthernet, Action::PopMpls(0x6558)]].concat();
        prop_assert_eq!(result(back, &spec.frame()), Ok(spec.frame()));
    }

    #[test]
    fn sctp_ports(
        spec in any_spec(),
        ports in any::<[[u16; 2]; 2]>(),
        mask in any::<[u16; 2]>(),
        padding in 0..20_usize,
    ) {
        let then = std::array::from_fn(|at| ports[0][at] & !mask[at] | ports[1][at] & mask[at]);
        let group = |[src, dst]: [u16; 2]| Ports { src, dst };
        let set = Action::Set(Rewrite::Sctp(Masked { value: group(ports[1]), mask: group(mask) }));
        let [before, wanted] = [ports[0], then].map(|ports| [sctp_frame(&spec, ports), vec![0; padding]].concat());
        prop_assert_eq!(result(vec![set], &before), Ok(wanted));
    }

    #[test]
    fn neighbour_discovery(
        (old, new, mask) in (neighbour(), neighbour(), neighbour()),
        has in any::<[bool; 2]>(),
        kind in 135..=136_u8,
    ) {
        let then = std::array::from_fn(|at| old[at] & !mask[at] | new[at] & mask[at]);
        let [value, mask] = [new, mask].map(|image| NeighbourDiscovery::from_image(&image));
        let found = result(vec![Action::Set(Rewrite::Nd(Masked { value, mask }))], &neighbour_frame(kind, has, old));
        let wanted = neighbour_frame(kind, has, then);
        prop_assert_eq!(found.map(with_one_zero), Ok(with_one_zero(wanted)));
    }
}

/// CRC32c bit by bit, as RFC 9260, appendix A, defines it.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
}

/// The packet of `spec` with an SCTP packet of the same length in place of its transport header and payload.
fn sctp_frame(spec: &Spec, ports: [u16; 2]) -> Vec<u8> {
    let [src, dst] = ports.map(u16::to_be_bytes);
    let mut sctp = [&src[..], &dst, &[0, 0, 0, 7, 0, 0, 0, 0], &spec.payload].concat();
    let checksum = crc32c(&sctp);
    sctp[8..12].copy_from_slice(&checksum.to_le_bytes());
    spec.frame_of(132, &sctp)
}

/// Target and both link-layer addresses, in the order of the group's image.
type Neighbour = [u8; 28];

fn neighbour() -> impl Strategy<Value = Neighbour> {
    let byte = prop_oneof![Just(0), Just(0xff), any::<u8>()];
    prop::collection::vec(byte, 28).prop_map(|bytes| bytes.try_into().expect("as many as wanted"))
}

/// A solicitation or advertisement with the given options; the independent implementation computes its checksum.
fn neighbour_frame(kind: u8, [has_source, has_target]: [bool; 2], says: Neighbour) -> Vec<u8> {
    let mut payload = [&says[..16], &[14, 1, 0, 0, 0, 0, 0, 0]].concat();
    for (option, address, _) in [(1, 16..22, has_source), (2, 22..28, has_target)].iter().filter(|it| it.2) {
        payload.extend([&[*option, 1][..], &says[address.clone()]].concat());
    }
    let (src, dst) = ([0xfe; 16], [0xfd; 16]);
    let header = Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: [0x60, 0, 0, 0] };
    let checksum = header.calc_checksum(src, dst, &payload).expect("it is short");
    let message = [&[kind, 0][..], &checksum.to_be_bytes(), &[0x60, 0, 0, 0], &payload].concat();
    let net = Net::V6 { src, dst, label: 0, tclass: 0, hlimit: 255 };
    Spec { net, ..Spec::plain() }.frame_of(58, &message)
}

/// A sum of zero may be written in two ways.
fn with_one_zero(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[56..58] == [0xff, 0xff] {
        frame[56..58].fill(0);
    }
    frame
}

#[test]
fn flows_match_service_headers() {
    let frame = with_ethernet(
        &[bytes_of(&md1([2, 8], 0x10003, [1, 2, 3, 4]), 3), Spec::plain().frame()].concat(),
        0x894f,
    );
    let matching = |path, word| {
        let header = Nsh { next_proto: 3, ..md1([2, 8], path, [1, 2, 3, word]) };
        let key = FlowKey { nsh: Some(header), ..all_of(Some(0x894f), 0).key };
        let mut mask = all_of(Some(0x894f), 0).mask.expect("it has one");
        mask.nsh = Some(Nsh { md_type: 0, ..md1([0, 0], u32::MAX, [0, 0, 0, 0xf]) });
        Match { key, mask: Some(mask) }
    };
    for (path, word, is_match) in
        [(0x10003, 4, true), (0x10003, 0x14, true), (0x10002, 4, false), (0x10003, 5, false)]
    {
        let module = FlowModule::for_workers(1);
        install(&module, matching(path, word), vec![Action::Output(2)]);
        assert_eq!(
            outcome(&module, &frame, Offload::default()).copies.len(),
            usize::from(is_match),
            "{path:x} {word}"
        );
    }
}

#[test]
fn the_control_plane_gets_the_first_header_of_a_packet() {
    let on = push(&md1([0, 63], 1, [0; 4]));
    let outcome = outcome(&module(vec![on, Action::Recirc(7)]), &Spec::plain().frame(), Offload::default());
    let (upcall, bytes) = &outcome.upcalls[0];
    assert_eq!((upcall.metadata.recirc_id, upcall.metadata.link), (7, LinkLayer::None(0x894f)));
    assert_eq!(bytes[24..], Spec::plain().frame());
}

#[test]
fn headers_that_cannot_be_put_in_front_are_refused() {
    let install = |header: Nsh| {
        let actions = vec![push(&header)];
        let flow = FlowSpec { ufid: None, matching: all_of(None, 0), actions, is_probe: false };
        FlowModule::for_workers(1).table().install(flow)
    };
    let long = |len| Nsh { md_type: 2, context: NshContext::Md2(vec![0; len]), ..md1([0, 1], 0, [0; 4]) };
    assert!(install(long(40)).is_ok());
    assert!(install(long(44)).is_err());
    assert!(install(Nsh { md_type: 2, ..md1([0, 1], 0, [0; 4]) }).is_err(), "the context is not of its type");
}

#[test]
fn absent_headers_are_not_changed() {
    let impossible = Err(DropReason::ActionImpossible);
    assert_eq!(result(vec![Action::PopNsh], &Spec::plain().frame()), impossible);
    let behind_ethernet =
        with_ethernet(&[bytes_of(&md1([0, 1], 1, [0; 4]), 3), Spec::plain().frame()].concat(), 0x894f);
    assert_eq!(result(vec![Action::PopNsh], &behind_ethernet), impossible, "the Ethernet header comes first");
    let unknown =
        with_ethernet(&[bytes_of(&md1([0, 1], 1, [0; 4]), 9), Spec::plain().frame()].concat(), 0x894f);
    assert_eq!(result(vec![Action::PopEthernet, Action::PopNsh], &unknown), impossible);
    let nd = Action::Set(Rewrite::Nd(Masked::exact(NeighbourDiscovery::default())));
    assert_eq!(result(vec![nd.clone()], &Spec::plain().frame()), impossible);
    assert_eq!(result(vec![nd], &neighbour_frame(128, [false; 2], [0; 28])), impossible, "an echo request");
    let set = |ports| Action::Set(Rewrite::Sctp(Masked::exact(ports)));
    let mut frame = sctp_frame(&Spec::plain(), [1, 2]);
    frame[20] = 0x20;
    assert_eq!(
        result(vec![set(Ports { src: 1, dst: 3 })], &frame),
        impossible,
        "a fragment's rest is not known"
    );
}

#[test]
fn bytes_behind_a_header_must_be_a_frame() {
    let short = with_ethernet(&bytes_of(&md1([0, 63], 7, [1, 2, 3, 4]), 3), 0x894f);
    let off = vec![Action::PopEthernet, Action::PopNsh];
    let label = MplsTag { lse: 0x1ff, ether_type: 0x8847, is_l3: true };
    for then in [vec![], vec![Action::AddMpls(label)]] {
        let actions = [off.clone(), then].concat();
        assert_eq!(result(actions.clone(), &short), Err(DropReason::TooShort));
        assert_eq!(result(actions.clone(), &[&short[..], &[7; 13]].concat()), Err(DropReason::TooShort));
        assert!(result(actions, &[&short[..], &[7; 14]].concat()).is_ok());
    }
    let labelled = with_ethernet(&[0, 0, 1, 255], 0x8848);
    let off = vec![Action::PopEthernet, Action::PopMpls(0x6558)];
    assert_eq!(result(off, &labelled), Err(DropReason::TooShort));
}

#[test]
fn a_packet_for_a_tunnel_names_the_port_that_it_came_from() {
    let tunnel = Tunnel { ipv4_dst: Some([10, 9, 9, 9].into()), ..Tunnel::default() };
    let module = module(vec![Action::Set(Rewrite::Tunnel(Box::new(tunnel))), Action::Output(2)]);
    let frame = Spec::plain().frame();
    let header = Header::new(&frame[..frame.len().min(128)], frame.len() as u32, Offload::default());
    for port in [FROM, PortId(300)] {
        let mut verdicts = Verdicts::default();
        let batch = Batch { port, headers: &[header], hashes: &Hashes::NONE };
        module.decide(&batch, NOW_NS, &mut verdicts);
        let [image] = verdicts.images() else { panic!("{} images", verdicts.images().len()) };
        let outer = OuterHeader::parse(image.tunnel()).expect("a header");
        assert_eq!((outer.sender, outer.dst), (u32::from(port.0), 0x0a09_0909));
    }
}

/// A packet that came out of a tunnel, with a placeholder in front.
fn bare_header(spec: &Spec) -> Header {
    let frame = [&layer3::placeholder(spec.ethertype())[..], &spec.l3_bytes()].concat();
    let mut header = Header::new(&frame[..frame.len().min(128)], frame.len() as u32, Offload::default());
    let tunnel = OuterHeader { dst: 1, src: 2, is_layer3: true, ..OuterHeader::default() };
    let mut bytes = [0; TUNNEL_BYTES];
    let len = tunnel.emit(&mut bytes);
    header.set_tunnel(&bytes[..len]).expect("there is room");
    header
}

#[test]
fn a_packet_without_an_ethernet_header_comes_out_of_a_tunnel_and_goes_into_one() {
    let spec = Spec::plain();
    let tunnel = Tunnel { ipv4_dst: Some([10, 9, 9, 9].into()), ..Tunnel::default() };
    let set = Action::Set(Rewrite::Tunnel(Box::new(tunnel)));
    let framed = [&layer3::placeholder(spec.ethertype())[..], &spec.l3_bytes()].concat();
    let decide = |actions: Vec<Action>, header: Header, is_tunnel_end: bool| {
        let module = FlowModule::for_workers(1);
        let mut matching = all_of(Some(spec.ethertype()), 0);
        if header.has_tunnel() {
            matching.key.ethernet = None;
        }
        install(&module, matching, actions);
        if is_tunnel_end {
            module.set_tunnel_end(PortId(2));
        }
        let predicted = foretell(&module, FROM, &header, &framed, NOW_NS).expect("no chance");
        let mut verdicts = Verdicts::default();
        module.decide(
            &Batch { port: FROM, headers: &[header], hashes: &Hashes::NONE },
            NOW_NS,
            &mut verdicts,
        );
        assert_eq!(predicted, untimely(&told(&mut verdicts, &header, &framed)), "a dry run knows");
        let drops: Vec<DropReason> = verdicts.drops().iter().map(|(_, reason)| *reason).collect();
        let images: Vec<(Vec<u8>, Option<OuterHeader>)> = verdicts
            .images()
            .iter()
            .map(|image| (image.bytes().to_vec(), OuterHeader::parse(image.tunnel())))
            .collect();
        (images, drops)
    };
    let impossible = (vec![], vec![DropReason::ActionImpossible]);
    // Into a tunnel: a frame of a guest without its Ethernet header, and one that came without.
    let plain = Header::new(&spec.frame(), spec.frame().len() as u32, Offload::default());
    for (actions, header) in [
        (vec![Action::PopEthernet, set.clone(), Action::Output(2)], plain),
        (vec![set.clone(), Action::PopEthernet, Action::Output(2)], plain),
        (vec![set.clone(), Action::Output(2)], bare_header(&spec)),
    ] {
        let (images, drops) = decide(actions.clone(), header, true);
        let [(bytes, Some(outer))] = &images[..] else { panic!("{images:?} {drops:?}") };
        assert_eq!((bytes, outer.is_layer3, outer.dst, drops), (&framed, true, 0x0a09_0909, vec![]));
        assert_eq!(decide(actions, header, false), impossible, "a guest gets none");
    }
    // Out of a tunnel: to a guest with addresses, and not without.
    let push = Action::PushEthernet(Ethernet { src: Mac(spec.macs[0]), dst: Mac(spec.macs[1]) });
    let (images, drops) = decide(vec![push, Action::Output(2)], bare_header(&spec), false);
    assert_eq!((images.len(), &images[0].0, drops), (1, &spec.frame(), vec![]));
    assert_eq!(decide(vec![Action::Output(2)], bare_header(&spec), false), impossible);
    // A frame without a tunnel, and a placeholder without a packet.
    assert_eq!(decide(vec![Action::PopEthernet, Action::Output(2)], plain, true), impossible);
    let mut empty = Header::new(&layer3::placeholder(0x0800), 14, Offload::default());
    empty.set_tunnel(bare_header(&spec).tunnel()).expect("there is room");
    assert_eq!(decide(vec![Action::Output(2)], empty, true), impossible);
}
