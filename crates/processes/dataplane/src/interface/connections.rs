//! Connections of external clients' datapaths. Clients see one table for all their datapaths, with limits for zones and
//! timeout policies, as in the kernel.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use log::warn;

use lasthop_conntrack::{ConntrackTable, CtRecord, CtTuple, POLICIES_MAX};
use lasthop_dpif::family::ZoneLimit;
use lasthop_dpif::{ConnectionSelector, Errno, Refusal, TimeoutPolicy};
use lasthop_flowtable::FlowTable;
use lasthop_runtime::clock;

use super::kept::{KeptCtSettings, KeptPolicy};
use super::places::Places;

/// Pause between two sweeps for expired connections. Packets and clients never find an expired one; only its room is
/// not free yet.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);
/// Steps of one turn in a datapath: a millisecond at most.
const SWEEP_STEPS: u32 = 4096;
/// Places of the last process that one turn checks in a datapath: half a millisecond.
const ADOPTION_STEPS: u32 = 1024;
/// Connections that are removed in one call, while workers wait.
const FLUSH_STEPS: u32 = 1024;
/// Such calls for one request: twice the largest number of connections, since workers may commit new ones meanwhile.
const FLUSH_ROUNDS_MAX: u32 = 2048;
/// Timeout policies: six for each of OVS's own, which cover four protocols and both IP versions.
const TIMEOUT_POLICIES_MAX: usize = 6 * POLICIES_MAX;
/// The zone number for all zones without a limit of their own.
const ZONE_DEFAULT: i32 = -1;

/// Clients' settings for the connections of all their datapaths.
#[derive(Debug, Default)]
pub(super) struct CtSettings {
    /// Limit of zones without one of their own; 0 for none.
    default_limit: u32,
    limits: BTreeMap<u16, u32>,
    policies: BTreeMap<String, TimeoutPolicy>,
}

impl CtSettings {
    /// The settings that another process left.
    pub(super) fn of(kept: KeptCtSettings) -> Self {
        let KeptCtSettings { default_limit, limits, policies } = kept;
        let named = policies.into_iter().map(KeptPolicy::policy).map(|policy| (policy.name.clone(), policy));
        Self { default_limit, limits, policies: named.take(TIMEOUT_POLICIES_MAX).collect() }
    }

    /// The settings for the next process.
    pub(super) fn kept(&self) -> KeptCtSettings {
        let policies = self.policies.values().map(KeptPolicy::of).collect();
        KeptCtSettings { default_limit: self.default_limit, limits: self.limits.clone(), policies }
    }

    /// Applies the settings to a new datapath.
    pub(super) fn apply(&self, table: &FlowTable) {
        if let Some(limit) = or_none(self.default_limit) {
            table.connections().set_default_zone_limit(Some(limit));
        }
        for (zone, limit) in &self.limits {
            table.connections().set_zone_limit(*zone, Some(of_zone(*limit)));
        }
        for (name, policy) in &self.policies {
            // One table has room for all of them.
            let _ = table.set_timeout_policy(name, policy.l4, &policy.timeouts);
        }
    }

    pub(super) fn policies(&self) -> Vec<TimeoutPolicy> {
        self.policies.values().cloned().collect()
    }
}

fn or_none(limit: u32) -> Option<u32> {
    Some(limit).filter(|limit| *limit > 0)
}

/// A zone's own limit of 0 means no limit, also if there is a default limit.
fn of_zone(limit: u32) -> u32 {
    or_none(limit).unwrap_or(u32::MAX)
}

fn no_zone() -> Refusal {
    Refusal::invalid("zones are numbers from 0 to 65535; -1 is the default")
}

impl Places {
    /// Flow tables of external clients' datapaths.
    fn tracked(&self) -> impl Iterator<Item = &FlowTable> {
        self.all().filter(|(_, place)| !place.is_reserved).map(|(_, place)| place.module.table())
    }

