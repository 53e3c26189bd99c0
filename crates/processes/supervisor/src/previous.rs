//! Merges the state that the last supervisor left with the settings of file and flags.
//!
//! ```text
//!   running then ─┐                        a port that neither the former nor the present file names was added by hand, and stays
//!   told then ────┼─► wanted ─► plan ─►    unchanged, changed: continues with its guest
//!   told today ───┘                        removed, or another vnic now: its guest is disconnected
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use lasthop_foreign::Origin;
use log::{info, warn};
use rustix::net::{Shutdown, shutdown};
use serde::de::DeserializeOwned;
use serde_json::Value;

use lasthop_api::fdb::StaticEntry;
use lasthop_api::orders::STATE_VERSION;
use lasthop_api::port::{self, Name, PortSpec};
use lasthop_api::report::ConfigReport;
use lasthop_api::switches;
use lasthop_children::{await_end, is_process};
use lasthop_config::plan::{Plan, Step};
use lasthop_fd_store::{Inherited, RecordKey, SavedGuestSession};
use lasthop_listeners::ListenSocket;
use lasthop_port_counters::LifetimeCounters;
use lasthop_runtime::fault::Fault;

use super::flows::KeptFlows;
use super::port::Port;
use super::ports::Ports;
use super::records::{ConfiguredNames, HeadRecord, PortRecord, RECORD_VERSION};
use super::switch_table::SwitchTable;
use super::{Outputs, RunSettings, Supervisor};

/// The last supervisor's state.
#[derive(Debug)]
pub(super) struct PreviousState {
    head: HeadRecord,
    ports: BTreeMap<u32, PortRecord>,
}

impl PreviousState {
    /// Reads the state that came; `None` if none did. State that cannot be continued is dropped and logged. The last
    /// switch process has ended by then: two must never serve the same guest, nor move frames between the same devices.
    pub(super) fn read(inherited: &Inherited) -> Result<Option<Self>, Fault> {
        if inherited.is_empty() {
            return Ok(None);
        }
        match Self::try_read(inherited) {
            Ok(previous) => previous.await_end_of_switch(inherited).map(|()| Some(previous)),
            Err(why) => {
                warn!("the last supervisor's state cannot be continued: {why}; guests have to connect again");
                shut_all(inherited);
                // Without valid records it is unknown which of them is the switch process.
                inherited.all().filter(|fd| is_process(fd)).try_for_each(await_end)?;
                Ok(None)
            }
        }
    }

    fn try_read(inherited: &Inherited) -> Result<Self, String> {
        let head = inherited.head().ok_or("its first part is missing")?;
        Self::of_records(head, inherited.ports())
    }

    fn of_records<'a>(head: &[u8], ports: impl Iterator<Item = (u32, &'a [u8])>) -> Result<Self, String> {
        let version = |key: &str| serde_json::from_slice::<Value>(head).ok()?.get(key)?.as_u64();
        let theirs = [version("version"), version("state")].map(Option::unwrap_or_default);
        let ours = [RECORD_VERSION, STATE_VERSION];
        if theirs != ours {
            let text = |[records, state]: [u64; 2]| format!("{records}.{state}");
            return Err(format!("it is of version {}, and this lasthop knows {}", text(theirs), text(ours)));
        }
        let ports = ports.map(|(number, text)| Ok((number, parse::<PortRecord>(text)?.with_maker())));
        Ok(Self { head: parse(head)?, ports: ports.collect::<Result<_, String>>()? })
    }

    fn await_end_of_switch(&self, inherited: &Inherited) -> Result<(), Fault> {
        let process = self.head.process.and_then(|process| inherited.find(&process));
        process.map_or(Ok(()), |process| await_end(&process))
    }

    /// The control socket, if its file still exists.
    pub(super) fn control(&self, inherited: &Inherited, path: &Path) -> Option<ListenSocket> {
        let listening = self.head.control.as_ref()?;
        ListenSocket::of_kept(inherited.find(&listening.socket)?, path, listening.file)
    }

    fn running(&self, dir: &Path) -> ConfigReport {
        ConfigReport {
            switches: self.head.switches.clone(),
            ports: self.ports.values().map(|port| port.spec().clone().without_default_socket(dir)).collect(),
            fdb: self.head.fdb.clone(),
            acl: self.head.acl.clone(),
            ..ConfigReport::default()
        }
    }

    /// Adds the ports and switches to `settings` that were added by hand and are possible beside them.
    fn add_by_hand(&self, settings: &mut RunSettings) {
        let ConfiguredNames { switches, ports, fdb, acl } = &self.head.configured;
        for switch in self.head.switches.iter().filter(|switch| !switches.contains(&switch.name)) {
            settings.switches.push(switch.clone());
            if switches::check_all(&settings.switches).is_err() {
                settings.switches.pop();
            }
        }
        for port in self.ports.values().map(PortRecord::spec).filter(|port| !ports.contains(port.name())) {
            if settings.has_room_for(port) {
                settings.ports.push(port.clone());
            }
        }
        for entry in self.head.fdb.iter().filter(|entry| !fdb.contains(entry)) {
            let is_same = |other: &StaticEntry| (other.mac, other.vlan) == (entry.mac, entry.vlan);
            if settings.has_port(&entry.port) && !settings.fdb.iter().any(is_same) {
                settings.fdb.push(entry.clone());
            }
        }
        // Rules are ordered, so the lists are not merged: the list that changed is used, or the file's if both did.
        if self.head.acl != *acl && settings.acl == *acl {
            settings.acl.clone_from(&self.head.acl);
        } else if self.head.acl != settings.acl {
            info!("the rules of the file are new: they replace those that were there");
        }
    }
}

