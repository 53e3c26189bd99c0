//! The key of a flow table: a packet's fields, packed into words for fast comparison and masking.
//!
//! ```text
//!   word  bits 63..32             bits 31..0
//!    0    recirculation id        datapath hash
//!    1    priority                mark
//!    2    in port : 16 | destination address : 48
//!    3    source address : 48 | EtherType : 16
//!    4    outer TPID : 16 | TCI : 16 | inner TPID : 16 | TCI : 16
//!    5    IP protocol : 8 | TOS : 8 | TTL : 8 | fragment : 8 | IPv6 flow label : 32
//!    6    source port : 16 | destination port : 16 | TCP flags : 16 | 0 : 14 | unread : 1 | no Ethernet header : 1
//!    7    IPv4 source : 32        destination : 32
//!   8-11  IPv6 source : 128 | destination : 128; or
//!   8-10  service header: flags : 8 | TTL : 8 | metadata type : 8 | next protocol : 8 | path : 32 | context : 128
//!  12-13  neighbour discovery target : 128
//!  14     source link-layer address : 48 (ARP, neighbour discovery)
//!  15     target link-layer address : 48
//!  16     MPLS entry 0 : 32       entry 1 : 32
//!  17     MPLS entry 2 : 32       0
//!  18     ct state : 8 | original protocol : 8 | zone : 16 | ct mark : 32
//!  19-20  ct labels : 128
//!  21     original source port : 16 | destination port : 16 | 0 : 32
//!  22     original IPv4 source : 32 | destination : 32; or
//!  22-25  original IPv6 source : 128 | destination : 128
//!  26     tunnel: flags : 8 | TOS : 8 | TTL : 8 | options' length : 8 | source port : 16 | destination port : 16
//!  27     tunnel id : 64
//!  28-31  outer source : 128 | destination : 128; of IPv4 in the lower 32 bits
//!  32-39  tunnel options : 512
//! ```
//!
//! An IPv4 packet fills the first eight words, a cache line; absent fields are zero. As in the Open vSwitch datapath,
//! ICMP type and code use the fields of ports, the ARP operation uses that of the IP protocol, and bit 12 of a TCI says
//! that there is a tag. Eight words are for connection tracking ([`CtWords`]): zero until an action `ct` has processed
//! the packet. The last words are the tunnel by which the packet came ([`Key::put_tunnel`]): zero for other packets.
//! [`extract`] does not change them.

use crate::tunnel::{OPTIONS_BYTES_MAX, OuterHeader, flag};

mod extract;
mod mini_key;

pub use extract::{Offsets, extract, extract_usual4};
pub use mini_key::{MINI_KEY4_WORDS, MINI_KEY6_WORDS, MiniKey};

/// Words of a key.
pub const KEY_WORDS: usize = TUNNEL_WORD + TUNNEL_WORDS;
/// Words of the key of a packet that did not come by a tunnel.
pub const PLAIN_KEY_WORDS: usize = TUNNEL_WORD;
/// Words of a key about a tunnel.
pub const TUNNEL_WORDS: usize = 6 + OPTIONS_BYTES_MAX / 8;
/// Number of the first word about a tunnel.
pub const TUNNEL_WORD: usize = CT_WORD + CT_WORDS;
/// Words of a key about connection tracking.
pub const CT_WORDS: usize = 8;
/// Number of the first word about connection tracking.
pub const CT_WORD: usize = 18;
/// Words that can differ from zero for a packet without IPv6, ARP, MPLS or a network service header.
pub const KEY_WORDS_SHORT: usize = 8;
/// Bit 12 of a TCI in a key: there is a tag.
pub const VLAN_PRESENT: u16 = 0x1000;
/// EtherType of frames with an 802.2 header that has no EtherType.
pub const ETHERTYPE_802_2: u16 = 0x0004;

/// `frag` of a whole datagram, of a first fragment, and of a later one, which has no transport header.
pub const FRAGMENT_NONE: u8 = 0;
/// See [`FRAGMENT_NONE`].
pub const FRAGMENT_FIRST: u8 = 1;
/// See [`FRAGMENT_NONE`].
pub const FRAGMENT_LATER: u8 = 2;

