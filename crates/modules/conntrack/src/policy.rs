//! Timeouts and strictness: OVS's timeout policies, and settings for all connections.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sctp::SctpState;
use crate::tcp::{IGNORES_INVALID_RST, IS_LIBERAL, IS_LOOSE, TCP_TIMEOUTS, TcpPolicy, TcpPolicyRef};

/// Largest number of timeout policies.
pub const POLICIES_MAX: usize = 256;

/// A timeout policy; seconds, except for SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtPolicy {
    /// The policy for TCP.
    pub tcp: TcpPolicy,
    /// UDP without a reply.
    pub udp_single_s: u32,
    /// UDP with replies.
    pub udp_multiple_s: u32,
    /// ICMP.
    pub icmp_s: u32,
    /// ICMPv6.
    pub icmpv6_s: u32,
    /// SCTP by state, in milliseconds; some are below a second.
    pub sctp_ms: [u32; SctpState::ALL.len()],
    /// All other protocols.
    pub generic_s: u32,
}

impl CtPolicy {
    /// The defaults of Linux's nf_conntrack.
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

    /// The defaults of the tracker in OVS's userspace datapath. For tests: a policy that differs from the default.
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

const SCTP_STATES: usize = SctpState::ALL.len();
const OTHERS: usize = 5;
/// A bit next to the TCP rules: the policy is set.
const IS_SET: u32 = 1;

/// A policy's numbers.
#[derive(Debug)]
struct PolicyNumbers {
    rules: AtomicU32,
    tcp_s: [AtomicU32; TCP_TIMEOUTS],
    sctp_ms: [AtomicU32; SCTP_STATES],
    /// Seconds for UDP without and with replies, ICMP, ICMPv6, others.
    others_s: [AtomicU32; OTHERS],
}

/// The policies of a table. Workers read them while one is changed, so they may see one old and one new number.
#[derive(Debug)]
pub(crate) struct Policies(Box<[PolicyNumbers; POLICIES_MAX]>);

/// A policy of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyRef<'a>(&'a PolicyNumbers);

impl Policies {
    pub(crate) fn new() -> Self {
        let policies = Self(Box::new(std::array::from_fn(|_| PolicyNumbers::none())));
        policies.set(0, &CtPolicy::default());
        policies
    }

    /// The policy with a number, or the default policy.
    #[inline(always)]
    pub(crate) fn get(&self, number: u8) -> PolicyRef<'_> {
        let own = &self.0[usize::from(number)];
        PolicyRef(if own.rules.load(Ordering::Relaxed) & IS_SET != 0 { own } else { &self.0[0] })
    }

    pub(crate) fn set(&self, number: u8, policy: &CtPolicy) {
        let place = &self.0[usize::from(number)];
        let store = |places: &[AtomicU32], values: &[u32]| {
            places.iter().zip(values).for_each(|(place, value)| place.store(*value, Ordering::Relaxed));
        };
        store(&place.tcp_s, &policy.tcp.timeouts_s);
        store(&place.sctp_ms, &policy.sctp_ms);
        let others =
            [policy.udp_single_s, policy.udp_multiple_s, policy.icmp_s, policy.icmpv6_s, policy.generic_s];
        store(&place.others_s, &others);
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        let rules = IS_SET
            | bit(policy.tcp.is_loose, IS_LOOSE)
            | bit(policy.tcp.is_liberal, IS_LIBERAL)
            | bit(policy.tcp.ignores_invalid_rst, IGNORES_INVALID_RST);
        place.rules.store(rules, Ordering::Relaxed);
    }

    /// Takes all policies of another table.
    pub(crate) fn copy(&self, others: &Self) {
        for (own, other) in self.0.iter().zip(others.0.iter()) {
            let rules = other.rules.load(Ordering::Relaxed);
            own.rules.store(rules, Ordering::Relaxed);
            if rules & IS_SET != 0 {
                own.words().zip(other.words()).for_each(|(own, other)| {
                    own.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
                });
            }
        }
    }

    /// The number has the default from now on. The default itself stays.
    pub(crate) fn unset(&self, number: u8) {
        if number != 0 {
            self.0[usize::from(number)].rules.store(0, Ordering::Relaxed);
        }
    }
}

impl PolicyNumbers {
    fn words(&self) -> impl Iterator<Item = &AtomicU32> {
        self.tcp_s.iter().chain(&self.sctp_ms).chain(&self.others_s)
    }

    fn none() -> Self {
        let zero = |_| AtomicU32::new(0);
        Self {
            rules: zero(0),
            tcp_s: std::array::from_fn(zero),
            sctp_ms: std::array::from_fn(zero),
            others_s: std::array::from_fn(zero),
        }
    }
}

impl<'a> PolicyRef<'a> {
    #[inline]
    pub(crate) fn tcp(self) -> TcpPolicyRef<'a> {
        TcpPolicyRef { rules: self.0.rules.load(Ordering::Relaxed), timeouts_s: &self.0.tcp_s }
    }

    #[inline]
    pub(crate) fn udp_s(self, is_stream: bool) -> u32 {
        self.0.others_s[usize::from(is_stream)].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn icmp_s(self, is_ipv6: bool) -> u32 {
        self.0.others_s[2 + usize::from(is_ipv6)].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn generic_s(self) -> u32 {
        self.0.others_s[4].load(Ordering::Relaxed)
    }

    pub(crate) fn sctp_ms(self, state: SctpState) -> u32 {
        self.0.sctp_ms[state as usize].load(Ordering::Relaxed)
    }
}
