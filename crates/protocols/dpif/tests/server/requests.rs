//! Requests as OVS sends them, and the replies that it expects.

use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::{
    Band, DatapathMessage, FamilyMessage, FlowMessage, MeterMessage, PacketMessage, VportMessage,
};
use lasthop_dpif::message::{self, Messages, NetlinkHeader};
use lasthop_dpif::private::{JOIN, LISTEN, SEE_ALL, number};
use lasthop_dpif::server::Family;
use lasthop_flow::{Action, FlowStats};

use crate::wire::{
    ACK, CREATE, DEL, DUMP, ECHO, GET, NEW, REQUEST, SET, Wire, flow, flow_request, new_datapath, new_port,
    request,
};

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

#[test]
fn families_have_numbers_and_groups() {
    let mut wire = Wire::new();
    let id = wire.client();
    let ask = |name: &str| {
        let header = NetlinkHeader { kind: 0x10, flags: REQUEST, ..NetlinkHeader::default() };
        let wanted = FamilyMessage { name: Some(name.to_owned()), ..FamilyMessage::default() };
        message::encode_generic(header, 3, 1, |writer| wanted.encode(writer)).expect("short")
    };
    let answers = wire.ask(id, ask("ovs_vport"));
    let attrs = lasthop_dpif::attr::Attrs::new(&answers.objects[0].1);
    let told = FamilyMessage::decode(attrs).expect("a family");
    assert_eq!(told.groups, [("ovs_vport".to_owned(), u32::from(told.id.expect("a number")))]);
    assert_eq!(told.version, Some(1));
    assert_eq!(wire.ask(id, ask("nl80211")).errors, [ENOENT]);
}

#[test]
fn unknown_features_are_refused_without_a_trace() {
    let mut wire = Wire::new();
    let id = wire.client();
    assert_eq!(wire.ask(id, new_datapath("ovs-system", 0x8000_0003)).errors, [EOPNOTSUPP]);
    assert!(wire.server.records().is_empty());
    let answers = wire.ask(id, new_datapath("ovs-system", 9));
    assert_eq!((answers.errors.as_slice(), answers.objects.len()), ([0].as_slice(), 1));
    assert_eq!(wire.ask(id, new_datapath("ovs-system", 9)).errors, [EEXIST]);
}

#[test]
fn features_that_are_not_granted_are_told_so_and_port_ids_stay() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("ovs-system", 9));
    let set = |user_features, per_cpu_port_ids: Option<Vec<u32>>| {
        let wanted = DatapathMessage {
            user_features: Some(user_features),
            per_cpu_port_ids,
            ..DatapathMessage::default()
        };
        request(Family::Datapath, SET, ECHO | ACK, 1, |writer| wanted.encode(writer))
    };
    assert_eq!(wire.ask(id, set(13, Some(vec![7, 8]))).datapaths()[0].user_features, Some(9));
    let told = wire.ask(id, set(9, None)).datapaths();
    assert_eq!(told[0].per_cpu_port_ids, Some(vec![7, 8]), "ovs-dpctl sets features without them");
}

#[test]
fn clients_neither_see_nor_remove_reserved_datapaths() {
    let mut wire = Wire::new();
    let (own, other) = (wire.client(), wire.client());
    wire.datapath.reserved.insert("default".to_owned());
    for name in ["default", "ovs-system"] {
        assert_eq!(wire.ask(own, new_datapath(name, 9)).errors, [0]);
    }
    let by = |command, name: &str| {
        let wanted = DatapathMessage { name: Some(name.to_owned()), ..DatapathMessage::default() };
        request(Family::Datapath, command, ACK, 0, |writer| wanted.encode(writer))
    };
    fn listed(wire: &mut Wire, id: lasthop_dpif::server::PeerId) -> Vec<Option<String>> {
        let answers = wire.ask(id, request(Family::Datapath, GET, DUMP, 0, |_| {}));
        assert!(answers.has_done);
        answers.datapaths().into_iter().map(|datapath| datapath.name).collect()
    }
    let (default, system) = (Some("default".to_owned()), Some("ovs-system".to_owned()));
    assert_eq!(listed(&mut wire, other), std::slice::from_ref(&system));
    assert_eq!(wire.ask(other, by(GET, "default")).datapaths().len(), 1, "by its name it is found");
    assert_eq!(wire.ask(other, by(DEL, "default")).errors, [EBUSY]);
    wire.server.received(other, number(SEE_ALL, 0, 1), &mut wire.datapath).expect("in turn");
    while wire.next(other).is_some() {}
    assert_eq!(listed(&mut wire, other), [default.clone(), system]);
    assert_eq!(wire.ask(other, by(DEL, "ovs-system")).errors, [0]);
    assert_eq!(listed(&mut wire, other), [default]);
}

