//! Requests of family `ovs_vport`, those that wait until their device is made, and notifications of ports.
//!
//! Clients that reconnect from another process get the notifications that they missed. So they need not request everything
//! again, as netlink makes them do (ENOBUFS), with a warning of OVS.

use std::time::{Duration, Instant};

use crate::bounds::{NEWS_MAX, PARKED_MS_MAX, PORTS_MAX};
use crate::datapath::{Datapath, DatapathId, PeerId, Port, Readiness, WantedPort};
use crate::family::VportMessage;
use crate::message;
use crate::refusal::{Errno, Refusal};
use crate::server::Server;
use crate::server::answer::Answer;
use crate::server::families::Family;
use crate::server::peer::Peer;
use crate::server::request::{DumpCursor, Outcome, Request, unknown_command};
use crate::server::state::State;
use crate::uapi::command;

pub(super) fn serve(
    state: &mut State,
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
) -> Result<Outcome, Refusal> {
    if request.is_dump() {
        state.expect(request.id)?;
        return Ok(Outcome::Dump(DumpCursor::Ports { id: request.id, from: 0 }));
    }
    let wanted = VportMessage::decode(request.id.0, request.attrs.clone())?;
    match request.command {
        command::NEW => add(state, datapath, wanted, request.client),
        command::DEL => remove(state, datapath, &wanted),
        command::SET => change(state, datapath, &wanted),
        command::GET => {
            let (id, number) = find(state, &wanted)?;
            Ok(Outcome::Object { answer: answer(state, datapath, id, number)?, command: command::NEW })
        }
        _ => Err(unknown_command()),
    }
}

/// Finds a port by name, if there is one, in any datapath or in the one given; else by number.
fn find(state: &State, wanted: &VportMessage) -> Result<(DatapathId, u32), Refusal> {
    let id = DatapathId(wanted.datapath);
    if let Some(name) = &wanted.name {
        let found = state.port_named(name).filter(|(found, _)| id.0 == 0 || *found == id);
        return found.ok_or(no_port());
    }
    let number = wanted.number.ok_or(Refusal::invalid("neither a name nor a number says which port"))?;
    check_number(number)?;
    let known = state.expect(id)?;
    known.ports.contains_key(&number).then_some((id, number)).ok_or(no_port())
}

fn no_port() -> Refusal {
    Refusal::new(Errno::ENODEV, "there is no such port")
}

fn check_number(number: u32) -> Result<(), Refusal> {
    if number < PORTS_MAX {
        Ok(())
    } else {
        Err(Refusal::new(Errno::EFBIG, "a port's number is beyond 65535"))
    }
}

fn answer(state: &State, datapath: &dyn Datapath, id: DatapathId, number: u32) -> Result<Answer, Refusal> {
    let known = state.expect(id)?;
    let port = known.ports.get(&number).ok_or(no_port())?;
    Ok(Answer::Vport(known.port_message(id, port, datapath)))
}

fn changed(answer: Answer, command: u8) -> Outcome {
    Outcome::Changed { answer, command, family: Family::Vport }
}

fn add(
    state: &mut State,
    datapath: &mut dyn Datapath,
    wanted: VportMessage,
    client: PeerId,
) -> Result<Outcome, Refusal> {
    let id = DatapathId(wanted.datapath);
    let (Some(name), Some(kind), Some(upcall_port_ids)) = (wanted.name, wanted.kind, wanted.upcall_port_ids)
    else {
        return Err(Refusal::invalid("a port needs a name, a type and a port id for misses"));
    };
    let number = number_for(state, id, wanted.number)?;
    if state.port_named(&name).is_some() {
        return Err(Refusal::new(Errno::EEXIST, "there is a port of that name"));
    }
    let (datapath_name, options) = (&state.expect(id)?.name, wanted.options);
    let to_begin = WantedPort { client, datapath: datapath_name, name: &name, kind, options };
    if datapath.port_wanted(to_begin)? == Readiness::NotYet {
        return Ok(Outcome::NotYet { name });
    }
    let port = Port { number, name, kind, options: wanted.options, upcall_port_ids };
    datapath.port_added(id, &port)?;
    state.expect_mut(id)?.ports.insert(number, port);
    Ok(changed(answer(state, datapath, id, number)?, command::NEW))
}

fn number_for(state: &State, id: DatapathId, wanted: Option<u32>) -> Result<u32, Refusal> {
    let known = state.expect(id)?;
    let Some(number) = wanted else { return known.free_number() };
    check_number(number)?;
    let is_taken = known.ports.contains_key(&number);
    if is_taken { Err(Refusal::new(Errno::EBUSY, "another port has that number")) } else { Ok(number) }
}

fn remove(state: &mut State, datapath: &mut dyn Datapath, wanted: &VportMessage) -> Result<Outcome, Refusal> {
    let (id, number) = find(state, wanted)?;
    if number == 0 {
        return Err(Refusal::invalid("port 0 goes with its datapath only"));
    }
    let last = answer(state, datapath, id, number)?;
    datapath.port_removed(id, number);
    state.expect_mut(id)?.ports.remove(&number);
    Ok(changed(last, command::DEL))
}

