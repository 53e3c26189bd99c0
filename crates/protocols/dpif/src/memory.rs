//! A datapath of plain maps: it forwards nothing and accepts everything. It serves tests of clients, and as a model for
//! a real datapath.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;

use lasthop_flow::{Action, FlowKey, FlowStats, Ufid};

use crate::datapath::{
    Datapath, DatapathFlow, DatapathId, Execute, FlowInstall, FlowName, FlowView, Meter, MeterFeatures, Port,
    PortView, Readiness, RemovalId, WantedPort,
};
use crate::family::{DatapathStats, MegaflowStats};
use crate::refusal::{Errno, Refusal};

/// Executed packets that are remembered.
const EXECUTED_MAX: usize = 256;
/// Flows that are removed in one part of a flush.
const FLOWS_PER_FLUSH: usize = 8;
/// Number of meters that it reports.
const METERS_MAX: u32 = 1024;

/// All datapaths.
#[derive(Debug, Default)]
pub struct MemoryDatapath {
    tables: BTreeMap<DatapathId, Table>,
    /// Existing devices and guests; `None` for any.
    pub devices: Option<BTreeSet<String>>,
    /// Names of datapaths of embedded controllers.
    pub reserved: BTreeSet<String>,
    /// Permitted names of datapaths; `None` for any.
    pub switches: Option<BTreeSet<String>>,
    /// Devices that are being made: their ports are not ready yet.
    pub being_made: BTreeSet<String>,
    /// Whether the devices of all new ports are still being made.
    pub is_making: bool,
    /// Ports whose requests ended before they were ready.
    pub unwanted: Vec<String>,
    /// The last packets to execute.
    pub executed: VecDeque<(DatapathId, Execute)>,
    /// Hashes of the last packets in invalid requests.
    pub not_executed: VecDeque<(DatapathId, u64)>,
    /// Whether removed flows still have packets to count.
    pub is_counting: bool,
    removed: BTreeMap<RemovalId, DatapathFlow>,
    last_removal: u64,
}

#[derive(Debug, Default)]
struct Table {
    flows: BTreeMap<u64, DatapathFlow>,
    names: HashMap<FlowName, u64>,
    matches: HashMap<(FlowKey, Option<FlowKey>), u64>,
    last_flow: u64,
    ports: BTreeMap<u32, PortView>,
    meters: BTreeMap<u32, Meter>,
}

impl Table {
    fn find(&self, name: &FlowName) -> Option<u64> {
        self.names.get(name).copied()
    }

    fn insert(&mut self, flow: DatapathFlow) {
        self.last_flow += 1;
        self.names.insert(flow.name(), self.last_flow);
        self.matches.insert(flow.matches.packets(), self.last_flow);
        self.flows.insert(self.last_flow, flow);
    }

    fn remove(&mut self, number: u64) -> Option<DatapathFlow> {
        let flow = self.flows.remove(&number)?;
        self.names.remove(&flow.name());
        self.matches.remove(&flow.matches.packets());
        Some(flow)
    }
}

impl MemoryDatapath {
    /// A switch without datapaths.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a flow's counters.
    pub fn count(&mut self, id: DatapathId, ufid: Ufid, stats: FlowStats) {
        let table = self.tables.get_mut(&id);
        if let Some(table) = table
            && let Some(number) = table.find(&FlowName::Ufid(ufid))
            && let Some(flow) = table.flows.get_mut(&number)
        {
            flow.stats = stats;
        }
    }

    /// Number of a datapath's flows.
    #[must_use]
    pub fn flow_count(&self, id: DatapathId) -> usize {
        self.tables.get(&id).map_or(0, |table| table.flows.len())
    }

    /// Number of removed flows whose statistics were not read. Tests and fuzzing of the server ask for it: each removal has to be told.
    #[must_use]
    pub fn removed_count(&self) -> usize {
        self.removed.len()
    }

    fn table(&mut self, id: DatapathId) -> Result<&mut Table, Refusal> {
        self.tables.get_mut(&id).ok_or(Errno::ENODEV.into())
    }
}

fn no_flow() -> Refusal {
    Refusal::new(Errno::ENOENT, "there is no such flow")
}

impl Datapath for MemoryDatapath {
    fn created(&mut self, id: DatapathId, name: &str) -> Result<(), Refusal> {
        if self.switches.as_ref().is_some_and(|switches| !switches.contains(name)) {
            return Err(Refusal::new(Errno::ENODEV, "there is no switch of that name"));
        }
        self.tables.insert(id, Table::default());
        Ok(())
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.reserved.contains(name)
    }

    fn destroyed(&mut self, id: DatapathId) {
        self.tables.remove(&id);
    }

    fn stats(&self, id: DatapathId) -> (DatapathStats, MegaflowStats) {
        let Some(table) = self.tables.get(&id) else { return Default::default() };
        let masks: BTreeSet<_> =
            table.flows.values().map(|flow| format!("{:?}", flow.matches.mask)).collect();
        let stats = DatapathStats { flows: table.flows.len() as u64, ..DatapathStats::default() };
        let masks = u32::try_from(masks.len()).unwrap_or(u32::MAX);
        (stats, MegaflowStats { masks, ..MegaflowStats::default() })
    }

    fn port_wanted(&mut self, wanted: WantedPort<'_>) -> Result<Readiness, Refusal> {
        Ok(if self.is_making || self.being_made.contains(wanted.name) {
            Readiness::NotYet
        } else {
            Readiness::Ready
        })
    }