impl RunSettings {
    /// The names in file and flags.
    pub(super) fn configured(&self) -> ConfiguredNames {
        let switches = self.switches.iter().filter(|switch| !switch.name.is_default());
        ConfiguredNames {
            switches: switches.map(|switch| switch.name.clone()).collect(),
            ports: self.ports.iter().map(|port| port.name().clone()).collect(),
            fdb: self.fdb.clone(),
            acl: self.acl.clone(),
        }
    }

    fn has_port(&self, name: &Name) -> bool {
        self.ports.iter().any(|port| port.name() == name)
    }

    /// Whether a port that they do not name may stay: its switch exists, and no other port has its name, socket or
    /// device.
    fn has_room_for(&self, port: &PortSpec) -> bool {
        let path = port.socket_in(&self.dir);
        let has_socket = |other: &PortSpec| {
            port.is_vhost_user() && other.is_vhost_user() && other.socket_in(&self.dir) == path
        };
        self.switches.iter().any(|switch| switch.name == port.common.switch)
            && !self.has_port(port.name())
            && !self.ports.iter().any(has_socket)
            && port::check_beside(port, &self.ports).is_ok()
    }

    fn wanted(&self) -> ConfigReport {
        let switches = self.switches.iter().filter(|switch| !switch.name.is_default());
        let ports = self.ports.iter().map(|port| port.clone().without_default_socket(&self.dir));
        ConfigReport {
            switches: switches.cloned().collect(),
            ports: ports.collect(),
            fdb: self.fdb.clone(),
            acl: self.acl.clone(),
            ..ConfigReport::default()
        }
    }
}

impl Supervisor {
    /// Continues the last supervisor's state as far as `settings` have it, and adds the ports to them that were added
    /// by hand.
    pub(super) fn inherit(
        &mut self,
        previous: PreviousState,
        settings: &mut RunSettings,
        inherited: &Inherited,
    ) -> Result<(), Fault> {
        let PreviousState { head, ports } = previous;
        let (requested, ports) = ports.into_iter().partition(|(_, port)| port.is_requested);
        let previous = PreviousState { head, ports };
        let requested: BTreeMap<u32, PortRecord> = requested;
        requested.into_iter().for_each(|(number, port)| self.ports.let_go(number, port, inherited));
        let running = previous.running(&settings.dir);
        previous.add_by_hand(settings);
        self.switches.all.clone_from(&settings.switches);
        self.datapaths.told.clone_from(&previous.head.datapaths);
        let flows = previous.head.flows.and_then(|flows| inherited.find(&flows));
        self.datapaths.flows = flows.map(|flows| KeptFlows::of_kept(flows.into_trusted()));
        let plan = Plan::new(&running, &settings.wanted());
        let pid = previous.head.pid;
        for (number, record) in previous.ports {
            let is_kept = record.spec().is_vhost_user() && !goes(&plan, record.spec().name());
            match settings.ports.iter().position(|port| is_kept && port.name() == record.spec().name()) {
                Some(at) => {
                    let spec = settings.ports.remove(at);
                    self.ports.inherit_port(
                        number,
                        record,
                        spec,
                        (inherited, &self.switches),
                        &mut self.out,
                    )?;
                }
                None => self.ports.let_go(number, record, inherited),
            }
        }
        let guests = self.ports.sessions.saved.len();
        info!("continues where process {pid} ended, with {guests} guests{}", plan_text(&plan));
        Ok(())
    }
}

