//! Bridges of Open vSwitch with the VLANs of their ports, from its database (ovs-vswitchd.conf.db(5), tables Bridge and
//! Port).

use std::path::Path;

use lasthop_module_api::{Vid, VlanSet};
use serde::Deserialize;
use serde_json::Value;

use crate::programs::Database;

/// A port of a bridge: its name, and the frames that it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// The name, which is also that of the interface.
    pub name: String,
    /// The VLAN of untagged frames of an access port.
    pub access: Option<Vid>,
    /// The VLAN of untagged frames of a trunk.
    pub native: Option<Vid>,
    /// The VLANs of tagged frames; `None` for all.
    pub trunks: Option<VlanSet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bridge {
    name: String,
    ports: Vec<BridgePort>,
}

/// All bridges of one Open vSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridges {
    /// `ovs-vsctl`, with the option by which it finds this database.
    tool: String,
    bridges: Vec<Bridge>,
}

/// A port, and the other ports of its bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortNeighbours<'a> {
    /// The name of the bridge.
    pub bridge: &'a str,
    /// The port itself.
    pub port: &'a BridgePort,
    /// The others.
    pub others: Vec<&'a BridgePort>,
}

impl Bridges {
    /// The bridges of the Open vSwitch that controls the switch in `dir`; `None` if there is none, or its database does
    /// not answer.
    pub fn ask(dir: &Path) -> Option<Self> {
        let database = Database::find(dir, None)?;
        let mut words = vec!["--format=json", "--", "--columns=name,ports", "list", "Bridge"];
        words.extend(["--", "--columns=_uuid,name,tag,trunks,vlan_mode", "list", "Port"]);
        Self::read(database.tool(), &database.ask(&words)?)
    }

    /// Reads the output of `tool`: table Bridge on the first line, table Port on the second.
    pub fn read(tool: String, text: &str) -> Option<Self> {
        Some(Self { tool, bridges: parse(text)? })
    }

    /// The command that changes these bridges.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// The port of this name and those beside it; `None` if no bridge has one.
    pub fn around(&self, port: &str) -> Option<PortNeighbours<'_>> {
        self.bridges.iter().find_map(|bridge| {
            let (own, others) = bridge.ports.iter().partition::<Vec<_>, _>(|other| other.name == port);
            Some(PortNeighbours { bridge: &bridge.name, port: own.first()?, others })
        })
    }
}

/// A table as `ovs-vsctl --format=json` prints it.
#[derive(Debug, Deserialize)]
struct Table {
    headings: Vec<String>,
    data: Vec<Vec<Value>>,
}

impl Table {
    fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    fn cell<'a>(&self, row: &'a [Value], heading: &str) -> Option<&'a Value> {
        row.get(self.headings.iter().position(|name| name == heading)?)
    }

    /// A column's elements: the database prints a set with one element as that element (RFC 7047, 5.1).
    fn set<'a>(&self, row: &'a [Value], heading: &str) -> &'a [Value] {
        let Some(value) = self.cell(row, heading) else { return &[] };
        match value.as_array().map(Vec::as_slice) {
            Some([Value::String(kind), Value::Array(elements)]) if kind == "set" => elements,
            _ => std::slice::from_ref(value),
        }
    }
}

fn parse(text: &str) -> Option<Vec<Bridge>> {
    let mut tables = text.lines().map(Table::read);
    let (bridges, ports) = (tables.next()??, tables.next()??);
    let is_of = |ids: &[Value], row: &[Value]| ports.cell(row, "_uuid").is_some_and(|id| ids.contains(id));
    let bridge = |row: &Vec<Value>| {
        let ids = bridges.set(row, "ports");
        let own = ports.data.iter().filter(|row| is_of(ids, row)).filter_map(|row| port(&ports, row));
        Some(Bridge { name: bridges.cell(row, "name")?.as_str()?.to_owned(), ports: own.collect() })
    };
    bridges.data.iter().map(bridge).collect()
}

/// Reads a port's row, with the database's rules for a missing `vlan_mode`.
fn port(table: &Table, row: &[Value]) -> Option<BridgePort> {
    let vid = |value: &Value| Vid::try_from(u16::try_from(value.as_u64()?).ok()?).ok();
    let tag = table.set(row, "tag").first().and_then(vid);
    let mode = table.set(row, "vlan_mode").first().and_then(Value::as_str);
    let trunks = table.set(row, "trunks").iter().filter_map(vid).map(|vid| (vid, vid));
    let trunks = VlanSet::of(trunks).ok();
    let name = table.cell(row, "name")?.as_str()?.to_owned();
    Some(match mode {
        None | Some("access" | "dot1q-tunnel") if tag.is_some() => {
            BridgePort { name, access: tag, native: None, trunks: None }
        }
        Some("native-tagged" | "native-untagged") => BridgePort { name, access: None, native: tag, trunks },
        _ => BridgePort { name, access: None, native: None, trunks },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = concat!(
        r#"{"data":[["br0",["set",[["uuid","a"],["uuid","b"],["uuid","c"],["uuid","d"]]]],["br1",["uuid","e"]]],"headings":["name","ports"]}"#,
        "\n",
        r#"{"data":[[["uuid","a"],"br0",["set",[]],["set",[]],["set",[]]],[["uuid","b"],"vm1",10,["set",[]],["set",[]]],"#,
        r#"[["uuid","c"],"vm2",20,["set",[10,11]],"native-untagged"],[["uuid","d"],"vm3",["set",[]],7,["set",[]]],"#,
        r#"[["uuid","e"],"vm4",["set",[]],["set",[]],"trunk"]],"headings":["_uuid","name","tag","trunks","vlan_mode"]}"#,
        "\n"
    );

    fn vid(number: u16) -> Vid {
        Vid::try_from(number).expect("a VLAN")
    }

    #[test]
    fn ports_are_read_with_their_bridges_and_vlans() {
        let bridges = Bridges::read("ovs-vsctl".to_owned(), TEXT).expect("two tables");
        let around = bridges.around("vm1").expect("a port of br0");
        assert_eq!((around.bridge, around.port.access), ("br0", Some(vid(10))));
        let names: Vec<&str> = around.others.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["br0", "vm2", "vm3"]);
        let native = around.others[1];
        assert_eq!((native.access, native.native), (None, Some(vid(20))));
        assert_eq!(native.trunks, VlanSet::of([(vid(10), vid(11))]).ok());
        assert_eq!(around.others[2].trunks, VlanSet::of([(vid(7), vid(7))]).ok());
        assert_eq!(bridges.around("vm4").expect("alone in br1").others, Vec::<&BridgePort>::new());
        assert_eq!(bridges.around("vm5"), None);
    }

    #[test]
    fn other_output_is_no_bridges() {
        for text in
            ["", "{}", "ovs-vsctl: unix:/x: database connection failed", "{\"headings\":[],\"data\":[]}"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
