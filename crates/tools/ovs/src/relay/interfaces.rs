//! Rows of table Interface: how they are, and how ovs-vswitchd sees them.

use std::collections::HashMap;

use log::warn;
use serde_json::{Map, Value, json};

use super::value::{Texts, apply, difference, map, texts};
use super::wanted_interface::{TYPES, WantedInterface};

/// A datapath has no more ports. Rows beyond it pass unchanged, and ovs-vswitchd refuses their types.
const INTERFACES_MAX: usize = 65_535;
/// The type of interfaces that are vnics.
const SYSTEM: &str = "system";

/// Why an interface has no vnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    /// A sentence with the remedy.
    pub(super) text: String,
    /// Whether only a change of the interface helps.
    pub(super) is_final: bool,
}

/// Makes and removes vnics.
pub(super) trait Vnics {
    /// The whole table follows.
    fn begin(&mut self);
    /// An interface wants a vnic of these settings, in the place of an earlier wish of the same name.
    fn want(&mut self, wish: &WantedInterface) -> Result<(), Reason>;
    /// The interface of this name wants no vnic any more.
    fn release(&mut self, name: &str);
    /// The whole table has come.
    fn end(&mut self);
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Interface {
    name: String,
    kind: String,
    options: Texts,
    /// Whether ovs-vswitchd sees it as a vnic's.
    is_vnic: bool,
    /// For the column `error`.
    fault: Option<String>,
}

impl Interface {
    /// `None` if the row lacks the name: that column was not asked for.
    fn of(row: &Map<String, Value>) -> Option<Self> {
        let kind = row.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = row.get("name")?.as_str()?.to_owned();
        Some(Self { name, kind, options: texts(row.get("options")), ..Self::default() })
    }

    fn is_ours(&self) -> bool {
        TYPES.contains(&self.kind.as_str())
    }

    /// The type and the options that ovs-vswitchd sees.
    fn seen(&self) -> (&str, Texts) {
        if self.is_vnic { (SYSTEM, Texts::new()) } else { (&self.kind, self.options.clone()) }
    }

    fn classify(&mut self, socket_dir: Option<&String>, vnics: &mut dyn Vnics) {
        (self.is_vnic, self.fault) = (false, None);
        if !self.is_ours() {
            return;
        }
        let wish = WantedInterface {
            name: self.name.clone(),
            kind: self.kind.clone(),
            options: self.options.clone(),
            socket_dir: socket_dir.cloned(),
        };
        let reason = vnics.want(&wish).err();
        self.is_vnic = reason.as_ref().is_none_or(|reason| !reason.is_final);
        self.fault = reason.map(|reason| reason.text);
    }
}

/// The rows by their UUIDs. Functions that take a row return whether they changed it.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    rows: HashMap<String, Interface>,
    /// `other_config:vhost-sock-dir`.
    pub(super) socket_dir: Option<String>,
}

impl Interfaces {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// A new row. Columns with default values may be missing.
    pub(super) fn inserted(&mut self, id: &str, row: &mut Map<String, Value>, vnics: &mut dyn Vnics) -> bool {
        let Some(mut interface) = Interface::of(row) else { return false };
        match self.rows.get(id) {
            // `update` repeats the whole row when its counters change.
            Some(before) if before.kind == interface.kind && before.options == interface.options => {
                interface = before.clone();
            }
            None if self.rows.len() == INTERFACES_MAX => {
                warn!("interface {}: no more than {INTERFACES_MAX} are looked at", interface.name);
                return false;
            }
            before => {
                let was_ours = before.is_some_and(Interface::is_ours);
                interface.classify(self.socket_dir.as_ref(), vnics);
                if was_ours && !interface.is_ours() {
                    vnics.release(&interface.name);
                }
            }
        }
        let is_vnic = interface.is_vnic;
        if is_vnic {
            row.insert("type".into(), json!(SYSTEM));
            row.remove("options");
        }
        self.rows.insert(id.to_owned(), interface);
        is_vnic
    }

    /// The differences of a row, as `update2` and `update3` have them.
    pub(super) fn modified(&mut self, id: &str, row: &mut Map<String, Value>, vnics: &mut dyn Vnics) -> bool {
        let Some(interface) = self.rows.get_mut(id) else { return false };
        let before = interface.clone();
        if let Some(kind) = row.get("type").and_then(Value::as_str) {
            kind.clone_into(&mut interface.kind);
        }
        apply(&mut interface.options, texts(row.get("options")));
        if interface.kind == before.kind && interface.options == before.options {
            return false;
        }
        if !interface.is_ours() && !before.is_ours() {
            return false;
        }
        interface.classify(self.socket_dir.as_ref(), vnics);
        if before.is_ours() && !interface.is_ours() {
            vnics.release(&interface.name);
        }
        let ((old_kind, old_options), (kind, options)) = (before.seen(), interface.seen());
        let difference = difference(&old_options, &options);
        row.remove("type");
        row.remove("options");
        if kind != old_kind {
            row.insert("type".into(), json!(kind));
        }
        if !difference.is_empty() {
            row.insert("options".into(), map(&difference));
        }
        true
    }

    pub(super) fn deleted(&mut self, id: &str, vnics: &mut dyn Vnics) {
        if let Some(interface) = self.rows.remove(id).filter(Interface::is_ours) {
            vnics.release(&interface.name);
        }
    }

    /// Why the interface with this UUID has no vnic.
    pub(super) fn fault(&self, id: &str) -> Option<&str> {
        self.rows.get(id)?.fault.as_deref()
    }
}
