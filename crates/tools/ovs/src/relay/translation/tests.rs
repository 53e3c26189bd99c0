use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::interfaces::Reason;
use super::super::value::{Texts, apply, map};
use super::super::wanted_interface::WantedInterface;
use super::*;

/// Vnics without a switch: names that begin with `late` come later, those with `no` never.
#[derive(Debug, Default)]
struct WantedVnics {
    told: BTreeMap<String, WantedInterface>,
    asked: usize,
}

impl Vnics for WantedVnics {
    fn begin(&mut self) {
        self.told.clear();
    }

    fn want(&mut self, wish: &WantedInterface) -> Result<(), Reason> {
        self.asked += 1;
        self.told.insert(wish.name.clone(), wish.clone());
        let is_final = wish.name.starts_with("no");
        let text = format!("reason of {}", wish.name);
        if is_final || wish.name.starts_with("late") { Err(Reason { text, is_final }) } else { Ok(()) }
    }

    fn release(&mut self, name: &str) {
        assert!(self.told.remove(name).is_some(), "{name} was wanted");
    }

    fn end(&mut self) {}
}

/// A connection, and its messages as values. Unchanged ones come back as they are.
#[derive(Default)]
struct Line {
    translation: Translation,
    wanted: WantedVnics,
}

impl Line {
    /// A connection whose tables have been asked for.
    fn asked(method: &str) -> Self {
        let mut line = Self::default();
        let tables = json!({"Interface": [{"columns": ["name", "type", "options"]}], "Bridge": [{}]});
        let last = "7b2e4a1c-0000-4000-8000-000000000001";
        let sent = line
            .up(&json!({"id": 4, "method": method, "params": [DATABASE, ["monid", DATABASE], tables, last]}));
        let is_since = method == "monitor_cond_since";
        assert_eq!(sent["params"][3], if is_since { NO_TRANSACTION } else { last });
        line
    }

    fn up(&mut self, message: &Value) -> Value {
        let bytes = message.to_string().into_bytes();
        let changed = self.translation.of_daemon(&bytes).unwrap_or(bytes);
        serde_json::from_slice(&changed).expect("JSON")
    }

    fn down(&mut self, message: &Value) -> Value {
        let bytes = message.to_string().into_bytes();
        let changed = self.translation.of_server(&bytes, &mut self.wanted).unwrap_or(bytes);
        serde_json::from_slice(&changed).expect("JSON")
    }

    /// Changes of table Interface.
    fn interfaces(&mut self, rows: &Value) -> Value {
        self.tables(&json!({"Interface": rows}))["Interface"].take()
    }

    fn tables(&mut self, tables: &Value) -> Value {
        self.down(&json!({"id": null, "method": "update2", "params": [["monid", DATABASE], tables]}))["params"][1].take()
    }

    fn transact(&mut self, operation: &Value) -> Value {
        self.up(&json!({"id": 9, "method": "transact", "params": [DATABASE, operation]}))["params"][1].take()
    }
}

fn client(name: &str) -> Value {
    json!({"name": name, "type": TYPES[1], "options": ["map", [["vhost-server-path", "/s"]]], "mtu_request": 1450})
}

#[test]
fn each_reply_and_notification_shows_the_system_s_type() {
    let tables = json!({
        "Interface": {"i1": {"initial": client("vm1")}, "i2": {"initial": {"name": "eth1"}}},
        "Bridge": {"b1": {"initial": {"name": "br0", "datapath_type": "netdev"}}, "b2": {"initial": {"name": "br1"}}},
    });
    let shown = json!({
        "Interface": {"i1": {"initial": {"name": "vm1", "type": "system", "mtu_request": 1450}}, "i2": {"initial": {"name": "eth1"}}},
        "Bridge": {"b1": {"initial": {"name": "br0", "datapath_type": ""}}, "b2": {"initial": {"name": "br1"}}},
    });
    let reply = |result: Value| json!({"id": 4, "error": null, "result": result});
    let mut line = Line::asked("monitor_cond_since");
    let got = line.down(&reply(json!([false, "t1", tables])));
    assert_eq!(got, reply(json!([false, "t1", shown])));
    assert_eq!(line.wanted.told["vm1"].options["vhost-server-path"], "/s");
    assert_eq!(Line::asked("monitor_cond").down(&reply(tables.clone())), reply(shown.clone()));
    let update3 = |tables: &Value| json!({"id": null, "method": "update3", "params": [["monid", DATABASE], "t2", tables]});
    assert_eq!(Line::asked("monitor").down(&update3(&tables)), update3(&shown));
    let whole = |kind: &str, options: Value| json!({"Interface": {"i1": {"new": {"name": "vm1", "type": kind, "options": options}}}});
    let got = Line::asked("monitor").down(&reply(whole(TYPES[0], json!(["map", []]))));
    assert_eq!(got["result"]["Interface"]["i1"]["new"], json!({"name": "vm1", "type": "system"}));
}

