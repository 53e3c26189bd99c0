//! Checks a port's claims: its network addresses, and that it is neither a DHCP server nor a router.

use std::net::{IpAddr, Ipv6Addr};

use lasthop_bridge_policy::MAC_ONES;
use lasthop_module_api::{DropReason, PortGuard};
use lasthop_wire::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_ICMPV6, PROTO_UDP};

use crate::acl::{DHCP, DHCPV6};
use crate::frame::{Frame, Looked};
use crate::ranges::{is_within, range_digits};

/// The protocol of an IPv6 packet that ends with an extension header (RFC 8200, 4.7).
const NO_NEXT_HEADER: u8 = 59;
/// The ICMPv6 type in the key of a packet without an ICMPv6 header; messages do not have it (RFC 4443, 2.1).
const RESERVED: u8 = 0;
/// ICMPv6 types (RFC 4861, 4).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Link-local addresses (RFC 4291, 2.4).
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
const LINK_LOCAL_BITS: u32 = 10;
/// The unspecified address.
const UNSPECIFIED: (u128, u128) = (0, 0);

/// An entering packet, its port's rules, and the bits that the check depends on.
pub(crate) struct GuardCheck<'a> {
    pub(crate) guard: &'a PortGuard,
    /// The port's addresses beside those of `guard`.
    pub(crate) leased: &'a [IpAddr],
    /// The port's Ethernet address; 0 for none.
    pub(crate) own_mac: u64,
    pub(crate) frame: &'a Frame,
    pub(crate) looked: &'a mut Looked,
}

impl<'a> GuardCheck<'a> {
    /// Refuses a packet with a false claim.
    pub(crate) fn run(mut self) -> Result<(), DropReason> {
        if !self.guard.is_on() {
            return Ok(());
        }
        self.looked.ether_type = u16::MAX;
        match self.frame.ether_type {
            ETHERTYPE_ARP if self.guard.has_arp => self.claims_by_arp(),
            ETHERTYPE_IPV4 => {
                self.is_no_server(DHCP)?;
                self.has_own_source(u32::BITS)
            }
            ETHERTYPE_IPV6 => {
                self.has_all_headers()?;
                self.is_no_server(DHCPV6)?;
                self.check_discovery()?;
                self.has_own_source(u128::BITS)
            }
            _ => Ok(()),
        }
    }

    /// Receivers put the fragments of a packet together: another one may have the header that decides. IPv4 has ports in
    /// each first fragment.
    fn has_all_headers(&mut self) -> Result<(), DropReason> {
        if !self.guard.has_dhcp && !self.guard.has_arp {
            return Ok(());
        }
        self.looked.protocol = u8::MAX;
        let (claims, seen) = (&self.frame.claims, &mut self.looked.claims);
        let lacks_header = match self.frame.protocol {
            NO_NEXT_HEADER => true,
            PROTO_UDP => {
                is_within(claims.udp_src, 0, 0, &mut seen.udp_src)
                    && is_within(claims.udp_dst, 0, 0, &mut seen.udp_dst)
            }
            PROTO_ICMPV6 => {
                self.looked.icmpv6_type = u8::MAX;
                self.frame.icmpv6_type == RESERVED
            }
            _ => false,
        };
        if lacks_header { Err(DropReason::ActionImpossible) } else { Ok(()) }
    }

    fn is_no_server(&mut self, (server, client): (u16, u16)) -> Result<(), DropReason> {
        if !self.guard.has_dhcp {
            return Ok(());
        }
        self.looked.protocol = u8::MAX;
        let (claims, seen) = (&self.frame.claims, &mut self.looked.claims);
        let is_answer = self.frame.protocol == PROTO_UDP
            && is_within(claims.udp_src, server, server, &mut seen.udp_src)
            && is_within(claims.udp_dst, client, client, &mut seen.udp_dst);
        if is_answer { Err(DropReason::RogueServer) } else { Ok(()) }
    }

    fn check_discovery(&mut self) -> Result<(), DropReason> {
        if !self.guard.has_dhcp && !self.guard.has_arp {
            return Ok(());
        }
        self.looked.protocol = u8::MAX;
        if self.frame.protocol != PROTO_ICMPV6 {
            return Ok(());
        }
        self.looked.icmpv6_type = u8::MAX;
        match self.frame.icmpv6_type {
            ROUTER_ADVERTISEMENT | REDIRECT if self.guard.has_dhcp => Err(DropReason::RogueServer),
            ROUTER_SOLICITATION if self.guard.has_arp => self.asks_as_itself(),
            NEIGHBOUR_SOLICITATION if self.guard.has_arp => {
                self.has_readable_target()?;
                self.asks_as_itself()
            }
            NEIGHBOUR_ADVERTISEMENT if self.guard.has_arp => {
                self.has_readable_target()?;
                self.claims_target(self.ranges(u128::BITS), u128::BITS)
            }
            _ => Ok(()),
        }
    }

