//! Groups of fields that are present or absent together, each with its image in bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use lasthop_module_api::Mac;

/// Fields that are matched and rewritten together: one `OVS_KEY_ATTR_*` of fixed size.
pub trait Group: Copy + Default + PartialEq {
    /// The image: the bytes of the structure, of fixed length.
    type Image: AsRef<[u8]> + AsMut<[u8]> + Copy + for<'a> TryFrom<&'a [u8]>;

    /// Writes the structure of linux/openvswitch.h; padding is zero.
    fn to_image(self) -> Self::Image;

    /// Reads the structure of linux/openvswitch.h; padding is ignored.
    fn from_image(image: &Self::Image) -> Self;

    /// Reads an image; `None` if the length differs.
    #[must_use]
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::Image::try_from(bytes).ok().map(|image| Self::from_image(&image))
    }

    /// A group of all ones: the mask of an exact match.
    #[must_use]
    fn ones() -> Self {
        let mut image = Self::default().to_image();
        image.as_mut().fill(0xff);
        Self::from_image(&image)
    }

    /// The bits of `self` under `mask`.
    #[must_use]
    fn masked(self, mask: Self) -> Self {
        let mut image = self.to_image();
        for (byte, mask) in image.as_mut().iter_mut().zip(mask.to_image().as_ref()) {
            *byte &= mask;
        }
        Self::from_image(&image)
    }
}

/// A word of an image.
trait Word: Copy {
    fn put(self, image: &mut [u8], at: &mut usize);
    fn take(image: &[u8], at: &mut usize) -> Self;
}

/// Reads the next `N` bytes. The sizes are constants, and the tests check them for every group.
fn next<const N: usize>(image: &[u8], at: &mut usize) -> [u8; N] {
    let bytes = image.get(*at..*at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N]);
    *at += N;
    bytes
}

fn set<const N: usize>(bytes: [u8; N], image: &mut [u8], at: &mut usize) {
    if let Some(place) = image.get_mut(*at..*at + N) {
        place.copy_from_slice(&bytes);
    }
    *at += N;
}

macro_rules! words {
    ($($type:ty: $from:expr, $to:expr;)*) => {$(
        impl Word for $type {
            fn put(self, image: &mut [u8], at: &mut usize) {
                set($to(self), image, at);
            }

            fn take(image: &[u8], at: &mut usize) -> Self {
                $from(next(image, at))
            }
        }
    )*};
}

words! {
    u8: u8::from_be_bytes, u8::to_be_bytes;
    u16: u16::from_be_bytes, u16::to_be_bytes;
    u32: u32::from_be_bytes, u32::to_be_bytes;
    Mac: Mac, |mac: Mac| mac.0;
    Ipv4Addr: Ipv4Addr::from, |address: Ipv4Addr| address.octets();
    Ipv6Addr: Ipv6Addr::from, |address: Ipv6Addr| address.octets();
}

macro_rules! groups {
    ($(
        $(#[$doc:meta])* $name:ident, $bytes:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty = $zero:expr,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $zero,)* }
            }
        }

        impl Group for $name {
            type Image = [u8; $bytes];

            fn to_image(self) -> Self::Image {
                let (mut image, mut at) = ([0; $bytes], 0);
                $(self.$field.put(&mut image, &mut at);)*
                debug_assert!(at <= image.len(), "the image has room for every field");
                image
            }

            fn from_image(image: &Self::Image) -> Self {
                let mut at = 0;
                Self { $($field: Word::take(image, &mut at),)* }
            }
        }
    )*};
}

const MAC: Mac = Mac([0; 6]);
const V4: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const V6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

