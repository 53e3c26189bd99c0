//! A switch process died: its guests' sessions are handed to the next one.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use lasthop_foreign::ForeignFd;
use serde_json::Value;

use crate::fault::Fault;
use crate::ipc::FRAME_FDS_MAX;
use crate::log::{say, say_of_others};
use crate::orders::{Answer, Order, Report, Request};

use super::Supervisor;
use super::child::Process;
use super::estate::{Bequest, Edition, Estate};
use super::orders::What;
use super::store::Key;

/// How a process knows the sessions of ports.
pub(super) type Editions = BTreeMap<u32, Edition>;

/// Descriptors with their numbers.
type Part = (Vec<u32>, Vec<ForeignFd>);

/// What of a session comes after its descriptors: connection and memory with it.
struct Last {
    name: String,
    attachment: u64,
    session: Value,
    fds: Vec<ForeignFd>,
}

impl Supervisor {
    /// What the switch gets with the connection of port `number`: the connection, and memory for a successor, if there is any.
    pub(super) fn provide(&mut self, number: u32, attachment: u64, connection: ForeignFd) -> Vec<ForeignFd> {
        let Some(port) = self.ports.get(&number) else { return vec![connection] };
        let made = Estate::new(attachment, &connection, port.spec.queues);
        match made.and_then(|estate| Ok((estate.memory()?, estate))) {
            Ok((memory, estate)) => {
                self.estates.insert(number, estate);
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
    fn estate_of(&mut self, attachment: u64) -> Option<&mut Estate> {
        let mut estates = self.estates.iter_mut();
        let (number, estate) = estates.find(|(_, estate)| estate.attachment() == attachment)?;
        self.store.is_late(Key::Port(*number));
        Some(estate)
    }

    /// The switch got descriptors from a guest's front end.
    pub(super) fn keep_fds(&mut self, attachment: u64, numbers: Vec<u32>, fds: Vec<ForeignFd>) {
        let Some(estate) = self.estate_of(attachment) else { return };
        if let Err(why) = estate.keep(numbers, fds) {
            self.lives.give_up_on(&why.to_string());
        }
    }

    /// The switch told how a session is now.
    pub(super) fn keep_session(&mut self, attachment: u64, session: Value, numbers: &[u32]) {
        if let Some(estate) = self.estate_of(attachment) {
            estate.tell(session, numbers);
        }
    }

    /// The switch is dead: sessions that may have killed it before are given up.
    pub(super) fn judge_estates(&mut self) {
        // Orders are obeyed one after the other, in this order.
        let next = self.estates.iter().find(|(_, estate)| estate.is_told()).map(|(number, _)| *number);
        for (number, mut estate) in std::mem::take(&mut self.estates) {
            if estate.survives(next == Some(number)) {
                self.estates.insert(number, estate);
            } else {
                self.give_up(
                    number,
                    estate,
                    "the switch process died of it, or of another one, twice in a row",
                );
            }
        }
    }

    /// The guest of a port has to connect again.
    fn give_up(&mut self, number: u32, estate: Estate, why: &str) {
        let attachment = estate.attachment();
        self.store.is_late(Key::Port(number));
        estate.hang_up();
        let Some(port) = self.ports.get_mut(&number) else { return };
        let name = port.spec.name.clone();
        say!(Warning: "vnic {name}: its guest could not be taken over and has to connect again: {why}");
        port.detached(attachment, Instant::now());
        port.end(why);
    }

    /// Tells the switch, which has its ports, to go on with all sessions. For those that it knows as they are it is ready.
    pub(super) fn hand_over(&mut self, known: &Editions) {
        if self.estates.is_empty() {
            return;
        }
        let is_known = |(number, estate): &(&u32, &Estate)| known.get(number) == Some(&estate.edition());
        let (ready, others): (Vec<_>, Vec<_>) = self.estates.iter().partition(is_known);
        let others: Vec<u32> = others.into_iter().map(|(number, _)| *number).collect();
        let ready: Vec<_> =
            ready.into_iter().map(|(number, estate)| (*number, estate.attachment())).collect();
        if !ready.is_empty() {
            let attachments = ready.iter().map(|(_, attachment)| *attachment).collect();
            self.order(Order::GoOn { attachments }, What::WentOn(ready), None);
        }
        others.into_iter().for_each(|number| self.hand_over_one(number));
        self.order(Order::Wake, What::Restored, None);
    }

    fn hand_over_one(&mut self, number: u32) {
        match self.testament(number) {
            Some(Ok((parts, Last { name, attachment, session, fds }))) => {
                self.estates.get_mut(&number).into_iter().for_each(Estate::is_handed_over);
                parts.into_iter().for_each(|(numbers, fds)| self.bring(attachment, numbers, fds));
                let order = Order::TakeOver { name, attachment, session };
                self.order_with(order, fds, What::TakenOver { port: number, attachment }, None);
            }
            Some(Err(error)) => {
                if let Some(estate) = self.estates.remove(&number) {
                    self.give_up(number, estate, &error.to_string());
                }
            }
            None => {}
        }
    }

    /// Has a process that is to be the next switch get ready for all sessions that it does not know as they are. Whether there were
    /// any.
    pub(super) fn prepare(&self, heir: &mut Process<Request, Report>, known: &mut Editions) -> bool {
        known.retain(|number, _| self.estates.contains_key(number));
        let mut is_behind = false;
        for (&number, estate) in &self.estates {
            let edition = estate.edition();
            // Without room for copies it is handed over later, and may be given up then.
            if known.insert(number, edition) != Some(edition)
                && let Some(Ok((parts, Last { name, attachment, session, fds }))) = self.testament(number)
            {
                is_behind = true;
                for (numbers, fds) in parts {
                    let order = Order::Bring { attachment, numbers };
                    let _ = heir.channel.send(&Request { id: 0, order }, fds);
                }
                let order = Order::Prepare { name, attachment, session };
                let _ = heir.channel.send(&Request { id: 0, order }, fds);
            }
        }
        is_behind
    }

    /// What a switch process gets to go on with a session: descriptors in parts that fit into a message, and the rest.
    fn testament(&self, number: u32) -> Option<io::Result<(Vec<Part>, Last)>> {
        let (port, estate) = (self.ports.get(&number)?, self.estates.get(&number)?);
        let (name, attachment) = (port.spec.name.to_string(), estate.attachment());
        Some(estate.bequeath().map(|Bequest { session, connection, memory, fds }| {
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
        let is_current = self.estates.get(&number).is_some_and(|estate| estate.attachment() == attachment);
        match result {
            Ok(()) => {
                if let Some(estate) = self.estates.get_mut(&number).filter(|_| is_current) {
                    estate.is_taken_over();
                }
            }
            Err(fault) => {
                if let Some(estate) = self.estates.remove(&number).filter(|_| is_current) {
                    self.give_up(number, estate, &fault.message);
                    self.advance_port(number);
                }
            }
        }
        Ok(Value::Null)
    }
}
