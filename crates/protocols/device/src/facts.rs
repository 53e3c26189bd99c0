//! Facts about opened devices, which go from the supervisor to the driver process, and the part of the host's own network
//! stack at an uplink.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

/// How frames get to and from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// A packet socket (packet(7)): any network device there is.
    AfPacket,
    /// An XDP socket (the kernel's Documentation/networking/af_xdp.rst).
    AfXdp,
    /// The character device behind a tap (the kernel's Documentation/networking/tuntap.rst).
    Tap,
    /// A UDP socket (udp(7)) for both versions of IP: a tunnel's end.
    Udp,
    /// A raw socket (raw(7)) of one version of IP: an end of GRE tunnels.
    Raw,
}

impl Backend {
    /// The name in configuration and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
            Self::Tap => "tap",
            Self::Udp => "udp",
            Self::Raw => "raw",
        }
    }
}

/// Facts about an opened device. The supervisor sends them to the driver process with the descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// How frames get to and from it.
    pub backend: Backend,
    /// Its name when it was opened.
    pub name: String,
    /// Its interface index; it stays the same when the name changes.
    pub index: u32,
    /// Queues: as many as descriptors.
    pub queues: u16,
    /// Bytes of the largest packet, Ethernet header not counted.
    pub mtu_bytes: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Virtio features that may be negotiated with the switch on behalf of the device, by their names for a
    /// guest's driver. `CSUM`, `HOST_TSO4` and their like: offloads that frames from the device may leave
    /// undone. `GUEST_CSUM`, `GUEST_TSO4` and their like: offloads that the device does for outgoing frames.
    pub features: u64,
    /// Bytes of the virtio-net header that the kernel puts in front of a frame: 12, or 10 with old kernels; 0 without.
    pub header_bytes: u8,
    /// Of a packet socket with a ring for received frames only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<PacketRing>,
    /// Of an XDP socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpFacts>,
    /// Of a tunnel's end only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelFacts>,
}

impl DeviceFacts {
    /// Whether its packets come out of tunnels and go into them.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        matches!(self.backend, Backend::Udp | Backend::Raw)
    }
}

/// How packets go into tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TunnelKind {
    /// Geneve (RFC 8926).
    Geneve,
    /// VXLAN (RFC 7348).
    Vxlan,
    /// VXLAN with group policy.
    VxlanGbp,
    /// GRE (RFC 2784) over IPv4.
    Gre,
    /// GRE over IPv6.
    Ip6Gre,
    /// ERSPAN (draft-foschiano-erspan-03) over IPv4.
    Erspan,
    /// ERSPAN over IPv6.
    Ip6Erspan,
    /// VXLAN with protocol extension: packets without an Ethernet header, too.
    VxlanGpe,
    /// Packets without an Ethernet header, directly behind UDP.
    Bareudp,
}

/// The socket of a tunnel's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelSocket {
    /// A UDP socket for IPv4 and IPv6.
    Udp,
    /// A UDP socket for IPv4 alone, on a host without IPv6.
    UdpIpv4,
    /// A raw socket for GRE over IPv4. Datagrams are received with their IP header.
    RawIpv4,
    /// A raw socket for GRE over IPv6.
    RawIpv6,
}

impl TunnelSocket {
    /// Whether its datagrams are of UDP.
    #[must_use]
    pub fn is_udp(self) -> bool {
        matches!(self, Self::Udp | Self::UdpIpv4)
    }

    /// Whether it knows no addresses of IPv6.
    #[must_use]
    pub fn is_ipv4_only(self) -> bool {
        matches!(self, Self::UdpIpv4 | Self::RawIpv4)
    }
}

impl TunnelKind {
    /// The socket that its datagrams pass, on a host with IPv6.
    #[must_use]
    pub fn socket(self) -> TunnelSocket {
        match self {
            Self::Geneve | Self::Vxlan | Self::VxlanGbp | Self::VxlanGpe | Self::Bareudp => TunnelSocket::Udp,
            Self::Gre | Self::Erspan => TunnelSocket::RawIpv4,
            Self::Ip6Gre | Self::Ip6Erspan => TunnelSocket::RawIpv6,
        }
    }

    /// Whether its header may be shorter than the placeholder that a packet without an Ethernet header gets in its place
    /// (`lasthop_wire::tunnel::layer3`). Its datagrams are received one by one, with room in front of each.
    #[must_use]
    pub fn needs_room(self) -> bool {
        matches!(self, Self::VxlanGpe | Self::Bareudp | Self::Ip6Gre)
    }

    /// Whether GRE carries mirrored frames behind another header.
    #[must_use]
    pub fn is_erspan(self) -> bool {
        matches!(self, Self::Erspan | Self::Ip6Erspan)
    }
}

/// Facts about a tunnel's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelFacts {
    /// Its kind.
    pub kind: TunnelKind,
    /// The UDP port that it listens at, and sends to where no other is said; 0 of kinds that have none.
    pub port: u16,
}

/// The ring in which the kernel puts frames of a packet socket (the kernel's Documentation/networking/packet_mmap.rst), of
/// the second version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketRing {
    /// Number of slots.
    pub slots: u32,
    /// Bytes of each. A frame that does not fit waits at the socket instead.
    pub slot_bytes: u32,
}

/// Facts about a device that is used through XDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpFacts {
    /// The device's driver runs XDP programs itself; else the stack does, behind a copy.
    pub native: bool,
    /// Frames may come with checksums that their sender left undone, since they never were on a wire.
    pub partial_checksums: bool,
}

/// A device that was opened.
#[derive(Debug)]
pub struct OpenedDevice {
    /// Its facts.
    pub facts: DeviceFacts,
    /// One descriptor for each queue, in order. Of XDP sockets, the file of their memory comes last.
    pub descriptors: Vec<OwnedFd>,
}

/// Bytes of a device's name (IFNAMSIZ of linux/if.h, 16, less its zero).
const DEVICE_BYTES_MAX: usize = 15;
const HOST_TAP_END: &str = "-host";

/// The host's own network stack at an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// The host's stack neither receives from the device nor sends to it.
    Off,
    /// The host's stack uses the device as before, beside the switch.
    #[default]
    Shared,
    /// The host's stack has a port of the switch of its own. Its packets to the device go to the switch;
    /// packets from the switch to that port arrive in the stack as if received by the device.
    Port,
}

impl Host {
    /// The name in configuration and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shared => "shared",
            Self::Port => "port",
        }
    }
}

/// The name of the tap that is the host's port in the place of `device`: the first ten bytes of its name, and `-host`.
#[must_use]
pub fn host_tap(device: &str) -> String {
    let end = device.floor_char_boundary(DEVICE_BYTES_MAX - HOST_TAP_END.len());
    format!("{}{HOST_TAP_END}", &device[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_s_tap_has_a_name_that_devices_can_have() {
        assert_eq!(host_tap("eth1"), "eth1-host");
        assert_eq!(host_tap("enp129s0f1np1"), "enp129s0f1-host");
        assert_eq!(host_tap("enp129s0f1np1").len(), DEVICE_BYTES_MAX);
        assert_eq!(host_tap("aaaaaaaaa\u{e4}"), "aaaaaaaaa-host");
    }
}
