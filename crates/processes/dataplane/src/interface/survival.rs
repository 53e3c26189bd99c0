//! Flows that outlive the switch process: recorded when they are installed, changed and removed, and installed again by
//! the next process.

use std::collections::VecDeque;

use log::info;

use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::{FlowMessage, FlowParts};
use lasthop_dpif::{Errno, Refusal};
use lasthop_flow::{FlowStats, Match};
use lasthop_flowtable as flowtable;

use lasthop_runtime::clock;

use super::super::flow_memory::{FlowMemory, Found, RecordPlace};
use super::flows::refused;
use super::places::Places;

/// Flows of another process that are not installed again yet, most recently used first.
#[derive(Debug, Default)]
pub(super) struct Returning(VecDeque<Found>);

impl Returning {
    pub(super) fn of(mut found: Vec<Found>) -> Self {
        found.sort_unstable_by_key(|one| std::cmp::Reverse(one.used_ms));
        Self(found.into())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Installs the next `flows` flows at most. Flows that cannot be installed are forgotten: their packets cause
    /// upcalls.
    pub(super) fn bring_back(&mut self, places: &mut Places, flows: usize) {
        let now_ms = clock::now_ms();
        for _ in 0..flows {
            let Some(found) = self.0.pop_front() else { return };
            if places.bring_back(found, now_ms).is_err()
                && let Some(memory) = &mut places.flow_memory
            {
                memory.remove(found.place);
            }
        }
    }
}

impl Places {
    /// Records a flow as it is now. A flow without room causes an upcall again after this process's end.
    pub(super) fn keep(&mut self, id: DatapathId, slot: Option<usize>) {
        let (Some(place), Some(memory)) = self.with_memory(id) else { return };
        let Some((slot, (flow, stats))) = slot.and_then(|slot| Some((slot, place.module.table().at(slot)?)))
        else {
            return;
        };
        if flow.is_probe {
            return;
        }
        if place.records.len() <= slot {
            place.records.resize(slot + 1, None);
        }
        let record = &mut place.records[slot];
        let message = message_of(&flow, std::mem::take(&mut place.record_bytes)).ok();
        *record = message.as_ref().and_then(|message| write(memory, *record, (id, message), &stats));
        place.record_bytes = message.unwrap_or_default();
        let is_full = record.is_none() && !self.is_memory_full;
        if is_full {
            self.is_memory_full = true;
            info!(limited = true; "there is no room to keep all flows for the next switch process: some flows will cause upcalls again after its start");
        }
    }

    /// Removes the record of a flow that is about to be removed.
    pub(super) fn forget(&mut self, id: DatapathId, slot: usize) {
        let (Some(place), Some(memory)) = self.with_memory(id) else { return };
        if let Some(record) = place.records.get_mut(slot).and_then(Option::take) {
            memory.remove(record);
        }
    }

    /// Installs a flow of another process. Its record is checked like a client's request.
    fn bring_back(&mut self, found: Found, now_ms: u64) -> Result<(), Refusal> {
        let Found { place: record, datapath, .. } = found;
        let (Some(place), Some(memory)) = self.with_memory(DatapathId(datapath)) else {
            return Err(Errno::ENODEV.into());
        };
        let (message, mut stats) = memory.read(record);
        stats.used_ms = stats.used_ms.min(now_ms);
        let wanted = FlowMessage::decode(datapath, Attrs::new(&message))?;
        let (Some(key), Some(actions)) = (wanted.key, wanted.actions) else {
            return Err(Refusal::invalid("a flow needs a key and actions"));
        };
        let matching = Match { key, mask: wanted.mask };
        matching.check()?;
        let flow = flowtable::FlowSpec { ufid: wanted.ufid, matching, actions, is_probe: false };
        let slot = place.module.table().install_counted(flow, stats).map_err(refused)?;
        if place.records.len() <= slot {
            place.records.resize(slot + 1, None);
        }
        place.records[slot] = Some(record);
        Ok(())
    }
}

/// Writes a flow, in place of its former record.
fn write(
    memory: &mut FlowMemory,
    old: Option<RecordPlace>,
    (id, message): (DatapathId, &[u8]),
    stats: &FlowStats,
) -> Option<RecordPlace> {
    match old {
        Some(old) => memory.replace(old, id.0, message, stats),
        None => memory.put(id.0, message, stats),
    }
}

/// The flow as a client's request, in the memory of an earlier one.
fn message_of(flow: &flowtable::FlowSpec, mut bytes: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    bytes.clear();
    let mut writer = Writer::new(bytes);
    FlowParts::of(flow.ufid, &flow.matching, &flow.actions).encode(&mut writer);
    writer.finish()
}
