//! The saved sessions of all guests: kept as the switch process reports them, and passed to the next one.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use lasthop_foreign::ForeignFd;
use log::warn;
use serde_json::Value;

use lasthop_api::orders::{Order, Report, Request};
use lasthop_children::RunningChild;
use lasthop_fd_store::{NotKept, RecordKey, RecordStore, SavedGuestSession, SessionParts, SessionVersion};
use lasthop_runtime::descriptors;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::ipc::FRAME_FDS_MAX;

use super::port_table::PortTable;
use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;

/// How long a session waits at most for room for copies of its descriptors, and the pause between two tries. Copies
/// that the last messages hold are closed once the switch process has read these.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// The sessions of ports that a process knows, with their versions.
pub(super) type SessionVersions = BTreeMap<u32, SessionVersion>;

/// Descriptors with their numbers.
type Part = (Vec<u32>, Vec<ForeignFd>);

/// The parts of a session after its descriptors: connection and memory with it.
struct Last {
    name: String,
    attachment: u64,
    session: Value,
    fds: Vec<ForeignFd>,
}

/// By port: the session that the next switch process continues.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) saved: BTreeMap<u32, SavedGuestSession>,
    last_attachment: u64,
    waiting: Option<WaitingForRoom>,
    /// Virtio features with which the present switch process cannot serve a guest.
    pub(super) lacking: u64,
}

/// Sessions that the present switch process gets later: there was no room for copies of their descriptors.
#[derive(Debug)]
struct WaitingForRoom {
    /// By port and attachment: the port may have another guest by then.
    sessions: Vec<(u32, Option<u64>)>,
    next: Instant,
    until: Instant,
}

impl Sessions {
    /// The number of the next connection to the switch process.
    pub(super) fn next_attachment(&mut self) -> u64 {
        self.last_attachment += 1;
        self.last_attachment
    }

    /// Adds a session that another supervisor kept.
    pub(super) fn inherit(&mut self, number: u32, saved_session: SavedGuestSession) {
        self.last_attachment = self.last_attachment.max(saved_session.attachment());
        self.saved.insert(number, saved_session);
    }

    /// The ports that have a guest, and the virtio features that it negotiated.
    pub(super) fn guests_features(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.saved.iter().map(|(number, saved_session)| (*number, saved_session.features()))
    }

    /// Handles the switch process's reply about a session. Returns whether its port has lost its guest.
    pub(super) fn taken_over(
        &mut self,
        number: u32,
        attachment: u64,
        result: Result<(), Fault>,
        ports: &mut PortTable,
        store: &mut RecordStore,
    ) -> bool {
        let is_current =
            self.saved.get(&number).is_some_and(|saved_session| saved_session.attachment() == attachment);
        match result {
            Ok(()) => {
                if let Some(saved_session) = self.saved.get_mut(&number).filter(|_| is_current) {
                    saved_session.is_taken_over();
                }
            }
            Err(fault) => {
                if let Some(saved_session) = self.saved.remove(&number).filter(|_| is_current) {
                    give_up(number, saved_session, &fault.message, ports, store);
                    return true;
                }
            }
        }
        false
    }

    /// The descriptors that the switch gets for a connection of port `number`: the connection, and memory for a
    /// successor, if there is any.
    pub(super) fn provide(
        &mut self,
        number: u32,
        attachment: u64,
        connection: ForeignFd,
        ports: &PortTable,
        store: &mut RecordStore,
    ) -> Vec<ForeignFd> {
        let Some(port) = ports.all.get(&number) else { return vec![connection] };
        let made = SavedGuestSession::new(attachment, &connection, port.spec.common.queues);
        match made.and_then(|saved_session| Ok((saved_session.memory()?, saved_session))) {
            Ok((memory, saved_session)) => {
                self.saved.insert(number, saved_session);
                store.is_late(RecordKey::Port(number));
                vec![connection, memory]
            }
            Err(error) => {
                let name = &port.spec.common.name;
                warn!(limited = true, port:% = name; "port {name}: should the switch process die, its guest will have to connect again: {error}");
                vec![connection]
            }
        }
    }

    /// A session that is about to change.
    fn session_of(&mut self, attachment: u64, store: &mut RecordStore) -> Option<&mut SavedGuestSession> {
        let mut saved_sessions = self.saved.iter_mut();
        let (number, saved_session) =
            saved_sessions.find(|(_, saved_session)| saved_session.attachment() == attachment)?;
        store.is_late(RecordKey::Port(*number));
        Some(saved_session)
    }