/// The position of a number in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    word: u8,
    shift: u8,
    bits: u8,
}

/// The position of a number of 128 bits in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideField {
    word: u8,
}

macro_rules! fields {
    ($($name:ident = $word:literal, $shift:literal, $bits:literal, $doc:literal;)*) => {
        /// The fields of up to 64 bits.
        pub mod field {
            use super::Field;
            $(#[doc = $doc] pub const $name: Field = Field { word: $word, shift: $shift, bits: $bits };)*
            /// All fields.
            pub const ALL: &[Field] = &[$($name),*];
        }
    };
}

fields! {
    RECIRC_ID = 0, 32, 32, "Which pass through the table; 0 is the first.";
    DP_HASH = 0, 0, 32, "The result of a hash action.";
    PRIORITY = 1, 32, 32, "Queueing priority.";
    MARK = 1, 0, 32, "Packet mark.";
    IN_PORT = 2, 48, 16, "Where the packet came in.";
    ETH_DST = 2, 0, 48, "Destination address.";
    ETH_SRC = 3, 16, 48, "Source address.";
    ETH_TYPE = 3, 0, 16, "EtherType behind all tags.";
    VLAN_TPID = 4, 48, 16, "EtherType of the outer tag.";
    VLAN_TCI = 4, 32, 16, "The outer tag.";
    CVLAN_TPID = 4, 16, 16, "EtherType of the inner tag.";
    CVLAN_TCI = 4, 0, 16, "The inner tag.";
    IP_PROTO = 5, 56, 8, "IP protocol behind extension headers; ARP operation.";
    IP_TOS = 5, 48, 8, "TOS or traffic class.";
    IP_TTL = 5, 40, 8, "TTL or hop limit.";
    IP_FRAG = 5, 32, 8, "`FRAGMENT_*`.";
    IPV6_LABEL = 5, 0, 20, "IPv6 flow label.";
    TP_SRC = 6, 48, 16, "Source port, or ICMP type.";
    TP_DST = 6, 32, 16, "Destination port, or ICMP code.";
    TCP_FLAGS = 6, 16, 16, "TCP flags, 12 bits.";
    NO_ETHERNET = 6, 0, 1, "1 for packets without an Ethernet header.";
    UNREAD = 6, 1, 1, "1 if the frame has a header for this key that the given bytes do not have. Flows match 0 only.";
    IPV4_SRC = 7, 32, 32, "IPv4 source; ARP sender's address.";
    IPV4_DST = 7, 0, 32, "IPv4 destination; ARP target's address.";
    LL_SRC = 14, 0, 48, "ARP sender's Ethernet address; neighbour discovery's source option.";
    LL_DST = 15, 0, 48, "ARP target's Ethernet address; neighbour discovery's target option.";
    MPLS_0 = 16, 32, 32, "Topmost MPLS entry.";
    MPLS_1 = 16, 0, 32, "The entry below it.";
    MPLS_2 = 17, 32, 32, "The entry below that.";
}

/// The fields of 128 bits.
pub mod wide_field {
    use super::WideField;

    /// IPv6 source.
    pub const IPV6_SRC: WideField = WideField { word: 8 };
    /// IPv6 destination.
    pub const IPV6_DST: WideField = WideField { word: 10 };
    /// Target of neighbour discovery.
    pub const ND_TARGET: WideField = WideField { word: 12 };
    /// All fields of 128 bits.
    pub const ALL: &[WideField] = &[IPV6_SRC, IPV6_DST, ND_TARGET];
}

/// The fields of a network service header (RFC 8300, 2), which share words with IPv6 addresses.
pub mod nsh_field {
    use super::{Field, WideField};

    /// Flags: unassigned bit, O bit.
    pub const FLAGS: Field = Field { word: 8, shift: 56, bits: 8 };
    /// Hops left.
    pub const TTL: Field = Field { word: 8, shift: 48, bits: 8 };
    /// Metadata type; 0 means that there is no header.
    pub const MD_TYPE: Field = Field { word: 8, shift: 40, bits: 8 };
    /// The next protocol.
    pub const NEXT_PROTOCOL: Field = Field { word: 8, shift: 32, bits: 8 };
    /// Service path identifier and service index.
    pub const PATH: Field = Field { word: 8, shift: 0, bits: 32 };
    /// Context of metadata type 1.
    pub const CONTEXT: WideField = WideField { word: 9 };
}

/// The fields of connection tracking.
pub mod ct_field {
    use super::{Field, WideField};

    /// State bits (`OVS_CS_F_*`); 0 is untracked.
    pub const STATE: Field = Field { word: 18, shift: 56, bits: 8 };
    /// Protocol of the original direction; 0 if there is none.
    pub const PROTO: Field = Field { word: 18, shift: 48, bits: 8 };
    /// Zone.
    pub const ZONE: Field = Field { word: 18, shift: 32, bits: 16 };
    /// Mark.
    pub const MARK: Field = Field { word: 18, shift: 0, bits: 32 };
    /// Labels, the first byte highest.
    pub const LABELS: WideField = WideField { word: 19 };
    /// Source port of the original direction, or ICMP type.
    pub const TP_SRC: Field = Field { word: 21, shift: 48, bits: 16 };
    /// Destination port of the original direction, or ICMP code.
    pub const TP_DST: Field = Field { word: 21, shift: 32, bits: 16 };
    /// Source of the original direction, IPv4.
    pub const IPV4_SRC: Field = Field { word: 22, shift: 32, bits: 32 };
    /// Destination of the original direction, IPv4.
    pub const IPV4_DST: Field = Field { word: 22, shift: 0, bits: 32 };
    /// Source of the original direction, IPv6.
    pub const IPV6_SRC: WideField = WideField { word: 22 };
    /// Destination of the original direction, IPv6.
    pub const IPV6_DST: WideField = WideField { word: 24 };
}

/// The fields of a tunnel.
pub mod tunnel_field {
    use super::{Field, TUNNEL_WORD, WideField};

    const FIRST: u8 = TUNNEL_WORD as u8;

    /// `tunnel::flag` bits; the bit of SEND says here that there is a tunnel.
    pub const FLAGS: Field = Field { word: FIRST, shift: 56, bits: 8 };
    /// TOS or traffic class.
    pub const TOS: Field = Field { word: FIRST, shift: 48, bits: 8 };
    /// TTL or hop limit.
    pub const TTL: Field = Field { word: FIRST, shift: 40, bits: 8 };
    /// Bytes of options.
    pub const OPTIONS_LEN: Field = Field { word: FIRST, shift: 32, bits: 8 };
    /// Source port.
    pub const TP_SRC: Field = Field { word: FIRST, shift: 16, bits: 16 };
    /// Destination port.
    pub const TP_DST: Field = Field { word: FIRST, shift: 0, bits: 16 };
    /// Source address.
    pub const SRC: WideField = WideField { word: FIRST + 2 };
    /// Destination address.
    pub const DST: WideField = WideField { word: FIRST + 4 };
}

impl Field {
    /// All bits of the field set: the mask of an exact match, and the largest value.
    #[inline]
    #[must_use]
    pub const fn ones(self) -> u64 {
        (1 << self.bits) - 1
    }
}

/// A packet's metadata and headers; or, as a mask, the bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub [u64; KEY_WORDS]);

impl Default for Key {
    fn default() -> Self {
        Self([0; KEY_WORDS])
    }
}

impl Key {
    /// A field's value.
    #[inline]
    #[must_use]
    pub const fn get(&self, field: Field) -> u64 {
        self.0[field.word as usize] >> field.shift & field.ones()
    }

    /// The last EtherType.
    #[inline]
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        self.get(field::ETH_TYPE) as u16
    }

    /// The IP protocol, or ARP's operation.
    #[inline]
    #[must_use]
    pub const fn ip_proto(&self) -> u8 {
        self.get(field::IP_PROTO) as u8
    }

    /// Sets a field; bits beyond its width are left out.
    #[inline]
    pub const fn put(&mut self, field: Field, value: u64) {
        let word = &mut self.0[field.word as usize];
        let ones = field.ones();
        *word = *word & !(ones << field.shift) | (value & ones) << field.shift;
    }

    /// Whether fields are missing: the frame has a header that the bytes given to [`extract`] do not have.
    #[inline]
    #[must_use]
    pub const fn is_unread(&self) -> bool {
        self.get(field::UNREAD) != 0
    }

    /// A field's value.
    #[inline]
    #[must_use]
    pub const fn get_wide(&self, field: WideField) -> u128 {
        (self.0[field.word as usize] as u128) << 64 | self.0[field.word as usize + 1] as u128
    }

    /// Sets a field.
    #[inline]
    pub const fn put_wide(&mut self, field: WideField, value: u128) {
        self.0[field.word as usize] = (value >> 64) as u64;
        self.0[field.word as usize + 1] = value as u64;
    }

    /// Whether the packet came by a tunnel.
    #[inline]
    #[must_use]
    pub const fn has_tunnel(&self) -> bool {
        self.0[TUNNEL_WORD] != 0
    }

    /// The words of a packet that did not come by a tunnel.
    #[inline]
    #[must_use]
    pub fn plain(&self) -> &[u64; PLAIN_KEY_WORDS] {
        &self.0.as_chunks().0[0]
    }

    /// Clears the bits of these words that `mask` does not have.
    #[inline]
    pub fn mask_plain(&mut self, mask: &Self) {
        self.0.iter_mut().zip(mask.plain()).for_each(|(word, mask)| *word &= mask);
    }

    /// Sets the tunnel by which the packet came; or, in a mask, the bits that count.
    pub fn put_tunnel(&mut self, tunnel: &OuterHeader) {
        self.put(tunnel_field::FLAGS, u64::from(tunnel.flags | flag::SEND));
        self.put(tunnel_field::TOS, u64::from(tunnel.tos));
        self.put(tunnel_field::TTL, u64::from(tunnel.ttl));
        self.put(tunnel_field::OPTIONS_LEN, tunnel.options.get().len() as u64);
        self.put(tunnel_field::TP_SRC, u64::from(tunnel.tp_src));
        self.put(tunnel_field::TP_DST, u64::from(tunnel.tp_dst));
        self.0[TUNNEL_WORD + 1] = tunnel.id;
        self.put_wide(tunnel_field::SRC, tunnel.src);
        self.put_wide(tunnel_field::DST, tunnel.dst);
        let options = tunnel.options.padded().as_chunks::<8>().0;
        for (place, word) in self.0[TUNNEL_WORD + 6..].iter_mut().zip(options) {
            *place = u64::from_be_bytes(*word);
        }
    }

    /// The key with only the bits that `mask` has.
    #[inline]
    #[must_use]
    pub fn masked(&self, mask: &Self) -> Self {
        let mut words = self.0;
        words.iter_mut().zip(&mask.0).for_each(|(word, mask)| *word &= mask);
        Self(words)
    }
}

