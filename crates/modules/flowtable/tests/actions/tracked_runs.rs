//! Runs of packets of established connections have the same verdicts as single look-ups without caches.

use lasthop_flow::ct_state::{ESTABLISHED, NEW, REPLY, TRACKED};
use lasthop_flow::{
    Action, Conntrack, CtKey, FlowKey, Group, Masked, Match, Nat, NatRange, NatSource, Tuple4,
};
use lasthop_flowtable::{FlowModule, suspended_zone};
use lasthop_module_api::{Batch, DropReason, Hashes, Header, Module, UpcallReason, Verdicts};
use lasthop_wire::Offload;
use proptest::prelude::*;

use crate::packets::{Net, Spec};
use crate::support::{FROM, NOW_NS, all_of, install};

const ZONE: u16 = 5;
const SECOND_NS: u64 = 1_000_000_000;
/// Number of established connections; the odd ones are TCP.
const CONNECTIONS: u8 = 6;
/// The same with those that packets of a run may begin.
const ALL_CONNECTIONS: u8 = 16;
/// The connections from this one on may be of IPv6.
const FIRST_IPV6: u8 = 3;

/// The fields of connections that second flows match on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Looks {
    State,
    Mark,
    Labels,
    Tuple,
}

fn ct(is_commit: bool, nat: Option<Nat>) -> Conntrack {
    let mark = is_commit.then_some(Masked { value: 1, mask: 1 });
    let labels = is_commit.then_some(([1; 16], [3; 16]));
    Conntrack { zone: Some(ZONE), is_commit, mark, labels, nat, ..Conntrack::default() }
}

/// A firewall, with these actions before its `ct`. Replies go to port 4, all other packets to port 3.
fn firewall(front: Vec<Action>, is_translated: bool, looks: Looks, second: &[Action]) -> FlowModule {
    let module = FlowModule::for_workers(1);
    let range = NatRange { ip_min: "192.0.2.9".parse().ok(), ..NatRange::default() };
    let source = Nat { source: Some(NatSource::Src), range, ..Nat::default() };
    let (known, new) = if is_translated { (Some(Nat::default()), Some(source)) } else { (None, None) };
    let look_up = [Action::Ct(Box::new(ct(false, known))), Action::Recirc(1)];
    install(&module, all_of(None, 0), [front, look_up.to_vec()].concat());
    let (bits, mask) = (TRACKED | NEW | ESTABLISHED | REPLY, Some(TRACKED | NEW | ESTABLISHED | REPLY));
    let exact = match looks {
        Looks::State => CtKey { state: mask, ..CtKey::default() },
        Looks::Mark => CtKey { state: mask, mark: Some(1), ..CtKey::default() },
        Looks::Labels => CtKey { state: mask, labels: Some([3; 16]), ..CtKey::default() },
        Looks::Tuple => CtKey {
            state: mask,
            tuple4: Some(Tuple4 { src_port: 0xffff, ..Tuple4::default() }),
            ..CtKey::default()
        },
    };
    assert_eq!(Tuple4::ones().src_port, 0xffff);
    let flow = |(state, is_there): (u32, bool), port: u16, actions: Vec<Action>| {
        let tuple4 = exact.tuple4.map(|_| Tuple4 { src_port: port, ..Tuple4::default() });
        let key = CtKey {
            state: Some(state & bits),
            mark: exact.mark.map(|_| u32::from(is_there)),
            labels: exact.labels.map(|_| [u8::from(is_there); 16]),
            tuple4,
            ..CtKey::default()
        };
        let Match { key: rest, mask } = all_of(None, 1);
        let mask = mask.map(|mask| FlowKey { ct: exact, ..mask });
        install(&module, Match { key: FlowKey { ct: key, ..rest }, mask }, actions);
    };
    let ports = if looks == Looks::Tuple { 1000..1000 + u16::from(ALL_CONNECTIONS) } else { 0..1 };
    for port in ports {
        let commit = Action::Ct(Box::new(ct(true, new)));
        // The second packet of a new connection already has its mark and labels.
        let states: &[bool] =
            if matches!(looks, Looks::Mark | Looks::Labels) { &[false, true] } else { &[false] };
        for is_there in states.iter().copied() {
            flow((TRACKED | NEW, is_there), port, vec![commit.clone(), Action::Output(2)]);
        }
        let known = |state| (TRACKED | ESTABLISHED | state, true);
        flow(known(0), port, [second.to_vec(), vec![Action::Output(3)]].concat());
        flow(known(REPLY), port, vec![Action::Output(4)]);
    }
    module
}

