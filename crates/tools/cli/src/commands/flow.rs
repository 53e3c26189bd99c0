//! `lasthop flow`: shows the flows of datapaths, and joins two ports, over the datapath socket as controllers use it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use lasthop_api::modules::FLOW;
use lasthop_api::names;
use lasthop_api::rundir::datapath_socket;
use lasthop_api::silence::{PATIENCE, is_vain, no_answer};
use lasthop_dpif::client::{Client, ClientError};
use lasthop_dpif::family::{DatapathMessage, FlowMessage, VportKind, VportMessage};
use lasthop_dpif::format;
use lasthop_dpif::format::Style;
use lasthop_flow::{Action, Ethernet, FlowKey, VLAN_PRESENT, Vlan};
use lasthop_runtime::clock;
use lasthop_runtime::fault::{Fault, Kind};
use serde::Serialize;
use serde_json::{Value, json};

use crate::commands::ask::ApiRequest;
use crate::commands::client::{ask, unreachable};

#[derive(Debug, Subcommand)]
pub(super) enum FlowCommand {
    /// Show flows with match, counters and actions, one line each, as ovs-dpctl dump-flows prints them
    Show {
        /// Only flows of this datapath [default: all]
        #[arg(long, value_name = "NAME")]
        datapath: Option<String>,
        /// Show wildcarded fields, too, and names of flows
        #[arg(short, long)]
        more: bool,
        /// Show ports by name, not by number
        #[arg(long)]
        names: bool,
    },
    /// Join two ports by flows that match all their packets; only for a switch with controller=none, since flows have no
    /// priorities
    Join {
        /// A vnic or port, of a switch of module flow
        one: String,
        /// The other one
        other: String,
        /// Their datapath; created if missing
        #[arg(long, value_name = "NAME", default_value = "default")]
        datapath: String,
    },
}

/// A flow, for `--json`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct FlowReport {
    datapath: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ufid: Option<String>,
    #[serde(rename = "match")]
    matching: String,
    actions: String,
    packets: u64,
    bytes: u64,
    /// Milliseconds since its last packet; missing if it had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_ago_ms: Option<u64>,
    tcp_flags: u16,
}

#[derive(Debug, Serialize)]
struct FlowList {
    flows: Vec<FlowReport>,
}

/// The form of the output.
#[derive(Clone, Copy, Debug)]
struct Shown {
    more: bool,
    names: bool,
}

/// A datapath with its flows.
#[derive(Debug)]
struct Table {
    name: String,
    ports: BTreeMap<u32, String>,
    flows: Vec<FlowMessage>,
}

impl ApiRequest {
    pub(super) fn flow(&self, command: FlowCommand) -> Result<ExitCode, Fault> {
        let (datapath, more, names) = match command {
            FlowCommand::Show { datapath, more, names } => (datapath, more, names),
            FlowCommand::Join { one, other, datapath } => {
                self.refuse_embedded(&datapath)?;
                let joined = join(&self.dir, &datapath, [one, other])
                    .map_err(|error| failed(&self.dir, error.into()))?;
                return self.show(&joined, |joined| {
                    format!("joined {} and {} by {} flows", joined.ports[0], joined.ports[1], joined.flows)
                });
            }
        };
        let shown = Shown { more, names };
        let tables = tables(&self.dir, datapath.as_deref()).map_err(|error| failed(&self.dir, error))?;
        let now_ms = clock::now_ms();
        if self.json {
            let flows = tables.iter().flat_map(|table| table.reports(shown, now_ms)).collect();
            return self.show(&FlowList { flows }, |_| String::new());
        }
        self.show(&(), |()| text(&tables, shown, now_ms))
    }
}