impl Ports {
    fn inherit_port(
        &mut self,
        number: u32,
        record: PortRecord,
        spec: PortSpec,
        (inherited, switches): (&Inherited, &SwitchTable),
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let PortRecord { spec: before, listening, saved_session, book, past, since_ms, leases, .. } = record;
        let kept = listening.and_then(|kept| Some((inherited.find(&kept.socket)?, kept.file)));
        let mut port = Port::go_on(spec, &self.table.dir, kept)?;
        port.set_access(&before.0, &port.spec)?;
        port.kept_leases = leases;
        if let Some(book) = book.and_then(|book| inherited.find(&book)) {
            self.counters
                .by_port
                .insert(number, LifetimeCounters::of_kept(book.into_trusted(), &past, since_ms));
        }
        if let Some(record) = saved_session {
            match SavedGuestSession::of_kept(
                record,
                inherited,
                &port.arrears.begin(),
                port.spec.common.queues,
            ) {
                Some(saved_session) => {
                    port.attached(saved_session.attachment(), Instant::now());
                    port.meet(saved_session.connection());
                    self.sessions.inherit(number, saved_session);
                }
                None => {
                    warn!(port:% = port.spec.common.name; "port {}: its guest is gone, or has to connect again", port.spec.common.name)
                }
            }
        }
        self.table.note_number(number);
        self.table.all.insert(number, port);
        out.store.is_late(RecordKey::Port(number));
        self.table.make_placeholder(number, switches, &out.poller);
        Ok(())
    }

    /// Removes a port, or replaces it by another one: its guest is disconnected. Device ports start over, except for
    /// their counters.
    fn let_go(&mut self, number: u32, record: PortRecord, inherited: &Inherited) {
        self.table.note_number(number);
        let book = record.book.as_ref().filter(|_| record.device.is_some());
        if let Some(book) = book.and_then(|book| inherited.find(book)) {
            let counters = LifetimeCounters::of_kept(book.into_trusted(), &record.past, record.since_ms);
            self.counters.leave(record.spec().name().as_str(), counters);
        }
        let (spec, path) = (record.spec(), record.spec().socket_in(&self.table.dir));
        let (origin, queues) = (Origin::new(&format!("port {}", spec.name())), spec.common.queues);
        let saved_session = record
            .saved_session
            .and_then(|saved_session| SavedGuestSession::of_kept(saved_session, inherited, &origin, queues));
        if let Some(saved_session) = saved_session {
            saved_session.hang_up();
        }
        let kept = record.listening.and_then(|kept| Some((inherited.find(&kept.socket)?, kept.file)));
        // Removes its socket's file, too.
        drop(kept.and_then(|(socket, file)| ListenSocket::of_kept(socket, &path, file)));
    }
}

/// Whether a port cannot continue with its guest.
fn goes(plan: &Plan, port: &Name) -> bool {
    plan.steps.iter().any(|step| match step {
        Step::Remove { name } => name == port,
        Step::Anew { port: other, .. } => other.name() == port,
        _ => false,
    })
}