#[test]
fn ports_get_the_lowest_number_or_the_one_wanted() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    let number = |answers: &crate::wire::Answers| answers.ports()[0].number;
    assert_eq!(number(&wire.ask(id, new_port("a", None, vec![0]))), Some(1));
    assert_eq!(number(&wire.ask(id, new_port("b", Some(7), vec![0]))), Some(7));
    assert_eq!(number(&wire.ask(id, new_port("c", None, vec![0]))), Some(2));
    assert_eq!(wire.ask(id, new_port("d", Some(7), vec![0])).errors, [EBUSY]);
    assert_eq!(wire.ask(id, new_port("a", None, vec![0])).errors, [EEXIST]);
    let answers = wire.ask(id, request(Family::Vport, GET, DUMP | ACK, 1, |_| {}));
    let numbers: Vec<_> = answers.ports().iter().map(|port| port.number.expect("told")).collect();
    assert_eq!(
        (numbers, answers.has_done, answers.errors.as_slice()),
        (vec![0, 1, 2, 7], true, [].as_slice())
    );
}

#[test]
fn ports_are_found_by_name_in_any_datapath() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    wire.ask(id, new_port("vm1", None, vec![0]));
    let by = |command, datapath, name: Option<&str>, number| {
        let wanted = VportMessage { name: name.map(str::to_owned), number, ..VportMessage::default() };
        request(Family::Vport, command, ECHO, datapath, |writer| wanted.encode(writer))
    };
    assert_eq!(wire.ask(id, by(GET, 0, Some("vm1"), Some(0))).ports()[0].number, Some(1), "the name wins");
    assert_eq!(wire.ask(id, by(GET, 0, Some("vm2"), None)).errors, [ENODEV]);
    assert_eq!(wire.ask(id, by(GET, 1, None, Some(1))).ports()[0].name.as_deref(), Some("vm1"));
    assert_eq!(wire.ask(id, by(GET, 1, None, None)).errors, [EINVAL]);
    assert_eq!(wire.ask(id, by(DEL, 1, None, Some(0))).errors, [EINVAL], "the datapath's own");
    assert_eq!(wire.ask(id, by(DEL, 1, None, Some(1))).ports().len(), 1);
    assert_eq!(wire.ask(id, by(GET, 0, Some("vm1"), None)).errors, [ENODEV]);
}

#[test]
fn a_port_without_a_device_is_refused() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.datapath.devices = Some(["vm1".to_owned()].into());
    wire.ask(id, new_datapath("dp0", 9));
    assert_eq!(wire.ask(id, new_port("vm2", None, vec![0])).errors, [ENODEV]);
    assert_eq!(wire.ask(id, new_port("vm1", None, vec![0])).errors, [0]);
}

#[test]
fn members_of_a_group_are_notified_of_others_changes() {
    let mut wire = Wire::new();
    let (actor, member) = (wire.client(), wire.client());
    wire.port_id(member);
    wire.ask(actor, new_datapath("dp0", 9));
    let group = Family::Vport.group().expect("it has one");
    for id in [actor, member] {
        wire.server.received(id, number(JOIN, 0, group), &mut wire.datapath).expect("in turn");
        while wire.next(id).is_some() {}
    }
    assert_eq!(wire.ask(actor, new_port("vm1", None, vec![0])).objects.len(), 1, "the echo alone");
    let told = wire.next(member).expect("a notification");
    let message = Messages::new(&told).next().expect("a message");
    assert_eq!((message.header.kind, message.generic().expect("generic").command), (Family::Vport.id(), NEW));
    assert_eq!(wire.next(member), None);
    assert!(wire.server.take_told().contains(&member));
}