/// A packet of a connection over IPv6, with a payload.
fn frame6(connection: u8, is_answer: bool) -> Vec<u8> {
    let end = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, last];
    let (client, server) = ((end(connection), 1000 + u16::from(connection)), (end(200), 80));
    let ((src, src_port), (dst, dst_port)) = if is_answer { (server, client) } else { (client, server) };
    let net = Net::V6 { src, dst, label: 0, tclass: 0, hlimit: 64 };
    let (ports, is_tcp) = ([src_port, dst_port], connection % 2 == 1);
    Spec { net, ports, is_tcp, ..Spec::plain() }.frame()
}

fn frame(connection: u8, is_answer: bool, is_translated: bool) -> Vec<u8> {
    let client = if is_answer && is_translated { [192, 0, 2, 9] } else { [10, 0, 0, connection] };
    let (port, server) = (1000 + u16::from(connection), [10, 9, 0, 1]);
    let (src, dst) = if is_answer { (server, client) } else { (client, server) };
    let ports = if is_answer { [80, port] } else { [port, 80] };
    let (net, is_tcp) = (Net::V4 { src, dst, tos: 0, ttl: 64 }, connection % 2 == 1);
    Spec { net, ports, is_tcp, ..Spec::plain() }.frame()
}

/// The results of a batch: copies with packet, port and bytes; and drops.
type Sent = (Vec<(u16, u16, Vec<u8>)>, Vec<(u16, DropReason)>);

fn sent(module: &FlowModule, frames: &[Vec<u8>], now_ns: u64) -> Sent {
    let header = |frame: &Vec<u8>| Header::new(frame, frame.len() as u32, Offload::default());
    let headers = frames.iter().map(header).collect::<Vec<_>>();
    let mut verdicts = Verdicts::default();
    module.decide(&Batch { port: FROM, headers: &headers, hashes: &Hashes::NONE }, now_ns, &mut verdicts);
    let outputs = verdicts.outputs().to_vec();
    let image = |index: u16| match usize::from(index).checked_sub(32) {
        None => headers[usize::from(index)].bytes().to_vec(),
        Some(made) => verdicts.images()[made].bytes().to_vec(),
    };
    let outputs = outputs.iter().map(|output| (output.packet, output.port.0, image(output.image)));
    assert!(verdicts.upcalls().is_empty());
    let mut outputs = outputs.collect::<Vec<_>>();
    outputs.sort();
    (outputs, verdicts.drops().to_vec())
}

/// Packets and bytes of each flow.
fn counts(module: &FlowModule) -> Vec<(u64, u64)> {
    let (dumped, _) = module.table().dump(0, usize::MAX);
    dumped.iter().map(|(.., stats)| (stats.packets, stats.bytes)).collect()
}

/// All connections, by their tuples.
fn connections(module: &FlowModule) -> Vec<String> {
    let mut records = Vec::new();
    let dumped = module.table().connections().dump(0, None, 0, usize::MAX, &mut records);
    assert_eq!(dumped, None);
    let mut lines = records.iter().map(|record| format!("{record:?}")).collect::<Vec<_>>();
    lines.sort();
    lines
}

/// Packets without a connection are one kind of those that runs consist of.
#[test]
fn a_run_commits_what_its_packets_begin() {
    let module = firewall(vec![], false, Looks::State, &[]);
    let frames =
        |range: std::ops::Range<u8>| range.map(|number| frame(2 * number, false, false)).collect::<Vec<_>>();
    let known = sent(&module, &frames(0..1), NOW_NS);
    assert_eq!(known.0.len(), 1);
    let (sent, dropped) = sent(&module, &frames(1..8), NOW_NS);
    assert_eq!((sent.iter().map(|(.., port, _)| *port).collect::<Vec<_>>(), dropped), (vec![2; 7], vec![]));
    assert_eq!(module.table().connections().len(), 8);
}

/// A batch that begins connections asks for a call behind their delivery, and works the same without it.
#[test]
fn connections_that_begin_are_listed_behind_their_delivery() {
    for is_told in [true, false] {
        let module = firewall(vec![], false, Looks::State, &[]);
        let rest = |number: u8, is_answer: bool| {
            let frame = frame(number, is_answer, false);
            let headers = [Header::new(&frame, frame.len() as u32, Offload::default())];
            let mut verdicts = Verdicts::default();
            let batch = Batch { port: FROM, headers: &headers, hashes: &Hashes::NONE };
            module.decide(&batch, NOW_NS, &mut verdicts);
            verdicts.take_rest()
        };
        rest(0, false);
        for number in 1..8 {
            let asked = rest(2 * number, false);
            assert_eq!(asked, Some((FROM, ZONE)));
            assert_eq!(rest(2 * number, true), None, "an answer begins none");
            if let Some((port, rest)) = asked.filter(|_| is_told) {
                module.delivered(port, rest);
            }
        }
        let table = module.table().connections();
        assert_eq!((table.len(), table.zone(ZONE).1), (8, 8));
        assert!(table.flush_zone(ZONE, 8) && table.is_empty());
    }
}

