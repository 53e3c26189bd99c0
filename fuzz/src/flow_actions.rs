//! Any actions, done to any packet: nothing is lost without a name, no image outgrows its room, and metadata stays true.
//!
//! A table's secrets are random, and with them which packets a sample takes: assertions hold for any of them.

use lasthop_flow::{
    Action, Arp, CheckLength, Ethernet, FlowKey, Group, Hash, HashAlgorithm, Icmp, Ipv4, Ipv6, Lse, Masked,
    Match, MplsTag, NeighbourDiscovery, Nsh, NshContext, Ports, Rewrite, SampleAction, Userspace, Vlan,
};
use lasthop_flowtable::{FlowModule, FlowSpec, MeterRate};
use lasthop_module_api::{Batch, Hashes, Header, IMAGE_BYTES, IMAGE_FETCH_BYTES, Module, PortId, Verdicts};
use lasthop_wire::vnet::HEADER_BYTES;
use lasthop_wire::{Offload, check_partial, gso};

use crate::headers::{tcp_frame, tcp_offload};
use crate::input::{Input, Seed};

/// Actions within actions, and of one list.
const DEPTH_MAX: usize = 5;
const LIST_MAX: usize = 12;

fn masked<T: Group>(input: &mut Input<'_>) -> Masked<T> {
    let mut group = || {
        let mut image = T::default().to_image();
        image.as_mut().iter_mut().for_each(|byte| *byte = input.u8());
        T::from_image(&image)
    };
    Masked { value: group(), mask: group() }
}

fn rewrite(input: &mut Input<'_>) -> Rewrite {
    match input.u8() % 14 {
        0 => Rewrite::Priority(masked::<u32>(input)),
        1 => Rewrite::Mark(masked::<u32>(input)),
        2 => Rewrite::Ethernet(masked::<Ethernet>(input)),
        3 => Rewrite::Ipv4(masked::<Ipv4>(input)),
        4 => Rewrite::Ipv6(masked::<Ipv6>(input)),
        5 => Rewrite::Tcp(masked::<Ports>(input)),
        6 => Rewrite::Udp(masked::<Ports>(input)),
        7 => Rewrite::Icmp(masked::<Icmp>(input)),
        8 => Rewrite::Icmpv6(masked::<Icmp>(input)),
        9 => Rewrite::Arp(masked::<Arp>(input)),
        10 => Rewrite::Mpls(masked::<Lse>(input)),
        11 => Rewrite::Sctp(masked::<Ports>(input)),
        12 => Rewrite::Nd(masked::<NeighbourDiscovery>(input)),
        _ => Rewrite::Nsh(Box::new((nsh(input), nsh(input)))),
    }
}

fn nsh(input: &mut Input<'_>) -> Nsh {
    let [flags, ttl, md_type, next_proto] = [0; 4].map(|_: u8| input.u8());
    let context = match md_type % 3 {
        0 => NshContext::None,
        1 => NshContext::Md1([0; 4].map(|_: u32| input.u32())),
        _ => NshContext::Md2((0..input.u8() % 80).map(|_| input.u8()).collect()),
    };
    Nsh { flags, ttl, md_type, next_proto, path: input.u32(), context }
}

fn action(input: &mut Input<'_>, depth: usize) -> Action {
    match input.u8() % 20 {
        0 => Action::Output(u32::from(input.u16())),
        1 => Action::Userspace(Userspace::default()),
        2 | 3 => Action::Set(rewrite(input)),
        4 => Action::PushVlan(Vlan { tpid: input.u16(), tci: input.u16() }),
        5 => Action::PopVlan,
        6 => Action::Sample(SampleAction { probability: input.u32(), actions: list(input, depth) }),
        7 => Action::Recirc(u32::from(input.u8() % 3)),
        8 => {
            let algorithm = if input.bool() { HashAlgorithm::L4 } else { HashAlgorithm::SymmetricL4 };
            Action::Hash(Hash { algorithm, basis: input.u32() })
        }
        9 => Action::PushMpls(MplsTag { lse: input.u32(), ether_type: 0x8847, is_l3: true }),
        10 => Action::PopMpls(input.u16()),
        11 => Action::Truncate(input.u32()),
        12 => Action::PushEthernet(masked::<Ethernet>(input).value),
        13 => Action::PopEthernet,
        14 => Action::Meter(u32::from(input.u8() % 2)),
        15 => Action::Clone(list(input, depth)),
        16 => Action::Drop(input.u32()),
        17 => Action::PushNsh(Box::new(nsh(input))),
        18 => Action::PopNsh,
        19 => Action::AddMpls(MplsTag { lse: input.u32(), ether_type: input.u16(), is_l3: input.bool() }),
        _ => Action::CheckLength(CheckLength {
            len_bytes: input.u16(),
            greater: list(input, depth),
            less_equal: list(input, depth),
        }),
    }
}

fn list(input: &mut Input<'_>, depth: usize) -> Vec<Action> {
    let count = if depth == DEPTH_MAX { 0 } else { usize::from(input.u8()) % LIST_MAX };
    (0..count).map_while(|_| (!input.is_empty()).then(|| action(input, depth + 1))).collect()
}

/// A table whose flows take untagged packets of recirculation ids 0 to 2, as far as it takes their actions.
fn module(input: &mut Input<'_>) -> FlowModule {
    let module = FlowModule::for_workers(1);
    let rate = MeterRate { rate: 1, burst: 0, is_kbps: input.bool() };
    let _ = module.table().set_meter(1, rate);
    for recirc_id in 0..3 {
        let key =
            FlowKey { recirc_id: Some(recirc_id), ethernet: Some(Ethernet::default()), ..FlowKey::default() };
        let mask = FlowKey { recirc_id: Some(u32::MAX), ..FlowKey::default() };
        let matching = Match { key, mask: Some(mask) };
        let _ = module.table().install(FlowSpec {
            ufid: None,
            matching,
            actions: list(input, 0),
            is_probe: false,
        });
    }
    module
}

