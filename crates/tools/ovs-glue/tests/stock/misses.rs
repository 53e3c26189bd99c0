//! Upcalls to ovs-vswitchd: it has to recognize the packets, and the datapath has to take its flows and packets.

use std::collections::BTreeSet;
use std::time::Instant;

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder, PacketBuilderStep, VlanId,
};
use lasthop_dpif::family::PacketMessage;
use lasthop_dpif::server::{DatapathUpcall, UpcallKind};
use lasthop_flow::{
    Arp, Ethernet, FRAGMENT_NONE, FlowKey, Icmp, Ipv4, Ipv6, NeighbourDiscovery, Ports, VLAN_PRESENT, Vlan,
};
use lasthop_module_api::Mac;

use crate::daemon::{Daemon, PATIENCE, can_run};
use crate::rig::{FIRST, Rig, has_dpctl};

const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DST: [u8; 6] = [2, 0, 0, 0, 0, 2];
const V4: ([u8; 4], [u8; 4]) = ([10, 0, 0, 1], [10, 0, 0, 2]);
const V6: ([u8; 16], [u8; 16]) = ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]);
const VLAN: u16 = 7;
const START: &str = "recirc_id(0),in_port(2),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02)";
/// Number of p1 in the datapath, after the datapath's own port and br0.
const P1: u32 = 2;

fn ethernet() -> PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2(SRC, DST)
}

fn key(ether_type: u16) -> FlowKey {
    FlowKey {
        recirc_id: Some(0),
        dp_hash: Some(0),
        priority: Some(0),
        mark: Some(0),
        in_port: Some(P1),
        ethernet: Some(Ethernet { src: Mac(SRC), dst: Mac(DST) }),
        ether_type: Some(ether_type),
        ..FlowKey::default()
    }
}

fn v4(proto: u8) -> FlowKey {
    let (src, dst) = (V4.0.into(), V4.1.into());
    FlowKey { ipv4: Some(Ipv4 { src, dst, proto, tos: 0, ttl: 64, frag: FRAGMENT_NONE }), ..key(0x0800) }
}

fn v6(proto: u8) -> FlowKey {
    let (src, dst) = (V6.0.into(), V6.1.into());
    FlowKey { ipv6: Some(Ipv6 { src, dst, proto, hlimit: 64, ..Ipv6::default() }), ..key(0x86dd) }
}

const PORTS: Option<Ports> = Some(Ports { src: 1000, dst: 80 });

fn tcp() -> (FlowKey, Vec<u8>) {
    const SYN: u16 = 2;
    let mut packet = Vec::new();
    let builder = ethernet().ipv4(V4.0, V4.1, 64).tcp(1000, 80, 1, 1024).syn();
    builder.write(&mut packet, &[]).expect("a packet");
    (FlowKey { tcp: PORTS, tcp_flags: Some(SYN), ..v4(6) }, packet)
}

fn udp() -> (FlowKey, Vec<u8>) {
    let mut packet = Vec::new();
    ethernet().ipv4(V4.0, V4.1, 64).udp(1000, 80).write(&mut packet, &[1; 20]).expect("a packet");
    (FlowKey { udp: PORTS, ..v4(17) }, packet)
}

fn tagged() -> (FlowKey, Vec<u8>) {
    let mut packet = Vec::new();
    let builder = ethernet().single_vlan(VlanId::try_new(VLAN).expect("12 bits")).ipv4(V4.0, V4.1, 64);
    builder.udp(1000, 80).write(&mut packet, &[1; 20]).expect("a packet");
    let vlans = [Vlan { tpid: 0x8100, tci: VLAN | VLAN_PRESENT }].into_iter().collect();
    (FlowKey { udp: PORTS, vlans, ..v4(17) }, packet)
}

fn ping() -> (FlowKey, Vec<u8>) {
    let mut packet = Vec::new();
    ethernet().ipv4(V4.0, V4.1, 64).icmpv4_echo_request(1, 2).write(&mut packet, &[]).expect("a packet");
    (FlowKey { icmp: Some(Icmp { kind: 8, code: 0 }), ..v4(1) }, packet)
}

fn udp6() -> (FlowKey, Vec<u8>) {
    let mut packet = Vec::new();
    ethernet().ipv6(V6.0, V6.1, 64).udp(1000, 80).write(&mut packet, &[1; 20]).expect("a packet");
    (FlowKey { udp: PORTS, ..v6(17) }, packet)
}

fn solicitation() -> (FlowKey, Vec<u8>) {
    const TYPE: u8 = 135;
    let mut packet = Vec::new();
    let body = [[0xfe; 16].as_slice(), &[1, 1], &SRC].concat();
    let builder = ethernet().ipv6(V6.0, V6.1, 255).icmpv6_raw(TYPE, 0, [0; 4]);
    builder.write(&mut packet, &body).expect("a packet");
    let nd = NeighbourDiscovery { target: [0xfe; 16].into(), sll: Mac(SRC), tll: Mac([0; 6]) };
    let mut key = FlowKey { icmpv6: Some(Icmp { kind: TYPE, code: 0 }), nd: Some(nd), ..v6(58) };
    key.ipv6.as_mut().expect("it has one").hlimit = 255;
    (key, packet)
}

