//! A copy of a packet while actions are executed on it: headers are pushed and popped.

use lasthop_module_api::{DropReason, Header, IMAGE_FETCH_BYTES};
use lasthop_wire::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPES_MPLS, MACS_BYTES};
use lasthop_wire::key::{LinkLayer, Offsets, VLAN_PRESENT, extract, field, nsh_field, wide_field};
use lasthop_wire::mix::mix_bits;
use lasthop_wire::{Key, Metadata, OuterHeader};

pub(crate) const ETHERNET_BYTES: usize = 14;
pub(crate) const EVERYTHING: u32 = u32::MAX;
const TAG_BYTES: usize = 4;
const MPLS_BYTES: usize = 4;
/// "Transparent Ethernet bridging": an Ethernet header follows.
const ETHERTYPE_ETHERNET: u16 = 0x6558;
/// Next protocols of a service header (RFC 8300, 2.2), and the first header that each announces.
const NEXT_PROTOCOLS: [(u8, LinkLayer); 5] = [
    (1, LinkLayer::None(ETHERTYPE_IPV4)),
    (2, LinkLayer::None(ETHERTYPE_IPV6)),
    (3, LinkLayer::Ethernet),
    (4, LinkLayer::None(ETHERTYPE_NSH)),
    (5, LinkLayer::None(ETHERTYPES_MPLS[0])),
];
/// Offset of the next protocol in a service header.
const NEXT_PROTOCOL_AT: usize = 3;

/// A copy of a packet while actions are executed on it.
#[derive(Clone)]
pub(crate) struct ActionPacket<'a> {
    /// Index of the packet in the batch.
    pub(crate) packet: u16,
    origin: &'a Header,
    edited: Option<Header>,
    /// Index of the image in the verdicts that equals the current header; `None` after an edit.
    pub(crate) image: Option<u16>,
    pub(crate) metadata: Metadata,
    pub(crate) truncate_len_bytes: u32,
}

impl<'a> ActionPacket<'a> {
    pub(crate) fn new(packet: usize, origin: &'a Header, metadata: Metadata) -> Self {
        let packet = packet as u16; // below BATCH_PACKETS_MAX
        let (image, truncate_len_bytes) = (Some(packet), EVERYTHING);
        Self { packet, origin, edited: None, image, metadata, truncate_len_bytes }
    }

    /// Returns a packet whose header is not among the verdicts' images.
    pub(crate) fn without_image(packet: usize, header: &'a Header, metadata: Metadata) -> Self {
        Self { image: None, ..Self::new(packet, header, metadata) }
    }