    pub(super) fn set_ct_limits(&mut self, limits: &[ZoneLimit]) -> Result<(), Refusal> {
        for ZoneLimit { zone, limit, .. } in limits {
            if *zone == ZONE_DEFAULT {
                self.ct_settings.default_limit = *limit;
                self.tracked().for_each(|table| table.connections().set_default_zone_limit(or_none(*limit)));
                continue;
            }
            let zone = u16::try_from(*zone).map_err(|_| no_zone())?;
            self.ct_settings.limits.insert(zone, *limit);
            self.tracked().for_each(|table| table.connections().set_zone_limit(zone, Some(of_zone(*limit))));
        }
        Ok(())
    }

    pub(super) fn remove_ct_limits(&mut self, zones: &[ZoneLimit]) -> Result<(), Refusal> {
        for ZoneLimit { zone, .. } in zones {
            if *zone == ZONE_DEFAULT {
                self.ct_settings.default_limit = 0;
                self.tracked().for_each(|table| table.connections().set_default_zone_limit(None));
                continue;
            }
            let zone = u16::try_from(*zone).map_err(|_| no_zone())?;
            self.ct_settings.limits.remove(&zone);
            self.tracked().for_each(|table| table.connections().set_zone_limit(zone, None));
        }
        Ok(())
    }

    /// The limits of these zones; without zones the default, and those of all zones with one of their own.
    pub(super) fn ct_limits(&self, zones: Option<&[ZoneLimit]>) -> Result<Vec<ZoneLimit>, Refusal> {
        let default = ZoneLimit { zone: ZONE_DEFAULT, limit: self.ct_settings.default_limit, count: 0 };
        let of = |zone: u16| {
            let limit = self.ct_settings.limits.get(&zone).copied().unwrap_or(default.limit);
            let made = self.tracked().filter_map(FlowTable::connections_made);
            // As in the kernel, the count is reported where there is a limit.
            let counted = made.filter(|_| limit > 0);
            let count = counted.map(|connections| connections.zone(zone).1).sum();
            ZoneLimit { zone: zone.into(), limit, count }
        };
        let Some(zones) = zones else {
            let own = self.ct_settings.limits.keys().map(|zone| of(*zone));
            return Ok(std::iter::once(default).chain(own).collect());
        };
        let told = zones.iter().map(|asked| match asked.zone {
            ZONE_DEFAULT => Ok(default),
            zone => u16::try_from(zone).map(of).map_err(|_| no_zone()),
        });
        told.collect()
    }

    /// A cursor has the datapath's number and a place in its table, 32 bits each.
    pub(super) fn visit_connections(
        &self,
        cursor: u64,
        (zone, is_all): (Option<u16>, bool),
        now_ms: u64,
        visit: &mut dyn FnMut(&CtRecord) -> ControlFlow<()>,
    ) -> Option<u64> {
        let (first, mut place) = ((cursor >> 32) as i32, cursor as u32);
        let datapaths =
            self.all().filter(|(id, datapath)| id.0 >= first && (is_all || !datapath.is_reserved));
        for (id, datapath) in datapaths {
            if id.0 > first {
                place = 0;
            }
            let Some(table) = datapath.module.table().connections_made() else { continue };
            let mut records = Vec::with_capacity(1);
            loop {
                records.clear();
                let next = table.dump(place, zone, now_ms, 1, &mut records);
                if records.first().is_some_and(|record| visit(record).is_break()) {
                    return Some((id.0 as u64) << 32 | u64::from(place));
                }
                let Some(next) = next else { break };
                place = next;
            }
        }
        None
    }

    /// The connection with this tuple, in the first datapath that has it.
    pub(super) fn connection(&self, tuple: &CtTuple, now_ms: u64) -> Option<CtRecord> {
        self.tracked().filter_map(FlowTable::connections_made).find_map(|made| made.find(tuple, now_ms))
    }