impl ApiRequest {
    /// Refuses a switch with the embedded controller, whose flows would conflict with these.
    fn refuse_embedded(&self, switch: &str) -> Result<(), Fault> {
        let config: Value = ask(&self.dir, "config.show", &json!({}))?;
        let others = config["switches"].as_array().into_iter().flatten();
        let named = others.into_iter().find(|other| other["name"] == switch);
        let settings = named.or((switch == "default").then_some(&config));
        let is_embedded = |settings: &Value| {
            settings["module"].as_str().is_none_or(|module| module == FLOW)
                && settings["controller"].as_str().is_none_or(|controller| controller == "embedded")
        };
        if !settings.is_some_and(is_embedded) {
            return Ok(());
        }
        Err(Fault::refused(format!(
            "switch {switch} has the embedded controller, whose flows would go before or behind these as it happens; first: \
             lasthop switch set {switch} controller=none"
        )))
    }
}

/// Why there are no flows to show.
#[derive(Debug)]
enum Failure {
    Client(ClientError),
    NoDatapath(Fault),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

fn tables(dir: &Path, wanted: Option<&str>) -> Result<Vec<Table>, Failure> {
    let mut client = Client::connect_unless(&datapath_socket(dir), is_vain)?;
    let all = client.datapaths()?;
    let chosen = choose(all, wanted).map_err(Failure::NoDatapath)?;
    chosen.into_iter().map(|datapath| Ok(table(&mut client, datapath)?)).collect()
}

fn choose(all: Vec<DatapathMessage>, wanted: Option<&str>) -> Result<Vec<DatapathMessage>, Fault> {
    let Some(wanted) = wanted else { return Ok(all) };
    let there: Vec<String> = all.iter().filter_map(|datapath| datapath.name.clone()).collect();
    let chosen: Vec<_> =
        all.into_iter().filter(|datapath| datapath.name.as_deref() == Some(wanted)).collect();
    if chosen.is_empty() {
        let hint = names::hint(wanted, there.iter().map(String::as_str));
        let known = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Err(Fault::params(format!("there is no datapath \"{wanted}\"{hint} (there are: {known})")));
    }
    Ok(chosen)
}

fn table(client: &mut Client, datapath: DatapathMessage) -> Result<Table, ClientError> {
    let ports = client.ports(datapath.datapath)?;
    let ports = ports.into_iter().filter_map(|port| Some((port.number?, port.name?))).collect();
    let flows = client.flows(datapath.datapath)?;
    Ok(Table { name: datapath.name.unwrap_or_default(), ports, flows })
}

impl Table {
    fn name_of(&self, port: u32, shown: Shown) -> Option<String> {
        self.ports.get(&port).filter(|_| shown.names).cloned()
    }

    fn lines(&self, shown: Shown, now_ms: u64) -> impl Iterator<Item = String> {
        self.flows.iter().map(move |flow| {
            let names = |port| self.name_of(port, shown);
            format::flow(flow, now_ms, Style { is_verbose: shown.more, names: &names })
        })
    }

