//! Family `ovs_meter`.

use super::{put_words, words};
use crate::attr::{Attr, Attrs, Writer};
use crate::bounds::BANDS_MAX;
use crate::refusal::Refusal;
use crate::uapi::meter as uapi;

/// Packets and bytes of a meter or one of its bands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterStats {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One rate of a meter (`OVS_BAND_ATTR_*`). Packets above the rate are dropped; there is no other kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Band {
    /// `OVS_METER_BAND_TYPE_*`.
    pub kind: u32,
    /// Kilobits, or packets, a second.
    pub rate: u32,
    /// Kilobits, or packets.
    pub burst: u32,
    /// Dropped packets and bytes.
    pub stats: Option<MeterStats>,
}

/// `OVS_METER_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeterMessage {
    /// The datapath.
    pub datapath: i32,
    /// Which meter.
    pub id: Option<u32>,
    /// Rates are in kilobits a second, not in packets.
    pub is_kbps: bool,
    /// Packets and bytes that passed it.
    pub stats: Option<MeterStats>,
    /// Its rates.
    pub bands: Option<Vec<Band>>,
    /// Time of the last packet, in milliseconds of CLOCK_MONOTONIC.
    pub used_ms: Option<u64>,
    /// Whether to reset the counters.
    pub is_clear: bool,
    /// Largest number of meters.
    pub meters_max: Option<u32>,
    /// Largest number of bands of a meter.
    pub bands_max: Option<u32>,
}

impl MeterMessage {
    /// Decodes a message about a meter of `datapath`; ignores attributes without a use here, as the kernel does.
    ///
    /// # Errors
    /// ERANGE for wrong lengths, EINVAL for more bands than a meter may have.
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self { datapath, ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::ID => message.id = Some(attr.u32()?),
                uapi::KBPS => message.is_kbps = true,
                uapi::STATS => message.stats = Some(stats(&attr)?),
                uapi::BANDS => message.bands = Some(decode_bands(attr.nested())?),
                uapi::USED => message.used_ms = Some(attr.u64()?),
                uapi::CLEAR => message.is_clear = true,
                uapi::MAX_METERS => message.meters_max = Some(attr.u32()?),
                uapi::MAX_BANDS => message.bands_max = Some(attr.u32()?),
                _ => {}
            }
        }
        Ok(message)
    }

    /// Encodes the attributes.
    pub fn encode(&self, writer: &mut Writer) {
        writer.put_some(uapi::ID, self.id.map(u32::to_ne_bytes));
        writer.put_flag(uapi::KBPS, self.is_kbps);
        if let Some(stats) = self.stats {
            put_words(writer, uapi::STATS, [stats.packets, stats.bytes]);
        }
        writer.put_some(uapi::USED, self.used_ms.map(u64::to_ne_bytes));
        writer.put_flag(uapi::CLEAR, self.is_clear);
        writer.put_some(uapi::MAX_METERS, self.meters_max.map(u32::to_ne_bytes));
        writer.put_some(uapi::MAX_BANDS, self.bands_max.map(u32::to_ne_bytes));
        if let Some(bands) = &self.bands {
            writer.nest(uapi::BANDS, |nested| bands.iter().for_each(|band| encode_band(nested, band)));
        }
    }
}

fn stats(attr: &Attr<'_>) -> Result<MeterStats, Refusal> {
    words::<16, 2>(attr).map(|[packets, bytes]| MeterStats { packets, bytes })
}

fn decode_bands(attrs: Attrs<'_>) -> Result<Vec<Band>, Refusal> {
    let mut bands = Vec::new();
    for attr in attrs {
        if bands.len() == BANDS_MAX {
            return Err(Refusal::invalid("a meter has at most one band"));
        }
        bands.push(decode_band(attr?.nested())?);
    }
    Ok(bands)
}

fn decode_band(attrs: Attrs<'_>) -> Result<Band, Refusal> {
    let mut band = Band::default();
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::BAND_TYPE => band.kind = attr.u32()?,
            uapi::BAND_RATE => band.rate = attr.u32()?,
            uapi::BAND_BURST => band.burst = attr.u32()?,
            uapi::BAND_STATS => band.stats = Some(stats(&attr)?),
            _ => {}
        }
    }
    Ok(band)
}

/// Encodes a band. Bands have no numbers: their attributes have type 0.
fn encode_band(writer: &mut Writer, band: &Band) {
    writer.nest(0, |nested| {
        nested.put(uapi::BAND_TYPE, &band.kind.to_ne_bytes());
        nested.put(uapi::BAND_RATE, &band.rate.to_ne_bytes());
        nested.put(uapi::BAND_BURST, &band.burst.to_ne_bytes());
        if let Some(stats) = band.stats {
            put_words(nested, uapi::BAND_STATS, [stats.packets, stats.bytes]);
        }
    });
}
