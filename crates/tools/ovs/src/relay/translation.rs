//! The messages between ovs-vswitchd and its database: the few columns that differ for the two.
//!
//! To ovs-vswitchd, interfaces of OVS-DPDK's vhost-user types are of type `system`, and bridges with the userspace datapath have the
//! system's. To the database, ovs-vswitchd has these types and that datapath. Messages without such columns pass as they are.

use serde_json::{Map, Value, json};

use super::interfaces::{Interfaces, Vnics};
use super::value::{elements, texts, with, without};
use super::wanted_interface::TYPES;

/// The database, and the table of the same name.
const DATABASE: &str = "Open_vSwitch";
const USERSPACE: &str = "netdev";
/// Requests for tables of which the answer is awaited. ovs-vswitchd has at most three.
const MONITORS_MAX: usize = 16;
/// `monitor_cond_since` with this transaction asks for the whole database: after a connect, only that tells all rows.
const NO_TRANSACTION: &str = "00000000-0000-0000-0000-000000000000";

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Translation {
    /// Ids and methods of requests for the tables.
    monitors: Vec<(Value, String)>,
    interfaces: Interfaces,
}

/// Changes by row, in the notation of `update` (RFC 7047) or of `update2` (ovsdb-server(7)).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    Update,
    Update2,
}

