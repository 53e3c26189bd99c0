//! Ranges of a port's numbers, for all sources, and its address as text.

use std::fmt::Display;

use lasthop_module_api::{Mac, StormLimits};
use serde::{Deserialize, Deserializer};

use lasthop_runtime::fault::Fault;

/// Most queue pairs of a port: more than guests use on machines of today.
pub(super) const QUEUE_PAIRS_MAX: u16 = 32;
/// Smallest and largest MTU in bytes (virtio 1.2, 5.1.4.1).
pub(super) const MTU_MIN: u16 = 68;
pub(super) const MTU_MAX: u16 = 65_535;

pub(crate) fn check_queues(queues: u16) -> Result<u16, Fault> {
    if (1..=QUEUE_PAIRS_MAX).contains(&queues) {
        return Ok(queues);
    }
    Err(Fault::params(format!(
        "queues={queues} is out of range; a port has 1 to {QUEUE_PAIRS_MAX} queue pairs"
    )))
}

pub(crate) fn check_mtu(mtu: u16) -> Result<u16, Fault> {
    if (MTU_MIN..=MTU_MAX).contains(&mtu) {
        return Ok(mtu);
    }
    Err(Fault::params(format!("mtu={mtu} is out of range; an MTU has {MTU_MIN} to {MTU_MAX} bytes")))
}

pub(crate) fn check_mac(text: &str) -> Result<Mac, Fault> {
    let mac: Mac = text.parse().map_err(Fault::params)?;
    if mac.is_group() || mac == Mac([0; 6]) {
        return Err(Fault::params(format!(
            "{mac} cannot be the address of a port; give it a unicast address"
        )));
    }
    Ok(mac)
}

pub(crate) fn check_storm(key: &str, rate: u32) -> Result<u32, Fault> {
    if rate <= StormLimits::RATE_MAX {
        return Ok(rate);
    }
    Err(Fault::params(format!(
        "{key}={rate} is out of range; a limit is 0 to {} frames per second, and 0 is none",
        StormLimits::RATE_MAX
    )))
}

fn storm<'de, D: Deserializer<'de>>(key: &str, from: D) -> Result<u32, D::Error> {
    let rate = u32::deserialize(from).map_err(|_| not_whole(key, 0, StormLimits::RATE_MAX))?;
    check_storm(key, rate).map_err(serde::de::Error::custom)
}

pub fn storm_broadcast<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    storm("storm-broadcast", from).map(Some)
}

pub fn storm_multicast<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    storm("storm-multicast", from).map(Some)
}

pub fn storm_unknown<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    storm("storm-unknown", from).map(Some)
}

pub fn queues<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    let queues = u16::deserialize(from).map_err(|_| not_whole("queues", 1, QUEUE_PAIRS_MAX))?;
    check_queues(queues).map(Some).map_err(serde::de::Error::custom)
}

pub fn mtu<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    let mtu = Option::<u16>::deserialize(from).map_err(|_| not_whole("mtu", MTU_MIN, MTU_MAX))?;
    mtu.map(check_mtu).transpose().map_err(serde::de::Error::custom)
}

/// The error for a text, a fraction, or a number out of all bounds.
fn not_whole<E: serde::de::Error>(key: &str, min: impl Display, max: impl Display) -> E {
    E::custom(format_args!("{key} must be a whole number from {min} to {max}, without quotes"))
}

/// `Option<Mac>` as text.
pub mod mac {
    use super::{Deserialize, Deserializer, Mac, check_mac};

    pub(crate) fn serialize<S: serde::Serializer>(mac: &Option<Mac>, to: S) -> Result<S::Ok, S::Error> {
        match mac {
            Some(mac) => to.collect_str(mac),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mac>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| check_mac(&text)).transpose().map_err(serde::de::Error::custom)
    }
}
