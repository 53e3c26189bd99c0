//! The writer's side of the table: there is one writer, and no worker waits for it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lasthop_conntrack::{ConntrackTable, CtPolicy};
use lasthop_flow::{Action, FlowKey, FlowStats, KeyedState, Ufid};
use lasthop_guestmem::Mapping;
use lasthop_wire::Key;

use crate::arena::Blocks;
use crate::bounds::{FLOWS_MAX, FORMER_BYTES, FORMER_FLOWS, MASKS_MAX};
use crate::compact::Compact;
use crate::flow_memory::{FlowMemory, FlowSpec, Installed};
use crate::grace::Moment;
use crate::meter::{MeterCounters, MeterRate, Meters};
use crate::numbers::Numbers;
use crate::program::{Code, Step, compile};
use crate::shared::Shared;
use crate::slot::{Identity, slot_in, tag_of};
use crate::stats::Tally;
use crate::tracking::Tracking;
use crate::{InstallError, UnsupportedFlow};

/// A flow in a dump: its slot, the flow, and its statistics.
pub type Dumped = (usize, Arc<Installed>, FlowStats);

/// Names a flow.
#[derive(Clone, Copy, Debug)]
pub enum FlowSelector<'a> {
    /// The flow with this UFID.
    Ufid(Ufid),
    /// The flow without a UFID that has this key, under any mask.
    Key(&'a FlowKey),
}

/// A flow that was removed from the table; see [`FlowTable::final_stats`].
#[derive(Clone, Debug)]
pub struct Removed {
    /// The flow.
    pub flow: Arc<Installed>,
    stats: Arc<OnceLock<FlowStats>>,
}

/// A flow in its slot.
#[derive(Debug)]
struct Record {
    flow: Arc<Installed>,
    mask: u16,
    hash: u64,
    program: u64,
    tally: Tally,
}

/// Memory to be reused after a grace period.
#[derive(Debug)]
enum Retired {
    Flow { slot: u32, tally: Tally, stats: Arc<OnceLock<FlowStats>> },
    Program(u64),
    Mask(u16),
}

#[derive(Debug, Default)]
struct Writer {
    /// Records by slot.
    records: Vec<Option<Record>>,
    /// By slot: the number of flows that it has had.
    generations: Vec<u32>,
    free: Vec<u32>,
    count: usize,
    by_ufid: HashMap<Ufid, u32, KeyedState>,
    /// Slots of flows without a UFID, by hash of their key.
    by_key: HashMap<u64, Vec<u32>>,
    key_hasher: RandomState,
    /// The number of each mask.
    masks: HashMap<Key, u16, KeyedState>,
    /// By number: the mask and how many flows it has.
    mask_flows: Vec<(Key, u32)>,
    free_masks: Vec<u16>,
    blocks: Blocks,
    retired: VecDeque<(Moment, Retired)>,
    /// Recently removed or changed flows, by their tags in upcalls.
    former: VecDeque<(u32, Arc<Installed>)>,
    former_bytes: usize,
    flow_memory: FlowMemory,
}

/// The flows of a datapath: several workers look them up, and one writer at a time changes them.
///
/// No method makes a worker wait; only the caller pays its cost.
#[derive(Debug)]
pub struct FlowTable {
    pub(crate) shared: Arc<Shared>,
    pub(crate) meters: Meters,
    pub(crate) tracking: Tracking,
    writer: Mutex<Writer>,
}

impl Default for FlowTable {
    fn default() -> Self {
        Self::new(Numbers::identical())
    }
}

impl FlowTable {
    /// Returns a table without flows, for ports with these numbers.
    pub(crate) fn new(numbers: Numbers) -> Self {
        let (shared, tracking) = (Arc::new(Shared::new(numbers)), Tracking::new());
        Self { shared, meters: Meters::new(), tracking, writer: Mutex::default() }
    }

