//! Requests of family `ovs_vport`.

use super::answer::Answer;
use super::families::Family;
use super::request::DumpCursor;
use super::request::{Outcome, Request, unknown_command};
use super::state::State;
use crate::bounds::PORTS_MAX;
use crate::datapath::PeerId;
use crate::datapath::{Datapath, DatapathId, Port, Readiness, WantedPort};
use crate::family::VportMessage;
use crate::refusal::{Errno, Refusal};
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
