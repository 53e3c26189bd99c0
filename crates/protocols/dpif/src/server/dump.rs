//! Dumps: made one datagram at a time, as the client reads them.

use std::ops::ControlFlow;

use lasthop_conntrack::CtRecord;
use lasthop_flow::Ufid;

use super::answer::{Answer, append_part};
use super::request::DumpCursor;
use super::state::State;
use crate::bounds::DUMP_BYTES;
use crate::datapath::{Datapath, DatapathId};
use crate::message::{self, NetlinkHeader};
use crate::uapi::flow as uapi;

/// The fields that OVS omits in lists for its revalidators.
const BRIEF: u32 = uapi::OMIT_KEY | uapi::OMIT_MASK | uapi::OMIT_ACTIONS;

/// A dump in progress.
#[derive(Clone, Debug)]
pub(super) struct Dump {
    /// The request.
    pub(super) header: NetlinkHeader,
    pub(super) what: DumpCursor,
}

impl Dump {
    /// The next datagram, and whether it was the last one.
    pub(super) fn next(&mut self, state: &State, datapath: &dyn Datapath) -> (Vec<u8>, bool) {
        let mut bytes = Vec::with_capacity(DUMP_BYTES);
        if let DumpCursor::Flows { id, cursor, omitted } = self.what {
            self.what = flows(datapath, id, (cursor, omitted), self.header, &mut bytes);
        }
        if let DumpCursor::Flows { .. } = self.what {
            return self.ended(bytes);
        }
        let mut put = |answer: Answer| answer.append_part(self.header, &mut bytes);
        self.what = match std::mem::replace(&mut self.what, DumpCursor::Nothing) {
            DumpCursor::Datapaths { after, is_all } => datapaths(state, datapath, (after, is_all), &mut put),
            DumpCursor::Ports { id, from } => ports(state, datapath, id, from, &mut put),
            DumpCursor::Connections { cursor, zone, is_all } => {
                connections(datapath, cursor, (zone, is_all), &mut put)
            }
            DumpCursor::TimeoutPolicies { after } => timeout_policies(datapath, &after, &mut put),
            DumpCursor::RefusedFlows { id, after } => refused_flows(state, id, after, &mut put),
            DumpCursor::Flows { .. } | DumpCursor::Nothing => DumpCursor::Nothing,
        };
        self.ended(bytes)
    }

    /// A datagram, with the end of the dump if there is nothing more.
    fn ended(&self, mut bytes: Vec<u8>) -> (Vec<u8>, bool) {
        let is_last = matches!(self.what, DumpCursor::Nothing);
        if is_last {
            bytes.extend(message::done(self.header, Ok(())));
        }
        (bytes, is_last)
    }
}

/// Adds an answer to the datagram; breaks without adding it if there is no room.
type Put<'a> = &'a mut dyn FnMut(Answer) -> ControlFlow<()>;

fn datapaths(
    state: &State,
    datapath: &dyn Datapath,
    (after, is_all): (i32, bool),
    put: Put<'_>,
) -> DumpCursor {
    let mut last = after;
    let listed =
        state.datapaths_after(after).filter(|(_, known)| is_all || !datapath.is_reserved(&known.name));
    for (id, known) in listed {
        if put(Answer::Datapath(known.message(id, datapath))).is_break() {
            return DumpCursor::Datapaths { after: last, is_all };
        }
        last = id.0;
    }
    DumpCursor::Nothing
}

fn ports(state: &State, datapath: &dyn Datapath, id: DatapathId, from: u32, put: Put<'_>) -> DumpCursor {
    let Some(known) = state.datapath(id) else { return DumpCursor::Nothing };
    for port in known.ports_from(from) {
        if put(Answer::Vport(known.port_message(id, port, datapath))).is_break() {
            return DumpCursor::Ports { id, from: port.number };
        }
    }
    DumpCursor::Nothing
}

fn flows(
    datapath: &dyn Datapath,
    id: DatapathId,
    (cursor, omitted): (u64, u32),
    header: NetlinkHeader,
    bytes: &mut Vec<u8>,
) -> DumpCursor {
    let next = datapath.flows_visit(id, cursor, &mut |flow| {
        append_part(bytes, |bytes| super::flows::append(bytes, header, id, flow, omitted))
    });
    let end = || match omitted & BRIEF {
        BRIEF => DumpCursor::RefusedFlows { id, after: None },
        _ => DumpCursor::Nothing,
    };
    next.map_or_else(end, |cursor| DumpCursor::Flows { id, cursor, omitted })
}

fn refused_flows(state: &State, id: DatapathId, after: Option<Ufid>, put: Put<'_>) -> DumpCursor {
    let mut last = after;
    for flow in state.refused_flows.listed(id, after) {
        let ufid = flow.ufid;
        if put(Answer::Flow(Box::new(flow))).is_break() {
            return DumpCursor::RefusedFlows { id, after: last };
        }
        last = ufid;
    }
    DumpCursor::Nothing
}

fn connections(
    datapath: &dyn Datapath,
    cursor: u64,
    (zone, is_all): (Option<u16>, bool),
    put: Put<'_>,
) -> DumpCursor {
    let mut put = |record: &CtRecord| put(Answer::Connection(Box::new(*record)));
    let next = datapath.connections_visit(cursor, (zone, is_all), &mut put);
    next.map_or(DumpCursor::Nothing, |cursor| DumpCursor::Connections { cursor, zone, is_all })
}

fn timeout_policies(datapath: &dyn Datapath, after: &str, put: Put<'_>) -> DumpCursor {
    let mut last = after.to_owned();
    for policy in datapath.timeout_policies().into_iter().filter(|policy| *policy.name > *after) {
        let name = policy.name.clone();
        if put(Answer::Timeouts(policy)).is_break() {
            return DumpCursor::TimeoutPolicies { after: last };
        }
        last = name;
    }
    DumpCursor::Nothing
}