/// The differences from the former state; empty if there are none.
fn plan_text(plan: &Plan) -> String {
    lasthop_config::plan::lines(plan).lines().map(|line| format!("; {line}")).collect()
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Ends all connections, and frees the sockets' addresses.
fn shut_all(inherited: &Inherited) {
    for fd in inherited.all() {
        let _ = shutdown(fd, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use lasthop_api::port::VnicForm;
    use lasthop_api::settings::{Settings, SwitchSettings};
    use lasthop_listeners::SocketAccess;

    fn vnic(text: &str) -> PortSpec {
        port::vnic(text).expect("a vnic")
    }

    fn error_of(head: &str) -> String {
        PreviousState::of_records(head.as_bytes(), std::iter::empty()).expect_err("refused")
    }

    /// State without its first part, which has the version.
    fn torn(fd: OwnedFd) -> Inherited {
        Inherited::of_named([("lasthop-1".to_owned(), fd)].into_iter())
    }

    #[test]
    fn another_version_is_told_from_ours() {
        let ours = format!("{RECORD_VERSION}.{STATE_VERSION}");
        let later = format!("{{\"version\":{RECORD_VERSION},\"state\":{}}}", STATE_VERSION + 1);
        let why = error_of(&later);
        assert!(why.contains(&format!("of version {RECORD_VERSION}.{}", STATE_VERSION + 1)), "{why}");
        assert!(why.ends_with(&format!("knows {ours}")), "{why}");
        assert!(error_of("{}").contains("of version 0.0"));
        let torn = format!("{{\"version\":{RECORD_VERSION},\"state\":{STATE_VERSION}}}");
        assert!(error_of(&torn).contains("missing field"));
        let nothing = PreviousState::read(&Inherited::default()).expect("read");
        assert!(nothing.is_none(), "nothing was left, and nothing is said");
    }

    #[test]
    fn sockets_of_a_state_that_cannot_be_continued_make_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        let old = UnixListener::bind(&path).expect("bound");
        let inherited = torn(old.into());
        assert!(ListenSocket::bind(&path, SocketAccess::OWNER_ALONE).is_err(), "a listener is there");
        assert!(PreviousState::read(&inherited).expect("read").is_none());
        // A process that another test is starting has a copy of the listener until exec(2) closes it.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while UnixStream::connect(&path).is_ok() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        drop(ListenSocket::bind(&path, SocketAccess::OWNER_ALONE).expect("free"));
    }

    #[test]
    fn a_process_of_a_state_that_cannot_be_continued_has_ended_before_anything_begins() {
        let mut sleeper = Command::new("sleep").arg("30").spawn().expect("a process");
        let process = pidfd_open(Pid::from_child(&sleeper), PidfdFlags::empty()).expect("a descriptor");
        assert!(PreviousState::read(&torn(process)).expect("ended").is_none());
        let status = sleeper.try_wait().expect("a child").expect("it has ended");
        assert!(!status.success());
    }

    #[test]
    fn what_was_added_by_hand_stays_unless_it_is_in_the_way() {
        let settings = |vnics: &[&str], switches: &[&str]| RunSettings {
            dir: "/run/test".into(),
            control_group: None,
            datapath_devices: None,
            scheduler_view: Default::default(),
            placement: Default::default(),
            placement_batches: Default::default(),
            shares: Default::default(),
            standby: Default::default(),
            tunnel_gro: Default::default(),
            switch: SwitchSettings::new(Settings::default()).expect("defaults"),
            switches: switches.iter().map(|switch| switch.parse().expect("a switch")).collect(),
            ports: vnics.iter().map(|name| vnic(name)).collect(),
            fdb: Vec::new(),
            acl: Vec::new(),
        };
        let record = |name: &str| PortRecord {
            spec: VnicForm(vnic(name)),
            device: None,
            listening: None,
            saved_session: None,
            book: None,
            is_requested: false,
            made_by: None,
            leases: None,
            past: BTreeMap::new(),
            since_ms: None,
        };
        let before = settings(&["old"], &["default"]);
        let head = HeadRecord {
            version: RECORD_VERSION,
            state: STATE_VERSION,
            pid: 1,
            process: None,
            control: None,
            switches: vec!["red".parse().expect("a switch")],
            fdb: Vec::new(),
            acl: Vec::new(),
            datapaths: None,
            flows: None,
            configured: before.configured(),
        };
        let vnics = ["old", "hand", "reds,switch=red", "blues,switch=blue", "same,socket=/run/test/now.sock"];
        let ports = (1..).zip(vnics.map(record)).collect();
        let mut now = settings(&["now"], &["default"]);
        PreviousState { head, ports }.add_by_hand(&mut now);
        let names: Vec<&str> = now.ports.iter().map(|port| port.name().as_str()).collect();
        assert_eq!(names, ["now", "hand", "reds"]);
        assert!(now.switches.iter().any(|switch| switch.name.as_str() == "red"));
    }
}
