//! Flows of a datapath.

use std::ops::ControlFlow;
use std::sync::Arc;

use lasthop_control::datapath::{Flow, FlowInstall, FlowName, FlowView, RemovalId};
use lasthop_control::{Errno, Refusal};
use lasthop_flow::{Action, FlowStats};
use lasthop_flowtable::{self as flowtable, FlowModule, InstallError, Removed};

use super::places::{Place, Places};

/// Slots of the table that are looked at in one go, while its writer's lock is held.
const SLOTS_PER_LOOK: usize = 256;

pub(super) fn refused(error: InstallError) -> Refusal {
    match error {
        InstallError::Exists => Refusal::new(Errno::EEXIST, "there is such a flow already"),
        InstallError::Unknown => Refusal::new(Errno::ENOENT, "there is no such flow"),
        InstallError::NoRoom(why) => Refusal::new(Errno::ENOSPC, why),
        InstallError::Refused(refused) => unsupported(refused),
    }
}

/// What there is not here is refused with the number that tells OVS so.
pub(super) fn unsupported(refused: flowtable::Refused) -> Refusal {
    match refused {
        flowtable::Refused::Unsupported(what) | flowtable::Refused::TooLong(what) => Refusal::invalid(what),
    }
}

pub(super) fn name_of(name: &FlowName) -> flowtable::FlowName<'_> {
    match name {
        FlowName::Ufid(ufid) => flowtable::FlowName::Ufid(*ufid),
        FlowName::Key(key) => flowtable::FlowName::Key(key),
    }
}

fn told(flow: &flowtable::Flow, stats: FlowStats) -> Flow {
    let flowtable::Flow { ufid, matching, actions, .. } = flow;
    Flow { ufid: *ufid, matches: matching.clone(), actions: actions.clone(), stats }
}

/// One that is there already gets the actions, unless it shall be new.
pub(super) fn install(place: &Place, flow: FlowInstall) -> Result<(), Refusal> {
    let FlowInstall { ufid, matches, actions, is_probe, is_new } = flow;
    let table = place.module.table();
    if !is_new {
        let name = ufid.map_or(flowtable::FlowName::Key(&matches.key), flowtable::FlowName::Ufid);
        match table.replace(name, actions.clone()) {
            Err(InstallError::Unknown) => {}
            replaced => return replaced.map(drop).map_err(refused),
        }
    }
    let installed = table.install(flowtable::Flow { ufid, matching: matches, actions, is_probe });
    installed.map_err(|error| match error {
        InstallError::Exists if !is_new => refused(InstallError::Unknown),
        error => refused(error),
    })
}

pub(super) fn change(
    place: &Place,
    name: &FlowName,
    actions: Option<Vec<Action>>,
    is_clear: bool,
) -> Result<(), Refusal> {
    let (table, name) = (place.module.table(), name_of(name));
    match actions {
        Some(actions) => table.replace(name, actions).map(drop),
        None => table.get(name).map(drop),
    }
    .and_then(|()| if is_clear { table.clear_stats(name) } else { Ok(()) })
    .map_err(refused)
}

pub(super) fn get(place: &Place, name: &FlowName) -> Option<Flow> {
    let (flow, stats) = place.module.table().get(name_of(name)).ok()?;
    Some(told(&flow, stats))
}

pub(super) fn flush(place: &Place) {
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        cursor = place.module.table().flush(at, SLOTS_PER_LOOK);
    }
}

pub(super) fn visit(
    place: &Place,
    cursor: u64,
    visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
) -> Option<u64> {
    let mut cursor = Some(usize::try_from(cursor).ok()?);
    while let Some(at) = cursor {
        let (flows, next) = place.module.table().dump(at, SLOTS_PER_LOOK);
        for (slot, flow, stats) in flows {
            let flowtable::Flow { ufid, matching, actions, .. } = &**flow;
            let view = FlowView { ufid: *ufid, matches: matching, actions, stats };
            if visit(view).is_break() {
                return Some(slot as u64);
            }
        }
        cursor = next;
    }
    None
}

impl Places {
    /// Keeps a flow that was taken out until it is asked how it was at last.
    pub(super) fn remember(&mut self, module: Arc<FlowModule>, removed: Removed) -> RemovalId {
        self.last_removal += 1;
        let id = RemovalId(self.last_removal);
        self.removals.insert(id, (module, removed));
        id
    }

    /// The flow as it was at last, unless workers still have packets of it.
    pub(super) fn last_of(&mut self, removal: RemovalId) -> Option<Flow> {
        let (module, removed) = self.removals.get(&removal)?;
        let flow = told(&removed.flow, module.table().final_stats(removed)?);
        self.removals.remove(&removal);
        Some(flow)
    }
}
