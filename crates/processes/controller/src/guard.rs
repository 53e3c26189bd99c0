//! Checks a port's claims: its network addresses, and that it is neither a DHCP server nor a router.

use std::net::{IpAddr, Ipv6Addr};

use lasthop_bridge_policy::MAC_ONES;
use lasthop_module_api::{DropReason, PortGuard};
use lasthop_wire::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_ICMPV6, PROTO_UDP};

use crate::acl::{DHCP, DHCPV6};
use crate::frame::{Frame, Looked};
use crate::ranges::{is_within, range_digits};

/// ICMPv6 types (RFC 4861, 4.2 and 4.4).
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Link-local addresses (RFC 4291, 2.4).
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
const LINK_LOCAL_BITS: u32 = 10;

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
            ETHERTYPE_ARP if self.guard.has_arp => self.claims_own(u32::BITS),
            ETHERTYPE_IPV4 => {
                self.is_no_server(DHCP)?;
                self.has_own_source(u32::BITS)
            }
            ETHERTYPE_IPV6 => {
                self.is_no_server(DHCPV6)?;
                self.check_discovery()?;
                self.has_own_source(u128::BITS)
            }
            _ => Ok(()),
        }
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
            ROUTER_ADVERTISEMENT if self.guard.has_dhcp => Err(DropReason::RogueServer),
            NEIGHBOUR_ADVERTISEMENT if self.guard.has_arp => self.claims_own(u128::BITS),
            _ => Ok(()),
        }
    }

    /// Checks an address that the packet claims for its sender.
    fn claims_own(&mut self, width: u32) -> Result<(), DropReason> {
        let claims = &self.frame.claims;
        let is_own = is_one_of(self.addresses(), claims.target, width, &mut self.looked.claims.target);
        self.looked.claims.target_mac = MAC_ONES;
        // Neighbour advertisements may omit the Ethernet address.
        let is_own_mac = self.own_mac == 0 || [self.own_mac, 0].contains(&claims.target_mac);
        if is_own && is_own_mac { Ok(()) } else { Err(DropReason::ArpSpoofed) }
    }

    fn has_own_source(&mut self, width: u32) -> Result<(), DropReason> {
        let (source, own) = (self.frame.claims.src, self.addresses());
        if !self.guard.has_ip || is_one_of(own, source, width, &mut self.looked.claims.src) {
            return Ok(());
        }
        Err(DropReason::IpSpoofed)
    }

    /// The port's own addresses.
    fn addresses(&self) -> impl Iterator<Item = &'a IpAddr> + use<'a> {
        self.guard.addresses.iter().chain(self.leased)
    }
}

/// Whether an address is the port's own, or one that any port may use: the unspecified one, as in ARP probes (RFC 5227,
/// 2.1.1) and DHCP requests, or a link-local one.
fn is_one_of<'a>(own: impl Iterator<Item = &'a IpAddr>, address: u128, width: u32, bits: &mut u128) -> bool {
    let own = own.filter_map(|own| match own {
        IpAddr::V4(own) => Some(u128::from(own.to_bits())).filter(|_| width == u32::BITS),
        IpAddr::V6(own) => Some(own.to_bits()).filter(|_| width == u128::BITS),
    });
    let link_local = (LINK_LOCAL.to_bits(), LINK_LOCAL.to_bits() | u128::MAX >> LINK_LOCAL_BITS);
    let any = [(0, 0)].into_iter().chain(Some(link_local).filter(|_| width == u128::BITS));
    let mut is_own = false;
    for (first, last) in any.chain(own.map(|own| (own, own))) {
        *bits |= range_digits(address, first, last, width);
        is_own |= (first..=last).contains(&address);
    }
    is_own
}
