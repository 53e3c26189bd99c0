//! Requests of family `ovs_packet`.

use super::request::{Outcome, Request, unknown_command};
use super::state::State;
use crate::datapath::{Datapath, Execute};
use crate::family::PacketMessage;
use crate::refusal::Refusal;
use crate::uapi::packet;

pub(super) fn serve(
    state: &State,
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
) -> Result<Outcome, Refusal> {
    if request.command != packet::EXECUTE {
        return Err(unknown_command());
    }
    state.expect(request.id)?;
    let execute = read(request).inspect_err(|_| {
        if let Some(hash) = PacketMessage::hash_in(request.attrs.clone()) {
            datapath.not_executed(request.id, hash);
        }
    })?;
    datapath.execute(request.id, execute)?;
    Ok(Outcome::Done)
}

fn read(request: &Request<'_>) -> Result<Execute, Refusal> {
    let mut wanted = PacketMessage { datapath: request.id.0, ..PacketMessage::default() };
    wanted.read(request.attrs.clone())?;
    let actions = wanted.actions.ok_or(Refusal::invalid("there are no actions for the packet"))?;
    Ok(Execute {
        packet: wanted.packet,
        metadata: wanted.key,
        actions,
        is_probe: wanted.is_probe,
        mru_bytes: wanted.mru_bytes,
        hash: wanted.hash,
    })
}
