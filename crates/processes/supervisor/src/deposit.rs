//! Updates the records for the next supervisor in the service manager's store.

use std::io;
use std::time::{Duration, Instant};

use lasthop_api::orders::STATE_VERSION;
use lasthop_fd_store::{RecordContents, RecordKey};
use lasthop_listeners::ApiClients;
use lasthop_port_counters::LifetimeCounters;

use super::Supervisor;
use super::flows::SavedDatapaths;
use super::port::Port;
use super::ports::Ports;
use super::records::{ConfiguredNames, HeadRecord, Listening, PortRecord, RECORD_VERSION};
use super::stage::Stage;
use super::switch_process::SwitchProcess;
use super::switch_table::SwitchTable;

/// How long the manager may take to make room for the last records: without them guests have to reconnect.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

impl Supervisor {
    /// Updates the manager's copy if it is due.
    pub(super) fn deposit(&mut self, now: Instant) {
        if !self.out.store.is_due(now) {
            return;
        }
        // Moved out, since the records borrow from the rest.
        let mut store = std::mem::take(&mut self.out.store);
        for key in store.take_late(now) {
            match self.kept_state().contents(key).transpose() {
                Ok(contents) => store.settle(key, contents),
                Err(error) => store.conclude(key, Err(error)),
            }
        }
        // Before the switch process has its configuration, it is not known which records are needed.
        if !matches!(self.stage, Stage::Starting) {
            store.tidy(|key| match key {
                RecordKey::Head => true,
                RecordKey::Port(number) => self.ports.table.all.contains_key(&number),
            });
        }
        self.out.store = store;
    }

    /// Like `deposit`, for the head record, which must be stored before other steps.
    pub(super) fn deposit_head(&mut self) {
        self.out.store.is_late(RecordKey::Head);
        self.out.store.end_pause();
        self.deposit(Instant::now());
    }

    /// Updates everything before the end.
    pub(super) fn deposit_all(&mut self) {
        let end = Instant::now() + LAST_PATIENCE;
        self.out.store.is_late(RecordKey::Head);
        self.ports.table.all.keys().for_each(|number| self.out.store.is_late(RecordKey::Port(*number)));
        while self.out.store.due().is_some() && Instant::now() < end {
            self.out.store.end_pause();
            self.deposit(Instant::now());
            if self.out.store.due().is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn kept_state(&self) -> KeptState<'_> {
        KeptState {
            switch: &self.out.switch_process,
            clients: &self.clients,
            switches: &self.switches,
            datapaths: &self.datapaths,
            ports: &self.ports,
            configured: &self.configured,
        }
    }
}

/// The parts that the next supervisor gets.
struct KeptState<'a> {
    switch: &'a SwitchProcess,
    clients: &'a ApiClients,
    switches: &'a SwitchTable,
    datapaths: &'a SavedDatapaths,
    ports: &'a Ports,
    configured: &'a ConfiguredNames,
}

impl<'a> KeptState<'a> {
    fn contents(&self, key: RecordKey) -> Option<io::Result<RecordContents<'a>>> {
        match key {
            RecordKey::Head => Some(self.head_contents()),
            RecordKey::Port(number) => {
                self.ports.table.all.get(&number).map(|port| self.port_contents(number, port))
            }
        }
    }

    fn head_contents(&self) -> io::Result<RecordContents<'a>> {
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
            acl: self.switches.acl.clone(),
            datapaths: self.datapaths.told.clone(),
            flows: self.datapaths.flows.as_ref().map(|flows| contents.name(flows)).transpose()?,
            configured: self.configured.clone(),
        };
        contents.text = serde_json::to_vec(&record)?;
        Ok(contents)
    }

    fn port_contents(&self, number: u32, port: &'a Port) -> io::Result<RecordContents<'a>> {
        let mut contents = RecordContents::default();
        let (spec, device) = PortRecord::settings(&port.spec);
        let listening = match port.listening() {
            Some((socket, file)) => Some(Listening { socket: contents.name(socket)?, file }),
            None => None,
        };
        // The driver process is the other end of a device port, and ends with this supervisor.
        let saved_session = self.ports.sessions.saved.get(&number).filter(|_| device.is_none());
        let saved_session =
            saved_session.map(|saved_session| saved_session.record(&mut contents)).transpose()?;
        let counters = self.ports.counters.by_port.get(&number);
        let book = counters.map(|counters| contents.name(counters)).transpose()?;
        let past = counters.map(|counters| counters.past_by_name()).unwrap_or_default();
        let since_ms = counters.map(LifetimeCounters::since_ms);
        let is_requested = port.is_requested();
        let (leases, made_by) = (port.leases().cloned(), port.spec.made_by.clone());
        let record = PortRecord {
            spec,
            device,
            listening,
            saved_session,
            book,
            past,
            since_ms,
            is_requested,
            made_by,
            leases,
        };
        contents.text = serde_json::to_vec(&record)?;
        Ok(contents)
    }
}
