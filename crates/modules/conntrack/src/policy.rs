//! Timeouts and strictness: OVS' timeout policies, and settings of all connections.

use crate::sctp::SctpState;
use crate::tcp::TcpPolicy;

/// A timeout policy, in seconds but for SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtPolicy {
    /// TCP.
    pub tcp: TcpPolicy,
    /// UDP, until there is a reply.
    pub udp_single_s: u32,
    /// UDP with replies.
    pub udp_multiple_s: u32,
    /// ICMP.
    pub icmp_s: u32,
    /// ICMPv6.
    pub icmpv6_s: u32,
    /// SCTP by state, in milliseconds: some are below a second.
    pub sctp_ms: [u32; SctpState::ALL.len()],
    /// Everything else.
    pub generic_s: u32,
}

impl CtPolicy {
    /// As Linux's nf_conntrack is set by default.
    pub const LINUX: Self = Self {
        tcp: TcpPolicy {
            is_loose: true,
            is_liberal: false,
            ignores_invalid_rst: false,
            timeouts_s: [120, 120, 60, 432_000, 120, 60, 30, 120, 10, 120, 300, 300],
        },
        udp_single_s: 30,
        udp_multiple_s: 120,
        icmp_s: 30,
        icmpv6_s: 30,
        sctp_ms: [10_000, 10_000, 3000, 3000, 432_000_000, 3000, 3000, 3000, 30_000, 210_000],
        generic_s: 600,
    };

    /// As the tracker of OVS's userspace datapath is set by default.
    pub const OVS: Self = Self {
        tcp: TcpPolicy {
            timeouts_s: [30, 30, 30, 86_400, 900, 45, 30, 45, 30, 30, 86_400, 86_400],
            ..Self::LINUX.tcp
        },
        udp_single_s: 60,
        udp_multiple_s: 60,
        icmp_s: 60,
        icmpv6_s: 60,
        generic_s: 60,
        ..Self::LINUX
    };
}

impl Default for CtPolicy {
    fn default() -> Self {
        Self::LINUX
    }
}
