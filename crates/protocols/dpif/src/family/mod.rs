//! Messages of each family, as values: the same type for a request and its answer; absent parts are `None`.

mod ct_limit;
mod datapath;
mod flow;
mod generic;
mod meter;
mod packet;
mod vport;

pub use ct_limit::{CtLimitMessage, ZoneLimit};
pub use datapath::{DatapathMessage, DatapathStats, MegaflowStats};
pub use flow::{FlowMessage, FlowParts, counters_in};
pub use generic::FamilyMessage;
pub use meter::{Band, MeterMessage, MeterStats};
pub use packet::PacketMessage;
pub use vport::{VportKind, VportMessage, VportOptions, VportStats};

use crate::attr::{Attr, Writer};
use crate::refusal::Refusal;

/// Reads 64-bit numbers in the host's byte order, as in structures of counters.
pub(crate) fn words<const BYTES: usize, const N: usize>(attr: &Attr<'_>) -> Result<[u64; N], Refusal> {
    let bytes = attr.array::<BYTES>()?;
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(words)
}

/// Reads an array of 32-bit numbers.
pub(crate) fn u32_list(attr: &Attr<'_>, len_max: usize) -> Result<Vec<u32>, Refusal> {
    let (words, rest) = attr.payload.as_chunks::<4>();
    if !rest.is_empty() || words.len() > len_max {
        return Err(Refusal::invalid("an array of numbers has too many, or is cut"));
    }
    Ok(words.iter().map(|word| u32::from_ne_bytes(*word)).collect())
}

pub(crate) fn u32_bytes(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn put_words<const N: usize>(writer: &mut Writer, kind: u16, words: [u64; N]) {
    writer.put(kind, words.map(u64::to_ne_bytes).as_flattened());
}