    /// Probes (RFC 5227, 2.1.1) come from the unspecified address.
    fn claims_by_arp(&mut self) -> Result<(), DropReason> {
        self.claims_target(self.ranges(u32::BITS).chain([UNSPECIFIED]), u32::BITS)
    }

    /// Checks the address that the packet claims for its sender, and the Ethernet address that it states for it.
    fn claims_target(
        &mut self,
        own: impl Iterator<Item = (u128, u128)>,
        width: u32,
    ) -> Result<(), DropReason> {
        let claims = &self.frame.claims;
        let is_own = is_in(own, claims.target, width, &mut self.looked.claims.target);
        self.looked.claims.target_mac = MAC_ONES;
        if is_own && self.is_own_mac(claims.target_mac) { Ok(()) } else { Err(DropReason::ArpSpoofed) }
    }

    /// Receivers learn the source of a solicitation with the Ethernet address that it states. Only a neighbour's is in
    /// the key. The unspecified address detects duplicates (RFC 4862, 5.4.2).
    fn asks_as_itself(&mut self) -> Result<(), DropReason> {
        let claims = &self.frame.claims;
        let own = self.ranges(u128::BITS).chain([UNSPECIFIED]);
        let is_own = is_in(own, claims.src, u128::BITS, &mut self.looked.claims.src);
        if self.frame.icmpv6_type == NEIGHBOUR_SOLICITATION {
            self.looked.claims.src_mac = MAC_ONES;
        }
        if is_own && self.is_own_mac(claims.src_mac) { Ok(()) } else { Err(DropReason::ArpSpoofed) }
    }

    /// The key of a message that states an Ethernet address twice has neither target nor Ethernet address; some
    /// receivers use the first one.
    fn has_readable_target(&mut self) -> Result<(), DropReason> {
        let bits = &mut self.looked.claims.target;
        let is_absent = is_in([UNSPECIFIED].into_iter(), self.frame.claims.target, u128::BITS, bits);
        if is_absent { Err(DropReason::ArpSpoofed) } else { Ok(()) }
    }

    /// Neighbour discovery may omit the Ethernet address.
    fn is_own_mac(&self, stated: u64) -> bool {
        self.own_mac == 0 || [self.own_mac, 0].contains(&stated)
    }

    /// Any port may use the unspecified address, as in requests for an address.
    fn has_own_source(&mut self, width: u32) -> Result<(), DropReason> {
        let (source, own) = (self.frame.claims.src, self.ranges(width).chain([UNSPECIFIED]));
        if !self.guard.has_ip || is_in(own, source, width, &mut self.looked.claims.src) {
            return Ok(());
        }
        Err(DropReason::IpSpoofed)
    }

    /// The port's own addresses of `width` bits, as ranges.
    fn ranges(&self, width: u32) -> impl Iterator<Item = (u128, u128)> + use<'a> {
        let own = self.guard.addresses.iter().chain(self.leased).filter_map(move |own| match own {
            IpAddr::V4(own) => Some(u128::from(own.to_bits())).filter(|_| width == u32::BITS),
            IpAddr::V6(own) => Some(own.to_bits()).filter(|_| width == u128::BITS),
        });
        let link_local = self.link_local().filter(|_| width == u128::BITS);
        own.map(|own| (own, own)).chain(link_local)
    }

    /// The link-local addresses that are the port's own without being listed.
    fn link_local(&self) -> Option<(u128, u128)> {
        if self.guard.has_any_link_local {
            return Some((LINK_LOCAL.to_bits(), LINK_LOCAL.to_bits() | u128::MAX >> LINK_LOCAL_BITS));
        }
        let address = link_local_of(self.own_mac);
        (self.own_mac != 0).then_some((address, address))
    }
}

/// The link-local address that is made of an Ethernet address (RFC 4291, 2.5.6 and appendix A).
fn link_local_of(mac: u64) -> u128 {
    /// Set in identifiers made of universal addresses, which have it clear.
    const UNIVERSAL: u8 = 2;
    let [_, _, a, b, c, d, e, f] = mac.to_be_bytes();
    let identifier = u64::from_be_bytes([a ^ UNIVERSAL, b, c, 0xff, 0xfe, d, e, f]);
    LINK_LOCAL.to_bits() | u128::from(identifier)
}

/// Whether an address is in one of these ranges; adds the digits that decide to `bits`.
fn is_in(ranges: impl Iterator<Item = (u128, u128)>, address: u128, width: u32, bits: &mut u128) -> bool {
    let mut is_in = false;
    for (first, last) in ranges {
        *bits |= range_digits(address, first, last, width);
        is_in |= (first..=last).contains(&address);
    }
    is_in
}
