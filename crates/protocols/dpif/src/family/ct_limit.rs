//! Family `ovs_ct_limit`: how many connections each zone may have.

use crate::attr::{Attrs, Writer};
use crate::bounds::ZONE_LIMITS_MAX;
use crate::refusal::Refusal;
use crate::uapi::ct_limit as uapi;

const LIMIT_BYTES: usize = 12;

/// The limit of one zone (`struct ovs_zone_limit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneLimit {
    /// Zone; -1 for the default of zones without a limit of their own.
    pub zone: i32,
    /// Largest number of its connections; 0 for no limit.
    pub limit: u32,
    /// Number of its connections.
    pub count: u32,
}

/// `OVS_CT_LIMIT_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtLimitMessage {
    /// The datapath; OVS leaves it 0.
    pub datapath: i32,
    /// Limits, or the zones whose limits are requested.
    pub limits: Option<Vec<ZoneLimit>>,
}

impl CtLimitMessage {
    /// Decodes a message about limits.
    ///
    /// # Errors
    /// EINVAL for an array that is cut or too long.
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self { datapath, limits: None };
        for attr in attrs {
            let attr = attr?;
            if attr.kind == uapi::ZONE_LIMIT {
                message.limits = Some(decode_limits(attr.payload)?);
            }
        }
        Ok(message)
    }

    /// Encodes the attributes.
    pub fn encode(&self, writer: &mut Writer) {
        if let Some(limits) = &self.limits {
            let bytes: Vec<_> = limits.iter().flat_map(limit_bytes).collect();
            writer.put(uapi::ZONE_LIMIT, &bytes);
        }
    }
}

fn decode_limits(bytes: &[u8]) -> Result<Vec<ZoneLimit>, Refusal> {
    let (limits, rest) = bytes.as_chunks::<LIMIT_BYTES>();
    if !rest.is_empty() || limits.len() > ZONE_LIMITS_MAX {
        return Err(Refusal::invalid("the array of zones' limits is cut or too long"));
    }
    Ok(limits.iter().map(decode_limit).collect())
}

fn decode_limit(bytes: &[u8; LIMIT_BYTES]) -> ZoneLimit {
    let [z0, z1, z2, z3, l0, l1, l2, l3, count @ ..] = *bytes;
    ZoneLimit {
        zone: i32::from_ne_bytes([z0, z1, z2, z3]),
        limit: u32::from_ne_bytes([l0, l1, l2, l3]),
        count: u32::from_ne_bytes(count),
    }
}

fn limit_bytes(limit: &ZoneLimit) -> Vec<u8> {
    [limit.zone.to_ne_bytes(), limit.limit.to_ne_bytes(), limit.count.to_ne_bytes()].concat()
}
