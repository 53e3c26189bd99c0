//! Flow keys and masks as attributes (`OVS_KEY_ATTR_*`).
//!
//! VLAN tags are nested: the fields behind a tag are in its ENCAP, so the outer EtherType is the tag's own.
//!
//! ```text
//!   ETHERNET  ETHERTYPE 0x88a8  VLAN  ENCAP { ETHERTYPE 0x8100  VLAN  ENCAP { ETHERTYPE 0x0800  IPV4  TCP ... } }
//! ```

use arrayvec::ArrayVec;
use lasthop_flow::{FlowKey, Group, MPLS_MAX, Nsh, VLAN_PRESENT, VLANS_MAX, Vlan};
use lasthop_wire::headers::ETHERTYPES_VLAN;

use crate::attr::{Attr, Attrs, Writer};
use crate::nsh;
use crate::refusal::Refusal;
use crate::tunnel;
use crate::uapi::key as uapi;

/// The mask of a tag's control word if the mask lacks it: all bits.
const TCI_EXACT: u16 = 0xffff;

/// Reads the attributes of a key, of all levels, into it. Each type appears once.
struct Reader<'a, 'k> {
    key: &'k mut FlowKey,
    /// A bit for each type that was met.
    met: u64,
    /// The attributes that VLAN tags consist of, at the level that was read last.
    ether_type: Option<Attr<'a>>,
    vlan: Option<Attr<'a>>,
    encap: Option<Attr<'a>>,
}

impl<'a, 'k> Reader<'a, 'k> {
    fn new(key: &'k mut FlowKey) -> Self {
        const { assert!(uapi::LAST < u64::BITS as u16, "each type has a bit") };
        Self { key, met: 0, ether_type: None, vlan: None, encap: None }
    }

    fn read(&mut self, attrs: Attrs<'a>) -> Result<(), Refusal> {
        for attr in attrs {
            let attr = attr?;
            if attr.kind == 0 || attr.kind > uapi::LAST {
                return Err(Refusal::invalid(
                    "the flow key has an attribute of a type that is not known here",
                ));
            }
            if self.has(attr.kind) {
                return Err(Refusal::invalid("the flow key has an attribute twice"));
            }
            self.met |= 1 << attr.kind;
            self.set(attr)?;
        }
        Ok(())
    }

    fn has(&self, kind: u16) -> bool {
        self.met & 1 << kind != 0
    }

    fn set(&mut self, attr: Attr<'a>) -> Result<(), Refusal> {
        let key = &mut *self.key;
        match attr.kind {
            uapi::ETHERTYPE => self.ether_type = Some(attr),
            uapi::VLAN => self.vlan = Some(attr),
            uapi::ENCAP => self.encap = Some(attr),
            uapi::RECIRC_ID => key.recirc_id = group(&attr)?,
            uapi::DP_HASH => key.dp_hash = group(&attr)?,
            uapi::PRIORITY => key.priority = group(&attr)?,
            uapi::IN_PORT => key.in_port = group(&attr)?,
            uapi::SKB_MARK => key.mark = group(&attr)?,
            uapi::TUNNEL => key.tunnel = Some(Box::new(tunnel::decode(attr.nested())?)),
            uapi::CT_STATE => key.ct.state = group(&attr)?,
            uapi::CT_ZONE => key.ct.zone = Some(u16::from_ne_bytes(array(&attr)?)),
            uapi::CT_MARK => key.ct.mark = group(&attr)?,
            uapi::CT_LABELS => key.ct.labels = Some(array(&attr)?),
            uapi::CT_ORIG_TUPLE_IPV4 => key.ct.tuple4 = group(&attr)?,
            uapi::CT_ORIG_TUPLE_IPV6 => key.ct.tuple6 = group(&attr)?,
            uapi::ETHERNET => key.ethernet = group(&attr)?,
            uapi::IPV4 => key.ipv4 = group(&attr)?,
            uapi::IPV6 => key.ipv6 = group(&attr)?,
            uapi::ARP => key.arp = group(&attr)?,
            uapi::MPLS => key.mpls = decode_mpls(&attr)?,
            uapi::NSH => key.nsh = Some(nsh::decode(attr.nested())?),
            uapi::TCP => key.tcp = group(&attr)?,
            uapi::TCP_FLAGS => key.tcp_flags = Some(be16(&attr)?),
            uapi::UDP => key.udp = group(&attr)?,
            uapi::SCTP => key.sctp = group(&attr)?,
            uapi::ICMP => key.icmp = group(&attr)?,
            uapi::ICMPV6 => key.icmpv6 = group(&attr)?,
            uapi::ND => key.nd = group(&attr)?,
            _ => {}
        }
        Ok(())
    }