    /// Returns a packet whose edited header is an image of the verdicts already.
    pub(crate) fn edited(
        packet: usize,
        (origin, edited, image): (&'a Header, Header, u16),
        metadata: Metadata,
    ) -> Self {
        Self { edited: Some(edited), image: Some(image), ..Self::new(packet, origin, metadata) }
    }

    pub(crate) fn header(&self) -> &Header {
        self.edited.as_ref().unwrap_or(self.origin)
    }

    /// The header that it came with.
    pub(crate) fn first_header(&self) -> &Header {
        self.origin
    }

    /// The header, which will not be the one that was there.
    pub(crate) fn edit(&mut self) -> &mut Header {
        self.image = None;
        self.edited.get_or_insert(*self.origin)
    }

    /// The flow key of the packet in its current form, as if it had just been received. It uses no more bytes than the
    /// key of a received packet.
    pub(crate) fn key(&self) -> (Key, Offsets) {
        let mut key = Key::default();
        let frame_bytes = self.header().frame_len_bytes() as usize;
        let offsets = extract(self.seen(), frame_bytes, &self.metadata, &mut key);
        if self.came_by_tunnel()
            && let Some(tunnel) = OuterHeader::parse(self.origin.tunnel())
        {
            key.put_tunnel(&tunnel);
        }
        (key, offsets)
    }

    /// Whether the packet was received through a tunnel.
    #[inline]
    pub(crate) fn came_by_tunnel(&self) -> bool {
        self.origin.has_tunnel()
    }

    /// The header with the tunnel that the packet was received through, if an action has set another one.
    pub(crate) fn with_first_tunnel(&self) -> Option<Header> {
        let mut header = self.edited.filter(|edited| edited.tunnel() != self.origin.tunnel())?;
        header.set_tunnel(self.origin.tunnel()).ok()?;
        Some(header)
    }

    /// The first bytes, no more than of a received packet, so that each pass sees the same.
    pub(crate) fn seen(&self) -> &[u8] {
        let bytes = self.header().bytes();
        bytes.get(..IMAGE_FETCH_BYTES).unwrap_or(bytes)
    }

    pub(crate) fn push_vlan(&mut self, tpid: u16, tci: u16) -> Result<(), DropReason> {
        if self.metadata.link != LinkLayer::Ethernet {
            return Err(DropReason::ActionImpossible);
        }
        let [[a, b], [c, d]] = [tpid.to_be_bytes(), (tci & !VLAN_PRESENT).to_be_bytes()];
        self.edit().insert(MACS_BYTES, &[a, b, c, d])
    }

    /// Removes the outer tag; a packet without one stays unchanged.
    pub(crate) fn pop_vlan(&mut self) -> Result<(), DropReason> {
        let is_tagged =
            matches!(self.header().bytes().get(MACS_BYTES..), Some([0x81, 0, ..] | [0x88, 0xa8, ..]));
        if self.metadata.link != LinkLayer::Ethernet || !is_tagged {
            return Ok(());
        }
        self.edit().remove(MACS_BYTES, TAG_BYTES)
    }

    /// Pushes a label stack entry before the network header, whose EtherType becomes that of MPLS, or before the whole
    /// packet.
    pub(crate) fn push_mpls(
        &mut self,
        entry: u32,
        ethertype: u16,
        is_outermost: bool,
    ) -> Result<(), DropReason> {
        self.refuse_gso()?;
        if is_outermost {
            self.edit().insert(0, &entry.to_be_bytes())?;
            self.metadata.link = LinkLayer::None(ethertype);
            return Ok(());
        }
        let (_, offsets) = self.key();
        self.edit().insert(usize::from(offsets.network), &entry.to_be_bytes())?;
        self.put_ethertype(offsets, ethertype)
    }

    pub(crate) fn pop_mpls(&mut self, ethertype: u16) -> Result<(), DropReason> {
        let (key, offsets) = self.key();
        if !ETHERTYPES_MPLS.contains(&key.ethertype()) {
            return Err(DropReason::ActionImpossible);
        }
        self.edit().remove(usize::from(offsets.network), MPLS_BYTES)?;
        self.put_ethertype(offsets, ethertype)
    }

    fn put_ethertype(&mut self, offsets: Offsets, ethertype: u16) -> Result<(), DropReason> {
        if self.metadata.link != LinkLayer::Ethernet {
            return self.begin_with(link_of(ethertype));
        }
        let end = usize::from(offsets.network);
        let begin = end.checked_sub(2).ok_or(DropReason::ActionImpossible)?;
        let place = self.edit().bytes_mut().get_mut(begin..end).ok_or(DropReason::ActionImpossible)?;
        place.copy_from_slice(&ethertype.to_be_bytes());
        Ok(())
    }

    /// Sets the first header of the packet to `link`. The sender chose the header behind a popped one: an Ethernet
    /// header may be missing, and such a frame could not be forwarded.
    fn begin_with(&mut self, link: LinkLayer) -> Result<(), DropReason> {
        if link == LinkLayer::Ethernet && (self.header().frame_len_bytes() as usize) < ETHERNET_BYTES {
            return Err(DropReason::TooShort);
        }
        self.metadata.link = link;
        Ok(())
    }

    /// Refuses GSO packets: a packet cannot be segmented if another header precedes its network header.
    fn refuse_gso(&self) -> Result<(), DropReason> {
        if self.header().offload.is_gso() { Err(DropReason::BadGso) } else { Ok(()) }
    }

    pub(crate) fn push_ethernet(&mut self, destination: u64, source: u64) -> Result<(), DropReason> {
        let LinkLayer::None(ethertype) = self.metadata.link else { return Err(DropReason::ActionImpossible) };
        let mut bytes = [0; ETHERNET_BYTES];
        bytes[..6].copy_from_slice(&destination.to_le_bytes()[..6]);
        bytes[6..12].copy_from_slice(&source.to_le_bytes()[..6]);
        bytes[12..].copy_from_slice(&ethertype.to_be_bytes());
        self.edit().insert(0, &bytes)?;
        self.metadata.link = LinkLayer::Ethernet;
        Ok(())
    }

    /// Removes the Ethernet header of a packet without tags.
    pub(crate) fn pop_ethernet(&mut self) -> Result<(), DropReason> {
        let (key, offsets) = self.key();
        if self.metadata.link != LinkLayer::Ethernet || usize::from(offsets.network) != ETHERNET_BYTES {
            return Err(DropReason::ActionImpossible);
        }
        self.edit().remove(0, ETHERNET_BYTES)?;
        self.metadata.link = LinkLayer::None(key.ethertype());
        Ok(())
    }

    /// Pushes the service header `header` and sets its next protocol.
    pub(crate) fn push_nsh(&mut self, header: &mut [u8]) -> Result<(), DropReason> {
        self.refuse_gso()?;
        let known = NEXT_PROTOCOLS.iter().find(|(_, link)| *link == self.metadata.link);
        let (next, _) = known.ok_or(DropReason::ActionImpossible)?;
        *header.get_mut(NEXT_PROTOCOL_AT).ok_or(DropReason::ActionImpossible)? = *next;
        self.edit().insert(0, header)?;
        self.metadata.link = LinkLayer::None(ETHERTYPE_NSH);
        Ok(())
    }

    /// Removes the service header at the start of the packet.
    pub(crate) fn pop_nsh(&mut self) -> Result<(), DropReason> {
        let (key, _) = self.key();
        let next = key.get(nsh_field::NEXT_PROTOCOL) as u8;
        let known = NEXT_PROTOCOLS.iter().find(|(number, _)| *number == next);
        let (LinkLayer::None(ETHERTYPE_NSH), Some((_, link))) = (self.metadata.link, known) else {
            return Err(DropReason::ActionImpossible);
        };
        let words = self.header().bytes().get(1).copied().unwrap_or(0) & 0x3f;
        self.edit().remove(0, 4 * usize::from(words))?;
        self.begin_with(*link)
    }

    /// The length of the packet on the wire. For a GSO packet this is the length of its longest segment.
    pub(crate) fn len_bytes(&self) -> u32 {
        let (header, offload) = (self.header(), &self.header().offload);
        let whole = header.frame_len_bytes();
        if offload.is_gso() {
            return whole.min(u32::from(offload.hdr_len) + u32::from(offload.gso_size));
        }
        whole
    }

    /// The hash of an IP packet's flow: addresses, protocol, ports. Never 0. Fragments have that of their addresses, so that
    /// all of a packet take one way: later ones have no ports, and over IPv6 another protocol.
    pub(crate) fn flow_hash(&self, secret: u64, basis: u32, is_symmetric: bool) -> u32 {
        let (key, _) = self.key();
        let one_way = |address: u128, port: u64, salt: u64| {
            let folded = address as u64 ^ ((address >> 64) as u64).rotate_left(17) ^ secret;
            mix_bits(mix_bits(folded ^ salt) ^ port << 32)
        };
        let address = |v6, v4| key.get_wide(v6) | u128::from(key.get(v4));
        let salt = u64::from(!is_symmetric);
        let source = address(wide_field::IPV6_SRC, field::IPV4_SRC);
        let destination = address(wide_field::IPV6_DST, field::IPV4_DST);
        let is_fragment = key.get(field::IP_FRAG) != u64::from(lasthop_wire::key::FRAGMENT_NONE);
        let of_whole = |field| if is_fragment { 0 } else { key.get(field) };
        let there = one_way(destination, of_whole(field::TP_DST), salt);
        let both = one_way(source, of_whole(field::TP_SRC), 0).wrapping_add(there);
        let rest = of_whole(field::IP_PROTO) | key.get(field::ETH_TYPE) << 8 | u64::from(basis) << 32;
        (mix_bits(both ^ rest) as u32).max(1)
    }
}

/// The first header of a packet without an Ethernet header.
fn link_of(ethertype: u16) -> LinkLayer {
    if ethertype == ETHERTYPE_ETHERNET { LinkLayer::Ethernet } else { LinkLayer::None(ethertype) }
}
