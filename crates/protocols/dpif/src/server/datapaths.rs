//! Requests of family `ovs_datapath`.

use std::collections::BTreeMap;

use super::answer::Answer;
use super::families::Family;
use super::request::DumpCursor;
use super::request::{Outcome, Request, unknown_command};
use super::state::{DatapathRecord, State};
use crate::bounds::MASKS_CACHE_SIZE_MAX;
use crate::datapath::PeerId;
use crate::datapath::{Datapath, DatapathId, Port, Readiness, WantedPort};
use crate::family::{DatapathMessage, VportKind};
use crate::refusal::{Errno, Refusal};
use crate::uapi::{command, dp};

/// Features that clients may request. Sharing recirculation ids with tc is not refused, but not granted either.
const FEATURES: u32 =
    dp::F_UNALIGNED | dp::F_VPORT_PIDS | dp::F_TC_RECIRC_SHARING | dp::F_DISPATCH_UPCALL_PER_CPU;

pub(super) fn serve(
    (state, readers): (&mut State, &BTreeMap<u32, PeerId>),
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
) -> Result<Outcome, Refusal> {
    if request.is_dump() {
        return Ok(Outcome::Dump(DumpCursor::Datapaths { after: 0, is_all: request.sees_all }));
    }
    let wanted = DatapathMessage::decode(request.id.0, request.attrs.clone())?;
    match request.command {
        command::NEW => create(state, datapath, wanted, request.client),
        command::DEL => destroy(state, datapath, &wanted),
        command::SET => change((state, readers), datapath, &wanted),
        command::GET => {
            let id = find(state, &wanted)?;
            let answer = Answer::Datapath(state.expect(id)?.message(id, datapath));
            Ok(Outcome::Object { answer, command: command::NEW })
        }
        _ => Err(unknown_command()),
    }
}

fn find(state: &State, wanted: &DatapathMessage) -> Result<DatapathId, Refusal> {
    state.find(DatapathId(wanted.datapath), wanted.name.as_deref())
}

fn create(
    state: &mut State,
    datapath: &mut dyn Datapath,
    wanted: DatapathMessage,
    client: PeerId,
) -> Result<Outcome, Refusal> {
    let upcall_port_id = wanted.upcall_port_id;
    let named = wanted.name.clone().zip(upcall_port_id);
    let (name, upcall_port_id) =
        named.ok_or(Refusal::invalid("a datapath needs a name and a port id for misses"))?;
    if state.find(DatapathId(0), Some(&name)).is_ok() || state.port_named(&name).is_some() {
        return Err(Refusal::new(Errno::EEXIST, "there is a datapath or port of that name"));
    }
    let mut known = DatapathRecord::named(&name);
    apply(&mut known, &wanted)?;
    let id = state.free_id()?;
    let kind = VportKind::Internal;
    let to_begin = WantedPort { client, datapath: &name, name: &name, kind, options: None };
    if datapath.port_wanted(to_begin)? == Readiness::NotYet {
        return Ok(Outcome::NotYet { name });
    }
    datapath.created(id, &name)?;
    let port = Port { number: 0, name, kind, options: None, upcall_port_ids: vec![upcall_port_id] };
    if let Err(refusal) = datapath.port_added(id, &port) {
        datapath.destroyed(id);
        return Err(refusal);
    }
    known.ports.insert(0, port);
    let answer = Answer::Datapath(known.message(id, datapath));
    state.insert(id, known);
    Ok(Outcome::Changed { answer, command: command::NEW, family: Family::Datapath })
}

fn destroy(
    state: &mut State,
    datapath: &mut dyn Datapath,
    wanted: &DatapathMessage,
) -> Result<Outcome, Refusal> {
    let id = find(state, wanted)?;
    if datapath.is_reserved(&state.expect(id)?.name) {
        return Err(Refusal::new(
            Errno::EBUSY,
            "the datapath is that of a switch with controller=embedded, which it goes with",
        ));
    }
    let answer = end(state, datapath, id)?;
    Ok(Outcome::Changed { answer, command: command::DEL, family: Family::Datapath })
}

/// Removes a datapath. Returns the notification, if it existed.
pub(super) fn lose(state: &mut State, datapath: &mut dyn Datapath, name: &str) -> Option<Answer> {
    let id = state.find(DatapathId(0), Some(name)).ok()?;
    end(state, datapath, id).ok()
}

fn end(state: &mut State, datapath: &mut dyn Datapath, id: DatapathId) -> Result<Answer, Refusal> {
    let answer = Answer::Datapath(state.expect(id)?.message(id, datapath));
    datapath.destroyed(id);
    state.remove(id);
    Ok(answer)
}

/// Changes a datapath. OVS sends a port id only when it makes a datapath: then that id gets the misses of all ports
/// without a reader, at once.
fn change(
    (state, readers): (&mut State, &BTreeMap<u32, PeerId>),
    datapath: &mut dyn Datapath,
    wanted: &DatapathMessage,
) -> Result<Outcome, Refusal> {
    let id = find(state, wanted)?;
    let known = state.expect_mut(id)?;
    apply(known, wanted)?;
    if let Some(port_id) = wanted.upcall_port_id.filter(|port_id| *port_id != 0) {
        known.direct_unheard(port_id, |port_id| readers.contains_key(&port_id));
    }
    let answer = Answer::Datapath(known.message(id, datapath));
    Ok(Outcome::Changed { answer, command: command::SET, family: Family::Datapath })
}

/// Applies all changes or none: if a part cannot be granted, the datapath stays unchanged.
fn apply(known: &mut DatapathRecord, wanted: &DatapathMessage) -> Result<(), Refusal> {
    if wanted.user_features.is_some_and(|features| features & !FEATURES != 0) {
        return Err(Refusal::new(Errno::EOPNOTSUPP, "a feature is not known here"));
    }
    if wanted.masks_cache_size.is_some_and(|size| size > MASKS_CACHE_SIZE_MAX) {
        return Err(Refusal::new(Errno::ERANGE, "the cache of masks cannot be larger than 65536"));
    }
    if let Some(features) = wanted.user_features {
        known.user_features = features & !dp::F_TC_RECIRC_SHARING;
    }
    if let Some(size) = wanted.masks_cache_size {
        known.masks_cache_size = size;
    }
    if let Some(ids) = wanted.per_cpu_port_ids.as_ref().filter(|_| known.is_per_cpu()) {
        known.per_cpu_port_ids.clone_from(ids);
    }
    Ok(())
}