groups! {
    /// Ethernet addresses (`struct ovs_key_ethernet`).
    Ethernet, 12 {
        /// Source.
        src: Mac = MAC,
        /// Destination.
        dst: Mac = MAC,
    }

    /// IPv4 header (`struct ovs_key_ipv4`).
    Ipv4, 12 {
        /// Source.
        src: Ipv4Addr = V4,
        /// Destination.
        dst: Ipv4Addr = V4,
        /// Protocol; never rewritten.
        proto: u8 = 0,
        /// DSCP and ECN.
        tos: u8 = 0,
        /// Time to live.
        ttl: u8 = 0,
        /// `FRAGMENT_*`; never rewritten.
        frag: u8 = 0,
    }

    /// IPv6 header (`struct ovs_key_ipv6`).
    Ipv6, 40 {
        /// Source.
        src: Ipv6Addr = V6,
        /// Destination.
        dst: Ipv6Addr = V6,
        /// Flow label, 20 bits.
        label: u32 = 0,
        /// Next header behind extension headers; 44 in later fragments. Never rewritten.
        proto: u8 = 0,
        /// Traffic class.
        tclass: u8 = 0,
        /// Hop limit.
        hlimit: u8 = 0,
        /// `FRAGMENT_*`; never rewritten.
        frag: u8 = 0,
    }

    /// Ports of TCP, UDP or SCTP (`struct ovs_key_tcp` and its like).
    Ports, 4 {
        /// Source.
        src: u16 = 0,
        /// Destination.
        dst: u16 = 0,
    }

    /// ICMP or ICMPv6 (`struct ovs_key_icmp`, `struct ovs_key_icmpv6`).
    Icmp, 2 {
        /// Type.
        kind: u8 = 0,
        /// Code.
        code: u8 = 0,
    }

    /// ARP over Ethernet for IPv4 (`struct ovs_key_arp`).
    Arp, 24 {
        /// Sender's IPv4 address.
        sip: Ipv4Addr = V4,
        /// Target's IPv4 address.
        tip: Ipv4Addr = V4,
        /// Operation: 1 request, 2 reply.
        op: u16 = 0,
        /// Sender's Ethernet address.
        sha: Mac = MAC,
        /// Target's Ethernet address.
        tha: Mac = MAC,
    }

    /// Neighbour solicitation or advertisement (`struct ovs_key_nd`).
    NeighbourDiscovery, 28 {
        /// Target address.
        target: Ipv6Addr = V6,
        /// Source link-layer address option; zero without it.
        sll: Mac = MAC,
        /// Target link-layer address option; zero without it.
        tll: Mac = MAC,
    }

    /// MPLS label stack entry (`struct ovs_key_mpls`, RFC 3032, 2.1): label, traffic class, bottom of stack, TTL.
    Lse, 4 {
        /// The whole entry.
        lse: u32 = 0,
    }

    /// Addresses, ports and protocol of the packet that began an IPv4 connection (`struct ovs_key_ct_tuple_ipv4`).
    Tuple4, 16 {
        /// Source.
        src: Ipv4Addr = V4,
        /// Destination.
        dst: Ipv4Addr = V4,
        /// Source port, or ICMP type.
        src_port: u16 = 0,
        /// Destination port, or ICMP code.
        dst_port: u16 = 0,
        /// Protocol.
        proto: u8 = 0,
    }

    /// Addresses, ports and protocol of the packet that began an IPv6 connection (`struct ovs_key_ct_tuple_ipv6`).
    Tuple6, 40 {
        /// Source.
        src: Ipv6Addr = V6,
        /// Destination.
        dst: Ipv6Addr = V6,
        /// Source port, or ICMPv6 type.
        src_port: u16 = 0,
        /// Destination port, or ICMPv6 code.
        dst_port: u16 = 0,
        /// Protocol.
        proto: u8 = 0,
    }
}

/// Metadata words (priority, mark): the only group whose image is in the host's byte order.
impl Group for u32 {
    type Image = [u8; 4];

    fn to_image(self) -> [u8; 4] {
        self.to_ne_bytes()
    }

    fn from_image(image: &[u8; 4]) -> Self {
        Self::from_ne_bytes(*image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of distinct bytes survives reading and writing, except for `pad_bytes` at its end.
    fn round_trip<G: Group + std::fmt::Debug>(pad_bytes: usize) {
        let mut image = G::default().to_image();
        image.as_mut().iter_mut().zip(1..).for_each(|(byte, value)| *byte = value);
        let back = G::from_image(&image).to_image();
        let used = image.as_ref().len() - pad_bytes;
        assert_eq!(back.as_ref()[..used], image.as_ref()[..used]);
        assert!(back.as_ref()[used..].iter().all(|byte| *byte == 0));
        assert_eq!(G::ones().masked(G::from_image(&image)), G::from_image(&image));
        assert_eq!(G::from_bytes(&[0; 64]), None, "an image has one length");
    }

    #[test]
    fn every_field_has_its_place_in_the_image() {
        round_trip::<Ethernet>(0);
        round_trip::<Ipv4>(0);
        round_trip::<Ipv6>(0);
        round_trip::<Ports>(0);
        round_trip::<Icmp>(0);
        round_trip::<Arp>(2);
        round_trip::<NeighbourDiscovery>(0);
        round_trip::<Lse>(0);
        round_trip::<Tuple4>(3);
        round_trip::<Tuple6>(3);
        round_trip::<u32>(0);
    }

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let image = Ipv4 { dst: Ipv4Addr::new(10, 0, 0, 1), ttl: 64, ..Ipv4::default() }.to_image();
        assert_eq!(image, [0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 64, 0]);
        let image = Arp { op: 2, tha: Mac([9; 6]), ..Arp::default() }.to_image();
        assert_eq!((image[8..10].to_vec(), image[16..22].to_vec()), (vec![0, 2], vec![9; 6]));
    }
}
