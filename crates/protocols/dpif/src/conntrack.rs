//! Connection tracking as attributes (`OVS_CT_ATTR_*`, `OVS_NAT_ATTR_*`).

use std::net::IpAddr;

use lasthop_flow::{Conntrack, Masked, Nat, NatSource};

use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::Refusal;
use crate::uapi::ct as uapi;

/// Reads an action's attribute, which must have the length of its structure.
pub(crate) fn array<const N: usize>(attr: &Attr<'_>) -> Result<[u8; N], Refusal> {
    attr.array().map_err(|_| Refusal::invalid("an action's attribute does not have the length of its type"))
}

/// Bytes of a helper's name (NF_CT_HELPER_NAME_LEN) and of a timeout policy's (CTNL_TIMEOUT_NAME_MAX), final NUL excluded.
const HELPER_BYTES_MAX: usize = 15;
const TIMEOUT_BYTES_MAX: usize = 31;

/// Decodes a `ct` action.
///
/// # Errors
/// EINVAL for attributes that are unknown or have a wrong length.
pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Conntrack, Refusal> {
    let mut ct = Conntrack::default();
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::COMMIT => ct.is_commit = flag(&attr)?,
            uapi::FORCE_COMMIT => ct.is_force_commit = flag(&attr)?,
            uapi::ZONE => ct.zone = Some(u16::from_ne_bytes(array(&attr)?)),
            uapi::MARK => ct.mark = Some(decode_mark(array(&attr)?)),
            uapi::LABELS => ct.labels = Some(decode_labels(array(&attr)?)),
            uapi::HELPER => ct.helper = Some(name(&attr, HELPER_BYTES_MAX)?),
            uapi::NAT => ct.nat = Some(decode_nat(attr.nested())?),
            uapi::EVENTMASK => ct.event_mask = Some(u32::from_ne_bytes(array(&attr)?)),
            uapi::TIMEOUT => ct.timeout = Some(name(&attr, TIMEOUT_BYTES_MAX)?),
            _ => return Err(unknown()),
        }
    }
    Ok(ct)
}

fn unknown() -> Refusal {
    Refusal::invalid("a ct action has an attribute of a type that is not known here")
}

fn name(attr: &Attr<'_>, len_max: usize) -> Result<String, Refusal> {
    attr.string(len_max).map_err(|_| Refusal::invalid("a name in a ct action is empty, too long or no text"))
}

fn flag(attr: &Attr<'_>) -> Result<bool, Refusal> {
    array::<0>(attr).map(|_| true)
}

fn decode_mark([a, b, c, d, mask @ ..]: [u8; 8]) -> Masked<u32> {
    Masked { value: u32::from_ne_bytes([a, b, c, d]), mask: u32::from_ne_bytes(mask) }
}

fn decode_labels(bytes: [u8; 32]) -> ([u8; 16], [u8; 16]) {
    let (mut value, mut mask) = ([0; 16], [0; 16]);
    let (first, second) = bytes.split_at(16);
    value.copy_from_slice(first);
    mask.copy_from_slice(second);
    (value, mask)
}

fn decode_nat(attrs: Attrs<'_>) -> Result<Nat, Refusal> {
    let mut nat = Nat::default();
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::NAT_SRC | uapi::NAT_DST if nat.source.is_some() => {
                let why = "a translation is of the source or of the destination, not of both";
                return Err(Refusal::invalid(why));
            }
            uapi::NAT_SRC => nat.source = flag(&attr)?.then_some(NatSource::Src),
            uapi::NAT_DST => nat.source = flag(&attr)?.then_some(NatSource::Dst),
            uapi::NAT_IP_MIN => nat.range.ip_min = Some(address(&attr)?),
            uapi::NAT_IP_MAX => nat.range.ip_max = Some(address(&attr)?),
            uapi::NAT_PROTO_MIN => nat.range.proto_min = Some(u16::from_ne_bytes(array(&attr)?)),
            uapi::NAT_PROTO_MAX => nat.range.proto_max = Some(u16::from_ne_bytes(array(&attr)?)),
            uapi::NAT_PERSISTENT => nat.is_persistent = flag(&attr)?,
            uapi::NAT_PROTO_HASH => nat.is_hashed = flag(&attr)?,
            uapi::NAT_PROTO_RANDOM => nat.is_random = flag(&attr)?,
            _ => return Err(unknown()),
        }
    }
    Ok(nat)
}

fn address(attr: &Attr<'_>) -> Result<IpAddr, Refusal> {
    match attr.payload.len() {
        4 => array::<4>(attr).map(IpAddr::from),
        _ => array::<16>(attr).map(IpAddr::from),
    }
}

/// Encodes a `ct` action, in OVS's order of attributes.
pub(crate) fn encode(writer: &mut Writer, ct: &Conntrack) {
    writer.put_flag(uapi::COMMIT, ct.is_commit);
    writer.put_flag(uapi::FORCE_COMMIT, ct.is_force_commit);
    writer.put_some(uapi::ZONE, ct.zone.map(u16::to_ne_bytes));
    if let Some(mark) = ct.mark {
        writer.put(uapi::MARK, [mark.value.to_ne_bytes(), mark.mask.to_ne_bytes()].as_flattened());
    }
    if let Some((value, mask)) = ct.labels {
        writer.put(uapi::LABELS, [value, mask].as_flattened());
    }
    if let Some(helper) = &ct.helper {
        writer.put_string(uapi::HELPER, helper);
    }
    if let Some(timeout) = &ct.timeout {
        writer.put_string(uapi::TIMEOUT, timeout);
    }
    if let Some(nat) = &ct.nat {
        writer.nest(uapi::NAT, |nested| encode_nat(nested, nat));
    }
    writer.put_some(uapi::EVENTMASK, ct.event_mask.map(u32::to_ne_bytes));
}

fn encode_nat(writer: &mut Writer, nat: &Nat) {
    writer.put_flag(uapi::NAT_SRC, nat.source == Some(NatSource::Src));
    writer.put_flag(uapi::NAT_DST, nat.source == Some(NatSource::Dst));
    put_address(writer, uapi::NAT_IP_MIN, nat.range.ip_min);
    put_address(writer, uapi::NAT_IP_MAX, nat.range.ip_max);
    writer.put_some(uapi::NAT_PROTO_MIN, nat.range.proto_min.map(u16::to_ne_bytes));
    writer.put_some(uapi::NAT_PROTO_MAX, nat.range.proto_max.map(u16::to_ne_bytes));
    writer.put_flag(uapi::NAT_PERSISTENT, nat.is_persistent);
    writer.put_flag(uapi::NAT_PROTO_HASH, nat.is_hashed);
    writer.put_flag(uapi::NAT_PROTO_RANDOM, nat.is_random);
}

fn put_address(writer: &mut Writer, kind: u16, address: Option<IpAddr>) {
    match address {
        Some(IpAddr::V4(address)) => writer.put(kind, &address.octets()),
        Some(IpAddr::V6(address)) => writer.put(kind, &address.octets()),
        None => {}
    }
}