/// Panics when something does not hold for a packet and its actions.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let module = module(&mut input);
    let mut vnet = [0; HEADER_BYTES];
    vnet.iter_mut().for_each(|byte| *byte = input.u8());
    let more = u32::from(input.u16());
    let image = input.rest();
    let image = &image[..image.len().min(IMAGE_FETCH_BYTES)];
    if image.len() < 14 {
        return;
    }
    let len = image.len() as u32 + if image.len() == IMAGE_FETCH_BYTES { more } else { 0 };
    let header = Header::new(image, len, checked(Offload::parse(&vnet), image, len));
    for _ in 0..2 {
        let mut verdicts = Verdicts::default();
        module.decide(
            &Batch { port: PortId(1), headers: &[header], hashes: &Hashes::NONE },
            1 << 40,
            &mut verdicts,
        );
        check(&header, &mut verdicts);
    }
}

/// The part of a sender's metadata that the fabric lets through.
fn checked(offload: Offload, image: &[u8], len: u32) -> Offload {
    if offload.is_gso() && offload.needs_csum() {
        let hdr_len = gso::check(image, &offload, len);
        return hdr_len.map_or(Offload::default(), |hdr_len| Offload { hdr_len, ..offload });
    }
    let is_partial = !offload.is_gso() && offload.needs_csum() && check_partial(&offload, image, len);
    if is_partial { Offload { hdr_len: 0, gso_size: 0, ..offload } } else { Offload::default() }
}

fn check(header: &Header, verdicts: &mut Verdicts) {
    let made = verdicts.outputs().len() + verdicts.upcalls().len() + verdicts.drops().len();
    assert!(made > 0, "a packet goes somewhere, or is dropped for a reason");
    for image in verdicts.images() {
        assert!(image.bytes().len() <= IMAGE_BYTES && image.covers_bytes() == header.covers_bytes());
        assert!(image.frame_len_bytes() >= image.bytes().len() as u32);
        assert_eq!(image.offload.needs_csum(), header.offload.needs_csum());
        if image.offload.needs_csum() {
            // Counted from the frame's end, the sum begins and is written where it was.
            let moved = i64::from(image.frame_len_bytes()) - i64::from(header.frame_len_bytes());
            let start = i64::from(image.offload.csum_start) - i64::from(header.offload.csum_start);
            assert_eq!(start, moved, "{:?} {:?}", header.offload, image.offload);
            assert_eq!(image.offload.csum_offset, header.offload.csum_offset);
        }
    }
    let images = verdicts.images().len();
    let has_image = |index: u16| index == 0 || usize::from(index) < 32 + images;
    assert!(verdicts.outputs().iter().all(|output| has_image(output.image)));
    assert!(verdicts.upcalls().iter().all(|upcall| has_image(upcall.image)));
}

fn seed(actions: &[&[u8]], offload: Offload, frame: &[u8]) -> Vec<u8> {
    let mut seed = Seed::default();
    seed.u8(0).u8(actions.len() as u8);
    actions.iter().for_each(|action| {
        seed.bytes(action);
    });
    // The two other flows have none.
    seed.u8(0).u8(0).bytes(&offload.emit(0)).u16(1000).bytes(&frame[..frame.len().min(IMAGE_FETCH_BYTES)]);
    seed.into_bytes()
}

/// Requests of control planes.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    use lasthop_wire::Network::{Ipv4 as V4, Ipv6 as V6};
    let output: &[u8] = &[0, 0, 2];
    let push_ethernet = [&[12][..], &[3; 24]].concat();
    let push_nsh = [&[17, 0, 63, 1, 0][..], &[7; 20]].concat();
    let rewrite_ipv4 = [&[2, 3][..], &[9; 24]].concat();
    let rewrite_ipv6 = [&[2, 4][..], &[9; 80]].concat();
    let v4 = (tcp_frame(V4, 0, 300), tcp_offload(V4, 0, 0));
    let v6 = (tcp_frame(V6, 0, 300), tcp_offload(V6, 0, 100));
    [
        ("output", &[output][..], &v4),
        ("tags", &[&[4, 0x81, 0, 0x10, 5], output, &[5], output], &v4),
        ("labels", &[&[9, 0, 0, 1, 0], output, &[10, 8, 0], output], &v4),
        ("without-ethernet", &[&[13], &push_ethernet, output], &v4),
        ("rewrite-ipv4", &[&rewrite_ipv4, output], &v4),
        ("rewrite-ipv6", &[&rewrite_ipv6, output], &v6),
        ("recirculate", &[&[8, 1, 0, 0, 0, 7], &[7, 1], output], &v4),
        ("userspace", &[&[11, 0, 0, 0, 40], &[1], &[14, 1], output], &v6),
        ("service-header", &[&push_nsh, &push_ethernet, output, &[13], &[18], output], &v4),
        ("outermost-label", &[&[19, 0, 0, 1, 0, 0x47, 0x88, 0], &push_ethernet, output], &v4),
        ("nested", &[&[15, 1, 0, 0, 2], &[16, 0, 200, 1, 0, 0, 2, 1, 0, 0, 2]], &v4),
    ]
    .map(|(name, actions, (frame, offload))| (name.to_owned(), seed(actions, *offload, frame)))
    .to_vec()
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn seeds_do_something() {
        for (name, bytes) in seeds() {
            let mut input = Input::new(&bytes);
            let module = module(&mut input);
            assert_eq!(module.table().len().0, 3, "{name}: its actions are all right");
            run(&bytes);
        }
    }
}