fn arp() -> (FlowKey, Vec<u8>) {
    let operation = ArpOperation::REQUEST;
    let request =
        ArpPacket::new(ArpHardwareId::ETHERNET, EtherType::IPV4, operation, &SRC, &V4.0, &[0; 6], &V4.1);
    let mut packet = Vec::new();
    ethernet().arp(request.expect("short addresses")).write(&mut packet).expect("a packet");
    let arp = Arp { sip: V4.0.into(), tip: V4.1.into(), op: 1, sha: Mac(SRC), tha: Mac([0; 6]) };
    (FlowKey { arp: Some(arp), ..key(0x0806) }, packet)
}

fn miss((key, packet): (FlowKey, Vec<u8>), hash: u64) -> DatapathUpcall {
    let message =
        PacketMessage { datapath: FIRST.0, packet, key, hash: Some(hash), ..PacketMessage::default() };
    DatapathUpcall { kind: UpcallKind::Miss, port: P1, worker: 1, message }
}

#[test]
fn packets_become_flows_and_come_back() {
    if !has_dpctl() || !can_run() {
        return;
    }
    let mut rig = Rig::new();
    let daemon = Daemon::start(&rig);
    daemon.vsctl(&["add-br", "br0"]);
    daemon.vsctl(&["add-port", "br0", "p1"]);
    daemon.vsctl(&["add-port", "br0", "p2"]);
    daemon.expect_ports(&["ovs-system", "br0", "p1", "p2"]);
    let packets = [tcp(), udp(), tagged(), ping(), udp6(), solicitation(), arp()];
    // A learning switch matches only address, tag and protocol.
    let expected: BTreeSet<String> = [
        "eth_type(0x0800),ipv4(frag=no)",
        "eth_type(0x8100),vlan(vid=7),encap(eth_type(0x0800),ipv4(frag=no))",
        "eth_type(0x86dd),ipv6(frag=no)",
        "eth_type(0x0806)",
    ]
    .iter()
    .map(|tail| format!("{START},{tail}, packets:0, bytes:0, used:never, actions:1,3"))
    .collect();
    for (hash, packet) in (1..).zip(packets.clone()) {
        rig.miss(miss(packet, hash));
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let flows = daemon.appctl(&["dpctl/dump-flows", "system@ovs-system"]);
        if flows.lines().map(str::to_owned).collect::<BTreeSet<_>>() == expected {
            assert_eq!(flows.lines().count(), expected.len(), "none is there twice: {flows}");
            break;
        }
        assert!(Instant::now() < deadline, "{flows}");
    }
    drop(daemon);
    let (_, datapath) = rig.end();
    let mut hashes: Vec<_> = datapath.executed.iter().filter_map(|(_, execute)| execute.hash).collect();
    hashes.sort_unstable();
    assert_eq!(
        hashes,
        (1..=packets.len() as u64).collect::<Vec<_>>(),
        "each packet comes back, with its hash"
    );
    for (_, execute) in &datapath.executed {
        assert!(packets.iter().any(|(_, packet)| *packet == execute.packet), "as it was");
    }
}

/// Packets of one address pair that come before its flow make flows with the same match, of which all but one are refused. The
/// threads that answer upcalls do not wait for that: OVS has to hear of it, since it would keep the others for installed.
#[test]
fn refused_flows_are_forgotten_by_ovs() {
    if !has_dpctl() || !can_run() {
        return;
    }
    const PACKETS: u16 = 40;
    let rig = Rig::new();
    let daemon = Daemon::start(&rig);
    daemon.vsctl(&["add-br", "br0"]);
    daemon.vsctl(&["add-port", "br0", "p1"]);
    daemon.vsctl(&["add-port", "br0", "p2"]);
    daemon.expect_ports(&["ovs-system", "br0", "p1", "p2"]);
    for src in 0..PACKETS {
        let mut packet = Vec::new();
        ethernet().ipv4(V4.0, V4.1, 64).udp(src, 80).write(&mut packet, &[1; 20]).expect("a packet");
        let key = FlowKey { udp: Some(Ports { src, dst: 80 }), ..v4(17) };
        rig.miss(miss((key, packet), u64::from(src) + 1));
    }
    // OVS's flows and those of the datapath.
    let counts = || {
        let shown = daemon.appctl(&["upcall/show"]);
        let keys =
            shown.split("(keys ").skip(1).filter_map(|rest| rest.split(')').next()?.parse::<usize>().ok());
        let flows = daemon.appctl(&["dpctl/dump-flows", "system@ovs-system"]).lines().count();
        (keys.sum::<usize>(), flows)
    };
    let deadline = Instant::now() + PATIENCE;
    while counts() != (1, 1) {
        assert!(Instant::now() < deadline, "keys and flows: {:?}", counts());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