    fn port_unwanted(&mut self, name: &str) {
        self.unwanted.push(name.to_owned());
    }

    fn port_added(&mut self, id: DatapathId, port: &Port) -> Result<(), Refusal> {
        if self.devices.as_ref().is_some_and(|devices| port.number != 0 && !devices.contains(&port.name)) {
            return Err(Refusal::new(Errno::ENODEV, "there is no device or guest of that name"));
        }
        self.table(id)?.ports.insert(port.number, PortView::default());
        Ok(())
    }

    fn port_changed(&mut self, _id: DatapathId, _port: &Port) -> Result<(), Refusal> {
        Ok(())
    }

    fn port_removed(&mut self, id: DatapathId, number: u32) {
        if let Ok(table) = self.table(id) {
            table.ports.remove(&number);
        }
    }

    fn port_view(&self, id: DatapathId, number: u32) -> PortView {
        self.tables.get(&id).and_then(|table| table.ports.get(&number)).copied().unwrap_or_default()
    }

    fn flow_install(&mut self, id: DatapathId, flow: FlowInstall) -> Result<(), Refusal> {
        let table = self.table(id)?;
        let FlowInstall { ufid, matches, actions, is_probe: _, is_new } = flow;
        let flow = DatapathFlow { ufid, matches, actions, stats: FlowStats::default() };
        let same = table.matches.get(&flow.matches.packets()).copied();
        let named = table.find(&flow.name());
        match (named, same) {
            (None, None) => table.insert(flow),
            (Some(number), _) if !is_new => {
                let old = table.remove(number).ok_or(no_flow())?;
                table.insert(DatapathFlow { stats: old.stats, actions: flow.actions, ..old });
            }
            (None, Some(_)) if !is_new => return Err(no_flow()),
            _ => return Err(Refusal::new(Errno::EEXIST, "there is such a flow already")),
        }
        Ok(())
    }

    fn flow_change(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        actions: Option<Vec<Action>>,
        is_clear: bool,
    ) -> Result<(), Refusal> {
        let table = self.table(id)?;
        let number = table.find(name).ok_or(no_flow())?;
        let flow = table.flows.get_mut(&number).ok_or(no_flow())?;
        if let Some(actions) = actions {
            flow.actions = actions;
        }
        if is_clear {
            flow.stats = FlowStats::default();
        }
        Ok(())
    }

    fn flow(&self, id: DatapathId, name: &FlowName) -> Option<DatapathFlow> {
        let table = self.tables.get(&id)?;
        table.flows.get(&table.find(name)?).cloned()
    }

    fn flow_remove(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        wants_last: bool,
    ) -> Result<Option<RemovalId>, Refusal> {
        let table = self.table(id)?;
        let number = table.find(name).ok_or(no_flow())?;
        let flow = table.remove(number).ok_or(no_flow())?;
        if !wants_last {
            return Ok(None);
        }
        self.last_removal += 1;
        self.removed.insert(RemovalId(self.last_removal), flow);
        Ok(Some(RemovalId(self.last_removal)))
    }

    fn flow_removed(&mut self, removal: RemovalId) -> Option<DatapathFlow> {
        if self.is_counting { None } else { self.removed.remove(&removal) }
    }

    fn flows_flush(&mut self, id: DatapathId, cursor: u64) -> Option<u64> {
        let table = self.tables.get_mut(&id)?;
        let numbers: Vec<u64> =
            table.flows.range(cursor..).map(|(number, _)| *number).take(FLOWS_PER_FLUSH).collect();
        let last = numbers.last().copied()?;
        numbers.into_iter().for_each(|number| drop(table.remove(number)));
        Some(last + 1)
    }

    fn flows_visit(
        &self,
        id: DatapathId,
        cursor: u64,
        visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
    ) -> Option<u64> {
        let table = self.tables.get(&id)?;
        let mut flows = table.flows.range(cursor..);
        flows.find(|(_, flow)| visit(flow.view()).is_break()).map(|(number, _)| *number)
    }

    fn execute(&mut self, id: DatapathId, execute: Execute) -> Result<(), Refusal> {
        self.table(id)?;
        if !execute.is_probe {
            self.executed.truncate(EXECUTED_MAX - 1);
            self.executed.push_front((id, execute));
        }
        Ok(())
    }

    fn not_executed(&mut self, id: DatapathId, hash: u64) {
        self.not_executed.truncate(EXECUTED_MAX - 1);
        self.not_executed.push_front((id, hash));
    }

    fn meter_features(&self, _id: DatapathId) -> MeterFeatures {
        MeterFeatures { meters_max: METERS_MAX, bands_max: 1 }
    }

    fn meter_set(&mut self, id: DatapathId, meter: u32, what: Meter) -> Result<Option<Meter>, Refusal> {
        let meters = &mut self.table(id)?.meters;
        if meters.len() >= METERS_MAX as usize && !meters.contains_key(&meter) {
            return Err(Refusal::new(Errno::ENOSPC, "the limit of meters is reached"));
        }
        Ok(meters.insert(meter, what))
    }

    fn meter(&self, id: DatapathId, meter: u32) -> Option<Meter> {
        self.tables.get(&id)?.meters.get(&meter).cloned()
    }

    fn meter_remove(&mut self, id: DatapathId, meter: u32) -> Option<Meter> {
        self.table(id).ok()?.meters.remove(&meter)
    }
}
