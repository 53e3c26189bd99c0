//! Network service headers as attributes (`OVS_NSH_KEY_ATTR_*`).

use lasthop_flow::{Nsh, NshContext};

use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::Refusal;
use crate::uapi::key as uapi;

const BASE_BYTES: usize = 8;
const MD1_BYTES: usize = 16;
/// RFC 8300, 2.2: a header has at most 63 words, of which two are its base.
const MD2_BYTES_MAX: usize = 244;

/// Decodes a header, or its mask.
///
/// # Errors
/// EINVAL without a base, for wrong lengths and for unknown attributes.
pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Nsh, Refusal> {
    let (mut base, mut context) = (None, NshContext::None);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::NSH_BASE => base = Some(decode_base(&attr.array()?)),
            uapi::NSH_MD1 => context = decode_md1(&attr.array()?),
            uapi::NSH_MD2 => context = decode_md2(attr.payload)?,
            _ => return Err(unknown()),
        }
    }
    let base = base.ok_or(Refusal::invalid("a network service header has no base"))?;
    Ok(Nsh { context, ..base })
}

/// The length has to be a multiple of words.
fn decode_md2(bytes: &[u8]) -> Result<NshContext, Refusal> {
    let fits = bytes.len() <= MD2_BYTES_MAX && bytes.len().is_multiple_of(4);
    fits.then(|| NshContext::Md2(bytes.to_vec())).ok_or(unknown())
}

fn unknown() -> Refusal {
    Refusal::invalid("a network service header has an attribute that is unknown, too long or not in words")
}

fn decode_base(bytes: &[u8; BASE_BYTES]) -> Nsh {
    let [flags, ttl, md_type, next_proto, path @ ..] = *bytes;
    Nsh { flags, ttl, md_type, next_proto, path: u32::from_be_bytes(path), context: NshContext::None }
}

fn decode_md1(bytes: &[u8; MD1_BYTES]) -> NshContext {
    let (words, _) = bytes.as_chunks::<4>();
    let mut context = [0; 4];
    for (word, bytes) in context.iter_mut().zip(words) {
        *word = u32::from_be_bytes(*bytes);
    }
    NshContext::Md1(context)
}

/// Decodes value and mask of a rewrite: each attribute holds both in turn.
///
/// # Errors
/// As [`decode`].
pub(crate) fn decode_masked(attrs: Attrs<'_>) -> Result<(Nsh, Nsh), Refusal> {
    let mut pair = [Writer::default(), Writer::default()];
    for attr in attrs {
        let attr = attr?;
        let halves = halves(&attr).ok_or(unknown())?;
        for (writer, half) in pair.iter_mut().zip([halves.0, halves.1]) {
            writer.put(attr.kind, half);
        }
    }
    let [value, mask] = pair;
    Ok((decode(Attrs::new(&value.finish()?))?, decode(Attrs::new(&mask.finish()?))?))
}

fn halves<'a>(attr: &Attr<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let half = attr.payload.len() / 2;
    let is_even = attr.payload.len().is_multiple_of(2) && attr.kind != uapi::NSH_MD2;
    is_even.then(|| attr.payload.split_at(half))
}

/// Encodes a header, or its mask.
pub(crate) fn encode(writer: &mut Writer, header: &Nsh) {
    writer.put(uapi::NSH_BASE, &base(header));
    match &header.context {
        NshContext::None => {}
        NshContext::Md1(context) => writer.put(uapi::NSH_MD1, md1(context).as_flattened()),
        NshContext::Md2(bytes) => writer.put(uapi::NSH_MD2, bytes),
    }
}

/// Encodes value and mask of a rewrite.
pub(crate) fn encode_masked(writer: &mut Writer, (value, mask): &(Nsh, Nsh)) {
    writer.put(uapi::NSH_BASE, [base(value), base(mask)].as_flattened());
    if let (NshContext::Md1(value), NshContext::Md1(mask)) = (&value.context, &mask.context) {
        writer.put(uapi::NSH_MD1, [md1(value), md1(mask)].as_flattened().as_flattened());
    }
}

fn base(header: &Nsh) -> [u8; BASE_BYTES] {
    let [a, b, c, d] = header.path.to_be_bytes();
    [header.flags, header.ttl, header.md_type, header.next_proto, a, b, c, d]
}

fn md1(context: &[u32; 4]) -> [[u8; 4]; 4] {
    context.map(u32::to_be_bytes)
}
