//! Several switches in one process: the module of a port's own switch decides the port's frames.
//!
//! ```text
//!   batch of port 7 ─► ports[7] = 2 ─► modules[2] ─► decide ─► outputs: ports of switch 2, as no other module knows them
//! ```
//!
//! A module knows its own switch's ports and no others. So it cannot leak a frame, an address or an error of one switch
//! to another. The look-up costs two loads for a batch, not for a packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use lasthop_module_api::{
    Batch, DropReason, FdbEntry, FdbMove, Header, Mac, Module, PORTS_MAX, PortId, PortSettings, Reasons,
    SWITCHES_MAX, SwitchId, Upcall, Verdicts, Vid,
};

/// The entry of a port in no switch. No switch has this number.
const NOWHERE: u16 = u16::MAX;

/// The entry of the port `internal` if it has its own module. No switch has this number.
const OF_INTERNAL: SwitchId = SwitchId(SWITCHES_MAX as u16);

const _: () = assert!(SWITCHES_MAX < NOWHERE as usize);

/// By port: the number of its switch, or `NOWHERE`.
type Members = [AtomicU16; PORTS_MAX];

/// A module that hands each batch to the module of its port's switch.
///
/// The table of switches never changes: [`Self::with`] and [`Self::without`] make another one for the same ports, and
/// each worker gets it between two visits. So the path of a frame needs no lock and frees no memory.
pub struct Switches {
    members: Arc<Members>,
    modules: Vec<Option<Arc<dyn Module>>>,
}

impl Switches {
    /// Returns the default switch alone, with `module`, which also decides packets of the port `internal`.
    #[must_use]
    pub fn new(module: Arc<dyn Module>) -> Self {
        let members: Members = std::array::from_fn(|_| AtomicU16::new(NOWHERE));
        members[PortId::INTERNAL.index()].store(SwitchId::DEFAULT.0, Ordering::Relaxed);
        Self { members: Arc::new(members), modules: vec![Some(module)] }
    }

    /// Returns these switches with `module` for packets of the port `internal`; it may send them to ports of all
    /// switches.
    #[must_use]
    pub fn with_internal(&self, module: Arc<dyn Module>) -> Self {
        let mut modules = self.modules.clone();
        modules.resize_with(OF_INTERNAL.index() + 1, || None);
        modules[OF_INTERNAL.index()] = Some(module);
        self.members[PortId::INTERNAL.index()].store(OF_INTERNAL.0, Ordering::Relaxed);
        Self { members: Arc::clone(&self.members), modules }
    }

    /// The lowest unused number; `None` if there are [`SWITCHES_MAX`] switches.
    #[must_use]
    pub fn vacancy(&self) -> Option<SwitchId> {
        let vacant = self.modules.iter().position(Option::is_none).unwrap_or(self.modules.len());
        (vacant < SWITCHES_MAX).then_some(SwitchId(vacant as u16)) // below SWITCHES_MAX
    }

    /// Returns these switches and one more, without ports. `switch` is a [`Self::vacancy`].
    ///
    /// # Panics
    /// If `switch` is not below [`SWITCHES_MAX`].
    #[must_use]
    pub fn with(&self, switch: SwitchId, module: Arc<dyn Module>) -> Self {
        assert!(switch.index() < SWITCHES_MAX, "a vacancy is below {SWITCHES_MAX}");
        let mut modules = self.modules.clone();
        modules.resize_with(modules.len().max(switch.index() + 1), || None);
        modules[switch.index()] = Some(module);
        Self { members: Arc::clone(&self.members), modules }
    }

    /// Returns these switches without `switch`; its ports must be removed before.
    #[must_use]
    pub fn without(&self, switch: SwitchId) -> Self {
        debug_assert!(self.ports(switch).next().is_none(), "switch {} has ports", switch.0);
        let mut modules = self.modules.clone();
        if let Some(module) = modules.get_mut(switch.index()) {
            *module = None;
        }
        Self { members: Arc::clone(&self.members), modules }
    }

    /// The module of a switch.
    #[inline]
    #[must_use]
    pub fn module(&self, switch: SwitchId) -> Option<&dyn Module> {
        self.modules.get(switch.index())?.as_deref()
    }

    /// The ports of a switch, ascending, without `internal`.
    pub fn ports(&self, switch: SwitchId) -> impl Iterator<Item = PortId> {
        let ports = (0..PORTS_MAX as u16).map(PortId).filter(|port| *port != PortId::INTERNAL);
        ports.filter(move |port| self.switch_of(*port) == Some(switch))
    }

    /// The entry of a port; `NOWHERE` for numbers outside the table.
    #[inline]
    fn entry(&self, port: PortId) -> SwitchId {
        // Relaxed: the number is the only data. A port's entry is stored before a guest can send from it.
        SwitchId(self.members.get(port.index()).map_or(NOWHERE, |entry| entry.load(Ordering::Relaxed)))
    }

    fn switch_of(&self, port: PortId) -> Option<SwitchId> {
        Some(self.entry(port)).filter(|switch| switch.0 != NOWHERE)
    }

    #[inline]
    fn module_of(&self, port: PortId) -> Option<&dyn Module> {
        self.module(self.entry(port))
    }

    /// Whether no output leaves the switch of the batch's port. A port that is just being removed is in none.
    /// The module of the port `internal` is not restricted.
    fn is_contained(&self, batch: &Batch<'_>, verdicts: &mut Verdicts) -> bool {
        let switch = self.switch_of(batch.port);
        if matches!(switch, None | Some(OF_INTERNAL)) {
            return true;
        }
        let mut destinations = verdicts.outputs().iter().filter_map(|output| self.switch_of(output.port));
        destinations.all(|destination| Some(destination) == switch)
    }
}