#[test]
fn a_port_ends_with_its_device_and_members_are_told() {
    let mut wire = Wire::new();
    let (actor, member) = (wire.client(), wire.client());
    wire.port_id(member);
    wire.ask(actor, new_datapath("dp0", 9));
    wire.ask(actor, new_port("veth0", None, vec![0]));
    let group = Family::Vport.group().expect("it has one");
    wire.server.received(member, number(JOIN, 0, group), &mut wire.datapath).expect("in turn");
    while wire.next(member).is_some() {}
    for name in ["dp0", "veth1", "veth0", "veth0"] {
        wire.server.port_lost(name, &mut wire.datapath);
    }
    let told = wire.next(member).expect("a notification");
    let message = Messages::new(&told).next().expect("a message");
    assert_eq!(message.generic().expect("generic").command, DEL);
    assert_eq!(wire.next(member), None, "once; the others are not there, or are the datapath's own");
    let left = wire.ask(actor, request(Family::Vport, GET, DUMP | ACK, 1, |_| {}));
    assert_eq!(left.ports().len(), 1);
}

#[test]
fn flows_are_installed_changed_told_and_removed() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    let one = flow(1, vec![Action::Output(1)]);
    assert_eq!(wire.ask(id, flow_request(NEW, CREATE | ACK, &one)).errors, [0]);
    assert_eq!(wire.ask(id, flow_request(NEW, CREATE, &one)).errors, [EEXIST]);
    let changed = flow(1, vec![Action::Output(2)]);
    assert_eq!(wire.ask(id, flow_request(NEW, ACK, &changed)).errors, [0], "without CREATE it is changed");
    let stats = FlowStats { packets: 3, bytes: 180, used_ms: 99, tcp_flags: 2 };
    wire.datapath.count(lasthop_dpif::datapath::DatapathId(1), one.ufid.expect("it has one"), stats);
    let told = wire.ask(id, flow_request(GET, 0, &one)).flows();
    assert_eq!(
        (told[0].actions.as_deref(), told[0].stats),
        (Some([Action::Output(2)].as_slice()), Some(stats))
    );
    let clear = FlowMessage { actions: None, is_clear: true, ..one.clone() };
    assert_eq!(wire.ask(id, flow_request(SET, ACK, &clear)).errors, [0]);
    let last = wire.ask(id, flow_request(DEL, ECHO, &one)).flows();
    assert_eq!(
        (last[0].actions.as_deref(), last[0].stats),
        (Some([Action::Output(2)].as_slice()), None),
        "cleared"
    );
    for command in [GET, DEL, SET] {
        assert_eq!(wire.ask(id, flow_request(command, 0, &one)).errors, [ENOENT], "command {command}");
    }
}

#[test]
fn removed_flows_are_told_in_order_when_their_last_packets_are_counted() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.port_id(id);
    for request in [
        new_datapath("dp0", 9),
        flow_request(NEW, CREATE, &flow(1, Vec::new())),
        flow_request(NEW, CREATE, &flow(2, Vec::new())),
    ] {
        wire.ask(id, request);
    }
    wire.datapath.is_counting = true;
    let both =
        [flow_request(DEL, ECHO, &flow(1, Vec::new())), flow_request(DEL, ECHO | ACK, &flow(2, Vec::new()))];
    wire.server.received(id, both.concat(), &mut wire.datapath).expect("in turn");
    assert_eq!(wire.next(id), None, "workers may have packets of it");
    assert!(wire.server.is_settling());
    wire.settle();
    assert_eq!(wire.next(id), None);
    wire.datapath.is_counting = false;
    wire.settle();
    assert!(!wire.server.is_settling() && wire.server.take_told().contains(&id));
    let kinds: Vec<_> = std::iter::from_fn(|| wire.next(id))
        .map(|datagram| Messages::new(&datagram).next().expect("a message").header.kind)
        .collect();
    const ERROR: u16 = 2;
    assert_eq!(kinds, [Family::Flow.id(), Family::Flow.id(), ERROR, lasthop_dpif::private::END]);
}

#[test]
fn flows_removed_by_a_client_that_left_are_forgotten() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    wire.ask(id, flow_request(NEW, CREATE, &flow(1, Vec::new())));
    wire.datapath.is_counting = true;
    let remove = flow_request(DEL, ECHO, &flow(1, Vec::new()));
    wire.server.received(id, remove, &mut wire.datapath).expect("in turn");
    wire.server.disconnected(id);
    assert!(wire.server.is_settling());
    wire.datapath.is_counting = false;
    wire.settle();
    assert_eq!((wire.server.is_settling(), wire.datapath.removed_count()), (false, 0));
}

#[test]
fn omitted_fields_are_left_out() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    wire.ask(id, flow_request(NEW, CREATE, &flow(1, vec![Action::Output(1)])));
    let terse = FlowMessage { omitted: Some(7), ..FlowMessage::default() };
    let told = wire.ask(id, flow_request(GET, DUMP, &terse)).flows();
    assert_eq!((told[0].key.as_ref(), told[0].actions.as_ref()), (None, None));
    assert_eq!(told[0].ufid, flow(1, Vec::new()).ufid);
}

