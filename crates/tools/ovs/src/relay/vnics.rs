//! The vnics of interfaces: made before ovs-vswitchd sees the interface, removed after it is gone.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use log::{info, warn};
use serde_json::{Value, json};

use super::interfaces::{Reason, Vnics};
use super::wanted_interface::{Directories, Mode, Vnic, WantedInterface};
use lasthop_api::port::OVS_RELAY;
use lasthop_runtime::fault::{Fault, Kind};

/// As many as a switch has ports. A client of the database that adds more costs nothing but rows.
const WANTED_MAX: usize = 1023;
/// ovs-vswitchd has removed its port by then; if not, it finds the port gone.
const LEAVE: Duration = Duration::from_secs(1);
/// Pause between two tries.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between two looks whether the vnics are there: so long is a guest cut off if somebody removes its vnic.
const CHECK: Duration = Duration::from_secs(5);
/// The same after a look without an answer, for which ovs-vswitchd may have waited up to 10 s.
const CHECK_LATER: Duration = Duration::from_secs(60);
/// The name of the switch that ovs-vswitchd makes its datapath of.
const DATAPATH: &str = "ovs-system";

/// The key of a port's maker, which `lasthop apply` looks at.
const MADE_BY: &str = "made_by";

/// Asks the running switch: a method of its API, and the parameters.
pub type Ask<'a> = dyn Fn(&str, &Value) -> Result<Value, Fault> + 'a;

/// Settings of all vnics.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) directories: Directories,
    pub(super) queues: u16,
    /// Of sockets that the switch makes.
    pub(super) socket_group: Option<String>,
}

/// The vnics of one Open vSwitch.
pub(super) struct Guests<'a> {
    ask: &'a Ask<'a>,
    settings: Settings,
    /// Keeps `made` over restarts.
    record: PathBuf,
    /// Vnics that were made here. Others of the same settings are used, and never removed.
    made: BTreeMap<String, Vnic>,
    wanted: BTreeMap<String, Vnic>,
    /// Vnics of interfaces that are gone, and when they go.
    leaving: BTreeMap<String, Instant>,
    /// Wanted vnics that the switch did not give yet, with the reason.
    late: BTreeMap<String, String>,
    retry_at: Option<Instant>,
    /// When to look whether the wanted vnics are there; `None` without one.
    check_at: Option<Instant>,
    /// Whether the switch did not answer since the last try.
    is_down: bool,
}

impl<'a> Guests<'a> {
    pub(super) fn new(ask: &'a Ask<'a>, settings: Settings, record: PathBuf) -> Self {
        let made = read(&record);
        let (wanted, leaving, late) = Default::default();
        Self {
            ask,
            settings,
            record,
            made,
            wanted,
            leaving,
            late,
            retry_at: None,
            check_at: None,
            is_down: false,
        }
    }