impl Module for Switches {
    fn name(&self) -> &'static str {
        "switches"
    }

    #[inline]
    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        match self.module_of(batch.port) {
            Some(module) => module.decide(batch, now_ns, verdicts),
            None => drop_all(batch, verdicts),
        }
        debug_assert!(self.is_contained(batch, verdicts), "port {}: {verdicts:?}", batch.port);
    }

    fn delivered(&self, port: PortId, rest: u16) {
        if let Some(module) = self.module_of(port) {
            module.delivered(port, rest);
        }
    }

    fn explain(
        &self,
        (port, header): (PortId, &Header),
        now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        match self.module_of(port) {
            Some(module) => module.explain((port, header), now_ns, verdicts, reasons),
            None => {
                reasons.tell("switch", "the port is in no switch");
                verdicts.drop_packet(0, DropReason::NoDestination);
                true
            }
        }
    }

    fn may_leave(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        self.module_of(port).is_none_or(|module| module.may_leave(port, worker, now_ns))
    }

    fn guest_left(&self, port: PortId, worker: usize) -> bool {
        self.module_of(port).is_none_or(|module| module.guest_left(port, worker))
    }

    fn keeps_paused(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        self.module_of(port).is_some_and(|module| module.keeps_paused(port, worker, now_ns))
    }

    /// All modules are called; each recognizes its own upcalls by their `origin`.
    fn upcall_split(&self, upcall: &Upcall) {
        self.modules.iter().flatten().for_each(|module| module.upcall_split(upcall));
    }

    fn upcall_lost(&self, upcall: &Upcall) {
        self.modules.iter().flatten().for_each(|module| module.upcall_lost(upcall));
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::check_number(port, settings)?;
        let switch = settings.switch;
        if self.switch_of(port).is_some_and(|other| other != switch) {
            return Err(format!(
                "port {port} is in another switch; remove it before \"{}\" is added",
                settings.name
            ));
        }
        let module = self.module(switch).ok_or_else(|| {
            format!("switch {} of \"{}\" does not exist; add it first", switch.0, settings.name)
        })?;
        module.port_added(port, settings)?;
        self.members[port.index()].store(switch.0, Ordering::Relaxed);
        Ok(())
    }

    fn port_changed(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        let name = &settings.name;
        if self.switch_of(port) != Some(settings.switch) {
            return Err(format!("\"{name}\" cannot change its switch; remove it and add it again"));
        }
        self.module(settings.switch).map_or(Ok(()), |module| module.port_changed(port, settings))
    }

    fn port_removed(&self, port: PortId) {
        let Some(module) = self.module_of(port) else { return };
        module.port_removed(port);
        if port != PortId::INTERNAL {
            self.members[port.index()].store(NOWHERE, Ordering::Relaxed);
        }
    }

    fn fdb_add(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        self.module_of(port).ok_or_else(|| in_none(port))?.fdb_add(mac, vlan, port)
    }

    fn fdb_del(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        self.module_of(port).ok_or_else(|| in_none(port))?.fdb_del(mac, vlan, port)
    }

    /// Without a port this flushes all switches. It is an error if none of them has a forwarding table.
    fn fdb_flush(&self, port: Option<PortId>, vlan: Option<Vid>) -> Result<usize, String> {
        if let Some(port) = port {
            return self.module_of(port).ok_or_else(|| in_none(port))?.fdb_flush(Some(port), vlan);
        }
        let flushed = self.modules.iter().flatten().map(|module| module.fdb_flush(None, vlan));
        let sum = |one: Result<usize, String>, other| match (one, other) {
            (Ok(one), Ok(other)) => Ok(one + other),
            (Ok(count), Err(_)) | (Err(_), Ok(count)) => Ok(count),
            (Err(why), Err(_)) => Err(why),
        };
        flushed.reduce(sum).unwrap_or(Ok(0))
    }

    /// The moves of all switches, the most frequent first.
    fn moves(&self, now_ns: u64) -> Vec<FdbMove> {
        let mut moves: Vec<_> =
            self.modules.iter().flatten().flat_map(|module| module.moves(now_ns)).collect();
        moves.sort_by_key(|moved| std::cmp::Reverse(moved.count));
        moves
    }

    /// The counters of all switches, summed up by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        let all = self.modules.iter().flatten().flat_map(|module| module.counters());
        all.for_each(|(name, count)| *sums.entry(name).or_default() += count);
        sums.into_iter().collect()
    }

    /// The entries ordered by switch, then by address: several switches may know the same address.
    fn fdb(&self, now_ns: u64) -> Vec<FdbEntry> {
        self.modules.iter().flatten().flat_map(|module| module.fdb(now_ns)).collect()
    }
}

fn in_none(port: PortId) -> String {
    format!("port {port} is in no switch; add it first")
}

/// Drops packets of a port in no switch, or in one that this worker does not know yet.
#[cold]
fn drop_all(batch: &Batch<'_>, verdicts: &mut Verdicts) {
    (0..batch.headers.len()).for_each(|packet| verdicts.drop_packet(packet, DropReason::NoDestination));
}

/// The module for ports that belong to no switch, before they join one or after they leave it. It drops every packet,
/// and sends none to any port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unattached;

impl Module for Unattached {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        (0..batch.headers.len()).for_each(|packet| verdicts.drop_packet(packet, DropReason::NoDestination));
    }

    fn explain(
        &self,
        _: (PortId, &Header),
        _now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        reasons.tell("switch", "the port waits to be given to a switch");
        verdicts.drop_packet(0, DropReason::NoDestination);
        true
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::check_number(port, settings)
    }

    fn port_removed(&self, _port: PortId) {}
}

#[cfg(test)]
mod tests;
