//! Records for the next supervisor, should this one end, as they stand in the service manager's store.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use lasthop_api::fdb::StaticEntry;
use lasthop_api::orders::STATE_VERSION;
use lasthop_api::port::PortSpec;
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_api::vnic::{Name, VnicSpec};
use lasthop_fd_store::{FdIdentity, RecordContents, RecordKey};

use super::Supervisor;
use super::port::Port;
use super::stage::Stage;

/// Of the records. A supervisor that knows another one begins anew.
pub(super) const RECORD_VERSION: u64 = 1;
/// How long the manager may take to make room for the last news: without them guests have to connect again.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// The record of everything that exists once.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeadRecord {
    pub(super) version: u64,
    /// Of switch processes' reports on sessions.
    pub(super) state: u64,
    /// The supervisor.
    pub(super) pid: u32,
    /// The switch process; two must never serve the same guest.
    pub(super) process: Option<FdIdentity>,
    pub(super) control: Option<Listening>,
    /// Those beside the default one.
    pub(super) switches: Vec<SwitchSpec>,
    pub(super) fdb: Vec<StaticEntry>,
    /// The last report of a switch process about datapaths.
    #[serde(default)]
    pub(super) datapaths: Option<Value>,
    /// The memory in which switch processes leave flows.
    #[serde(default)]
    pub(super) flows: Option<FdIdentity>,
    #[serde(rename = "told")]
    pub(super) configured: ConfiguredNames,
}

/// A socket, and device and inode of its file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Listening {
    pub(super) socket: FdIdentity,
    pub(super) file: (u64, u64),
}

/// Switches and ports that file and flags named; the rest was added by hand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ConfiguredNames {
    pub(super) switches: Vec<SwitchName>,
    pub(super) ports: Vec<Name>,
    pub(super) fdb: Vec<StaticEntry>,
}

/// One port.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PortRecord {
    pub(super) spec: VnicSpec,
    pub(super) device: Option<PortSpec>,
    pub(super) listening: Option<Listening>,
    #[serde(rename = "estate")]
    pub(super) saved_session: Option<SavedSessionRecord>,
    pub(super) book: Option<FdIdentity>,
    /// Counters before the book.
    pub(super) past: BTreeMap<String, u64>,
    /// When they began, in milliseconds since 1970.
    #[serde(default)]
    pub(super) since_ms: Option<u64>,
    /// A controller asked for it, and asks again: nothing is kept but its counters.
    #[serde(default)]
    pub(super) is_requested: bool,
}

/// One guest's session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedSessionRecord {
    pub(super) attachment: u64,
    pub(super) connection: FdIdentity,
    pub(super) memory: FdIdentity,
    pub(super) session: Value,
    pub(super) fds: BTreeMap<u32, FdIdentity>,
}

impl Supervisor {
    /// Brings the manager's copy up to date, if it is time.
    pub(super) fn deposit(&mut self, now: Instant) {
        if !self.store.is_due(now) {
            return;
        }
        // Out of the way: the records borrow from the rest.
        let mut store = std::mem::take(&mut self.store);
        for key in store.take_late(now) {
            match self.contents(key).transpose() {
                Ok(contents) => store.settle(key, contents),
                Err(error) => store.complain(error.to_string()),
            }
        }
        // Before the switch process has been told, the needed parts are not known.
        if !matches!(self.stage, Stage::Starting) {
            store.tidy(|key| match key {
                RecordKey::Head => true,
                RecordKey::Port(number) => self.ports.all.contains_key(&number),
            });
        }
        self.store = store;
    }

    /// As `deposit`, of the record that must be stored before other steps.
    pub(super) fn deposit_head(&mut self) {
        self.store.is_late(RecordKey::Head);
        self.store.end_pause();
        self.deposit(Instant::now());
    }

    /// Brings everything up to date, on the way out.
    pub(super) fn deposit_all(&mut self) {
        let end = Instant::now() + LAST_PATIENCE;
        self.store.is_late(RecordKey::Head);
        self.ports.all.keys().for_each(|number| self.store.is_late(RecordKey::Port(*number)));
        while self.store.due().is_some() && Instant::now() < end {
            self.store.end_pause();
            self.deposit(Instant::now());
            if self.store.due().is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn contents(&self, key: RecordKey) -> Option<io::Result<RecordContents<'_>>> {
        match key {
            RecordKey::Head => Some(self.head_contents()),
            RecordKey::Port(number) => {
                self.ports.all.get(&number).map(|port| self.port_contents(number, port))
            }
        }
    }

    fn head_contents(&self) -> io::Result<RecordContents<'_>> {
        let mut contents = RecordContents::default();
        let record = HeadRecord {
            version: RECORD_VERSION,
            state: STATE_VERSION,
            pid: std::process::id(),
            process: self.switch.process.handle().map(|process| contents.name(process)).transpose()?,
            control: match self.clients.listening() {
                Some((socket, file)) => Some(Listening { socket: contents.name(socket)?, file }),
                None => None,
            },
            switches: self.switches.all.iter().filter(|switch| !switch.name.is_default()).cloned().collect(),
            fdb: self.switches.static_entries.clone(),
            datapaths: self.datapaths.told.clone(),
            flows: self.datapaths.flows.as_ref().map(|flows| contents.name(flows)).transpose()?,
            configured: self.configured.clone(),
        };
        contents.text = serde_json::to_vec(&record)?;
        Ok(contents)
    }

    fn port_contents<'a>(&'a self, number: u32, port: &'a Port) -> io::Result<RecordContents<'a>> {
        let mut contents = RecordContents::default();
        let device = port.device().map(|device| device.spec.clone());
        let listening = match port.listening() {
            Some((socket, file)) => Some(Listening { socket: contents.name(socket)?, file }),
            None => None,
        };
        // At the other end of a device port is the driver process, which ends with us.
        let saved_session = self.sessions.saved.get(&number).filter(|_| device.is_none());
        let saved_session =
            saved_session.map(|saved_session| saved_session.record(&mut contents)).transpose()?;
        let counters = self.counters.by_port.get(&number);
        let book = counters.map(|counters| contents.name(counters)).transpose()?;
        let past = counters.map(|counters| counters.past_by_name()).unwrap_or_default();
        let since_ms = counters.map(super::lifetime_counters::LifetimeCounters::since_ms);
        let spec = port.spec.clone();
        let is_requested = port.is_requested();
        let record =
            PortRecord { spec, device, listening, saved_session, book, past, since_ms, is_requested };
        contents.text = serde_json::to_vec(&record)?;
        Ok(contents)
    }
}