proptest! {
    #[test]
    fn runs_go_where_single_packets_go(
        batches in prop::collection::vec(
            (prop::collection::vec((0..ALL_CONNECTIONS, any::<bool>()), 1..16), 0_u64..5),
            1..4,
        ),
        is_translated in any::<bool>(),
        looks in prop::sample::select(vec![Looks::State, Looks::Mark, Looks::Labels, Looks::Tuple]),
        (sets_mark, is_ipv6) in any::<(bool, bool)>(),
    ) {
        let first_ipv6 = if is_ipv6 && !is_translated && looks != Looks::Tuple { FIRST_IPV6 } else { ALL_CONNECTIONS };
        let frame = |connection: u8, is_answer: bool| match connection < first_ipv6 {
            true => frame(connection, is_answer, is_translated),
            false => frame6(connection, is_answer),
        };
        let second = if sets_mark { vec![Action::PopVlan] } else { vec![] };
        let run = firewall(vec![], is_translated, looks, &second);
        // Packets of this module form no run, because of the action before `ct`.
        let single = firewall(vec![Action::CtClear], is_translated, looks, &second);
        single.bypass_caches(0);
        let (mut now_ns, mut is_first) = (NOW_NS, true);
        for (packets, waits_s) in batches {
            // The established connections have seen both directions for some seconds.
            if std::mem::take(&mut is_first) {
                for (connection, is_answer) in (0..CONNECTIONS).flat_map(|c| [(c, false), (c, true), (c, false)]) {
                    let frames = [frame(connection, is_answer)];
                    now_ns += 3 * SECOND_NS;
                    prop_assert_eq!(sent(&run, &frames, now_ns), sent(&single, &frames, now_ns));
                }
            }
            now_ns += waits_s * SECOND_NS;
            // The client's packets begin the others.
            let one = |(connection, is_answer): &(u8, bool)| {
                frame(*connection, *is_answer && *connection < CONNECTIONS)
            };
            let frames = packets.iter().map(one).collect::<Vec<_>>();
            prop_assert_eq!(sent(&run, &frames, now_ns), sent(&single, &frames, now_ns));
            prop_assert_eq!(counts(&run), counts(&single));
            prop_assert_eq!(connections(&run), connections(&single));
        }
    }
}

/// A packet whose second pass is an upcall holds later packets of its flow back.
#[test]
fn packets_wait_behind_one_that_missed_in_its_second_pass() {
    let module = firewall(vec![], false, Looks::State, &[]);
    for is_answer in [false, true, false, false] {
        sent(&module, &[frame(0, is_answer, false)], NOW_NS);
    }
    module.table().flush(0, usize::MAX);
    let look_up = Action::Ct(Box::new(ct(false, None)));
    install(&module, all_of(None, 0), vec![look_up, Action::Recirc(1)]);
    let frames = [frame(0, false, false), frame(0, false, false), frame(0, true, false)];
    let headers = frames.each_ref().map(|frame| Header::new(frame, frame.len() as u32, Offload::default()));
    let mut verdicts = Verdicts::default();
    module.decide(&Batch { port: FROM, headers: &headers, hashes: &Hashes::NONE }, NOW_NS, &mut verdicts);
    let asked = verdicts.upcalls().iter().map(|upcall| (upcall.packet, upcall.metadata.recirc_id));
    assert_eq!(asked.collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1)]);
    assert!(verdicts.outputs().is_empty() && verdicts.drops().is_empty());
}

/// A fragment is suspended at the same two actions, with and without the combined step.
#[test]
fn fragments_wait_at_the_action_of_a_run() {
    let mut fragment = frame(0, false, false);
    fragment[20] |= 0x20; // more fragments
    for is_translated in [false, true] {
        let words = |front| {
            let module = firewall(front, is_translated, Looks::State, &[]);
            let headers = [Header::new(&fragment, fragment.len() as u32, Offload::default())];
            let mut verdicts = Verdicts::default();
            let batch = Batch { port: FROM, headers: &headers, hashes: &Hashes::NONE };
            module.decide(&batch, NOW_NS, &mut verdicts);
            let UpcallReason::Suspended { rest, .. } = verdicts.upcalls()[0].reason else {
                panic!("sent up")
            };
            verdicts.suspended(rest).to_vec()
        };
        let suspended = words(vec![]);
        assert_eq!(suspended_zone(&suspended), Some(ZONE));
        assert_eq!(suspended, words(vec![Action::CtClear]));
    }
}
