//! Flow keys and masks as attributes (`OVS_KEY_ATTR_*`).
//!
//! VLAN tags are nested: the fields behind a tag are in its ENCAP, so the outer EtherType is the tag's own.
//!
//! ```text
//!   ETHERNET  ETHERTYPE 0x88a8  VLAN  ENCAP { ETHERTYPE 0x8100  VLAN  ENCAP { ETHERTYPE 0x0800  IPV4  TCP ... } }
//! ```

use arrayvec::ArrayVec;
use lasthop_flow::{CtKey, FlowKey, Group, MPLS_MAX, Nsh, VLAN_PRESENT, VLANS_MAX, Vlan};
use lasthop_wire::headers::ETHERTYPES_VLAN;

use crate::attr::{Attr, Attrs, Writer};
use crate::nsh;
use crate::refusal::Refusal;
use crate::tunnel;
use crate::uapi::key as uapi;

const KINDS: usize = uapi::LAST as usize + 1;
/// The mask of a tag's control word if the mask lacks it: all bits.
const TCI_EXACT: u16 = 0xffff;

/// A key's attributes by type, of all levels. Each type appears once.
struct Raw<'a>([Option<Attr<'a>>; KINDS]);

impl<'a> Raw<'a> {
    fn fill(&mut self, attrs: Attrs<'a>) -> Result<(), Refusal> {
        for attr in attrs {
            let attr = attr?;
            let place = self.0.get_mut(usize::from(attr.kind)).filter(|_| attr.kind != 0);
            let place = place
                .ok_or(Refusal::invalid("the flow key has an attribute of a type that is not known here"))?;
            if place.replace(attr).is_some() {
                return Err(Refusal::invalid("the flow key has an attribute twice"));
            }
        }
        Ok(())
    }

    fn take(&mut self, kind: u16) -> Option<Attr<'a>> {
        self.0.get_mut(usize::from(kind)).and_then(Option::take)
    }

    fn has(&self, kind: u16) -> bool {
        self.0.get(usize::from(kind)).is_some_and(Option::is_some)
    }

    fn group<G: Group>(&mut self, kind: u16) -> Result<Option<G>, Refusal> {
        self.take(kind).map(|attr| group(&attr)).transpose()
    }

    fn u32(&mut self, kind: u16) -> Result<Option<u32>, Refusal> {
        self.group(kind)
    }

    fn be16(&mut self, kind: u16) -> Result<Option<u16>, Refusal> {
        self.take(kind).map(|attr| array(&attr).map(u16::from_be_bytes)).transpose()
    }

    /// Walks VLAN tags inwards; `levels` gets the tag at each level, or `None`.
    fn tags(
        &mut self,
        is_tag: impl Fn(&Self, usize) -> Result<bool, Refusal>,
    ) -> Result<ArrayVec<Vlan, VLANS_MAX>, Refusal> {
        let mut vlans = ArrayVec::new();
        while is_tag(self, vlans.len())? {
            let tpid = self.be16(uapi::ETHERTYPE)?.unwrap_or(0);
            let tci = self.be16(uapi::VLAN)?.unwrap_or(TCI_EXACT);
            let too_many = Refusal::invalid("the flow key has more VLAN tags than are matched");
            vlans.try_push(Vlan { tpid, tci }).map_err(|_| too_many)?;
            if let Some(encap) = self.take(uapi::ENCAP) {
                self.fill(encap.nested())?;
            }
        }
        Ok(vlans)
    }
}

/// Reads a key's attribute, which must have the length of its structure.
fn array<const N: usize>(attr: &Attr<'_>) -> Result<[u8; N], Refusal> {
    attr.array()
        .map_err(|_| Refusal::invalid("an attribute of the flow key does not have the length of its type"))
}

fn group<G: Group>(attr: &Attr<'_>) -> Result<G, Refusal> {
    let wrong = Refusal::invalid("an attribute of the flow key does not have the length of its type");
    G::from_bytes(attr.payload).ok_or(wrong)
}

/// Decodes a key.
///
/// # Errors
/// EINVAL for attributes that are unknown, come twice, have a wrong length, or lack a VLAN header.
/// [`lasthop_flow::Match::check`] checks whether the key is complete.
pub fn decode(attrs: Attrs<'_>) -> Result<FlowKey, Refusal> {
    let mut raw = Raw([None; KINDS]);
    raw.fill(attrs)?;
    let vlans = raw.tags(is_tag)?;
    decode_rest(raw, vlans)
}

