//! The readers of upcalls.

use lasthop_dpif::bounds::{PATIENT_ENDS_MAX, UPCALL_BATCH_BYTES_MAX};
use lasthop_dpif::family::PacketMessage;
use lasthop_dpif::message::Messages;
use lasthop_dpif::private::END;
use lasthop_dpif::server::{DatapathUpcall, PeerId, Server, UpcallKind, Upcalled};
use lasthop_dpif::talk::{self, DpifReply, batch};
use lasthop_flow::FlowKey;

use crate::wire::{GET, SET, Wire, new_datapath, new_port, request};
use lasthop_dpif::family::DatapathMessage;
use lasthop_dpif::server::Family;

fn miss(port: u32, worker: usize, hash: u64) -> DatapathUpcall {
    let key = FlowKey { in_port: Some(port), ..FlowKey::default() };
    let message =
        PacketMessage { datapath: 1, packet: vec![1; 60], key, hash: Some(hash), ..PacketMessage::default() };
    DatapathUpcall { kind: UpcallKind::Miss, port, worker, message }
}

fn action(port_id: u32) -> DatapathUpcall {
    DatapathUpcall { kind: UpcallKind::Action { port_id }, ..miss(1, 0, 0) }
}

/// Clients that receive misses, and their port ids.
fn readers(wire: &mut Wire, count: usize) -> Vec<(PeerId, u32)> {
    let mut reader = || {
        let id = wire.client();
        (id, wire.port_id(id))
    };
    (0..count).map(|_| reader()).collect()
}

fn heard(wire: &mut Wire, id: PeerId) -> Vec<(u8, PacketMessage)> {
    let mut packets = Vec::new();
    while let Some(datagram) = wire.next(id) {
        let message = Messages::new(&datagram).next().expect("a message");
        let generic = message.generic().expect("generic");
        let (datapath, attrs) = generic.datapath().expect("of a datapath");
        packets.push((generic.command, PacketMessage::decode(datapath, attrs).expect("ours")));
    }
    packets
}

fn per_cpu(wire: &mut Wire, port_ids: Vec<u32>) {
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    let wanted = DatapathMessage {
        user_features: Some(9),
        per_cpu_port_ids: Some(port_ids),
        ..DatapathMessage::default()
    };
    wire.ask(id, request(Family::Datapath, SET, 0, 1, |writer| wanted.encode(writer)));
    wire.ask(id, new_port("vm1", None, vec![0]));
}

fn lost(server: &Server) -> u64 {
    server.records().values().map(|known| known.lost).sum()
}

#[test]
fn misses_go_by_worker_for_any_port_and_action() {
    let mut wire = Wire::new();
    let readers = readers(&mut wire, 2);
    per_cpu(&mut wire, readers.iter().map(|(_, port_id)| *port_id).collect());
    for worker in 0..4 {
        assert_eq!(wire.server.upcall(miss(1, worker, 99)), Upcalled::Queued);
    }
    assert_eq!(wire.server.upcall(action(u32::MAX)), Upcalled::Queued, "for worker 0");
    let heard_by_first = heard(&mut wire, readers[0].0);
    assert_eq!(heard_by_first.iter().map(|(command, _)| *command).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(heard(&mut wire, readers[1].0), [(1, miss(1, 1, 99).message), (1, miss(1, 3, 99).message)]);
}

#[test]
fn by_port_and_the_packets_hash() {
    let mut wire = Wire::new();
    let readers = readers(&mut wire, 3);
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 3));
    wire.ask(id, new_port("vm1", None, vec![readers[0].1, readers[1].1]));
    wire.ask(id, new_port("vm2", None, vec![0]));
    for hash in 0..4 {
        assert_eq!(wire.server.upcall(miss(1, 0, hash)), Upcalled::Queued);
    }
    assert_eq!(wire.server.upcall(miss(2, 0, 0)), Upcalled::Lost, "nobody wants its misses");
    assert_eq!(wire.server.upcall(action(readers[2].1)), Upcalled::Queued);
    assert_eq!(wire.server.upcall(action(77)), Upcalled::Lost, "there is no such client");
    assert_eq!((0..3).map(|at| heard(&mut wire, readers[at].0).len()).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(lost(&wire.server), 2);
}

#[test]
fn a_client_that_does_not_read_loses_and_others_do_not() {
    let mut wire = Wire::new();
    let readers = readers(&mut wire, 2);
    per_cpu(&mut wire, readers.iter().map(|(_, port_id)| *port_id).collect());
    let (mut queued, count) = (0, 50_000);
    for _ in 0..count {
        queued += u64::from(wire.server.upcall(miss(1, 0, 0)) == Upcalled::Queued);
    }
    assert!(queued < count, "there is a bound");
    assert_eq!(queued + lost(&wire.server), count, "each is queued or counted");
    assert_eq!(wire.server.lost(readers[0].0), lost(&wire.server));
    assert_eq!(wire.server.upcall(miss(1, 1, 0)), Upcalled::Queued);
    assert_eq!(heard(&mut wire, readers[0].0).len() as u64, queued);
    assert_eq!(wire.server.upcall(miss(1, 0, 0)), Upcalled::Queued, "it reads again");
}

#[test]
fn a_client_that_comes_back_has_its_port_id_again() {
    use lasthop_dpif::private::Hello;
    let mut wire = Wire::new();
    let (id, port_id) = readers(&mut wire, 1)[0];
    per_cpu(&mut wire, vec![port_id]);
    wire.server.disconnected(id);
    assert_eq!(wire.server.upcall(miss(1, 0, 0)), Upcalled::Lost);
    let hello = Hello { protocol: 16, port_id, process: 1 };
    let again = PeerId(99);
    wire.server.received(again, hello.encode(), &mut wire.datapath).expect("a client");
    assert_eq!(wire.port_id(again), port_id);
    assert_eq!(wire.server.upcall(miss(1, 0, 0)), Upcalled::Queued);
}

