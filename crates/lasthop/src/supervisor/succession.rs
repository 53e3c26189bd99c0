//! A switch process died: its guests' sessions are handed to the next one.

use std::os::fd::OwnedFd;
use std::time::Instant;

use serde_json::Value;

use crate::fault::Fault;
use crate::ipc::FRAME_FDS_MAX;
use crate::log::{say, say_of_others};
use crate::orders::Order;

use super::Supervisor;
use super::estate::{Bequest, Estate};
use super::orders::What;
use super::store::Key;

impl Supervisor {
    /// What the switch gets with the connection of port `number`: the connection, and memory for a successor, if there is any.
    pub(super) fn provide(&mut self, number: u32, attachment: u64, connection: OwnedFd) -> Vec<OwnedFd> {
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
                    "vnic {name}: should the switch process die, its guest will have to connect again: {error}"
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
    pub(super) fn keep_fds(&mut self, attachment: u64, numbers: Vec<u32>, fds: Vec<OwnedFd>) {
        if let Some(estate) = self.estate_of(attachment) {
            estate.keep(numbers, fds);
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
        say!("vnic {name}: its guest could not be taken over and has to connect again: {why}");
        port.detached(attachment, Instant::now());
        port.end(why);
    }

    /// Tells the switch, which has its ports, to go on with all sessions.
    pub(super) fn hand_over(&mut self) {
        let numbers: Vec<u32> = self.estates.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        // What the first guest sends to the last one would find nobody there.
        self.order(Order::Hold, What::Restored, None);
        self.hand_over_all(&numbers);
        self.order(Order::Wake, What::Restored, None);
    }

    fn hand_over_all(&mut self, numbers: &[u32]) {
        for &number in numbers {
            let bequest = self.estates.get_mut(&number).map(Estate::bequeath);
            match bequest {
                Some(Ok(bequest)) => self.hand_over_one(number, bequest),
                Some(Err(error)) => {
                    if let Some(estate) = self.estates.remove(&number) {
                        self.give_up(number, estate, &error.to_string());
                    }
                }
                None => {}
            }
        }
    }

    fn hand_over_one(&mut self, number: u32, bequest: Bequest) {
        let (Some(port), Some(estate)) = (self.ports.get(&number), self.estates.get(&number)) else { return };
        let (name, attachment) = (port.spec.name.to_string(), estate.attachment());
        let Bequest { session, connection, memory, fds } = bequest;
        let mut fds = fds.into_iter().peekable();
        while fds.peek().is_some() {
            let (numbers, fds) = fds.by_ref().take(FRAME_FDS_MAX).unzip();
            self.bring(attachment, numbers, fds);
        }
        let order = Order::TakeOver { name, attachment, session };
        self.order_with(order, vec![connection, memory], What::TakenOver { port: number, attachment }, None);
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