fn is_tag(raw: &Raw<'_>, level: usize) -> Result<bool, Refusal> {
    let attr = raw.0.get(usize::from(uapi::ETHERTYPE)).copied().flatten();
    let ether_type = attr.map(|attr| array(&attr).map(u16::from_be_bytes)).transpose()?;
    let is_tag = ether_type.is_some_and(|kind| ETHERTYPES_VLAN.contains(&kind));
    let parts = [raw.has(uapi::VLAN), raw.has(uapi::ENCAP)];
    if level == VLANS_MAX && parts == [false, false] {
        return Ok(false); // beyond the tags that are matched, it is an EtherType like others
    }
    if parts == [is_tag, is_tag] {
        Ok(is_tag)
    } else {
        Err(Refusal::invalid("a VLAN tag needs its EtherType, VLAN and ENCAP, and nothing else has these"))
    }
}

/// Decodes the mask of `key`. As in the kernel, a tag that is absent in the mask matches exactly. A tag with an empty
/// mask, which OVS uses for packets to drop, has to be present, as in the kernel.
///
/// # Errors
/// As [`decode`], and for a mask of tags that the key does not have.
pub fn decode_mask(attrs: Attrs<'_>, key: &FlowKey) -> Result<FlowKey, Refusal> {
    let mut raw = Raw([None; KINDS]);
    raw.fill(attrs)?;
    let mut vlans = raw.tags(|_, level| Ok(level < key.vlans.len()))?;
    for vlan in vlans.iter_mut().filter(|vlan| vlan.tci == 0) {
        vlan.tci = VLAN_PRESENT;
    }
    if raw.has(uapi::VLAN) || raw.has(uapi::ENCAP) {
        return Err(Refusal::invalid("the mask has a VLAN tag that the key does not have"));
    }
    decode_rest(raw, vlans)
}

fn decode_rest(mut raw: Raw<'_>, vlans: ArrayVec<Vlan, VLANS_MAX>) -> Result<FlowKey, Refusal> {
    Ok(FlowKey {
        recirc_id: raw.u32(uapi::RECIRC_ID)?,
        dp_hash: raw.u32(uapi::DP_HASH)?,
        priority: raw.u32(uapi::PRIORITY)?,
        in_port: raw.u32(uapi::IN_PORT)?,
        mark: raw.u32(uapi::SKB_MARK)?,
        tunnel: raw.take(uapi::TUNNEL).map(|attr| tunnel::decode(attr.nested()).map(Box::new)).transpose()?,
        ct: decode_ct(&mut raw)?,
        ethernet: raw.group(uapi::ETHERNET)?,
        vlans,
        ether_type: raw.be16(uapi::ETHERTYPE)?,
        ipv4: raw.group(uapi::IPV4)?,
        ipv6: raw.group(uapi::IPV6)?,
        arp: raw.group(uapi::ARP)?,
        mpls: raw.take(uapi::MPLS).map(|attr| decode_mpls(&attr)).transpose()?.unwrap_or_default(),
        nsh: raw.take(uapi::NSH).map(|attr| nsh::decode(attr.nested())).transpose()?,
        tcp: raw.group(uapi::TCP)?,
        tcp_flags: raw.be16(uapi::TCP_FLAGS)?,
        udp: raw.group(uapi::UDP)?,
        sctp: raw.group(uapi::SCTP)?,
        icmp: raw.group(uapi::ICMP)?,
        icmpv6: raw.group(uapi::ICMPV6)?,
        nd: raw.group(uapi::ND)?,
    })
}

fn decode_ct(raw: &mut Raw<'_>) -> Result<CtKey, Refusal> {
    Ok(CtKey {
        state: raw.u32(uapi::CT_STATE)?,
        zone: raw.take(uapi::CT_ZONE).map(|attr| array(&attr).map(u16::from_ne_bytes)).transpose()?,
        mark: raw.u32(uapi::CT_MARK)?,
        labels: raw.take(uapi::CT_LABELS).map(|attr| array(&attr)).transpose()?,
        tuple4: raw.group(uapi::CT_ORIG_TUPLE_IPV4)?,
        tuple6: raw.group(uapi::CT_ORIG_TUPLE_IPV6)?,
    })
}