    /// Keeps descriptors that the switch got from a guest's front end.
    ///
    /// # Errors
    /// Descriptors that no session can have: the switch process is not to be trusted.
    pub(super) fn keep_fds(
        &mut self,
        attachment: u64,
        numbers: Vec<u32>,
        fds: Vec<ForeignFd>,
        store: &mut RecordStore,
    ) -> Result<(), NotKept> {
        self.session_of(attachment, store).map_or(Ok(()), |saved_session| saved_session.keep(numbers, fds))
    }

    /// Keeps a session's state as reported by the switch.
    ///
    /// # Errors
    /// A state that no session has: the switch process is not to be trusted.
    pub(super) fn keep_session(
        &mut self,
        attachment: u64,
        session: Value,
        numbers: &[u32],
        ports: &mut PortTable,
        store: &mut RecordStore,
    ) -> Result<(), NotKept> {
        if let Some(saved_session) = self.session_of(attachment, store) {
            saved_session.tell(session, numbers)?;
        }
        self.end_if_costly(attachment, ports);
        Ok(())
    }

    /// Closes the connection of a front end whose descriptors take too much CPU time to close here. The switch process
    /// charges its own closes to the session there.
    fn end_if_costly(&mut self, attachment: u64, ports: &mut PortTable) {
        let saved_session =
            self.saved.iter().find(|(_, saved_session)| saved_session.attachment() == attachment);
        let Some((number, saved_session)) = saved_session else { return };
        let Some(port) = ports.all.get_mut(number) else { return };
        if let Some(held) = port.arrears.held_for_costs(Instant::now()) {
            warn!(limited = true, port:% = port.spec.common.name; "port {}: {held}; its connection ends", port.spec.common.name);
            saved_session.end_connection();
        }
    }

    /// Handles the death of the switch process: keeps the sessions that the next process gets, and gives up those that may
    /// have killed it twice.
    pub(super) fn keep_survivors(&mut self, ports: &mut PortTable, store: &mut RecordStore) {
        // Orders are executed in this order.
        let next =
            self.saved.iter().find(|(_, saved_session)| saved_session.is_told()).map(|(number, _)| *number);
        for (number, mut saved_session) in std::mem::take(&mut self.saved) {
            if saved_session.survives(next == Some(number)) {
                self.saved.insert(number, saved_session);
            } else {
                give_up(
                    number,
                    saved_session,
                    "the switch process died of it, or of another one, twice in a row",
                    ports,
                    store,
                );
            }
        }
    }

    /// Has the switch, which has its ports, continue all sessions. It has prepared those in `known`.
    pub(super) fn hand_over(
        &mut self,
        known: &SessionVersions,
        ports: &mut PortTable,
        switch: &mut SwitchProcess,
        store: &mut RecordStore,
    ) {
        self.waiting = None;
        if self.saved.is_empty() {
            return;
        }
        let is_known = |(number, saved_session): &(&u32, &SavedGuestSession)| {
            known.get(number) == Some(&saved_session.session_version())
        };
        let (ready, others): (Vec<_>, Vec<_>) = self.saved.iter().partition(is_known);
        let others: Vec<u32> = others.into_iter().map(|(number, _)| *number).collect();
        let ready: Vec<_> =
            ready.into_iter().map(|(number, saved_session)| (*number, saved_session.attachment())).collect();
        if !ready.is_empty() {
            let attachments = ready.iter().map(|(_, attachment)| *attachment).collect();
            switch.order(Order::GoOn { attachments }, OrderPurpose::WentOn(ready), None);
        }
        let until = Instant::now() + ROOM_PATIENCE;
        others.into_iter().for_each(|number| self.hand_over_one(number, until, ports, switch, store));
        switch.order(Order::Wake, OrderPurpose::Restored, None);
    }

