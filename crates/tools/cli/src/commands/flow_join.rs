//! `lasthop flow join`: two ports of a datapath get flows from each to the other, for all packets.

use std::path::Path;

use lasthop_dpif::client::{Client, ClientError};
use lasthop_dpif::family::{DatapathMessage, FlowMessage, VportKind, VportMessage};
use lasthop_flow::{Action, Ethernet, FlowKey, VLAN_PRESENT, Vlan};
use serde::Serialize;

use lasthop_api::rundir::datapath_socket;

/// EtherTypes of tags: a mask for frames without a tag does not match tagged ones.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// The joined ports.
#[derive(Debug, Serialize)]
pub(super) struct Joined {
    pub(super) datapath: String,
    pub(super) ports: [String; 2],
    /// Number of new flows.
    pub(super) flows: usize,
}

/// Makes the datapath and adds the ports if necessary.
pub(super) fn join(dir: &Path, name: &str, ports: [String; 2]) -> Result<Joined, ClientError> {
    let mut client = Client::connect(&datapath_socket(dir))?;
    let datapath = datapath(&mut client, name)?;
    let [one, other] = [port(&mut client, datapath, &ports[0])?, port(&mut client, datapath, &ports[1])?];
    let all: Vec<_> = flows(datapath, one, other).chain(flows(datapath, other, one)).collect();
    all.iter().try_for_each(|flow| client.flow_add(flow))?;
    Ok(Joined { datapath: name.to_owned(), ports, flows: all.len() })
}

fn datapath(client: &mut Client, name: &str) -> Result<i32, ClientError> {
    let all = client.datapaths()?;
    if let Some(found) = all.iter().find(|datapath| datapath.name.as_deref() == Some(name)) {
        return Ok(found.datapath);
    }
    let (name, upcall_port_id) = (Some(name.to_owned()), Some(0));
    let wanted = DatapathMessage { name, upcall_port_id, ..DatapathMessage::default() };
    Ok(client.datapath_put(&wanted, true)?.datapath)
}

fn port(client: &mut Client, datapath: i32, name: &str) -> Result<u32, ClientError> {
    let all = client.ports(datapath)?;
    let found = all.iter().find(|port| port.name.as_deref() == Some(name)).and_then(|port| port.number);
    if let Some(number) = found {
        return Ok(number);
    }
    let wanted = VportMessage {
        datapath,
        name: Some(name.to_owned()),
        kind: Some(VportKind::Netdev),
        upcall_port_ids: Some(vec![0]),
        ..VportMessage::default()
    };
    client.port_add(&wanted)?.number.ok_or(ClientError::WrongAnswer("making a port"))
}

/// The flows for frames from one port: without tags, and with each kind of one or two tags.
fn flows(datapath: i32, from: u32, to: u32) -> impl Iterator<Item = FlowMessage> {
    let pairs = TAGS.into_iter().flat_map(|outer| TAGS.map(|inner| vec![outer, inner]));
    let tags = [vec![]].into_iter().chain(TAGS.map(|outer| vec![outer])).chain(pairs);
    tags.map(move |tpids| {
        let vlan = |tpid| Vlan { tpid, tci: VLAN_PRESENT };
        let key = FlowKey {
            in_port: Some(from),
            ethernet: Some(Ethernet::default()),
            vlans: tpids.iter().copied().map(vlan).collect(),
            ..FlowKey::default()
        };
        let vlans = tpids.iter().map(|_| vlan(u16::MAX)).collect();
        let mask = FlowKey { in_port: Some(u32::MAX), vlans, ..FlowKey::default() };
        let actions = Some(vec![Action::Output(to)]);
        FlowMessage { datapath, key: Some(key), mask: Some(mask), actions, ..FlowMessage::default() }
    })
}
