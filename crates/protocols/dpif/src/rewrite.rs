//! Rewrites as attributes: one `OVS_KEY_ATTR_*` in SET, or in SET_MASKED with its mask behind its value.

use lasthop_flow::{Group, Masked, Rewrite};

use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::Refusal;
use crate::uapi::{action, key as uapi};
use crate::{nsh, tunnel};

/// Value and mask of an attribute's payload.
type Split = fn(&[u8]) -> Option<(&[u8], Option<&[u8]>)>;

/// Decodes a rewrite of a whole header.
///
/// # Errors
/// EINVAL unless there is one attribute, of a header that can be rewritten, with its length.
pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Rewrite, Refusal> {
    let attr = only(attrs)?;
    match attr.kind {
        uapi::TUNNEL => tunnel::decode(attr.nested()).map(|tunnel| Rewrite::Tunnel(Box::new(tunnel))),
        uapi::NSH => Err(Refusal::invalid("a network service header is rewritten with a mask only")),
        _ => decode_group(&attr, |payload| Some((payload, None))),
    }
}

/// Decodes a rewrite of some bits of one header.
///
/// # Errors
/// As [`decode`], and for a value with bits outside of its mask.
pub(crate) fn decode_masked(attrs: Attrs<'_>) -> Result<Rewrite, Refusal> {
    let attr = only(attrs)?;
    match attr.kind {
        uapi::NSH => nsh::decode_masked(attr.nested()).map(|pair| Rewrite::Nsh(Box::new(pair))),
        _ => decode_group(&attr, |payload| {
            let (value, mask) = payload.split_at_checked(payload.len() / 2)?;
            Some((value, Some(mask)))
        }),
    }
}

fn only(mut attrs: Attrs<'_>) -> Result<Attr<'_>, Refusal> {
    let attr = attrs.next().transpose()?.filter(|_| attrs.next().is_none());
    attr.ok_or(Refusal::invalid("a set action has to have exactly one header"))
}

fn decode_group(attr: &Attr<'_>, split: Split) -> Result<Rewrite, Refusal> {
    Ok(match attr.kind {
        uapi::PRIORITY => Rewrite::Priority(masked(attr, split)?),
        uapi::SKB_MARK => Rewrite::Mark(masked(attr, split)?),
        uapi::ETHERNET => Rewrite::Ethernet(masked(attr, split)?),
        uapi::IPV4 => Rewrite::Ipv4(masked(attr, split)?),
        uapi::IPV6 => Rewrite::Ipv6(masked(attr, split)?),
        uapi::TCP => Rewrite::Tcp(masked(attr, split)?),
        uapi::UDP => Rewrite::Udp(masked(attr, split)?),
        uapi::SCTP => Rewrite::Sctp(masked(attr, split)?),
        uapi::ICMP => Rewrite::Icmp(masked(attr, split)?),
        uapi::ICMPV6 => Rewrite::Icmpv6(masked(attr, split)?),
        uapi::ARP => Rewrite::Arp(masked(attr, split)?),
        uapi::ND => Rewrite::Nd(masked(attr, split)?),
        uapi::MPLS => Rewrite::Mpls(masked(attr, split)?),
        _ => return Err(Refusal::invalid("a set action names a header that cannot be set")),
    })
}

fn masked<G: Group>(attr: &Attr<'_>, split: Split) -> Result<Masked<G>, Refusal> {
    let wrong = Refusal::invalid("a set action does not have the length of its header");
    let (value, mask) = split(attr.payload).ok_or(wrong)?;
    let mask = mask.map_or(Some(G::ones()), G::from_bytes).ok_or(wrong)?;
    let value = G::from_bytes(value).ok_or(wrong)?;
    if value.masked(mask) != value {
        return Err(Refusal::invalid("a set action has bits outside of its mask"));
    }
    Ok(Masked { value, mask })
}

/// Encodes a rewrite: as SET if the mask has all bits, otherwise as SET_MASKED.
pub(crate) fn encode(writer: &mut Writer, rewrite: &Rewrite) {
    match rewrite {
        Rewrite::Priority(set) => put(writer, uapi::PRIORITY, set),
        Rewrite::Mark(set) => put(writer, uapi::SKB_MARK, set),
        Rewrite::Ethernet(set) => put(writer, uapi::ETHERNET, set),
        Rewrite::Ipv4(set) => put(writer, uapi::IPV4, set),
        Rewrite::Ipv6(set) => put(writer, uapi::IPV6, set),
        Rewrite::Tcp(set) => put(writer, uapi::TCP, set),
        Rewrite::Udp(set) => put(writer, uapi::UDP, set),
        Rewrite::Sctp(set) => put(writer, uapi::SCTP, set),
        Rewrite::Icmp(set) => put(writer, uapi::ICMP, set),
        Rewrite::Icmpv6(set) => put(writer, uapi::ICMPV6, set),
        Rewrite::Arp(set) => put(writer, uapi::ARP, set),
        Rewrite::Nd(set) => put(writer, uapi::ND, set),
        Rewrite::Mpls(set) => put(writer, uapi::MPLS, set),
        Rewrite::Nsh(pair) => writer.nest(action::SET_MASKED, |set| {
            set.nest(uapi::NSH, |nested| nsh::encode_masked(nested, pair));
        }),
        Rewrite::Tunnel(outer) => writer.nest(action::SET, |set| {
            set.nest(uapi::TUNNEL, |nested| tunnel::encode(nested, outer));
        }),
    }
}

fn put<G: Group>(writer: &mut Writer, kind: u16, set: &Masked<G>) {
    let (value, mask) = (set.value.to_image(), set.mask.to_image());
    if set.is_exact() {
        writer.nest(action::SET, |nested| nested.put(kind, value.as_ref()));
    } else {
        let both = [value.as_ref(), mask.as_ref()].concat();
        writer.nest(action::SET_MASKED, |nested| nested.put(kind, &both));
    }
}
