//! Meters of a datapath.

use lasthop_dpif::datapath::{Meter, MeterFeatures};
use lasthop_dpif::family::{Band, MeterStats};
use lasthop_dpif::{Errno, Refusal};
use lasthop_flowtable::MeterRate;
use lasthop_flowtable::bounds::METERS_MAX;

use super::places::Place;

pub(super) const FEATURES: MeterFeatures = MeterFeatures { meters_max: METERS_MAX as u32, bands_max: 1 };

/// A rate without a limit.
const NO_RATE: MeterRate = MeterRate { rate: 0, burst: 0, is_kbps: false };

/// Sets a meter, and returns the one that it replaces.
pub(super) fn set(place: &mut Place, id: u32, meter: Meter) -> Result<Option<Meter>, Refusal> {
    let before = get(place, id);
    let rate = meter.bands.first().map_or(NO_RATE, |band| MeterRate {
        rate: band.rate,
        burst: band.burst,
        is_kbps: meter.is_kbps,
    });
    let set = place.module.table().set_meter(id, rate);
    set.map_err(|_| Refusal::new(Errno::ENOSPC, "the limit of meters is reached"))?;
    place.meters.insert(id, meter);
    Ok(before)
}

/// A meter with its counters.
pub(super) fn get(place: &Place, id: u32) -> Option<Meter> {
    let meter = place.meters.get(&id)?;
    let stats = place.module.table().meter_stats(id).unwrap_or_default();
    let dropped = MeterStats { packets: stats.dropped_packets, bytes: stats.dropped_bytes };
    let bands = meter.bands.iter().map(|band| Band { stats: Some(dropped), ..*band }).collect();
    let stats = MeterStats { packets: stats.packets, bytes: stats.bytes };
    Some(Meter { bands, stats, ..meter.clone() })
}

/// Removes a meter, and returns its last state.
pub(super) fn remove(place: &mut Place, id: u32) -> Option<Meter> {
    let last = get(place, id)?;
    place.meters.remove(&id);
    place.module.table().remove_meter(id);
    Some(last)
}

/// Removes all meters.
pub(super) fn clear(place: &Place) {
    for id in place.meters.keys() {
        place.module.table().remove_meter(*id);
    }
}