fn decode_mpls(attr: &Attr<'_>) -> Result<ArrayVec<u32, MPLS_MAX>, Refusal> {
    let wrong = Refusal::invalid("an MPLS label stack has one to three entries of four bytes");
    let (entries, rest) = attr.payload.as_chunks::<4>();
    if entries.is_empty() || entries.len() > MPLS_MAX || !rest.is_empty() {
        return Err(wrong);
    }
    Ok(entries.iter().map(|entry| u32::from_be_bytes(*entry)).collect())
}

/// Encodes a key or mask, in the kernel's order.
pub fn encode(writer: &mut Writer, key: &FlowKey) {
    encode_metadata(writer, key);
    put_group(writer, uapi::ETHERNET, key.ethernet);
    encode_from_tag(writer, key, &key.vlans);
}

/// Encodes the metadata beside the packet's bytes, which is all that an execute request needs.
fn encode_metadata(writer: &mut Writer, key: &FlowKey) {
    put_group(writer, uapi::RECIRC_ID, key.recirc_id);
    put_group(writer, uapi::DP_HASH, key.dp_hash);
    put_group(writer, uapi::PRIORITY, key.priority);
    if let Some(outer) = &key.tunnel {
        writer.nest(uapi::TUNNEL, |nested| tunnel::encode(nested, outer));
    }
    put_group(writer, uapi::IN_PORT, key.in_port);
    put_group(writer, uapi::SKB_MARK, key.mark);
    put_group(writer, uapi::CT_STATE, key.ct.state);
    writer.put_some(uapi::CT_ZONE, key.ct.zone.map(u16::to_ne_bytes));
    put_group(writer, uapi::CT_MARK, key.ct.mark);
    writer.put_some(uapi::CT_LABELS, key.ct.labels);
    put_group(writer, uapi::CT_ORIG_TUPLE_IPV4, key.ct.tuple4);
    put_group(writer, uapi::CT_ORIG_TUPLE_IPV6, key.ct.tuple6);
}

fn encode_from_tag(writer: &mut Writer, key: &FlowKey, vlans: &[Vlan]) {
    let Some((vlan, inner)) = vlans.split_first() else {
        writer.put_some(uapi::ETHERTYPE, key.ether_type.map(u16::to_be_bytes));
        return encode_headers(writer, key);
    };
    writer.put(uapi::ETHERTYPE, &vlan.tpid.to_be_bytes());
    writer.put(uapi::VLAN, &vlan.tci.to_be_bytes());
    writer.nest(uapi::ENCAP, |nested| encode_from_tag(nested, key, inner));
}

fn encode_headers(writer: &mut Writer, key: &FlowKey) {
    put_group(writer, uapi::IPV4, key.ipv4);
    put_group(writer, uapi::IPV6, key.ipv6);
    put_group(writer, uapi::ARP, key.arp);
    if !key.mpls.is_empty() {
        let entries: ArrayVec<[u8; 4], MPLS_MAX> = key.mpls.iter().map(|entry| entry.to_be_bytes()).collect();
        writer.put(uapi::MPLS, entries.as_flattened());
    }
    if let Some(header) = &key.nsh {
        writer.nest(uapi::NSH, |nested| nsh::encode(nested, header));
    }
    put_group(writer, uapi::TCP, key.tcp);
    writer.put_some(uapi::TCP_FLAGS, key.tcp_flags.map(u16::to_be_bytes));
    put_group(writer, uapi::UDP, key.udp);
    put_group(writer, uapi::SCTP, key.sctp);
    put_group(writer, uapi::ICMP, key.icmp);
    put_group(writer, uapi::ICMPV6, key.icmpv6);
    put_group(writer, uapi::ND, key.nd);
}

/// Encodes a group of fields, if it is present.
pub(crate) fn put_group<G: Group>(writer: &mut Writer, kind: u16, group: Option<G>) {
    if let Some(group) = group {
        writer.put(kind, group.to_image().as_ref());
    }
}

/// Encodes the attribute of a header to push; `NSH` is nested.
pub(crate) fn encode_nsh(writer: &mut Writer, header: &Nsh) {
    writer.nest(uapi::NSH, |nested| nsh::encode(nested, header));
}
