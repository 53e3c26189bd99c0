//! `lasthop conntrack`: the connections that datapaths track, over the datapath socket as controllers use it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Subcommand;
use lasthop_dpif::Connection;
use lasthop_dpif::client::{Client, ClientError};
use serde::Serialize;

use super::ask::ApiRequest;
use super::flow::failed_client;
use lasthop_api::rundir::datapath_socket;
use lasthop_api::silence::is_vain;
use lasthop_runtime::fault::Fault;

/// `IPS_SRC_NAT`, `IPS_DST_NAT`, `IPS_ASSURED` of nf_conntrack.
const SRC_NAT: u32 = 0x10;
const DST_NAT: u32 = 0x20;
const ASSURED: u32 = 4;

#[derive(Debug, Subcommand)]
pub(super) enum ConntrackCommand {
    /// Show connections of all switches, one line each, as ovs-dpctl dump-conntrack prints them
    List {
        #[command(flatten)]
        which: Which,
    },
    /// End connections of all switches: their next packets begin new ones, or are decided on anew
    Flush {
        /// Those of this zone
        #[arg(long, value_name = "NUMBER", required_unless_present = "all", conflicts_with = "all")]
        zone: Option<u16>,
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// Count connections, by zone, protocol and state
    Stats {
        #[command(flatten)]
        which: Which,
    },
}

/// Selects connections.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Which {
    /// Only those of this zone
    #[arg(long, value_name = "NUMBER")]
    zone: Option<u16>,
    /// Only those from or to this address, before or after translation
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
}

/// A connection, for `--json`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ConnectionReport {
    protocol: String,
    original: TupleReport,
    reply: TupleReport,
    zone: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    mark: u32,
    /// In hexadecimal, like ovs-ofctl.
    labels: String,
    /// Seconds until it expires without a packet.
    left_s: u32,
    packets: [u64; 2],
    bytes: [u64; 2],
    assured: bool,
    source_nat: bool,
    destination_nat: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    helper: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct TupleReport {
    source: IpAddr,
    destination: IpAddr,
    /// Source port, or ICMP identifier.
    source_port: u16,
    /// Destination port, or ICMP type and code.
    destination_port: u16,
}

#[derive(Debug, Serialize)]
struct ConnectionList {
    connections: Vec<ConnectionReport>,
}

/// The number of connections of a zone, a protocol and a state.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct ConnectionCounts {
    connections: usize,
    by_zone: BTreeMap<u16, usize>,
    by_protocol: BTreeMap<String, usize>,
    by_state: BTreeMap<String, usize>,
}

impl ApiRequest {
    pub(super) fn conntrack(&self, command: ConntrackCommand) -> Result<ExitCode, Fault> {
        match command {
            ConntrackCommand::List { which } => {
                let connections = self.connections(which)?;
                let reports = connections.iter().map(report).collect();
                self.show(&ConnectionList { connections: reports }, |_| lines(&connections))
            }
            ConntrackCommand::Stats { which } => self.show(&count(&self.connections(which)?), text),
            ConntrackCommand::Flush { zone, .. } => {
                let flushed = self.netfilter().and_then(|mut client| client.connections_flush(zone));
                flushed.map_err(|error| failed_client(&self.dir, error))?;
                self.show(&serde_json::json!({}), |_| match zone {
                    Some(zone) => format!("ended all connections of zone {zone}"),
                    None => "ended all connections".to_owned(),
                })
            }
        }
    }

    fn netfilter(&self) -> Result<Client, ClientError> {
        Client::connect_netfilter(&datapath_socket(&self.dir), is_vain)
    }

    fn connections(&self, which: Which) -> Result<Vec<Connection>, Fault> {
        let all = self.netfilter().and_then(|mut client| client.connections(which.zone));
        let mut all = all.map_err(|error| failed_client(&self.dir, error))?;
        all.retain(|connection| which.address.is_none_or(|address| has_address(connection, address)));
        Ok(all)
    }
}

fn has_address(connection: &Connection, wanted: IpAddr) -> bool {
    let tuples = [&connection.original, &connection.reply];
    tuples.iter().any(|tuple| [tuple.src, tuple.dst].iter().any(|one| one.to_ip(tuple.l3()) == wanted))
}