#[test]
fn a_batch_is_served_in_order_and_ends_once() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    let one = flow(1, Vec::new());
    let batch = [
        flow_request(NEW, CREATE | ACK, &one),
        flow_request(NEW, CREATE | ACK, &one),
        flow_request(GET, DUMP, &FlowMessage::default()),
        flow_request(DEL, ACK, &one),
        flow_request(DEL, ACK, &one),
    ];
    let answers = wire.ask(id, batch.concat());
    assert_eq!(answers.errors, [0, EEXIST, 0, ENOENT]);
    assert_eq!((answers.flows().len(), answers.has_done), (1, true));
}

#[test]
fn a_dump_goes_in_several_datagrams_and_only_as_fast_as_it_is_read() {
    const FLOWS: u32 = 5000;
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    for number in 0..FLOWS {
        wire.ask(id, flow_request(NEW, CREATE, &flow(number, vec![Action::Output(1); 3])));
    }
    let answers = wire.ask(id, flow_request(GET, DUMP, &FlowMessage::default()));
    let mut seen: Vec<_> =
        answers.flows().iter().map(|flow| flow.key.clone().expect("told").recirc_id).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..FLOWS).map(Some).collect::<Vec<_>>(), "each once");
    assert!(answers.has_done && answers.datagrams > 20, "{} datagrams", answers.datagrams);
}

#[test]
fn packets_are_executed_or_probed() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    let packet = |is_probe| PacketMessage {
        packet: vec![7; 60],
        actions: Some(vec![Action::Output(1)]),
        is_probe,
        hash: Some(5),
        ..PacketMessage::default()
    };
    for is_probe in [true, false] {
        let datagram = request(Family::Packet, 3, ACK, 1, |writer| packet(is_probe).encode(writer));
        assert_eq!(wire.ask(id, datagram).errors, [0]);
    }
    assert_eq!(wire.datapath.executed.len(), 1, "a probe does nothing");
    assert_eq!(wire.datapath.executed[0].1.hash, Some(5));
}

#[test]
fn meters_are_as_ovs_tries_them_out() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 9));
    let ask = |command, message: &MeterMessage| {
        request(Family::Meter, command, 0, 1, |writer| message.encode(writer))
    };
    let meter = |id| MeterMessage {
        id: Some(id),
        is_kbps: true,
        bands: Some(vec![Band { kind: 1, rate: 100, burst: 10, stats: None }]),
        ..MeterMessage::default()
    };
    let told = |answers: &crate::wire::Answers| {
        answers.attrs(|datapath, attrs| MeterMessage::decode(datapath, attrs).expect("ours"))
    };
    for number in [54_545_401, 54_545_402] {
        assert_eq!(told(&wire.ask(id, ask(2, &meter(number))))[0].id, Some(number));
    }
    let got = told(&wire.ask(id, ask(4, &meter(54_545_402))));
    assert!(got[0].stats.is_some() && got[0].bands.as_ref().is_some_and(|bands| bands[0].stats.is_some()));
    assert!(told(&wire.ask(id, ask(3, &meter(54_545_401))))[0].stats.is_some());
    assert_eq!(wire.ask(id, ask(4, &meter(54_545_401))).errors, [ENOENT]);
    let features = told(&wire.ask(id, ask(1, &MeterMessage::default())));
    assert_eq!((features[0].bands_max, features[0].bands.as_ref().map(Vec::len)), (Some(1), Some(1)));
}

#[test]
fn commands_families_and_datapaths_that_are_not() {
    let mut wire = Wire::new();
    let id = wire.client();
    assert_eq!(wire.ask(id, request(Family::Datapath, 9, 0, 1, |_| {})).errors, [EOPNOTSUPP]);
    assert_eq!(wire.ask(id, flow_request(GET, DUMP, &FlowMessage::default())).errors, [ENODEV]);
    assert_eq!(
        wire.ask(id, request(Family::CtLimit, 3, 0, 0, |_| {})).errors,
        [EOPNOTSUPP],
        "no connection tracking"
    );
    let header = NetlinkHeader { kind: 0x77, flags: REQUEST, ..NetlinkHeader::default() };
    let unknown = message::encode_generic(header, 1, 1, |_| {}).expect("short");
    assert_eq!(wire.ask(id, unknown).errors, [ENOENT]);
}