/// Removes a port that lost its device. Returns the notification, if it was in a datapath.
pub(super) fn lose(state: &mut State, datapath: &mut dyn Datapath, name: &str) -> Option<Answer> {
    let (id, number) = state.port_named(name).filter(|(_, number)| *number != 0)?;
    let last = answer(state, datapath, id, number).ok()?;
    datapath.port_removed(id, number);
    state.expect_mut(id).ok()?.ports.remove(&number);
    Some(last)
}

fn change(state: &mut State, datapath: &mut dyn Datapath, wanted: &VportMessage) -> Result<Outcome, Refusal> {
    let (id, number) = find(state, wanted)?;
    let known = state.expect_mut(id)?;
    let mut port = known.ports.get(&number).ok_or(no_port())?.clone();
    if wanted.kind.is_some_and(|kind| kind != port.kind) {
        return Err(Refusal::invalid("a port's type cannot change"));
    }
    if wanted.options.is_some() {
        port.options = wanted.options;
        datapath.port_changed(id, &port)?;
    }
    if let Some(ids) = &wanted.upcall_port_ids {
        port.upcall_port_ids.clone_from(ids);
    }
    let is_left = port.upcall_port_ids == [0];
    known.ports.insert(number, port);
    state.left_port = is_left.then_some((id, number));
    Ok(changed(answer(state, datapath, id, number)?, command::SET))
}

/// Notifications, oldest first.
#[derive(Debug, Default)]
pub(super) struct PortNews {
    told: Vec<Vec<u8>>,
    /// Whether the datapaths are those of another process, as clients know them.
    is_restored: bool,
    has_overflowed: bool,
}

impl PortNews {
    /// Notes that datapaths are those of another process.
    pub(super) fn restored(&mut self) {
        self.is_restored = true;
    }

    pub(super) fn note(&mut self, notification: &[u8]) {
        if self.told.len() < NEWS_MAX {
            self.told.push(notification.to_vec());
        } else {
            self.has_overflowed = true;
        }
    }

    /// All notifications; `None` if some are lost.
    pub(super) fn since_start(&self) -> Option<&[Vec<u8>]> {
        (self.is_restored && !self.has_overflowed).then_some(&self.told)
    }
}

/// A client's request: the first message in the rest of its datagram.
#[derive(Debug)]
pub(super) struct Parked {
    /// The port's name.
    pub(super) name: String,
    /// Time of the first retry.
    since: Option<Instant>,
}

impl Server {
    /// Parks a client's request until the device of a port exists.
    pub(super) fn park(&mut self, id: PeerId, name: String) {
        self.parked.insert(id, Parked { name, since: None });
    }

    /// Retries requests that wait for a device.
    pub(super) fn try_parked(&mut self, now: Instant, datapath: &mut dyn Datapath) {
        for (id, mut parked) in std::mem::take(&mut self.parked) {
            let since = *parked.since.get_or_insert(now);
            if now.saturating_duration_since(since) > Duration::from_millis(PARKED_MS_MAX) {
                self.refuse_next(id);
                self.unwanted.push(parked.name);
                self.advance(id, datapath);
            } else if self.granted() == 0 || !self.peers.get(&id).is_some_and(Peer::has_room) {
                // A retry does not count before the client reads, or before its turn.
                parked.since = Some(since);
                self.parked.insert(id, parked);
            } else {
                self.advance(id, datapath);
                // The same request again, or the next one of its datagram, which waits from here on.
                self.parked.entry(id).and_modify(|again| again.take_place_of(&parked));
                if self.parked.get(&id).is_none_or(|again| again.name != parked.name) {
                    // It may have been refused for another reason: then the device is not needed.
                    self.unwanted.push(parked.name);
                }
            }
            self.told.insert(id);
        }
        self.forget_unwanted(datapath);
    }

    /// Refuses the next message in a client's datagram without parsing it.
    fn refuse_next(&mut self, id: PeerId) {
        let Some(mut request) = self.peers.get_mut(&id).and_then(|peer| peer.request.take()) else { return };
        let Some(message) = request.first() else { return };
        let len = message::HEADER_BYTES + message.body.len();
        let late =
            Refusal::new(Errno::ETIMEDOUT, "the port's device was not there in time; see the switch's log");
        self.acknowledge(id, message.header, len, Err(late));
        request.skip(len);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.request = Some(request);
        }
    }

    /// Reports ports whose devices no client waits for any more.
    fn forget_unwanted(&mut self, datapath: &mut dyn Datapath) {
        for name in std::mem::take(&mut self.unwanted) {
            let is_wanted = self.parked.values().any(|parked| parked.name == name);
            if !is_wanted && self.state.port_named(&name).is_none() {
                datapath.port_unwanted(&name);
            }
        }
    }
}

impl Parked {
    fn take_place_of(&mut self, before: &Self) {
        self.since = before.since.filter(|_| self.name == before.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_told_whole_or_not_at_all() {
        let mut news = PortNews::default();
        news.note(&[1]);
        assert_eq!(news.since_start(), None, "clients may know of ports that nobody told us of");
        news.restored();
        assert_eq!(news.since_start(), Some(&[vec![1]][..]));
        (1..NEWS_MAX).for_each(|_| news.note(&[2]));
        assert!(news.since_start().is_some_and(|told| told.len() == NEWS_MAX));
        news.note(&[3]);
        assert_eq!(news.since_start(), None);
    }
}