    /// Compiles an action list to words.
    pub(crate) fn compile(&self, actions: &[Action]) -> Result<Vec<u64>, UnsupportedFlow> {
        let program = compile(actions, &|name| self.tracking.policy(name))?;
        if program.iter().any(|word| Step(*word).is(Code::Ct) || Step(*word).is(Code::CtRecirc)) {
            // The connection table is made here and not by a worker: this maps memory.
            let _ = self.connections();
        }
        Ok(program)
    }

    /// The connections that `ct` actions look up and commit. The first call, or the first flow with such an action,
    /// makes their table.
    #[must_use]
    pub fn connections(&self) -> &ConntrackTable {
        self.tracking.connections(self.shared.monotonic_ms(0))
    }

    /// Puts the connection table into `memory`, which outlives the process, with the connections that another process
    /// left there. That process must not use it any more. `now_ms` is CLOCK_MONOTONIC. Returns `None` if the memory is
    /// smaller than [`ConntrackTable::memory_bytes_for`] the default bounds, or if there is a table already; then
    /// connections do not outlive the process. The caller then calls [`ConntrackTable::adopt`] until it has checked all
    /// connections.
    #[must_use]
    pub fn keep_connections(&self, memory: &Arc<Mapping>, now_ms: u64) -> Option<()> {
        self.tracking.keep_in(memory, now_ms)
    }

    /// The connection table, if there is one.
    #[must_use]
    pub fn connections_made(&self) -> Option<&ConntrackTable> {
        self.tracking.made()
    }

    /// Adds or replaces the timeout policy of this name for an IP protocol (TCP, UDP, ICMP, ICMPv6), with that
    /// protocol's part of `timeouts`. Connections that follow it follow the new one. Returns false if there are
    /// [`POLICIES_MAX`](lasthop_conntrack::POLICIES_MAX) policies; the policies that OVS makes for one of its own count
    /// as one, and the default counts, too. Flows resolve a policy's name when they are installed.
    #[must_use]
    pub fn set_timeout_policy(&self, name: &str, proto: u8, timeouts: &CtPolicy) -> bool {
        self.tracking.set_policy(name, proto, timeouts, self.shared.monotonic_ms(0))
    }