#[test]
fn sentences_need_extended_acknowledgements() {
    let mut wire = Wire::new();
    let id = wire.client();
    wire.port_id(id);
    let text = |wire: &mut Wire| {
        wire.server.received(id, new_datapath("", 0), &mut wire.datapath).expect("in turn");
        let answer = wire.next(id).expect("an answer");
        wire.next(id);
        Messages::new(&answer).next().expect("a message").error_text()
    };
    assert_eq!(text(&mut wire), None);
    wire.server.received(id, number(LISTEN, 0, 1), &mut wire.datapath).expect("in turn");
    while wire.next(id).is_some() {}
    assert!(text(&mut wire).is_some_and(|text| text.contains("name")));
}

#[test]
fn the_hosts_own_connections_are_left_alone() {
    let mut wire = Wire::new();
    let id = wire.client_of(12);
    let ask = |kind, flags| {
        let header = NetlinkHeader { kind, flags: REQUEST | flags, ..NetlinkHeader::default() };
        message::encode(header, |writer| writer.raw(&[0; 4])).expect("short")
    };
    let answers = wire.ask(id, ask(0x101, DUMP | ACK));
    assert_eq!((answers.has_done, answers.objects.len()), (true, 0));
    assert_eq!(wire.ask(id, ask(0x102, ACK)).errors, [0], "nothing is left after flushing");
    assert_eq!(wire.ask(id, ask(0x800, ACK)).errors, [EINVAL], "a timeout policy without a name");
}

#[test]
fn ports_are_restored_except_those_without_a_device() {
    let mut before = Wire::new();
    let id = before.client();
    before.ask(id, new_datapath("ovs-system", 9));
    before.ask(id, new_port("vm1", None, vec![0]));
    before.ask(id, new_port("vm2", None, vec![0]));
    let mut after = Wire::new();
    after.datapath.devices = Some(["vm2".to_owned()].into());
    let missing = after.server.restore(before.server.records().clone(), &mut after.datapath);
    assert_eq!(missing, ["vm1"]);
    let id = after.client();
    let answers = after.ask(id, request(Family::Vport, GET, DUMP, 1, |_| {}));
    let names: Vec<_> = answers.ports().into_iter().map(|port| port.name.expect("told")).collect();
    assert_eq!(names, ["ovs-system", "vm2"]);
}

/// The handler comes back with its id; clients that come before it get others.
#[test]
fn port_ids_that_get_misses_are_kept_for_their_owners() {
    let mut before = Wire::new();
    let handlers: Vec<_> = (0..3).map(|_| before.client()).collect();
    let port_ids: Vec<u32> = handlers.iter().map(|id| before.port_id(*id)).collect();
    before.ask(handlers[0], new_datapath("ovs-system", 0));
    before.ask(handlers[0], new_port("vm1", None, port_ids.clone()));
    let mut after = Wire::new();
    after.server.restore(before.server.records().clone(), &mut after.datapath);
    for _ in 0..4 {
        let stranger = after.client();
        let given = after.port_id(stranger);
        assert!(!port_ids.contains(&given), "{given} is one of {port_ids:?}");
    }
}

#[test]
fn a_packet_that_cannot_be_read_is_told_of_by_its_hash() {
    /// `OVS_PACKET_CMD_EXECUTE`, `OVS_PACKET_ATTR_ACTIONS`.
    const EXECUTE: u8 = 3;
    const ACTIONS: u16 = 3;
    let mut wire = Wire::new();
    let id = wire.client();
    wire.ask(id, new_datapath("dp0", 0));
    let execute = |number, is_probe, actions: &[u8]| {
        let packet =
            PacketMessage { packet: vec![0; 60], hash: Some(7), is_probe, ..PacketMessage::default() };
        request(Family::Packet, EXECUTE, ACK, number, |writer| {
            packet.encode(writer);
            writer.put(ACTIONS, actions);
        })
    };
    for (number, is_probe, actions) in [(9, false, &[0xff; 9]), (1, true, &[0xff; 9])] {
        assert!(wire.ask(id, execute(number, is_probe, actions)).errors[0] != 0);
    }
    assert!(wire.datapath.not_executed.is_empty(), "a packet of no datapath, and none");
    assert_eq!(wire.ask(id, execute(1, false, &[0xff; 9])).errors, [EINVAL]);
    assert_eq!(wire.datapath.not_executed, [(DatapathId(1), 7)]);
    assert!(wire.datapath.executed.is_empty());
}
