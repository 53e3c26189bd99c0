//! Flows of a datapath, and the log of refused ones. ovs-vswitchd retries with every packet, so each reason is logged at
//! intervals, with the number of refusals since then.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_dpif::datapath::{DatapathFlow, DatapathId, FlowInstall, FlowName, FlowView, RemovalId};
use lasthop_dpif::{Errno, Refusal};
use lasthop_flow::{Action, FlowStats, Match};
use lasthop_flowtable::{self as flowtable, FlowModule, InstallError, Removed};
use log::warn;

use crate::interface::places::{Place, Places};

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

    /// Removes the flows of some slots from `cursor` on, and returns the next cursor.
    pub(super) fn flush(&mut self, id: DatapathId, cursor: u64) -> Option<u64> {
        let (Some(place), memory) = self.with_memory(id) else { return None };
        let at = usize::try_from(cursor).ok()?;
        let records = place.records.iter_mut().skip(at).take(SLOTS_PER_LOOK).filter_map(Option::take);
        match memory {
            Some(memory) => records.for_each(|record| memory.remove(record)),
            None => records.for_each(drop),
        }
        place.module.table().flush(at, SLOTS_PER_LOOK).map(|next| next as u64)
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

/// Time between two log lines for one reason.
const PAUSE: Duration = Duration::from_secs(60);

/// The packets of a flow, as the log names them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowPackets {
    pub(super) in_port: Option<u32>,
    ether_type: Option<u16>,
}

impl FlowPackets {
    pub(super) fn of(matches: &Match) -> Self {
        Self { in_port: matches.key.in_port, ether_type: matches.key.ether_type }
    }
}

/// By reason. The program has a fixed number of reasons.
#[derive(Debug, Default)]
pub(super) struct RefusedFlows {
    said: BTreeMap<&'static str, (Instant, u64)>,
}

impl RefusedFlows {
    /// Notes a refused flow for packets of `port`.
    pub(super) fn note(&mut self, port: &str, packets: FlowPackets, refusal: Refusal, now: Instant) {
        if refusal.errno != Errno::EINVAL {
            return;
        }
        let Some(refusals) = self.count(refusal.why, now) else { return };
        let kind = packets.ether_type.map_or_else(String::new, |kind| format!(", EtherType {kind:#06x}"));
        let why = refusal.why;
        warn!(limited = true; "refused a flow for packets from {port}{kind} ({refusals} since the last such line): {why} is not supported; its packets \
            are dropped, or each of them goes through the controller; take it out of the OpenFlow rules: docs/user/open-vswitch.md");
    }

    /// The number of refusals to log now, including this one; `None` if the reason was logged recently.
    fn count(&mut self, why: &'static str, now: Instant) -> Option<u64> {
        let (due, refusals) = self.said.entry(why).or_insert((now, 0));
        *refusals += 1;
        if now < *due {
            return None;
        }
        *due = now + PAUSE;
        Some(std::mem::take(refusals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_logged_at_once_and_then_once_in_a_while_with_its_number() {
        let (mut refused, now) = (RefusedFlows::default(), Instant::now());
        assert_eq!(refused.count("a", now), Some(1));
        assert_eq!(refused.count("a", now), None);
        assert_eq!(refused.count("b", now), Some(1));
        assert_eq!(refused.count("a", now + PAUSE / 2), None);
        assert_eq!(refused.count("a", now + PAUSE), Some(3));
    }
}