#[test]
fn a_reply_with_an_error_or_to_another_request_changes_nothing() {
    let mut line = Line::asked("monitor_cond_since");
    let tables = json!({"Interface": {"i1": {"initial": client("vm1")}}});
    for message in [
        json!({"id": 5, "error": null, "result": [false, "t1", tables]}),
        json!({"id": 4, "error": {"error": "unknown method"}, "result": null}),
        json!({"id": 4, "error": null, "result": [false, "t1", tables]}),
    ] {
        assert_eq!(line.down(&message), message);
    }
    assert_eq!(line.wanted.asked, 0);
}

#[test]
fn changes_of_options_and_types_are_shown_as_differences() {
    let mut line = Line::asked("monitor_cond");
    line.interfaces(&json!({"i1": {"insert": client("vm1")}}));
    // The map's difference has the new value of a key that changes.
    let moved = line.interfaces(
        &json!({"i1": {"modify": {"options": ["map", [["vhost-server-path", "/t"]]], "mtu": 9000}}}),
    );
    assert_eq!(moved, json!({"i1": {"modify": {"mtu": 9000}}}));
    assert_eq!(line.wanted.told["vm1"].options["vhost-server-path"], "/t");
    let other = line.interfaces(&json!({"i1": {"modify": {"type": "vxlan"}}}));
    assert_eq!(
        other,
        json!({"i1": {"modify": {"type": "vxlan", "options": ["map", [["vhost-server-path", "/t"]]]}}})
    );
    assert!(line.wanted.told.is_empty(), "it is no vnic any more");
    let back = line.interfaces(&json!({"i1": {"modify": {"type": TYPES[0]}}}));
    assert_eq!(
        back,
        json!({"i1": {"modify": {"type": "system", "options": ["map", [["vhost-server-path", "/t"]]]}}})
    );
    let asked = line.wanted.asked;
    let counters = json!({"i1": {"modify": {"statistics": ["map", [["rx_packets", 5]]]}}});
    assert_eq!(line.interfaces(&counters), counters);
    assert_eq!(line.wanted.asked, asked, "counters ask for nothing");
    assert_eq!(line.interfaces(&json!({"i1": {"delete": null}})), json!({"i1": {"delete": null}}));
    assert!(line.wanted.told.is_empty());
}

#[test]
fn a_name_that_goes_and_comes_in_one_message_is_wanted() {
    let mut line = Line::asked("monitor_cond");
    line.interfaces(&json!({"i9": {"insert": client("vm1")}}));
    line.interfaces(&json!({"i1": {"insert": client("vm1")}, "i9": {"delete": null}}));
    assert_eq!(line.wanted.told.len(), 1);
}

#[test]
fn an_impossible_interface_keeps_its_type_and_has_the_reason_as_its_error() {
    let mut line = Line::asked("monitor_cond");
    let rows = json!({"i1": {"insert": client("no1")}});
    assert_eq!(line.interfaces(&rows), rows);
    let late = line.interfaces(&json!({"i2": {"insert": client("late1")}}));
    assert_eq!(late["i2"]["insert"]["type"], "system", "it comes when the switch has it");
    let write = |id: &str, error: Value| json!({"op": "update", "table": "Interface", "where": [["_uuid", "==", ["uuid", id]]], "row": {"error": error}});
    for (id, name) in [("i1", "no1"), ("i2", "late1")] {
        let written = line.transact(&write(id, json!("could not open network device")));
        assert_eq!(written, write(id, json!(format!("reason of {name}"))));
    }
    for unchanged in [write("i1", json!(["set", []])), write("i3", json!("could not open network device"))] {
        assert_eq!(line.transact(&unchanged), unchanged);
    }
}

#[test]
fn the_database_is_told_of_types_that_ovs_vswitchd_lacks() {
    let mut line = Line::asked("monitor_cond");
    let write = |ifaces: Value, datapaths: Value| json!({"op": "update", "table": DATABASE, "where": [], "row": {"iface_types": ifaces, "datapath_types": datapaths}});
    let written = line.transact(&write(json!(["set", ["internal", "system"]]), json!("system")));
    let types = json!(["set", ["internal", "system", TYPES[0], TYPES[1]]]);
    assert_eq!(written, write(types.clone(), json!(["set", ["system", "netdev"]])));
    let told = line.tables(&json!({DATABASE: {"o": {"modify": {"iface_types": types}}}}));
    assert_eq!(told[DATABASE]["o"]["modify"]["iface_types"], json!(["set", ["internal", "system"]]));
}