    /// Takes an attribute of tags; the next level may have another one.
    fn take(&mut self, kind: u16) -> Option<Attr<'a>> {
        self.met &= !(1 << kind);
        match kind {
            uapi::ETHERTYPE => self.ether_type.take(),
            uapi::VLAN => self.vlan.take(),
            uapi::ENCAP => self.encap.take(),
            _ => None,
        }
    }

    /// Walks VLAN tags inwards; `is_tag` says for each level whether there is one.
    fn tags(&mut self, is_tag: impl Fn(&Self, usize) -> Result<bool, Refusal>) -> Result<(), Refusal> {
        while is_tag(self, self.key.vlans.len())? {
            let tpid = self.take(uapi::ETHERTYPE).map_or(Ok(0), |attr| be16(&attr))?;
            let tci = self.take(uapi::VLAN).map_or(Ok(TCI_EXACT), |attr| be16(&attr))?;
            let too_many = Refusal::invalid("the flow key has more VLAN tags than are matched");
            self.key.vlans.try_push(Vlan { tpid, tci }).map_err(|_| too_many)?;
            if let Some(encap) = self.take(uapi::ENCAP) {
                self.read(encap.nested())?;
            }
        }
        // The EtherType behind all tags.
        self.key.ether_type = self.ether_type.map(|attr| be16(&attr)).transpose()?;
        Ok(())
    }
}

/// Reads a key's attribute, which must have the length of its structure.
fn array<const N: usize>(attr: &Attr<'_>) -> Result<[u8; N], Refusal> {
    attr.array()
        .map_err(|_| Refusal::invalid("an attribute of the flow key does not have the length of its type"))
}

fn be16(attr: &Attr<'_>) -> Result<u16, Refusal> {
    array(attr).map(u16::from_be_bytes)
}

/// Reads a group of fields, which is there.
#[inline]
fn group<G: Group>(attr: &Attr<'_>) -> Result<Option<G>, Refusal> {
    let wrong = Refusal::invalid("an attribute of the flow key does not have the length of its type");
    G::from_bytes(attr.payload).ok_or(wrong).map(Some)
}

/// Decodes a key.
///
/// # Errors
/// EINVAL for attributes that are unknown, come twice, have a wrong length, or lack a VLAN header.
/// [`lasthop_flow::Match::check`] checks whether the key is complete.
pub fn decode(attrs: Attrs<'_>) -> Result<FlowKey, Refusal> {
    let mut key = FlowKey::default();
    decode_into(&mut key, attrs)?;
    Ok(key)
}

/// As [`decode`], into an empty key where it is to be: keys are long to copy.
pub(crate) fn decode_into(key: &mut FlowKey, attrs: Attrs<'_>) -> Result<(), Refusal> {
    let mut reader = Reader::new(key);
    reader.read(attrs)?;
    reader.tags(is_tag)
}

fn is_tag(reader: &Reader<'_, '_>, level: usize) -> Result<bool, Refusal> {
    let ether_type = reader.ether_type.map(|attr| be16(&attr)).transpose()?;
    let is_tag = ether_type.is_some_and(|kind| ETHERTYPES_VLAN.contains(&kind));
    let parts = [reader.vlan.is_some(), reader.encap.is_some()];
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
/// mask, which OVS uses for packets to drop, has to be present, as in the kernel. Only tests of the codec use it.
///
/// # Errors
/// As [`decode`], and for a mask of tags that the key does not have.
pub fn decode_mask(attrs: Attrs<'_>, key: &FlowKey) -> Result<FlowKey, Refusal> {
    let mut mask = FlowKey::default();
    decode_mask_into(&mut mask, attrs, key)?;
    Ok(mask)
}

/// As [`decode_mask`], into an empty mask where it is to be.
pub(crate) fn decode_mask_into(mask: &mut FlowKey, attrs: Attrs<'_>, key: &FlowKey) -> Result<(), Refusal> {
    let mut reader = Reader::new(mask);
    reader.read(attrs)?;
    reader.tags(|_, level| Ok(level < key.vlans.len()))?;
    if reader.vlan.is_some() || reader.encap.is_some() {
        return Err(Refusal::invalid("the mask has a VLAN tag that the key does not have"));
    }
    for vlan in mask.vlans.iter_mut().filter(|vlan| vlan.tci == 0) {
        vlan.tci = VLAN_PRESENT;
    }
    Ok(())
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
#[inline]
pub(crate) fn put_group<G: Group>(writer: &mut Writer, kind: u16, group: Option<G>) {
    if let Some(group) = group {
        writer.put_fixed(kind, group.to_image().as_ref());
    }
}

/// Encodes the attribute of a header to push; `NSH` is nested.
pub(crate) fn encode_nsh(writer: &mut Writer, header: &Nsh) {
    writer.nest(uapi::NSH, |nested| nsh::encode(nested, header));
}