    /// Removes a timeout policy: its connections follow the default from now on. Returns whether it existed.
    pub fn remove_timeout_policy(&self, name: &str) -> bool {
        self.tracking.remove_policy(name)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a flow. Workers find it when this returns.
    ///
    /// # Errors
    /// [`InstallError::Exists`] if a flow has this name or the same match; [`InstallError::NoRoom`];
    /// [`InstallError::Refused`] if a part is not supported. Nothing has changed then.
    pub fn install(&self, flow: FlowSpec) -> Result<(), InstallError> {
        self.install_counted(flow, FlowStats::default()).map(drop)
    }

    /// Installs a flow whose statistics continue from `stats`. Returns its slot, which does not change until the flow
    /// is removed.
    ///
    /// # Errors
    /// As [`Self::install`].
    pub fn install_counted(&self, flow: FlowSpec, stats: FlowStats) -> Result<usize, InstallError> {
        let compact = Compact::of(&flow.matching)?;
        let program = self.compile(&flow.actions)?;
        let mut writer = self.writer();
        writer.reclaim(&self.shared);
        let name = flow.ufid.map_or(FlowSelector::Key(&flow.matching.key), FlowSelector::Ufid);
        let mask = writer.masks.get(&compact.mask).copied();
        let met = mask.and_then(|mask| self.shared.find(mask, &compact.key));
        if !flow.is_probe && met.is_some() || writer.slot_of(name).is_some() {
            return Err(InstallError::Exists);
        }
        writer.install(&self.shared, (flow, Tally::brought(stats)), (&compact, mask), &program)
    }

    /// Replaces a flow's actions; statistics stay.
    ///
    /// # Errors
    /// [`InstallError::Unknown`], [`InstallError::NoRoom`], [`InstallError::Refused`].
    pub fn replace(
        &self,
        name: FlowSelector<'_>,
        actions: Vec<Action>,
    ) -> Result<Arc<Installed>, InstallError> {
        let program = self.compile(&actions)?;
        let mut writer = self.writer();
        writer.reclaim(&self.shared);
        let slot = writer.slot_of(name).ok_or(InstallError::Unknown)?;
        writer.replace(&self.shared, slot, actions, &program)
    }

    /// Returns a flow and its statistics.
    ///
    /// # Errors
    /// [`InstallError::Unknown`].
    pub fn get(&self, name: FlowSelector<'_>) -> Result<(Arc<Installed>, FlowStats), InstallError> {
        let writer = self.writer();
        let slot = writer.slot_of(name);
        slot.and_then(|slot| writer.entry(&self.shared, slot)).ok_or(InstallError::Unknown)
    }

    /// Calls `run` with a look-up of flows by slot. Meanwhile no flow is installed or removed, and no flow's memory is
    /// reused. Workers are not delayed.
    pub(crate) fn unchanged<R>(&self, run: impl FnOnce(&dyn Fn(u32) -> Option<Arc<Installed>>) -> R) -> R {
        let writer = self.writer();
        run(&|slot| writer.record(slot).map(|record| Arc::clone(&record.flow)))
    }

    /// The words of an action list that no flow has.
    pub(crate) fn compile_only(&self, actions: &[Action]) -> Result<Vec<u64>, UnsupportedFlow> {
        compile(actions, &|name| self.tracking.policy(name))
    }

    /// The flow in a slot, and its statistics.
    #[must_use]
    pub fn at(&self, slot: usize) -> Option<(Arc<Installed>, FlowStats)> {
        self.writer().entry(&self.shared, u32::try_from(slot).ok()?)
    }

    /// Returns the slot of a flow, which does not change while the flow exists.
    #[must_use]
    pub fn slot(&self, name: FlowSelector<'_>) -> Option<usize> {
        self.writer().slot_of(name).map(|slot| slot as usize)
    }

    /// Resets a flow's statistics.
    ///
    /// # Errors
    /// [`InstallError::Unknown`].
    pub fn clear_stats(&self, name: FlowSelector<'_>) -> Result<(), InstallError> {
        let mut writer = self.writer();
        let slot = writer.slot_of(name).ok_or(InstallError::Unknown)?;
        let now = self.shared.flows.get(slot as usize).map(|flow| self.shared.stats_of(flow));
        if let (Some(Some(record)), Some(now)) = (writer.records.get_mut(slot as usize), now) {
            record.tally = Tally::cleared(now);
        }
        Ok(())
    }

    /// Removes a flow: no later packet finds it.
    ///
    /// # Errors
    /// [`InstallError::Unknown`].
    pub fn remove(&self, name: FlowSelector<'_>) -> Result<Removed, InstallError> {
        let mut writer = self.writer();
        let slot = writer.slot_of(name).ok_or(InstallError::Unknown)?;
        let removed = writer.remove(&self.shared, slot).ok_or(InstallError::Unknown)?;
        writer.reclaim(&self.shared);
        Ok(removed)
    }

    /// Removes the flows in up to `slots` slots from `cursor` on. Returns the next cursor, or `None` at the end.
    pub fn flush(&self, cursor: usize, slots: usize) -> Option<usize> {
        let mut writer = self.writer();
        let end = writer.records.len().min(cursor.saturating_add(slots));
        for slot in cursor..end {
            let _ = writer.remove(&self.shared, slot as u32);
        }
        writer.reclaim(&self.shared);
        (end < writer.records.len()).then_some(end)
    }

    /// The flow that an upcall names, with the actions that it had when its packet matched, unless that is long ago.
    #[must_use]
    pub fn named(&self, flow: u32) -> Option<Arc<Installed>> {
        self.writer().tagged(flow)
    }

    /// Returns flows of up to `slots` slots from `cursor` on, with their statistics and slots, and the next cursor, or
    /// `None` at the end. Flows that are installed or removed between two calls may be missing or not.
    pub fn dump(&self, cursor: usize, slots: usize) -> (Vec<Dumped>, Option<usize>) {
        let mut writer = self.writer();
        writer.reclaim(&self.shared);
        self.shared.stats.refill(self.shared.workers.load(Ordering::Relaxed), writer.count);
        let end = writer.records.len().min(cursor.saturating_add(slots));
        let entry = |slot| writer.entry(&self.shared, slot as u32).map(|(flow, stats)| (slot, flow, stats));
        let flows = (cursor..end).filter_map(entry).collect();
        (flows, (end < writer.records.len()).then_some(end))
    }

    /// A removed flow's final statistics; `None` while a worker may still count a packet.
    #[must_use]
    pub fn final_stats(&self, removed: &Removed) -> Option<FlowStats> {
        self.writer().reclaim(&self.shared);
        removed.stats.get().copied()
    }

    /// Sets the rate of a meter, with a full bucket and zero statistics; a rate of 0 passes every packet.
    ///
    /// # Errors
    /// [`InstallError::NoRoom`] if the table of meters is full.
    pub fn set_meter(&self, meter: u32, rate: MeterRate) -> Result<(), InstallError> {
        let is_set = self.meters.set(meter, rate);
        if is_set {
            Ok(())
        } else {
            Err(InstallError::NoRoom("there are as many meters as there may be (4096)"))
        }
    }

    /// Removes a meter: its packets pass from now on.
    pub fn remove_meter(&self, meter: u32) {
        self.meters.remove(meter);
    }

    /// The statistics of a meter; `None` if it does not exist.
    #[must_use]
    pub fn meter_stats(&self, meter: u32) -> Option<MeterCounters> {
        self.meters.stats(meter)
    }

    /// Sets CLOCK_MONOTONIC, in nanoseconds, of the workers' time 0: statistics use CLOCK_MONOTONIC.
    pub fn set_clock_origin(&self, origin_ns: u64) {
        self.shared.clock_origin_ms.store(origin_ns / 1_000_000, Ordering::Relaxed);
    }

    /// The numbers of flows and masks.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let writer = self.writer();
        (writer.count, writer.masks.len())
    }
}

