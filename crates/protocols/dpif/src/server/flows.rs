//! Requests of family `ovs_flow`.

use super::answer::Answer;
use super::families::Family;
use super::request::DumpCursor;
use super::request::{Outcome, Request, unknown_command};
use super::state::State;
use crate::datapath::{Datapath, DatapathId, FlowInstall, FlowName, FlowView};
use crate::family::{FlowMessage, FlowParts};
use crate::message::{self, NetlinkHeader};
use crate::refusal::{Errno, Refusal};
use crate::uapi::{command, flow as uapi, nlm};
use lasthop_flow::{Match, Ufid};

/// Serves a request; `is_told` says whether a client wants the result.
pub(super) fn serve(
    state: &mut State,
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
    is_told: bool,
) -> Result<Outcome, Refusal> {
    let id = request.id;
    state.expect(id)?;
    let mut wanted = FlowMessage { datapath: id.0, ..FlowMessage::default() };
    if let Err(refusal) = wanted.read(request.attrs.clone()) {
        if request.command == command::NEW {
            note(state, datapath, request, wanted.ufid, Some(&refusal));
        }
        return Err(refusal);
    }
    let omitted = wanted.omitted.unwrap_or(0);
    if request.is_dump() {
        return Ok(Outcome::Dump(DumpCursor::Flows { id, cursor: 0, omitted }));
    }
    let name = match request.command {
        command::NEW => {
            let (ufid, is_new) = (wanted.ufid, request.header.has(nlm::CREATE));
            let result = install(datapath, id, wanted, is_new);
            note(state, datapath, request, ufid, result.as_ref().err());
            result?
        }
        command::SET => {
            let ufid = wanted.ufid;
            let refused = |refusal| state.refused_flows.explain(id, ufid, refusal);
            change(datapath, id, wanted).map_err(refused)?
        }
        command::DEL => {
            let refused = |refusal| state.refused_flows.explain(id, wanted.ufid, refusal);
            let result = remove(datapath, id, &wanted, is_told).map_err(refused);
            state.refused_flows.forget(id, wanted.ufid);
            if matches!(result, Ok(Outcome::Flush(_))) {
                state.refused_flows.clear(id);
            }
            return result;
        }
        command::GET => {
            state.refused_flows.forget(id, wanted.ufid);
            let flow = datapath.flow(id, &expect_name(&wanted)?).ok_or(no_flow())?;
            let answer = Answer::Flow(message(id, flow.view(), omitted));
            return Ok(Outcome::Object { answer, command: command::NEW });
        }
        _ => return Err(unknown_command()),
    };
    if !is_told {
        return Ok(Outcome::Done);
    }
    let flow = datapath.flow(id, &name).ok_or(no_flow())?;
    let answer = Answer::Flow(message(id, flow.view(), omitted));
    Ok(Outcome::Changed { answer, command: request.command, family: Family::Flow })
}

/// Notes that a flow was refused to a client that does not wait for the answer, or that it is installed now.
fn note(
    state: &mut State,
    datapath: &dyn Datapath,
    request: &Request<'_>,
    ufid: Option<Ufid>,
    refusal: Option<&Refusal>,
) {
    state.refused_flows.forget(request.id, ufid);
    // Another switch process gets a flow again that this one may have.
    let is_there = |ufid| datapath.flow(request.id, &FlowName::Ufid(ufid)).is_some();
    if let (Some(refusal), Some(ufid), true) = (refusal, ufid, request.runs_ahead)
        && let Some(known) = state.datapath_mut(request.id).filter(|_| !is_there(ufid))
    {
        known.refused_late += 1;
        state.refused_flows.note(request.id, ufid, refusal.errno);
    }
}

/// A flow's parts without the fields in `omitted`. A flow without a name always has its key.
fn parts(flow: FlowView<'_>, omitted: u32) -> FlowParts<'_> {
    let has = |bit| omitted & bit == 0;
    let all = FlowParts::of(flow.ufid, flow.matches, flow.actions);
    FlowParts {
        key: all.key.filter(|_| has(uapi::OMIT_KEY) || flow.ufid.is_none()),
        mask: all.mask.filter(|_| has(uapi::OMIT_MASK)),
        actions: all.actions.filter(|_| has(uapi::OMIT_ACTIONS)),
        stats: Some(flow.stats),
        ..all
    }
}

/// Appends a flow's message to a dump's datagram, without a copy of the flow.
pub(super) fn append(
    datagram: &mut Vec<u8>,
    request: NetlinkHeader,
    id: DatapathId,
    flow: FlowView<'_>,
    omitted: u32,
) -> Result<(), Refusal> {
    let header = NetlinkHeader { kind: Family::Flow.id(), flags: nlm::MULTI, ..request };
    let version = (command::NEW, Family::Flow.version());
    let parts = parts(flow, omitted);
    message::append_datapath(datagram, header, version, id.0, |writer| parts.encode(writer))
}

/// A flow's message without the fields in `omitted`.
pub(super) fn message(id: DatapathId, flow: FlowView<'_>, omitted: u32) -> Box<FlowMessage> {
    let FlowParts { ufid, key, mask, stats, actions } = parts(flow, omitted);
    Box::new(FlowMessage {
        datapath: id.0,
        ufid,
        key: key.cloned(),
        mask: mask.cloned(),
        actions: actions.map(<[_]>::to_vec),
        stats,
        ..FlowMessage::default()
    })
}

fn no_flow() -> Refusal {
    Refusal::new(Errno::ENOENT, "there is no such flow")
}

fn name(wanted: &FlowMessage) -> Option<FlowName> {
    let by_key = || wanted.key.as_ref().map(|key| FlowName::Key(Box::new(key.clone())));
    wanted.ufid.map(FlowName::Ufid).or_else(by_key)
}

fn expect_name(wanted: &FlowMessage) -> Result<FlowName, Refusal> {
    name(wanted).ok_or(Refusal::invalid("neither a name nor a key says which flow"))
}

/// Installs a flow. Returns its name.
fn install(
    datapath: &mut dyn Datapath,
    id: DatapathId,
    wanted: FlowMessage,
    is_new: bool,
) -> Result<FlowName, Refusal> {
    let name = expect_name(&wanted)?;
    let (Some(key), Some(actions)) = (wanted.key, wanted.actions) else {
        return Err(Refusal::invalid("a flow needs a key and actions"));
    };
    let matches = Match { key, mask: wanted.mask };
    matches.check()?;
    datapath.flow_install(
        id,
        FlowInstall { ufid: wanted.ufid, matches, actions, is_probe: wanted.is_probe, is_new },
    )?;
    Ok(name)
}

fn change(datapath: &mut dyn Datapath, id: DatapathId, wanted: FlowMessage) -> Result<FlowName, Refusal> {
    let name = expect_name(&wanted)?;
    datapath.flow_change(id, &name, wanted.actions, wanted.is_clear)?;
    Ok(name)
}

/// Removes one flow, or all if none is named.
fn remove(
    datapath: &mut dyn Datapath,
    id: DatapathId,
    wanted: &FlowMessage,
    is_told: bool,
) -> Result<Outcome, Refusal> {
    let Some(name) = name(wanted) else {
        return Ok(Outcome::Flush(id));
    };
    let removal = datapath.flow_remove(id, &name, is_told)?;
    let omitted = wanted.omitted.unwrap_or(0);
    Ok(removal.map_or(Outcome::Done, |removal| Outcome::Removed { id, removal, omitted }))
}
