//! Family `ovs_datapath`.

use super::{put_words, u32_bytes, u32_list, words};
use crate::attr::{Attrs, Writer};
use crate::bounds::{CPUS_MAX, NAME_BYTES_MAX};
use crate::refusal::Refusal;
use crate::uapi::dp as uapi;

/// Statistics of a datapath's packets (`struct ovs_dp_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatapathStats {
    /// Packets that matched a flow.
    pub hit: u64,
    /// Packets that matched none.
    pub missed: u64,
    /// Packets whose upcall was lost.
    pub lost: u64,
    /// Flows.
    pub flows: u64,
}

/// Statistics of matching (`struct ovs_dp_megaflow_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MegaflowStats {
    /// Masks that were tried.
    pub mask_hits: u64,
    /// Number of masks.
    pub masks: u32,
    /// Packets whose mask was found at once.
    pub cache_hits: u64,
}

/// `OVS_DP_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatapathMessage {
    /// Its number; 0 in requests that name it.
    pub datapath: i32,
    /// Name of the datapath and of its port 0.
    pub name: Option<String>,
    /// Port id for misses at port 0; 0 for none.
    pub upcall_port_id: Option<u32>,
    /// Counters.
    pub stats: Option<DatapathStats>,
    /// Counters.
    pub megaflow_stats: Option<MegaflowStats>,
    /// `OVS_DP_F_*`.
    pub user_features: Option<u32>,
    /// Size of the mask cache.
    pub masks_cache_size: Option<u32>,
    /// Port ids for misses, one for each CPU.
    pub per_cpu_port_ids: Option<Vec<u32>>,
    /// Interface number of port 0.
    pub ifindex: Option<u32>,
}

impl DatapathMessage {
    /// Decodes a message about datapath `datapath`; ignores attributes without a use here, as the kernel does.
    ///
    /// # Errors
    /// ERANGE for wrong lengths, EINVAL for lists that are too long and invalid names.
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self { datapath, ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::NAME => message.name = Some(attr.string(NAME_BYTES_MAX)?),
                uapi::UPCALL_PID => message.upcall_port_id = Some(attr.u32()?),
                uapi::STATS => message.stats = Some(stats(words::<32, 4>(&attr)?)),
                uapi::MEGAFLOW_STATS => message.megaflow_stats = Some(megaflow_stats(words::<32, 4>(&attr)?)),
                uapi::USER_FEATURES => message.user_features = Some(attr.u32()?),
                uapi::MASKS_CACHE_SIZE => message.masks_cache_size = Some(attr.u32()?),
                uapi::PER_CPU_PIDS => message.per_cpu_port_ids = Some(u32_list(&attr, CPUS_MAX)?),
                uapi::IFINDEX => message.ifindex = Some(attr.u32()?),
                _ => {}
            }
        }
        Ok(message)
    }

    /// Encodes the attributes.
    pub fn encode(&self, writer: &mut Writer) {
        if let Some(name) = &self.name {
            writer.put_string(uapi::NAME, name);
        }
        writer.put_some(uapi::UPCALL_PID, self.upcall_port_id.map(u32::to_ne_bytes));
        if let Some(stats) = self.stats {
            put_words(writer, uapi::STATS, [stats.hit, stats.missed, stats.lost, stats.flows]);
        }
        if let Some(stats) = self.megaflow_stats {
            put_words(writer, uapi::MEGAFLOW_STATS, megaflow_words(stats));
        }
        writer.put_some(uapi::USER_FEATURES, self.user_features.map(u32::to_ne_bytes));
        writer.put_some(uapi::MASKS_CACHE_SIZE, self.masks_cache_size.map(u32::to_ne_bytes));
        if let Some(ids) = &self.per_cpu_port_ids {
            writer.put(uapi::PER_CPU_PIDS, &u32_bytes(ids));
        }
        writer.put_some(uapi::IFINDEX, self.ifindex.map(u32::to_ne_bytes));
    }
}

fn stats([hit, missed, lost, flows]: [u64; 4]) -> DatapathStats {
    DatapathStats { hit, missed, lost, flows }
}

/// Decodes the structure: the second word is a 32-bit number and padding, the last one padding.
fn megaflow_stats([mask_hits, masks, cache_hits, _]: [u64; 4]) -> MegaflowStats {
    let [a, b, c, d, ..] = masks.to_ne_bytes();
    MegaflowStats { mask_hits, masks: u32::from_ne_bytes([a, b, c, d]), cache_hits }
}

fn megaflow_words(stats: MegaflowStats) -> [u64; 4] {
    let [a, b, c, d] = stats.masks.to_ne_bytes();
    [stats.mask_hits, u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), stats.cache_hits, 0]
}
