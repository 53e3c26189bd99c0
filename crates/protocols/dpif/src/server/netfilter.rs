//! Requests on a netfilter socket: connections and timeout policies of datapaths, not of the host.

use super::answer::Answer;
use super::request::{DumpCursor, Outcome};
use crate::datapath::Datapath;
use crate::message::NetlinkMessage;
use crate::netfilter::{
    AF_UNSPEC, CTNETLINK, CTNETLINK_TIMEOUT, ConnectionSelector, DELETE, GET, NEW, TimeoutPolicy, open,
};
use crate::refusal::{Errno, Refusal};
use crate::uapi::nlm;

/// Serves a request; `sees_all` includes connections of embedded controllers.
pub(super) fn serve(
    message: &NetlinkMessage<'_>,
    sees_all: bool,
    datapath: &mut dyn Datapath,
) -> Result<Outcome, Refusal> {
    let [subsystem, command] = message.header.kind.to_be_bytes();
    let is_dump = message.header.has(nlm::DUMP);
    match (subsystem, command) {
        (CTNETLINK, GET) if is_dump => dump(message, sees_all),
        (CTNETLINK, GET) => get(message, datapath),
        (CTNETLINK, DELETE) => delete(message, sees_all, datapath),
        (CTNETLINK_TIMEOUT, GET) if is_dump => {
            Ok(Outcome::Dump(DumpCursor::TimeoutPolicies { after: String::new() }))
        }
        (CTNETLINK_TIMEOUT, _) => serve_timeouts(message, command, datapath),
        _ => Err(Refusal::new(Errno::EOPNOTSUPP, "the switch does not have this part of netfilter")),
    }
}

/// Dumps connections, of a zone or all. Ignores an unknown filter, as older kernels do, and leaves filtering to the
/// client.
fn dump(message: &NetlinkMessage<'_>, is_all: bool) -> Result<Outcome, Refusal> {
    let (_, attrs) = open(message)?;
    let zone = match ConnectionSelector::decode(AF_UNSPEC, attrs) {
        Ok(ConnectionSelector::Zone(zone)) => Some(zone),
        _ => None,
    };
    Ok(Outcome::Dump(DumpCursor::Connections { cursor: 0, zone, is_all }))
}

/// Returns one connection.
fn get(message: &NetlinkMessage<'_>, datapath: &dyn Datapath) -> Result<Outcome, Refusal> {
    let (family, attrs) = open(message)?;
    let ConnectionSelector::One(tuple, id) = ConnectionSelector::decode(family, attrs)? else {
        return Err(Refusal::invalid("a request for one connection has no tuple; ask for a dump"));
    };
    let found = datapath.connection(&tuple).filter(|record| id.is_none_or(|id| record.id.number() == id));
    let record = found.ok_or(Refusal::new(Errno::ENOENT, "there is no such connection"))?;
    Ok(Outcome::Object { answer: Answer::Connection(Box::new(record)), command: NEW })
}

fn delete(
    message: &NetlinkMessage<'_>,
    is_all: bool,
    datapath: &mut dyn Datapath,
) -> Result<Outcome, Refusal> {
    let (family, attrs) = open(message)?;
    let which = ConnectionSelector::decode(family, attrs)?;
    datapath.connections_delete(which, is_all)?;
    Ok(Outcome::Done)
}

fn serve_timeouts(
    message: &NetlinkMessage<'_>,
    command: u8,
    datapath: &mut dyn Datapath,
) -> Result<Outcome, Refusal> {
    let unknown = Refusal::new(Errno::ENOENT, "there is no such timeout policy");
    let (_, attrs) = open(message)?;
    match command {
        NEW => datapath.timeout_policy_set(TimeoutPolicy::decode(attrs)?).map(|()| Outcome::Done),
        GET => {
            let name = TimeoutPolicy::decode_name(attrs)?;
            let policy = datapath.timeout_policies().into_iter().find(|policy| policy.name == name);
            let answer = Answer::Timeouts(policy.ok_or(unknown)?);
            Ok(Outcome::Object { answer, command: NEW })
        }
        DELETE => {
            let name = TimeoutPolicy::decode_name(attrs)?;
            if datapath.timeout_policy_remove(&name) { Ok(Outcome::Done) } else { Err(unknown) }
        }
        _ => Err(Refusal::new(Errno::EOPNOTSUPP, "timeout policies have no such command")),
    }
}
