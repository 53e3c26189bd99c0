//! A switch process died: its guests' sessions are handed to the next one.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use lasthop_foreign::ForeignFd;
use serde_json::Value;

use lasthop_api::orders::{Answer, Order, Report, Request};
use lasthop_children::RunningChild;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::ipc::FRAME_FDS_MAX;
use lasthop_runtime::log::{say, say_of_others};

use super::Supervisor;
use super::question::OrderPurpose;
use super::saved_session::{SavedSession, SessionParts, SessionVersion};
use super::store::Key;

/// How a process knows the sessions of ports.
pub(super) type SessionVersions = BTreeMap<u32, SessionVersion>;

/// Descriptors with their numbers.
type Part = (Vec<u32>, Vec<ForeignFd>);

/// The parts of a session that come after its descriptors: connection and memory with it.
struct Last {
    name: String,
    attachment: u64,
    session: Value,
    fds: Vec<ForeignFd>,
}

impl Supervisor {
    /// The descriptors that the switch gets with the connection of port `number`: the connection, and memory for a successor,
    /// if there is any.
    pub(super) fn provide(&mut self, number: u32, attachment: u64, connection: ForeignFd) -> Vec<ForeignFd> {
        let Some(port) = self.ports.get(&number) else { return vec![connection] };
        let made = SavedSession::new(attachment, &connection, port.spec.queues);
        match made.and_then(|saved_session| Ok((saved_session.memory()?, saved_session))) {
            Ok((memory, saved_session)) => {
                self.saved_sessions.insert(number, saved_session);
                self.store.is_late(Key::Port(number));
                vec![connection, memory]
            }
            Err(error) => {
                let name = &port.spec.name;
                say_of_others!(
                    Warning: "vnic {name}: should the switch process die, its guest will have to connect again: {error}"
                );
                vec![connection]
            }
        }
    }

    /// A session that is to be changed.
    fn saved_session_of(&mut self, attachment: u64) -> Option<&mut SavedSession> {
        let mut saved_sessions = self.saved_sessions.iter_mut();
        let (number, saved_session) =
            saved_sessions.find(|(_, saved_session)| saved_session.attachment() == attachment)?;
        self.store.is_late(Key::Port(*number));
        Some(saved_session)
    }

    /// The switch got descriptors from a guest's front end.
    pub(super) fn keep_fds(&mut self, attachment: u64, numbers: Vec<u32>, fds: Vec<ForeignFd>) {
        let Some(saved_session) = self.saved_session_of(attachment) else { return };
        if let Err(why) = saved_session.keep(numbers, fds) {
            self.process.give_up_on(&why.to_string());
        }
    }

    /// The switch told how a session is now.
    pub(super) fn keep_session(&mut self, attachment: u64, session: Value, numbers: &[u32]) {
        if let Some(saved_session) = self.saved_session_of(attachment) {
            saved_session.tell(session, numbers);
        }
        self.end_if_costly(attachment);
    }

    /// Closes the connection of a front end whose descriptors take too much CPU time to close here. Those that the switch process closes
    /// are charged to its session there.
    fn end_if_costly(&mut self, attachment: u64) {
        let saved_session =
            self.saved_sessions.iter().find(|(_, saved_session)| saved_session.attachment() == attachment);
        let Some((number, saved_session)) = saved_session else { return };
        let Some(port) = self.ports.get_mut(number) else { return };
        if let Some(held) = port.arrears.held_for_costs(Instant::now()) {
            say_of_others!(Warning: "vnic {}: {held}; its connection ends", port.spec.name);
            saved_session.end_connection();
        }
    }

    /// The switch is dead: sessions that may have killed it before are given up.
    pub(super) fn judge_saved_sessions(&mut self) {
        // Orders are obeyed one after the other, in this order.
        let next = self
            .saved_sessions
            .iter()
            .find(|(_, saved_session)| saved_session.is_told())
            .map(|(number, _)| *number);
        for (number, mut saved_session) in std::mem::take(&mut self.saved_sessions) {
            if saved_session.survives(next == Some(number)) {
                self.saved_sessions.insert(number, saved_session);
            } else {
                self.give_up(
                    number,
                    saved_session,
                    "the switch process died of it, or of another one, twice in a row",
                );
            }
        }
    }

    /// The guest of a port has to connect again.
    fn give_up(&mut self, number: u32, saved_session: SavedSession, why: &str) {
        let attachment = saved_session.attachment();
        self.store.is_late(Key::Port(number));
        saved_session.hang_up();
        let Some(port) = self.ports.get_mut(&number) else { return };
        let name = port.spec.name.clone();
        say!(Warning: "vnic {name}: its guest could not be taken over and has to connect again: {why}");
        port.detached(attachment, Instant::now());
        port.end(why);
    }