    /// `is_all` includes datapaths of embedded controllers.
    pub(super) fn delete_connections(
        &self,
        which: ConnectionSelector,
        is_all: bool,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let wanted = || self.all().filter(move |(_, place)| is_all || !place.is_reserved);
        let made = || wanted().filter_map(|(_, place)| place.module.table().connections_made());
        match which {
            ConnectionSelector::All => {
                made().for_each(|table| flush(|| table.flush(FLUSH_STEPS)));
                Ok(())
            }
            ConnectionSelector::Zone(zone) => {
                made().for_each(|table| flush(|| table.flush_zone(zone, FLUSH_STEPS)));
                Ok(())
            }
            ConnectionSelector::One(tuple, id) => {
                let is_it = |connections: &ConntrackTable| {
                    id.is_none_or(|id| {
                        connections.find(&tuple, now_ms).is_some_and(|found| found.id.number() == id)
                    })
                };
                let deleted = made().filter(|table| is_it(table) && table.delete(&tuple, now_ms)).count();
                let unknown = Refusal::new(Errno::ENOENT, "there is no such connection");
                if deleted > 0 { Ok(()) } else { Err(unknown) }
            }
        }
    }

    pub(super) fn set_timeout_policy(&mut self, policy: TimeoutPolicy) -> Result<(), Refusal> {
        let is_known = self.ct_settings.policies.contains_key(&policy.name);
        let has_room = is_known || self.ct_settings.policies.len() < TIMEOUT_POLICIES_MAX;
        let set = |table: &FlowTable| table.set_timeout_policy(&policy.name, policy.l4, &policy.timeouts);
        if !has_room || !self.tracked().fold(true, |all, table| all & set(table)) {
            return Err(Refusal::new(Errno::ENOSPC, "the limit of timeout policies is reached"));
        }
        self.ct_settings.policies.insert(policy.name.clone(), policy);
        Ok(())
    }

    pub(super) fn remove_timeout_policy(&mut self, name: &str) -> bool {
        for table in self.tracked() {
            let _ = table.remove_timeout_policy(name);
        }
        self.ct_settings.policies.remove(name).is_some()
    }
}

/// Calls `some` until it has removed all connections.
fn flush(some: impl Fn() -> bool) {
    let _ = (0..FLUSH_ROUNDS_MAX).any(|_| some());
}

/// The connection tables of all datapaths, including the embedded controllers'.
fn made(places: &Places) -> impl Iterator<Item = &ConntrackTable> {
    places.all().filter_map(|(_, place)| place.module.table().connections_made())
}

/// Checks connections that the last process left, a part in each turn. Packets do not wait for this.
#[derive(Debug)]
pub(super) struct Adoptions {
    /// Number of invalid connections already reported.
    told: u32,
}

impl Adoptions {
    pub(super) fn new() -> Self {
        Self { told: 0 }
    }

    pub(super) fn is_due(places: &Places) -> bool {
        made(places).any(|connections| !connections.is_adopted())
    }

    pub(super) fn turn(&mut self, places: &Places) {
        let now_ms = clock::now_ms();
        let whole = made(places).filter(|connections| connections.adopt(now_ms, ADOPTION_STEPS));
        let lost: u32 = whole.map(|connections| connections.adopted().dropped).sum();
        if lost > self.told {
            warn!(limited = true; "dropped {} connections of the last switch process, which are invalid or beyond a limit", lost - self.told);
        }
        self.told = lost;
    }
}

/// Removes expired connections and prepares memory for others, a part at a time.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    next: Option<Instant>,
}

impl Sweeps {
    /// The time of the next sweep.
    pub(super) fn due(&self, places: &Places) -> Option<Instant> {
        let has_any = made(places).any(|connections| !connections.is_empty());
        has_any.then(|| self.next.unwrap_or_else(Instant::now))
    }

    /// Does a part of a sweep if it is due.
    pub(super) fn turn(&mut self, places: &Places, now: Instant) {
        if self.next.is_some_and(|next| now < next) || self.due(places).is_none() {
            return;
        }
        let now_ms = clock::now_ms();
        let swept = made(places)
            .map(|connections| connections.sweep(now_ms, SWEEP_STEPS) & connections.touch_ahead());
        let are_all = swept.fold(true, |all, is_done| all & is_done);
        self.next = Some(if are_all { now + SWEEP_PAUSE } else { now });
    }
}