#[cfg(test)]
impl FlowTable {
    /// Bytes of flows' actions and data, at most [`crate::bounds::FLOW_DATA_BYTES_MAX`].
    pub(crate) fn data_bytes(&self) -> usize {
        self.writer().flow_memory.bytes()
    }
}

impl Writer {
    fn record(&self, slot: u32) -> Option<&Record> {
        self.records.get(slot as usize)?.as_ref()
    }

    fn tag(&self, slot: u32) -> u32 {
        tag_of(slot, self.generations.get(slot as usize).copied().unwrap_or(0))
    }

    fn tagged(&self, tag: u32) -> Option<Arc<Installed>> {
        let slot = slot_in(tag);
        let present = self.record(slot).filter(|_| self.tag(slot) == tag).map(|record| &record.flow);
        let former = || self.former.iter().rev().find(|(other, _)| *other == tag).map(|(_, flow)| flow);
        present.or_else(former).map(Arc::clone)
    }

    /// Keeps a flow for upcalls in flight.
    fn leave(&mut self, slot: u32, flow: &Arc<Installed>) {
        self.former.push_back((self.tag(slot), Arc::clone(flow)));
        self.former_bytes += flow.bytes();
        while (self.former.len() > FORMER_FLOWS || self.former_bytes > FORMER_BYTES)
            && let Some((_, oldest)) = self.former.pop_front()
        {
            self.former_bytes -= oldest.bytes();
        }
    }