    /// Tells the switch, which has its ports, to go on with all sessions. For those that it knows as they are it is ready.
    pub(super) fn hand_over(&mut self, known: &SessionVersions) {
        if self.saved_sessions.is_empty() {
            return;
        }
        let is_known = |(number, saved_session): &(&u32, &SavedSession)| {
            known.get(number) == Some(&saved_session.session_version())
        };
        let (ready, others): (Vec<_>, Vec<_>) = self.saved_sessions.iter().partition(is_known);
        let others: Vec<u32> = others.into_iter().map(|(number, _)| *number).collect();
        let ready: Vec<_> =
            ready.into_iter().map(|(number, saved_session)| (*number, saved_session.attachment())).collect();
        if !ready.is_empty() {
            let attachments = ready.iter().map(|(_, attachment)| *attachment).collect();
            self.order(Order::GoOn { attachments }, OrderPurpose::WentOn(ready), None);
        }
        others.into_iter().for_each(|number| self.hand_over_one(number));
        self.order(Order::Wake, OrderPurpose::Restored, None);
    }

    fn hand_over_one(&mut self, number: u32) {
        match self.takeover_parts(number) {
            Some(Ok((parts, Last { name, attachment, session, fds }))) => {
                self.saved_sessions.get_mut(&number).into_iter().for_each(SavedSession::is_handed_over);
                parts.into_iter().for_each(|(numbers, fds)| self.bring(attachment, numbers, fds));
                let order = Order::TakeOver { name, attachment, session };
                self.order_with(order, fds, OrderPurpose::TakenOver { port: number, attachment }, None);
            }
            Some(Err(error)) => {
                if let Some(saved_session) = self.saved_sessions.remove(&number) {
                    self.give_up(number, saved_session, &error.to_string());
                }
            }
            None => {}
        }
    }

    /// Has a process that is to be the next switch get ready for all sessions that it does not know as they are. Whether there were
    /// any.
    pub(super) fn prepare(
        &self,
        successor: &mut RunningChild<Request, Report>,
        known: &mut SessionVersions,
    ) -> bool {
        known.retain(|number, _| self.saved_sessions.contains_key(number));
        let mut is_behind = false;
        for (&number, saved_session) in &self.saved_sessions {
            let session_version = saved_session.session_version();
            // Without room for copies it is handed over later, and may be given up then.
            if known.insert(number, session_version) != Some(session_version)
                && let Some(Ok((parts, Last { name, attachment, session, fds }))) =
                    self.takeover_parts(number)
            {
                is_behind = true;
                for (numbers, fds) in parts {
                    let order = Order::Bring { attachment, numbers };
                    let _ = successor.channel.send(&Request { id: 0, order }, fds);
                }
                let order = Order::Prepare { name, attachment, session };
                let _ = successor.channel.send(&Request { id: 0, order }, fds);
            }
        }
        is_behind
    }

    /// The messages by which a switch process continues a session: descriptors in parts that fit into a message, and the rest.
    fn takeover_parts(&self, number: u32) -> Option<io::Result<(Vec<Part>, Last)>> {
        let (port, saved_session) = (self.ports.get(&number)?, self.saved_sessions.get(&number)?);
        let (name, attachment) = (port.spec.name.to_string(), saved_session.attachment());
        Some(saved_session.session_parts().map(|SessionParts { session, connection, memory, fds }| {
            let (mut fds, mut parts) = (fds.into_iter().peekable(), Vec::new());
            while fds.peek().is_some() {
                parts.push(fds.by_ref().take(FRAME_FDS_MAX).unzip());
            }
            (parts, Last { name, attachment, session, fds: vec![connection, memory] })
        }))
    }

    /// The switch goes on with sessions for which it was ready, but for some.
    pub(super) fn went_on(
        &mut self,
        sessions: Vec<(u32, u64)>,
        result: Result<Answer, Fault>,
    ) -> Result<Value, Fault> {
        let Answer::WentOn { refused } = result? else { return Ok(Value::Null) };
        let mut refused: BTreeMap<u64, Fault> = refused.into_iter().collect();
        for (number, attachment) in sessions {
            let result = refused.remove(&attachment).map_or(Ok(()), Err);
            self.taken_over(number, attachment, result)?;
        }
        Ok(Value::Null)
    }

    /// The switch goes on with a session, or cannot.
    pub(super) fn taken_over(
        &mut self,
        number: u32,
        attachment: u64,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        let is_current = self
            .saved_sessions
            .get(&number)
            .is_some_and(|saved_session| saved_session.attachment() == attachment);
        match result {
            Ok(()) => {
                if let Some(saved_session) = self.saved_sessions.get_mut(&number).filter(|_| is_current) {
                    saved_session.is_taken_over();
                }
            }
            Err(fault) => {
                if let Some(saved_session) = self.saved_sessions.remove(&number).filter(|_| is_current) {
                    self.give_up(number, saved_session, &fault.message);
                    self.advance_port(number);
                }
            }
        }
        Ok(Value::Null)
    }
}