    fn reports(&self, shown: Shown, now_ms: u64) -> impl Iterator<Item = FlowReport> {
        self.flows.iter().map(move |flow| {
            let names = |port| self.name_of(port, shown);
            let style = Style { is_verbose: shown.more, names: &names };
            let stats = flow.stats.unwrap_or_default();
            let key = flow.key.as_ref().map(|key| format::key(key, flow.mask.as_ref(), style));
            FlowReport {
                datapath: self.name.clone(),
                ufid: flow.ufid.map(format::ufid),
                matching: key.unwrap_or_default(),
                actions: format::actions(flow.actions.as_deref().unwrap_or_default(), style),
                packets: stats.packets,
                bytes: stats.bytes,
                used_ago_ms: (stats.used_ms != 0).then(|| now_ms.saturating_sub(stats.used_ms)),
                tcp_flags: stats.tcp_flags,
            }
        })
    }
}

/// Prints flows of a single datapath without its name, like ovs-dpctl.
fn text(tables: &[Table], shown: Shown, now_ms: u64) -> String {
    let mut text = String::new();
    for table in tables {
        if tables.len() > 1 {
            text += &format!("{}:\n", table.name);
        }
        table.lines(shown, now_ms).for_each(|line| text += &format!("{line}\n"));
    }
    if tables.is_empty() { "no datapath: no switch here has the module \"flow\"".to_owned() } else { text }
}

fn failed(dir: &Path, failure: Failure) -> Fault {
    match failure {
        Failure::NoDatapath(fault) => fault,
        Failure::Client(error) => failed_client(dir, error),
    }
}

/// Why the datapath socket did not answer.
pub(super) fn failed_client(dir: &Path, error: ClientError) -> Fault {
    match error {
        ClientError::Late => no_answer(dir, PATIENCE),
        ClientError::Io(error) => unreachable(dir, &datapath_socket(dir), &error),
        ClientError::HungUp => {
            Fault::new(Kind::SwitchDown, "the switch closed the connection without an answer; see its log")
        }
        error => Fault::new(Kind::Internal, format!("cannot ask the datapath: {error}")),
    }
}

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
    let mut client = Client::connect_unless(&datapath_socket(dir), is_vain)?;
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
    Ok(client.datapath_add(&wanted)?.datapath)
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

#[cfg(test)]
mod tests {
    use lasthop_flow::{Action, FlowKey, FlowStats};

    use super::*;

    const BY_NUMBER: Shown = Shown { more: false, names: false };
    const BY_NAME: Shown = Shown { more: false, names: true };

    fn datapath(name: &str) -> DatapathMessage {
        DatapathMessage { name: Some(name.to_owned()), ..DatapathMessage::default() }
    }

    fn example() -> Table {
        let stats = FlowStats { packets: 3, bytes: 180, used_ms: 4000, tcp_flags: 0x12 };
        let flow = FlowMessage {
            key: Some(FlowKey { in_port: Some(2), ..FlowKey::default() }),
            actions: Some(vec![Action::Output(1)]),
            stats: Some(stats),
            ..FlowMessage::default()
        };
        let ports = BTreeMap::from([(1, "vm1".to_owned()), (2, "vm2".to_owned())]);
        Table { name: "default".to_owned(), ports, flows: vec![flow] }
    }

    #[test]
    fn a_line_is_what_ovs_dpctl_prints() {
        let by_number = text(&[example()], BY_NUMBER, 5500);
        assert!(by_number.contains("in_port(2)"), "{by_number}");
        let end = "packets:3, bytes:180, used:1.500s, flags:S., actions:1\n";
        assert!(by_number.ends_with(end), "{by_number}");
        let by_name = text(&[example()], BY_NAME, 5500);
        assert!(by_name.contains("in_port(vm2)") && by_name.ends_with("actions:vm1\n"), "{by_name}");
    }

    #[test]
    fn several_datapaths_are_told_apart() {
        let both = [example(), Table { name: "red".to_owned(), ..example() }];
        let text = text(&both, BY_NUMBER, 0);
        let heads: Vec<_> = text.lines().filter(|line| line.ends_with(':')).collect();
        assert_eq!(heads, ["default:", "red:"]);
    }

    #[test]
    fn json_has_what_the_line_has() {
        let reports: Vec<_> = example().reports(BY_NAME, 5500).collect();
        let value = serde_json::to_value(&reports).expect("serializable");
        assert_eq!(value[0]["match"], "in_port(vm2)");
        assert_eq!((&value[0]["used_ago_ms"], &value[0]["packets"]), (&1500.into(), &3.into()));
    }

    #[test]
    fn a_wrong_name_is_answered_with_those_that_there_are() {
        let error = choose(vec![datapath("default"), datapath("red")], Some("defualt")).expect_err("no such");
        assert!(error.to_string().contains("did you mean \"default\""), "{error}");
        assert_eq!(choose(vec![datapath("red")], Some("red")).expect("there").len(), 1);
    }
}