fn report(connection: &Connection) -> ConnectionReport {
    let [original, reply] = [&connection.original, &connection.reply].map(|tuple| TupleReport {
        source: tuple.src.to_ip(tuple.l3()),
        destination: tuple.dst.to_ip(tuple.l3()),
        source_port: tuple.src_port,
        destination_port: tuple.dst_port,
    });
    ConnectionReport {
        protocol: connection.protocol(),
        original,
        reply,
        zone: connection.original.zone,
        state: connection.state_name(),
        mark: connection.mark,
        labels: format!("{:#x}", u128::from_le_bytes(connection.labels)),
        left_s: connection.left_s,
        packets: connection.packets,
        bytes: connection.bytes,
        assured: connection.status & ASSURED != 0,
        source_nat: connection.status & SRC_NAT != 0,
        destination_nat: connection.status & DST_NAT != 0,
        helper: connection.helper.clone(),
    }
}

fn lines(connections: &[Connection]) -> String {
    let mut text = String::new();
    connections.iter().for_each(|connection| text += &format!("{connection}\n"));
    text
}

fn count(connections: &[Connection]) -> ConnectionCounts {
    let mut counts = ConnectionCounts { connections: connections.len(), ..ConnectionCounts::default() };
    for connection in connections {
        *counts.by_zone.entry(connection.original.zone).or_default() += 1;
        *counts.by_protocol.entry(connection.protocol()).or_default() += 1;
        if let Some(state) = connection.state_name() {
            *counts.by_state.entry(format!("{} {state}", connection.protocol())).or_default() += 1;
        }
    }
    counts
}

fn text(counts: &ConnectionCounts) -> String {
    let mut text = format!("connections  {}\n", counts.connections);
    let mut line = |name: String, count: &usize| text += &format!("{name}  {count}\n");
    counts.by_zone.iter().for_each(|(zone, count)| line(format!("zone {zone}"), count));
    counts.by_protocol.iter().for_each(|(protocol, count)| line(protocol.clone(), count));
    counts.by_state.iter().for_each(|(state, count)| line(state.clone(), count));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(zone: u16, port: u16, state: Option<u8>) -> Connection {
        let at = |last: u8| IpAddr::from([10, 0, 0, last]).into();
        let proto = if state.is_some() { 6 } else { 17 };
        let original = lasthop_dpif::ConnectionTuple {
            src: at(1),
            dst: at(2),
            src_port: port,
            dst_port: 80,
            zone,
            proto,
            is_ipv6: false,
        };
        Connection {
            original,
            reply: original.inverse().expect("it has replies"),
            status: SRC_NAT,
            left_s: 30,
            mark: 5,
            labels: [0; 16],
            packets: [1, 2],
            bytes: [60, 120],
            state,
            helper: None,
        }
    }

    #[test]
    fn a_line_is_what_ovs_dpctl_prints() {
        let line = lines(&[connection(9, 1000, Some(3))]);
        let tuple = "src=10.0.0.1,dst=10.0.0.2,sport=1000,dport=80";
        let reply = "src=10.0.0.2,dst=10.0.0.1,sport=80,dport=1000";
        let wanted =
            format!("tcp,orig=({tuple}),reply=({reply}),zone=9,mark=5,protoinfo=(state=ESTABLISHED)\n");
        assert_eq!(line, wanted);
    }

    #[test]
    fn json_and_counts_tell_zones_and_states() {
        let all = [connection(9, 1, Some(3)), connection(9, 2, Some(1)), connection(0, 3, None)];
        let counts = count(&all);
        assert_eq!((counts.connections, counts.by_zone[&9], counts.by_protocol["udp"]), (3, 2, 1));
        assert_eq!(counts.by_state["tcp SYN_SENT"], 1);
        let value = serde_json::to_value(report(&all[0])).expect("serializable");
        assert_eq!((&value["original"]["source"], &value["source_nat"]), (&"10.0.0.1".into(), &true.into()));
        assert!(has_address(&all[0], IpAddr::from([10, 0, 0, 2])));
        assert!(!has_address(&all[0], IpAddr::from([10, 0, 0, 3])));
    }
}