#[test]
fn the_directory_of_sockets_holds_for_later_interfaces() {
    let mut line = Line::asked("monitor_cond");
    let config =
        |kind: &str, dir: &str| json!({"o": {kind: {"other_config": ["map", [["vhost-sock-dir", dir]]]}}});
    line.tables(&json!({"Interface": {"i1": {"initial": client("vm1")}}, DATABASE: config("initial", "a")}));
    assert_eq!(line.wanted.told["vm1"].socket_dir.as_deref(), Some("a"));
    for (name, wanted) in [("vm2", Some("b")), ("vm3", None)] {
        line.tables(&json!({DATABASE: config("modify", "b")}));
        line.interfaces(&json!({name: {"insert": client(name)}}));
        assert_eq!(line.wanted.told[name].socket_dir.as_deref(), wanted);
    }
}

#[test]
fn rows_of_update_are_judged_when_they_change() {
    let mut line = Line::asked("monitor");
    let update = |new: &Value| json!({"id": null, "method": "update", "params": [null, {"Interface": {"i1": {"old": {"statistics": ["map", []]}, "new": new}}}]});
    for _ in 0..3 {
        let shown = line.down(&update(&client("vm1")));
        assert_eq!(
            shown["params"][1]["Interface"]["i1"]["new"],
            json!({"name": "vm1", "type": "system", "mtu_request": 1450})
        );
    }
    assert_eq!(line.wanted.asked, 1);
    line.down(&json!({"id": null, "method": "update", "params": [null, {"Interface": {"i1": {"old": client("vm1")}}}]}));
    assert!(line.wanted.told.is_empty());
}

#[test]
fn other_messages_pass_byte_by_byte() {
    let mut line = Line::asked("monitor_cond");
    for text in [
        r#"{"id":"echo","method":"echo","params":[]}"#,
        r#"{"id":1,"method":"transact","params":["_Server",{"op":"update","table":"Interface","row":{"error":"x"},"where":[]}]}"#,
        r#"{"id":null,"method":"update2","params":[["monid","Open_vSwitch"],{"Bridge":{"b":{"modify":{"status":["map",[]]}}}}]}"#,
        r#"{"id":1,"result":[{"rows":[{"Interface":"\u0041"}]}],"error":null}"#,
        r#"{"Interface":"monitor","method":"transact","params":"x"}"#,
    ] {
        assert_eq!(line.translation.of_daemon(text.as_bytes()), None, "{text}");
        assert_eq!(line.translation.of_server(text.as_bytes(), &mut line.wanted), None, "{text}");
    }
}

/// A row as ovs-vswitchd builds it from messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    kind: String,
    options: Texts,
}

impl Seen {
    fn whole(row: &Value) -> Self {
        Self { kind: row["type"].as_str().unwrap_or_default().into(), options: texts(row.get("options")) }
    }

    fn change(&mut self, row: &Value) {
        if let Some(kind) = row["type"].as_str() {
            self.kind = kind.into();
        }
        apply(&mut self.options, texts(row.get("options")));
    }
}

fn state() -> impl Strategy<Value = (usize, Texts)> {
    (0..4usize, prop::collection::btree_map("[ab]", "[xy]", 0..3))
}

proptest! {
    /// However a row changes, ovs-vswitchd has its real columns, or the type `system` without options.
    #[test]
    fn ovs_vswitchd_sees_each_state_of_a_row(
        name in prop::sample::select(vec!["vm1", "no1", "late1"]),
        states in prop::collection::vec(state(), 1..8),
    ) {
        let kinds = ["", "vxlan", TYPES[0], TYPES[1]];
        let mut line = Line::asked("monitor_cond");
        let (mut real, mut seen) = (Seen::default(), Seen::default());
        for (index, (kind, options)) in states.into_iter().enumerate() {
            let now = Seen { kind: kinds[kind].into(), options };
            if index == 0 {
                let told = line.interfaces(&json!({"i": {"insert": {"name": name, "type": now.kind, "options": map(&now.options)}}}));
                seen = Seen::whole(&told["i"]["insert"]);
            } else {
                let mut row = serde_json::Map::new();
                if now.kind != real.kind {
                    row.insert("type".into(), json!(now.kind));
                }
                let difference = super::super::value::difference(&real.options, &now.options);
                if !difference.is_empty() {
                    row.insert("options".into(), map(&difference));
                }
                let told = line.interfaces(&json!({"i": {"modify": row}}));
                seen.change(&told["i"]["modify"]);
            }
            let is_ours = TYPES.contains(&now.kind.as_str());
            let is_vnic = is_ours && name != "no1";
            let wanted = if is_vnic { Seen { kind: "system".into(), options: Texts::new() } } else { now.clone() };
            prop_assert_eq!(&seen, &wanted);
            prop_assert_eq!(line.wanted.told.contains_key(name), is_ours);
            real = now;
        }
    }
}
