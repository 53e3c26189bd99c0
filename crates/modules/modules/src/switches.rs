//! Several switches in one process: each port's frames are for the module of the port's own switch.
//!
//! ```text
//!   batch of port 7 ─► ports[7] = 2 ─► modules[2] ─► decide ─► outputs: ports of switch 2, as no other module knows them
//! ```
//!
//! A module is told of its own switch's ports and of no others, so nothing that it does can bring a frame, an
//! address or an error of one switch to another. The look-up costs two loads for a batch, not for a packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use lasthop_module_api::{
    Batch, DropReason, FdbEntry, FdbMove, Mac, Module, PORTS_MAX, PortId, PortSettings, SWITCHES_MAX,
    SwitchId, Upcall, Verdicts, Vid,
};

/// In the place of a switch's number, for a port that is in none. No switch ever has it.
const NOWHERE: u16 = u16::MAX;

/// In the place of a switch's number, for the port `internal` where it has a module of its own. No switch ever has it.
const OF_INTERNAL: SwitchId = SwitchId(SWITCHES_MAX as u16);

const _: () = assert!(SWITCHES_MAX < NOWHERE as usize);

/// By port: the number of its switch, or `NOWHERE`.
type Members = [AtomicU16; PORTS_MAX];

/// A module that hands each batch to the module of its port's switch.
///
/// The table of switches never changes: [`Self::with`] and [`Self::without`] make another one, of the same
/// ports, which each worker is given between two visits. So there is nothing to lock and nothing to free on
/// the way of a frame.
pub struct Switches {
    members: Arc<Members>,
    modules: Vec<Option<Arc<dyn Module>>>,
}

impl Switches {
    /// One switch, the default one, on which `module` decides. It decides on packets of the port `internal`,
    /// too.
    #[must_use]
    pub fn new(module: Arc<dyn Module>) -> Self {
        let members: Members = std::array::from_fn(|_| AtomicU16::new(NOWHERE));
        members[PortId::INTERNAL.index()].store(SwitchId::DEFAULT.0, Ordering::Relaxed);
        Self { members: Arc::new(members), modules: vec![Some(module)] }
    }

    /// These switches; `module` decides on packets of the port `internal`, and may send them to ports of all
    /// switches.
    #[must_use]
    pub fn with_internal(&self, module: Arc<dyn Module>) -> Self {
        let mut modules = self.modules.clone();
        modules.resize_with(OF_INTERNAL.index() + 1, || None);
        modules[OF_INTERNAL.index()] = Some(module);
        self.members[PortId::INTERNAL.index()].store(OF_INTERNAL.0, Ordering::Relaxed);
        Self { members: Arc::clone(&self.members), modules }
    }

    /// The lowest number that no switch has; `None` if there are [`SWITCHES_MAX`].
    #[must_use]
    pub fn vacancy(&self) -> Option<SwitchId> {
        let vacant = self.modules.iter().position(Option::is_none).unwrap_or(self.modules.len());
        (vacant < SWITCHES_MAX).then_some(SwitchId(vacant as u16)) // below SWITCHES_MAX
    }

    /// These switches and one more, which has no ports yet. `switch` is a [`Self::vacancy`].
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

    /// These switches without one, whose ports were removed before.
    #[must_use]
    pub fn without(&self, switch: SwitchId) -> Self {
        debug_assert!(self.ports(switch).next().is_none(), "switch {} has ports", switch.0);
        let mut modules = self.modules.clone();
        if let Some(module) = modules.get_mut(switch.index()) {
            *module = None;
        }
        Self { members: Arc::clone(&self.members), modules }
    }

    /// The module that decides for a switch.
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

    /// The number in a port's entry; `NOWHERE` for numbers that no port has.
    #[inline]
    fn entry(&self, port: PortId) -> SwitchId {
        // Relaxed: the number is all there is to see. A port is entered before a guest can send from it.
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

    fn is_holding(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        self.module_of(port).is_some_and(|module| module.is_holding(port, worker, now_ns))
    }

    /// Each module knows its own by their `origin`.
    fn upcall_split(&self, upcall: &Upcall) {
        self.modules.iter().flatten().for_each(|module| module.upcall_split(upcall));
    }

    fn upcall_lost(&self, upcall: &Upcall) {
        self.modules.iter().flatten().for_each(|module| module.upcall_lost(upcall));
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::number::check(port, settings)?;
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

    /// Without a port: in all switches that have a table; an error if none has.
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

    /// Of all switches, the most restless first.
    fn moves(&self, now_ns: u64) -> Vec<FdbMove> {
        let mut moves: Vec<_> =
            self.modules.iter().flatten().flat_map(|module| module.moves(now_ns)).collect();
        moves.sort_by_key(|moved| std::cmp::Reverse(moved.count));
        moves
    }

    /// Those of all switches together, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        let all = self.modules.iter().flatten().flat_map(|module| module.counters());
        all.for_each(|(name, count)| *sums.entry(name).or_default() += count);
        sums.into_iter().collect()
    }

    /// By switch, then by address: different switches may know the same one.
    fn fdb(&self, now_ns: u64) -> Vec<FdbEntry> {
        self.modules.iter().flatten().flat_map(|module| module.fdb(now_ns)).collect()
    }
}

fn in_none(port: PortId) -> String {
    format!("port {port} is in no switch; add it first")
}

/// Of a port in no switch, or in one that this worker has not heard of.
#[cold]
fn drop_all(batch: &Batch<'_>, verdicts: &mut Verdicts) {
    (0..batch.headers.len()).for_each(|packet| verdicts.drop_packet(packet, DropReason::NoDestination));
}

#[cfg(test)]
mod tests;
