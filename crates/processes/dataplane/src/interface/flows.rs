//! Flows of a datapath.

use std::ops::ControlFlow;
use std::sync::Arc;

use lasthop_dpif::datapath::{DatapathFlow, DatapathId, FlowInstall, FlowName, FlowView, RemovalId};
use lasthop_dpif::{Errno, Refusal};
use lasthop_flow::{Action, FlowStats};
use lasthop_flowtable::{self as flowtable, FlowModule, InstallError, Removed};

use super::places::{Place, Places};

/// Slots of the table that are read in one go, under its writer's lock.
const SLOTS_PER_LOOK: usize = 256;

pub(super) fn refused(error: InstallError) -> Refusal {
    match error {
        InstallError::Exists => Refusal::new(Errno::EEXIST, "there is such a flow already"),
        InstallError::Unknown => Refusal::new(Errno::ENOENT, "there is no such flow"),
        InstallError::NoRoom(why) => Refusal::new(Errno::ENOSPC, why),
        InstallError::Refused(refused) => unsupported(refused),
    }
}

/// Refuses unsupported parts with the error number that OVS expects.
pub(super) fn unsupported(refused: flowtable::UnsupportedFlow) -> Refusal {
    match refused {
        flowtable::UnsupportedFlow::Unsupported(what) | flowtable::UnsupportedFlow::TooLong(what) => {
            Refusal::invalid(what)
        }
    }
}

pub(super) fn name_of(name: &FlowName) -> flowtable::FlowSelector<'_> {
    match name {
        FlowName::Ufid(ufid) => flowtable::FlowSelector::Ufid(*ufid),
        FlowName::Key(key) => flowtable::FlowSelector::Key(key),
    }
}

fn told(flow: &flowtable::FlowSpec, stats: FlowStats) -> DatapathFlow {
    let flowtable::FlowSpec { ufid, matching, actions, .. } = flow;
    DatapathFlow { ufid: *ufid, matches: matching.clone(), actions: actions.clone(), stats }
}

pub(super) fn get(place: &Place, name: &FlowName) -> Option<DatapathFlow> {
    let (flow, stats) = place.module.table().get(name_of(name)).ok()?;
    Some(told(&flow, stats))
}

impl Places {
    /// Installs a flow. An existing one gets the actions, unless the request is for a new flow only.
    pub(super) fn install(&mut self, id: DatapathId, flow: FlowInstall) -> Result<(), Refusal> {
        let FlowInstall { ufid, matches, actions, is_probe, is_new } = flow;
        let place = self.get(id).ok_or(Errno::ENODEV)?;
        let table = place.module.table();
        if !is_new {
            let name = ufid.map_or(flowtable::FlowSelector::Key(&matches.key), flowtable::FlowSelector::Ufid);
            match table.replace(name, actions.clone()) {
                Err(InstallError::Unknown) => {}
                Err(error) => return Err(refused(error)),
                Ok(_) => {
                    let slot = table.slot(name);
                    self.keep(id, slot);
                    return Ok(());
                }
            }
        }
        let flow = flowtable::FlowSpec { ufid, matching: matches, actions, is_probe };
        let installed = table.install_counted(flow, FlowStats::default());
        let slot = installed.map_err(|error| match error {
            InstallError::Exists if !is_new => refused(InstallError::Unknown),
            error => refused(error),
        })?;
        self.keep(id, Some(slot));
        Ok(())
    }

    /// Changes a flow's actions, or resets its counters.
    pub(super) fn change(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        actions: Option<Vec<Action>>,
        is_clear: bool,
    ) -> Result<(), Refusal> {
        let place = self.get(id).ok_or(Errno::ENODEV)?;
        let (table, name) = (place.module.table(), name_of(name));
        match actions {
            Some(actions) => table.replace(name, actions).map(drop),
            None => table.get(name).map(drop),
        }
        .and_then(|()| if is_clear { table.clear_stats(name) } else { Ok(()) })
        .map_err(refused)?;
        let slot = table.slot(name);
        self.keep(id, slot);
        Ok(())
    }

    /// Removes a flow.
    pub(super) fn take_out(
        &mut self,
        id: DatapathId,
        name: &FlowName,
    ) -> Result<(Arc<FlowModule>, Removed), Refusal> {
        let place = self.get(id).ok_or(Errno::ENODEV)?;
        let (module, name) = (Arc::clone(&place.module), name_of(name));
        if let Some(slot) = module.table().slot(name) {
            self.forget(id, slot);
        }
        let removed = module.table().remove(name).map_err(refused)?;
        Ok((module, removed))
    }

    /// Removes all flows.
    pub(super) fn flush(&mut self, id: DatapathId) {
        let (Some(place), memory) = self.with_memory(id) else { return };
        let records = std::mem::take(&mut place.records);
        if let Some(memory) = memory {
            records.into_iter().flatten().for_each(|record| memory.remove(record));
        }
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = place.module.table().flush(at, SLOTS_PER_LOOK);
        }
    }

    /// Reports flows from `cursor` on until `visit` breaks, and returns the next cursor. A successor starts its flows
    /// with the statistics that are reported here, so that no client sees counters go back.
    pub(super) fn visit(
        &self,
        id: DatapathId,
        cursor: u64,
        visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
    ) -> Option<u64> {
        let place = self.get(id)?;
        let mut cursor = Some(usize::try_from(cursor).ok()?);
        while let Some(at) = cursor {
            let (flows, next) = place.module.table().dump(at, SLOTS_PER_LOOK);
            for (slot, flow, stats) in flows {
                let flowtable::FlowSpec { ufid, matching, actions, .. } = &**flow;
                let record = place.records.get(slot).copied().flatten();
                if let (Some(memory), Some(record)) = (&self.flow_memory, record) {
                    memory.note(record, &stats);
                }
                let view = FlowView { ufid: *ufid, matches: matching, actions, stats };
                if visit(view).is_break() {
                    return Some(slot as u64);
                }
            }
            cursor = next;
        }
        None
    }

    /// Keeps a removed flow until its last statistics are read.
    pub(super) fn remember(&mut self, module: Arc<FlowModule>, removed: Removed) -> RemovalId {
        self.last_removal += 1;
        let id = RemovalId(self.last_removal);
        self.removals.insert(id, (module, removed));
        id
    }

    /// The removed flow with its last statistics; `None` while workers still have packets of it.
    pub(super) fn last_of(&mut self, removal: RemovalId) -> Option<DatapathFlow> {
        let (module, removed) = self.removals.get(&removal)?;
        let flow = told(&removed.flow, module.table().final_stats(removed)?);
        self.removals.remove(&removal);
        Some(flow)
    }
}