    /// Gives the next flow of a slot a new generation.
    fn next_generation(&mut self, slot: u32) -> u32 {
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1).max(1);
        *generation
    }

    fn slot_of(&self, name: FlowSelector<'_>) -> Option<u32> {
        let key = match name {
            FlowSelector::Ufid(ufid) => return self.by_ufid.get(&ufid).copied(),
            FlowSelector::Key(key) => key,
        };
        let slots = self.by_key.get(&self.key_hasher.hash_one(key))?;
        let has_it = |slot: &&u32| self.record(**slot).is_some_and(|record| record.flow.matching.key == *key);
        slots.iter().find(has_it).copied()
    }

    /// Adds a flow's name to the index, or removes it.
    fn name(&mut self, flow: &FlowSpec, slot: u32, is_there: bool) {
        if let Some(ufid) = flow.ufid {
            if is_there {
                self.by_ufid.insert(ufid, slot)
            } else {
                self.by_ufid.remove(&ufid)
            };
            return;
        }
        let hash = self.key_hasher.hash_one(&flow.matching.key);
        let slots = self.by_key.entry(hash).or_default();
        if is_there {
            slots.push(slot);
            return;
        }
        slots.retain(|other| *other != slot);
        if slots.is_empty() {
            self.by_key.remove(&hash);
        }
    }

    fn entry(&self, shared: &Shared, slot: u32) -> Option<(Arc<Installed>, FlowStats)> {
        let record = self.record(slot)?;
        let stats = shared.stats_of(shared.flows.get(slot as usize)?);
        Some((Arc::clone(&record.flow), record.tally.told(stats)))
    }

    fn install(
        &mut self,
        shared: &Shared,
        (flow, tally): (FlowSpec, Tally),
        (compact, mask): (&Compact, Option<u16>),
        program: &[u64],
    ) -> Result<usize, InstallError> {
        let flow = self.flow_memory.enter(flow)?;
        let slot = self.vacancy().ok_or(InstallError::NoRoom("the table has 262144 flows"))?;
        let place =
            shared.flows.make(slot as usize).ok_or(InstallError::NoRoom("the table has 262144 flows"))?;
        let Some(mask) = self.mask(shared, (&compact.mask, mask)) else {
            self.free.push(slot);
            return Err(InstallError::NoRoom("the table has 1024 masks"));
        };
        let word = self.place(shared, program).inspect_err(|_| {
            self.free.push(slot);
            self.drop_mask(shared, mask);
        });
        let word = word?;
        let hash = shared
            .masks
            .get(usize::from(mask))
            .map_or(0, |slot| slot.hash(mask, &compact.key, &shared.secret));
        place.occupy(Identity::new(self.next_generation(slot), mask), &compact.key, word);
        let everybody = self.records.iter().zip(0..).filter_map(|(record, slot)| {
            record.as_ref().filter(|record| !record.flow.is_probe).map(|record| (record.hash, slot))
        });
        if !flow.is_probe && shared.buckets.insert((hash, slot), self.count, everybody).is_err() {
            place.vacate();
            self.free.push(slot);
            self.drop_mask(shared, mask);
            self.give_back(word);
            return Err(InstallError::NoRoom("too many flows have the same hash"));
        }
        self.name(&flow, slot, true);
        let record = Record { flow, mask, hash, program: word, tally };
        self.records[slot as usize] = Some(record);
        self.count += 1;
        shared.stats.refill(shared.workers.load(Ordering::Relaxed), self.count);
        Ok(slot as usize)
    }

    /// A free slot.
    fn vacancy(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.records.len() as u32;
        (slot < FLOWS_MAX).then(|| {
            self.records.push(None);
            self.generations.push(0);
            slot
        })
    }

    /// Counts one more flow for a mask, which has a number if it has flows. Returns its number.
    fn mask(&mut self, shared: &Shared, (mask, known): (&Key, Option<u16>)) -> Option<u16> {
        if let Some(number) = known {
            self.mask_flows[usize::from(number)].1 += 1;
            return Some(number);
        }
        let number = match self.free_masks.pop() {
            Some(number) => number,
            None if self.mask_flows.len() < MASKS_MAX => {
                self.mask_flows.push((Key::default(), 0));
                (self.mask_flows.len() - 1) as u16
            }
            None => return None,
        };
        shared.masks.make(usize::from(number))?.occupy(mask);
        self.mask_flows[usize::from(number)] = (*mask, 1);
        self.masks.insert(*mask, number);
        shared.set_live(number, true);
        Some(number)
    }

    /// Counts one flow less for a mask.
    fn drop_mask(&mut self, shared: &Shared, number: u16) {
        let (mask, flows) = &mut self.mask_flows[usize::from(number)];
        *flows -= 1;
        if *flows == 0 {
            self.masks.remove(mask);
            shared.set_live(number, false);
            self.retired.push_back((shared.visits.now(), Retired::Mask(number)));
        }
    }

    /// Returns the word that refers to a program, and stores the program if it has several words.
    fn place(&mut self, shared: &Shared, program: &[u64]) -> Result<u64, InstallError> {
        match program {
            [] => Ok(Step::END.0),
            [only] => Ok(*only),
            _ => {
                let place = shared.arena.put(&mut self.blocks, program);
                let place = place.ok_or(InstallError::NoRoom("there is no room for more actions"))?;
                Ok(Step::long(place, program.len()).0)
            }
        }
    }

    fn give_back(&mut self, program: u64) {
        if let Some((place, len)) = Step(program).place() {
            self.blocks.give_back(place, len);
        }
    }

    fn replace(
        &mut self,
        shared: &Shared,
        slot: u32,
        actions: Vec<Action>,
        program: &[u64],
    ) -> Result<Arc<Installed>, InstallError> {
        let former = self.record(slot).map(|record| Arc::clone(&record.flow)).ok_or(InstallError::Unknown)?;
        let FlowSpec { ufid, matching, is_probe, .. } = &**former;
        let flow = FlowSpec { ufid: *ufid, matching: matching.clone(), actions, is_probe: *is_probe };
        let flow = self.flow_memory.enter(flow)?;
        let word = self.place(shared, program)?;
        let record = self.records.get_mut(slot as usize).and_then(Option::as_mut);
        let (Some(record), Some(place)) = (record, shared.flows.get(slot as usize)) else {
            self.give_back(word);
            return Err(InstallError::Unknown);
        };
        place.set_program(word);
        let (old, mask) = (std::mem::replace(&mut record.program, word), record.mask);
        record.flow = Arc::clone(&flow);
        self.leave(slot, &former);
        place.rename(Identity::new(self.next_generation(slot), mask));
        shared.version.fetch_add(1, Ordering::Release);
        self.retired.push_back((shared.visits.now(), Retired::Program(old)));
        Ok(flow)
    }

    /// Removes a flow.
    fn remove(&mut self, shared: &Shared, slot: u32) -> Option<Removed> {
        let record = self.records.get_mut(slot as usize)?.take()?;
        shared.buckets.remove(record.hash, slot);
        shared.flows.get(slot as usize)?.vacate();
        // This precedes the grace period: later visits revalidate their caches.
        shared.version.fetch_add(1, Ordering::Release);
        self.name(&record.flow, slot, false);
        self.leave(slot, &record.flow);
        self.count -= 1;
        let removed = Removed { flow: record.flow, stats: Arc::default() };
        let moment = shared.visits.now();
        let retired = Retired::Flow { slot, tally: record.tally, stats: Arc::clone(&removed.stats) };
        self.retired.extend([(moment, retired), (moment, Retired::Program(record.program))]);
        self.drop_mask(shared, record.mask);
        Some(removed)
    }

    /// Frees memory whose grace period is over.
    fn reclaim(&mut self, shared: &Shared) {
        while self.retired.front().is_some_and(|(moment, _)| shared.visits.have_passed(moment)) {
            match self.retired.pop_front() {
                Some((_, Retired::Flow { slot, tally, stats })) => {
                    if let Some(place) = shared.flows.get(slot as usize) {
                        let _ = stats.set(tally.told(shared.stats_of(place)));
                        shared.stats.take_back(place);
                    }
                    self.free.push(slot);
                }
                Some((_, Retired::Program(program))) => self.give_back(program),
                Some((_, Retired::Mask(number))) => self.free_masks.push(number),
                None => {}
            }
        }
    }
}