impl Translation {
    /// A message of ovs-vswitchd, if it changes.
    pub(super) fn of_daemon(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let words: [&[u8]; 3] = [b"\"monitor", b"\"error\"", b"_types\""];
        if !words.iter().any(|word| contains(message, word)) {
            return None;
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        let method = message.get("method")?.as_str()?.to_owned();
        let id = message.get("id").cloned();
        let params = message.get_mut("params")?.as_array_mut()?;
        if params.first()? != DATABASE {
            return None;
        }
        let is_changed = match method.as_str() {
            "transact" => params.iter_mut().skip(1).fold(false, |is, operation| self.written(operation) | is),
            "monitor" | "monitor_cond" | "monitor_cond_since" => self.monitored(method, id?, params),
            _ => false,
        };
        is_changed.then(|| message.to_string().into_bytes())
    }

    fn monitored(&mut self, method: String, id: Value, params: &mut [Value]) -> bool {
        if params.get(2).is_none_or(|tables| tables.get("Interface").is_none()) {
            return false;
        }
        if self.monitors.len() == MONITORS_MAX {
            self.monitors.remove(0);
        }
        let is_since = method == "monitor_cond_since";
        self.monitors.push((id, method));
        match params.get_mut(3).filter(|_| is_since) {
            Some(last) => std::mem::replace(last, json!(NO_TRANSACTION)) != NO_TRANSACTION,
            None => false,
        }
    }

    /// An operation of a transaction (RFC 7047, 5.2).
    fn written(&self, operation: &mut Value) -> bool {
        let table = operation.get("table").and_then(Value::as_str).unwrap_or_default().to_owned();
        let id = operation.pointer("/where/0/2/1").and_then(Value::as_str).map(str::to_owned);
        let Some(row) = operation.get_mut("row").and_then(Value::as_object_mut) else { return false };
        match table.as_str() {
            DATABASE => {
                let types = replace(row, "iface_types", |value| with(value, &TYPES));
                replace(row, "datapath_types", |value| with(value, &[USERSPACE])) | types
            }
            "Interface" => {
                let Some(fault) = id.and_then(|id| self.interfaces.fault(&id)) else { return false };
                // An empty set is no error.
                replace(row, "error", |error| if error.is_string() { json!(fault) } else { error.clone() })
            }
            _ => false,
        }
    }

    /// A message of the database's server, if it changes. The vnics of new interfaces are made before this returns.
    pub(super) fn of_server(&mut self, message: &[u8], vnics: &mut dyn Vnics) -> Option<Vec<u8>> {
        let words: [&[u8]; 3] = [b"\"Interface\"", b"\"Bridge\"", b"\"Open_vSwitch\""];
        if self.monitors.is_empty() && !words.iter().any(|word| contains(message, word)) {
            return None;
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        let is_changed = match message.get("method").and_then(Value::as_str) {
            Some("update") => self.changed(message.pointer_mut("/params/1")?, Notation::Update, vnics),
            Some("update2") => self.changed(message.pointer_mut("/params/1")?, Notation::Update2, vnics),
            Some("update3") => self.changed(message.pointer_mut("/params/2")?, Notation::Update2, vnics),
            Some(_) => false,
            None => self.answered(&mut message, vnics),
        };
        is_changed.then(|| message.to_string().into_bytes())
    }

    fn answered(&mut self, message: &mut Value, vnics: &mut dyn Vnics) -> bool {
        let is_answered = |(id, _): &(Value, String)| message.get("id") == Some(id);
        let Some(index) = self.monitors.iter().position(is_answered) else { return false };
        let (_, method) = self.monitors.remove(index);
        if message.get("error").is_some_and(|error| !error.is_null()) {
            return false;
        }
        let (path, notation) = match method.as_str() {
            "monitor" => ("/result", Notation::Update),
            "monitor_cond" => ("/result", Notation::Update2),
            _ => ("/result/2", Notation::Update2),
        };
        let Some(tables) = message.pointer_mut(path) else { return false };
        self.interfaces.clear();
        vnics.begin();
        let is_changed = self.changed(tables, notation, vnics);
        vnics.end();
        is_changed
    }

    /// Changes of tables.
    fn changed(&mut self, tables: &mut Value, notation: Notation, vnics: &mut dyn Vnics) -> bool {
        let mut is_changed = false;
        // Its `vhost-sock-dir` concerns interfaces of the same message.
        for (_, kind, row) in rows(tables, DATABASE, notation) {
            is_changed |= self.root(kind, row);
        }
        for (_, _, row) in rows(tables, "Bridge", notation) {
            is_changed |= bridge(row);
        }
        let gone = deleted(tables, "Interface");
        // A new row may have the name of one that goes.
        for id in &gone {
            self.interfaces.deleted(id, vnics);
        }
        for (id, kind, row) in rows(tables, "Interface", notation) {
            is_changed |= match kind {
                Kind::Whole => self.interfaces.inserted(id, row, vnics),
                Kind::Difference => self.interfaces.modified(id, row, vnics),
            };
        }
        is_changed
    }

    /// The row of the table Open_vSwitch. ovs-vswitchd is told of no more types than it wrote.
    fn root(&mut self, kind: Kind, row: &mut Map<String, Value>) -> bool {
        let key = "vhost-sock-dir";
        let mut told = texts(row.get("other_config"));
        let dir = &mut self.interfaces.socket_dir;
        match (kind, told.remove(key)) {
            (Kind::Whole, value) => *dir = value,
            // The difference has the old value of a key that goes.
            (Kind::Difference, Some(value)) => *dir = (dir.as_ref() != Some(&value)).then_some(value),
            (Kind::Difference, None) => {}
        }
        replace(row, "iface_types", |value| without(value, &TYPES))
    }
}

/// The form of a row: all columns, or the differences of changed ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Difference,
}

type Row<'a> = (&'a str, Kind, &'a mut Map<String, Value>);

/// The rows of a table that are new or changed, with their UUIDs.
fn rows<'a>(tables: &'a mut Value, table: &str, notation: Notation) -> impl Iterator<Item = Row<'a>> {
    let keys: &[_] = match notation {
        Notation::Update => &[("new", Kind::Whole)],
        Notation::Update2 => {
            &[("initial", Kind::Whole), ("insert", Kind::Whole), ("modify", Kind::Difference)]
        }
    };
    let rows = tables.get_mut(table).and_then(Value::as_object_mut).into_iter().flatten();
    rows.filter_map(move |(id, update)| {
        let update = update.as_object_mut()?;
        let (key, kind) = keys.iter().copied().find(|(key, _)| update.contains_key(*key))?;
        Some((id.as_str(), kind, update.get_mut(key)?.as_object_mut()?))
    })
}

/// The UUIDs of rows that go.
fn deleted(tables: &Value, table: &str) -> Vec<String> {
    let is_gone = |update: &Value| {
        update.get("delete").is_some() || update.get("old").is_some() && update.get("new").is_none()
    };
    let rows = tables.get(table).and_then(Value::as_object).into_iter().flatten();
    rows.filter(|(_, update)| is_gone(update)).map(|(id, _)| id.clone()).collect()
}

/// A row of table Bridge. The system's datapath is the default.
fn bridge(row: &mut Map<String, Value>) -> bool {
    let column = "datapath_type";
    if row.get(column).is_none_or(|value| elements(value) != [USERSPACE]) {
        return false;
    }
    row.insert(column.into(), json!(""));
    true
}

/// Replaces a column; whether it is there and other than before.
fn replace(row: &mut Map<String, Value>, column: &str, change: impl FnOnce(&Value) -> Value) -> bool {
    let Some(value) = row.get_mut(column) else { return false };
    let new = change(value);
    let is_changed = elements(&new) != elements(value);
    if is_changed {
        *value = new;
    }
    is_changed
}

fn contains(message: &[u8], word: &[u8]) -> bool {
    message.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests;