/// A key's words about connection tracking, which a packet carries from action to action. All zero if it is untracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtWords(pub [u64; CT_WORDS]);

impl CtWords {
    /// The words of a key.
    #[must_use]
    pub fn of(key: &Key) -> Self {
        let mut words = Self::default();
        words.0.copy_from_slice(&key.0[CT_WORD..TUNNEL_WORD]);
        words
    }

    /// A key that has only these words.
    #[must_use]
    pub fn to_key(&self) -> Key {
        let mut key = Key::default();
        key.0[CT_WORD..TUNNEL_WORD].copy_from_slice(&self.0);
        key
    }
}

/// The first header of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// An Ethernet header.
    #[default]
    Ethernet,
    /// A network header of this EtherType.
    None(u16),
}

/// A packet's metadata, which is not in its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Recirculation id: the pass through the table; 0 is the first.
    pub recirc_id: u32,
    /// The result of a hash action.
    pub dp_hash: u32,
    /// Queueing priority.
    pub priority: u32,
    /// Packet mark.
    pub mark: u32,
    /// The input port.
    pub in_port: u16,
    /// Its first header.
    pub link: LinkLayer,
    /// Its connection tracking state.
    pub ct: CtWords,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_fields_share_a_bit() {
        let mut all = Key::default();
        for field in field::ALL {
            let mut one = Key::default();
            one.put(*field, u64::MAX);
            assert_eq!(one.get(*field), field.ones());
            assert_eq!(all.masked(&one), Key::default(), "{field:?}");
            all.put(*field, u64::MAX);
        }
        for field in wide_field::ALL {
            let mut one = Key::default();
            one.put_wide(*field, u128::MAX - 5);
            assert_eq!(one.get_wide(*field), u128::MAX - 5);
            one.put_wide(*field, u128::MAX);
            assert_eq!(all.masked(&one), Key::default(), "{field:?}");
            all.put_wide(*field, u128::MAX);
        }
    }

    #[test]
    fn no_two_fields_of_a_service_header_share_a_bit() {
        use nsh_field::{CONTEXT, FLAGS, MD_TYPE, NEXT_PROTOCOL, PATH, TTL};
        let mut key = Key::default();
        key.put_wide(CONTEXT, u128::MAX);
        for (field, value) in [FLAGS, TTL, MD_TYPE, NEXT_PROTOCOL, PATH].into_iter().zip(1..) {
            key.put(field, value);
        }
        assert_eq!(key.0[8..12], [0x0102_0304_0000_0005, u64::MAX, u64::MAX, 0]);
    }

    #[test]
    fn no_two_fields_of_connection_tracking_share_a_bit() {
        use ct_field::{
            IPV4_DST, IPV4_SRC, IPV6_DST, IPV6_SRC, LABELS, MARK, PROTO, STATE, TP_DST, TP_SRC, ZONE,
        };
        let (mut key, mut four) = (Key::default(), Key::default());
        for (field, value) in [STATE, PROTO, ZONE, MARK, TP_SRC, TP_DST].into_iter().zip(1..) {
            key.put(field, value);
        }
        for (field, value) in [LABELS, IPV6_SRC, IPV6_DST].into_iter().zip(7..) {
            key.put_wide(field, value);
        }
        let words = CtWords([0x0102_0003_0000_0004, 0, 7, 0x0005_0006_0000_0000, 0, 8, 0, 9]);
        assert_eq!((CtWords::of(&key), words.to_key()), (words, key));
        four.put(IPV4_SRC, 1);
        four.put(IPV4_DST, 2);
        assert_eq!(CtWords::of(&four).0[4], 0x1_0000_0002);
    }

    #[test]
    fn a_tunnel_has_words_of_its_own() {
        let options = crate::tunnel::OptionBytes::of(&[9; 12]).expect("they fit");
        let (flags, tos, ttl, tp_src, tp_dst) = (flag::KEY, 1, 2, 3, 4);
        let mut key = Key::default();
        assert!(!key.has_tunnel());
        key.put_tunnel(&OuterHeader {
            flags,
            tos,
            ttl,
            tp_src,
            tp_dst,
            id: 5,
            src: 6,
            dst: 7,
            options,
            sender: 0,
            is_layer3: false,
        });
        let nines = 0x0909_0909_0909_0909;
        let words = [0x8801_020c_0003_0004, 5, 0, 6, 0, 7, nines, nines & !0xffff_ffff, 0];
        assert_eq!((&key.0[TUNNEL_WORD..TUNNEL_WORD + 9], key.has_tunnel()), (&words[..], true));
        assert!(key.0[..TUNNEL_WORD].iter().all(|word| *word == 0));
    }

    #[test]
    fn a_field_is_set_without_touching_others() {
        let mut key = Key([u64::MAX; KEY_WORDS]);
        key.put(field::TP_DST, 0x1_0050);
        assert_eq!((key.get(field::TP_DST), key.0[6]), (0x50, 0xffff_0050_ffff_ffff));
    }
}