#[test]
fn packets_too_long_for_an_attribute_are_lost() {
    let mut wire = Wire::new();
    let readers = readers(&mut wire, 1);
    per_cpu(&mut wire, vec![readers[0].1]);
    let mut long = miss(1, 0, 0);
    long.message.packet = vec![0; 65_532];
    assert_eq!(wire.server.upcall(long.clone()), Upcalled::Lost);
    long.message.packet.truncate(65_531);
    assert_eq!(wire.server.upcall(long), Upcalled::Queued);
}

#[test]
fn misses_without_a_reader_go_to_one_client_at_once() {
    let mut wire = Wire::new();
    let readers = readers(&mut wire, 2);
    let [(first, first_id), (second, second_id)] = readers[..] else { panic!("two") };
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 1));
    for (name, ids) in [("vm1", vec![first_id]), ("vm2", vec![0x7777]), ("vm3", vec![0])] {
        wire.ask(id, new_port(name, None, ids));
    }
    let direct = |port_id| {
        let wanted = DatapathMessage { upcall_port_id: Some(port_id), ..DatapathMessage::default() };
        request(Family::Datapath, SET, 0, 1, |writer| wanted.encode(writer))
    };
    let reader = |wire: &Wire, port| wire.server.reader_of(&miss(port, 0, 0)).map(|reader| reader.client);
    wire.ask(id, direct(0));
    assert_eq!([1, 2, 3].map(|port| reader(&wire, port)), [Some(first), None, None], "as OVS says it");
    let changes = wire.server.changes();
    wire.ask(id, direct(second_id));
    assert_eq!([0, 1, 2, 3].map(|port| reader(&wire, port)), [None, Some(first), Some(second), Some(second)]);
    assert!(wire.server.changes() > changes, "to be kept for the next process");
}

/// The kinds of a datagram's messages.
fn kinds(datagram: &[u8]) -> Vec<u16> {
    Messages::new(datagram).map(|message| message.header.kind).collect()
}

/// A datapath with one port, whose misses go to one client, which may take batches.
fn reader_of_one_port(takes_batches: bool) -> (Wire, PeerId) {
    let mut wire = Wire::new();
    let (reader, port_id) = readers(&mut wire, 1)[0];
    if takes_batches {
        wire.ask(reader, batch());
        assert_eq!(wire.next(reader), None);
    }
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 3));
    wire.ask(id, new_port("vm1", None, vec![port_id]));
    (wire, reader)
}

#[test]
fn misses_and_ends_share_a_datagram_for_a_client_that_takes_batches() {
    let miss_kind = Family::Packet.id();
    let (mut wire, reader) = reader_of_one_port(true);
    let empty = || request(Family::Datapath, GET, 0, 1, |_| {});
    assert!(!wire.server.is_patient(reader), "nothing waits");
    // The answer is a datagram of its own, and its END waits for more.
    wire.server.received(reader, empty(), &mut wire.datapath).expect("in turn");
    assert!(!wire.server.is_patient(reader), "an answer waits");
    assert_eq!(kinds(&wire.next(reader).expect("an answer")), [Family::Datapath.id()]);
    assert!(wire.server.is_patient(reader));
    for hash in 0..3 {
        assert_eq!(wire.server.upcall(miss(1, 0, hash)), Upcalled::Batched);
        assert!(!wire.server.is_patient(reader), "a miss does not wait");
    }
    let datagram = wire.next(reader).expect("a batch");
    assert_eq!(kinds(&datagram), [END, miss_kind, miss_kind, miss_kind]);
    let told = talk::read(&datagram).filter_map(|told| match told {
        DpifReply::Miss(packet) => packet.hash,
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(wire.next(reader), None);
}

#[test]
fn a_batch_is_bounded_and_so_are_ends_that_wait() {
    let (mut wire, reader) = reader_of_one_port(true);
    let mut sent = 0;
    while wire.server.reader(reader).is_some_and(|reader| !reader.is_busy) {
        assert_eq!(wire.server.upcall(miss(1, 0, sent)), Upcalled::Batched);
        sent += 1;
    }
    let mut heard = 0;
    while let Some(datagram) = wire.next(reader) {
        assert!(datagram.len() <= UPCALL_BATCH_BYTES_MAX, "{}", datagram.len());
        heard += Messages::new(&datagram).count() as u64;
    }
    assert_eq!(heard, sent);
    for ends in 1..=PATIENT_ENDS_MAX {
        wire.server.received(reader, Vec::new(), &mut wire.datapath).expect("in turn");
        assert_eq!(wire.server.is_patient(reader), ends < PATIENT_ENDS_MAX);
    }
    assert_eq!(kinds(&wire.next(reader).expect("all ENDs")), [END; PATIENT_ENDS_MAX]);
    assert_eq!(wire.next(reader), None);
}

#[test]
fn other_clients_get_a_datagram_for_each_miss_and_end() {
    let (mut wire, reader) = reader_of_one_port(false);
    (0..2).for_each(|hash| assert_eq!(wire.server.upcall(miss(1, 0, hash)), Upcalled::Queued));
    wire.server.received(reader, Vec::new(), &mut wire.datapath).expect("in turn");
    assert!(!wire.server.is_patient(reader));
    let datagrams: Vec<_> = std::iter::from_fn(|| wire.next(reader)).map(|bytes| kinds(&bytes)).collect();
    assert_eq!(datagrams, [[Family::Packet.id()], [Family::Packet.id()], [END]]);
}