    /// When [`Self::act`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.leaving.values().copied().chain(self.retry_at).chain(self.check_at).min()
    }

    /// Removes vnics that are due, tries again to make others, and looks whether the rest is there.
    pub(super) fn act(&mut self, now: Instant) {
        let due: Vec<String> =
            self.leaving.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.leaving.remove(&name);
            if let Err(fault) = self.remove(&name) {
                warn!("vnic {name} of a removed interface is still there: {fault}");
                self.leaving.insert(name, now + RETRY);
            }
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.make(&self.late.keys().cloned().collect::<Vec<_>>());
        }
        if self.check_at.is_some_and(|at| at <= now) {
            let pause = if self.check() { CHECK } else { CHECK_LATER };
            self.check_at = (!self.wanted.is_empty()).then(|| Instant::now() + pause);
        }
    }

    /// Makes vnics again that somebody removed. Returns whether the switch answered.
    fn check(&mut self) -> bool {
        // The supervisor answers this one by itself: an idle switch process sleeps on.
        let Ok(list) = (self.ask)("vlan.show", &json!({})) else { return false };
        let ports: HashSet<&str> =
            list["vnics"].as_array().into_iter().flatten().filter_map(|port| port["name"].as_str()).collect();
        let is_missing = |name: &&String| !ports.contains(name.as_str()) && !self.late.contains_key(*name);
        let missing: Vec<String> = self.wanted.keys().filter(is_missing).cloned().collect();
        for name in &missing {
            warn!("vnic {name} was removed, and its interface is still there: it is made again");
        }
        self.make_some(&missing);
        true
    }

    /// Makes all wanted vnics again: the switch was started anew, and may have none of them.
    pub(super) fn renew(&mut self) {
        self.make(&self.wanted.keys().cloned().collect::<Vec<_>>());
    }

    fn make(&mut self, names: &[String]) {
        (self.retry_at, self.is_down) = (None, false);
        self.make_some(names);
    }

    fn make_some(&mut self, names: &[String]) {
        for name in names {
            if let Some(vnic) = self.wanted.get(name).cloned() {
                // It is logged, and tried again if that may help.
                let _ = self.provide(&vnic);
            }
        }
    }

    /// Makes sure that there is the vnic. The same failure is logged once.
    fn provide(&mut self, vnic: &Vnic) -> Result<(), Reason> {
        let name = &vnic.name;
        let Err(fault) = self.found_or_made(vnic) else {
            self.late.remove(name);
            return Ok(());
        };
        let (text, is_final) = (fault.message, fault.kind == Kind::NameTaken);
        let told =
            if is_final { self.late.remove(name) } else { self.late.insert(name.clone(), text.clone()) };
        if told.as_ref() != Some(&text) {
            warn!("interface {name} has no vnic: {text}");
        }
        if !is_final {
            self.retry_at.get_or_insert(Instant::now() + RETRY);
        }
        Err(Reason { text, is_final })
    }

    fn found_or_made(&mut self, vnic: &Vnic) -> Result<(), Fault> {
        let name = &vnic.name;
        // It is not asked for each of many.
        if self.is_down {
            return Err(Fault::new(Kind::SwitchDown, "the switch did not answer; the vnic comes with it"));
        }
        let found = self.found(name);
        self.is_down = found.is_err();
        if let Some(found) = found? {
            if is_same(&found, vnic) {
                self.claim(&found, vnic);
                return Ok(());
            }
            if self.made.get(name).is_none_or(|made| !is_same(&found, made)) {
                return Err(Fault::new(
                    Kind::NameTaken,
                    format!(
                        "{name} is another port of the switch: remove that (lasthop port del {name}), or take another name"
                    ),
                ));
            }
            self.remove(name)?;
        }
        let switch = self.switch()?;
        let mut wanted = json!({"name": name, "backend": "vhost-user", "switch": switch, "queues": self.settings.queues,
            "mode": vnic.mode, "socket": vnic.socket, MADE_BY: OVS_RELAY});
        if let Some(group) = self.settings.socket_group.as_ref().filter(|_| vnic.mode == Mode::Listen) {
            wanted["socket_group"] = json!(group);
        }
        // Recorded first: a vnic that is not recorded would never be removed.
        self.made.insert(name.clone(), vnic.clone());
        self.write();
        if let Err(fault) = self.add(&mut wanted) {
            // It may have been made without an answer.
            if fault.kind != Kind::SwitchDown {
                self.made.remove(name);
                self.write();
            }
            return Err(fault);
        }
        info!("made vnic {name} for its interface; socket {}", vnic.socket.display());
        Ok(())
    }

    /// Adds a port. A switch of an earlier version does not know its maker.
    fn add(&self, port: &mut Value) -> Result<(), Fault> {
        let mut added = (self.ask)("port.add", port);
        if added.as_ref().is_err_and(|fault| fault.kind == Kind::Params && fault.message.contains(MADE_BY)) {
            port.as_object_mut().and_then(|keys| keys.remove(MADE_BY));
            added = (self.ask)("port.add", port);
        }
        added.map(drop)
    }

    /// Tells the switch the maker of a vnic that an earlier version made here.
    fn claim(&self, found: &Value, vnic: &Vnic) {
        let is_own = self.made.get(&vnic.name).is_some_and(|made| is_same(found, made));
        if is_own && found["settings"][MADE_BY].is_null() {
            // A switch of an earlier version refuses; the next start of the service is asked again.
            let _ = (self.ask)("port.set", &json!({"name": vnic.name, MADE_BY: OVS_RELAY}));
        }
    }

    fn found(&self, name: &str) -> Result<Option<Value>, Fault> {
        match (self.ask)("port.show", &json!({"name": name})) {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.kind == Kind::NoSuchVnic => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The switch whose vnics Open vSwitch can have.
    fn switch(&self) -> Result<String, Fault> {
        let list = (self.ask)("switch.list", &json!({}))?;
        let switches = list["switches"].as_array().cloned().unwrap_or_default();
        let is_external = |switch: &&Value| switch["controller"] == "external";
        let named = switches.iter().filter(is_external).find(|switch| switch["name"] == DATAPATH);
        let found = named.or_else(|| switches.iter().find(is_external));
        found.and_then(|switch| switch["name"].as_str()).map(str::to_owned).ok_or_else(|| {
            Fault::refused(format!(
                "no switch has an external controller: lasthop switch add {DATAPATH},module=flow,controller=external"
            ))
        })
    }

    /// Removes a vnic if it was made here and has not been changed since.
    fn remove(&mut self, name: &str) -> Result<(), Fault> {
        let Some(made) = self.made.get(name) else { return Ok(()) };
        if self.found(name)?.is_some_and(|found| is_same(&found, made)) {
            (self.ask)("port.del", &json!({"name": name}))?;
            info!("removed vnic {name}: its interface is gone");
        }
        self.made.remove(name);
        self.write();
        Ok(())
    }

    fn write(&self) {
        let made: Vec<&Vnic> = self.made.values().collect();
        let new = self.record.with_extension("new");
        let written =
            std::fs::write(&new, json!(made).to_string()).and_then(|()| std::fs::rename(&new, &self.record));
        if let Err(error) = written {
            let record = self.record.display();
            warn!("cannot write {record}: {error}; after a restart, vnics of removed interfaces stay");
        }
    }
}

impl Vnics for Guests<'_> {
    fn begin(&mut self) {
        self.wanted.clear();
        self.late.clear();
    }

    fn want(&mut self, wish: &WantedInterface) -> Result<(), Reason> {
        let vnic = self.settings.directories.vnic(wish);
        let vnic = vnic.and_then(|vnic| match self.wanted.len() {
            WANTED_MAX if !self.wanted.contains_key(&wish.name) => {
                Err(format!("there are {WANTED_MAX} vnics already, the most of a switch"))
            }
            _ => Ok(vnic),
        });
        let vnic = vnic.map_err(|text| {
            self.release(&wish.name);
            warn!("interface {} has no vnic: {text}", wish.name);
            Reason { text, is_final: true }
        })?;
        self.leaving.remove(&vnic.name);
        self.wanted.insert(vnic.name.clone(), vnic.clone());
        self.check_at.get_or_insert_with(|| Instant::now() + CHECK);
        self.provide(&vnic)
    }

    fn release(&mut self, name: &str) {
        self.wanted.remove(name);
        self.late.remove(name);
        if self.made.contains_key(name) {
            self.leaving.insert(name.to_owned(), Instant::now() + LEAVE);
        }
    }

    fn end(&mut self) {
        let gone: Vec<String> =
            self.made.keys().filter(|name| !self.wanted.contains_key(*name)).cloned().collect();
        for name in gone {
            self.release(&name);
        }
    }
}

/// Whether a port as `port.show` has it is this vnic.
fn is_same(found: &Value, vnic: &Vnic) -> bool {
    found["settings"]["backend"] == "vhost-user"
        && found["settings"]["mode"] == json!(vnic.mode)
        && found["socket"].as_str().is_some_and(|socket| Path::new(socket) == vnic.socket)
}

/// The vnics of a record; none without one.
fn read(record: &Path) -> BTreeMap<String, Vnic> {
    let text = std::fs::read(record).unwrap_or_default();
    let made: Vec<Vnic> = serde_json::from_slice(&text).unwrap_or_default();
    made.into_iter().map(|vnic| (vnic.name.clone(), vnic)).collect()
}

#[cfg(test)]
mod tests;