    /// When to call [`Self::hand_over_waiting`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.next)
    }

    /// Has the switch process continue sessions that waited for room, if it `serves`.
    pub(super) fn hand_over_waiting(
        &mut self,
        (serves, now): (bool, Instant),
        ports: &mut PortTable,
        switch: &mut SwitchProcess,
        store: &mut RecordStore,
    ) {
        let Some(waiting) = self.waiting.take_if(|waiting| waiting.next <= now) else { return };
        if !serves {
            self.waiting = Some(WaitingForRoom { next: now + ROOM_PAUSE, ..waiting });
            return;
        }
        for (number, attachment) in waiting.sessions {
            if self.saved.get(&number).map(SavedGuestSession::attachment) == attachment {
                self.hand_over_one(number, waiting.until, ports, switch, store);
            }
        }
    }

    fn hand_over_one(
        &mut self,
        number: u32,
        until: Instant,
        ports: &mut PortTable,
        switch: &mut SwitchProcess,
        store: &mut RecordStore,
    ) {
        match self.takeover_parts(number, ports, self.lacking) {
            Some(Ok((parts, Last { name, attachment, session, fds }))) => {
                self.saved.get_mut(&number).into_iter().for_each(SavedGuestSession::is_handed_over);
                parts.into_iter().for_each(|(numbers, fds)| switch.bring(attachment, numbers, fds));
                let order = Order::TakeOver { name, attachment, session };
                switch.order_with(order, fds, OrderPurpose::TakenOver { port: number, attachment }, None);
            }
            Some(Err(error)) if descriptors::is_full(&error) && Instant::now() < until => {
                warn!(limited = true; "a guest waits to be continued: {error}; raise the limit of open files (LimitNOFILE=, ulimit -n)");
                let next = Instant::now() + ROOM_PAUSE;
                let attachment = self.saved.get(&number).map(SavedGuestSession::attachment);
                let waiting = WaitingForRoom { sessions: Vec::new(), next, until };
                self.waiting.get_or_insert(waiting).sessions.push((number, attachment));
            }
            Some(Err(error)) => {
                if let Some(saved_session) = self.saved.remove(&number) {
                    give_up(number, saved_session, &error.to_string(), ports, store);
                }
            }
            None => {}
        }
    }

    /// Has the next switch process, with the features that it is `lacking`, prepare for all sessions that it does not know in
    /// their present state. Returns whether there were any.
    pub(super) fn prepare(
        &self,
        ports: &PortTable,
        (successor, lacking): (&mut RunningChild<Request, Report>, u64),
        known: &mut SessionVersions,
    ) -> bool {
        known.retain(|number, _| self.saved.contains_key(number));
        let mut is_behind = false;
        for (&number, saved_session) in &self.saved {
            let session_version = saved_session.session_version();
            // Without room for copies it is passed later.
            if known.get(&number) != Some(&session_version)
                && let Some(Ok((parts, Last { name, attachment, session, fds }))) =
                    self.takeover_parts(number, ports, lacking)
            {
                is_behind = true;
                for (numbers, fds) in parts {
                    let order = Order::Bring { attachment, numbers };
                    let _ = successor.channel.send(&Request { id: 0, order }, fds);
                }
                let order = Order::Prepare { name, attachment, session };
                let _ = successor.channel.send(&Request { id: 0, order }, fds);
                known.insert(number, session_version);
            }
        }
        is_behind
    }

    /// The messages by which a switch process continues a session: descriptors in parts that fit a message, and the
    /// rest. The guest is offered no feature that the process is `lacking`.
    fn takeover_parts(
        &self,
        number: u32,
        ports: &PortTable,
        lacking: u64,
    ) -> Option<io::Result<(Vec<Part>, Last)>> {
        let (port, saved_session) = (ports.all.get(&number)?, self.saved.get(&number)?);
        let (name, attachment) = (port.spec.common.name.to_string(), saved_session.attachment());
        Some(saved_session.session_parts(lacking).map(|SessionParts { session, connection, memory, fds }| {
            let (mut fds, mut parts) = (fds.into_iter().peekable(), Vec::new());
            while fds.peek().is_some() {
                parts.push(fds.by_ref().take(FRAME_FDS_MAX).unzip());
            }
            (parts, Last { name, attachment, session, fds: vec![connection, memory] })
        }))
    }
}

/// Gives a session up: its guest has to reconnect.
fn give_up(
    number: u32,
    saved_session: SavedGuestSession,
    why: &str,
    ports: &mut PortTable,
    store: &mut RecordStore,
) {
    let attachment = saved_session.attachment();
    store.is_late(RecordKey::Port(number));
    saved_session.hang_up();
    let Some(port) = ports.all.get_mut(&number) else { return };
    let name = port.spec.common.name.clone();
    warn!(port:% = name; "port {name}: its guest could not be taken over and has to connect again: {why}");
    port.detached(attachment, Instant::now());
    port.end(why);
}
