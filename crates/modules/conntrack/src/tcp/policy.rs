//! Timeouts and strictness of TCP.

use std::sync::atomic::{AtomicU32, Ordering};

use super::state::TcpState;

/// The rules and timeouts for TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPolicy {
    /// Connections may be picked up in the middle (nf_conntrack_tcp_loose), as in the kernel and OVS's userspace
    /// datapath.
    pub is_loose: bool,
    /// Segments outside of windows are accepted (nf_conntrack_tcp_be_liberal; `ovs-dpctl
    /// ct-disable-tcp-seq-chk`).
    pub is_liberal: bool,
    /// RSTs outside of the window are accepted (nf_conntrack_tcp_ignore_invalid_rst).
    pub ignores_invalid_rst: bool,
    /// Seconds by [`TcpTimeout`].
    pub timeouts_s: [u32; TCP_TIMEOUTS],
}

/// Timeouts of TCP: one for each state, and two more.
pub const TCP_TIMEOUTS: usize = 12;

/// The timeouts of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpTimeout {
    /// The timeout of a state.
    Of(TcpState),
    /// After retransmissions of one segment.
    Retransmitted,
    /// With unacknowledged data.
    Unacknowledged,
}

impl TcpTimeout {
    pub(crate) fn of(state: TcpState) -> Self {
        Self::Of(state)
    }

    /// Index in [`TcpPolicy::timeouts_s`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Of(state) => state as usize,
            Self::Retransmitted => 10,
            Self::Unacknowledged => 11,
        }
    }
}

pub(crate) const IS_LOOSE: u32 = 2;
pub(crate) const IS_LIBERAL: u32 = 4;
pub(crate) const IGNORES_INVALID_RST: u32 = 8;

/// A policy that may change meanwhile: its rules as bits, and its timeouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpPolicyRef<'a> {
    pub(crate) rules: u32,
    pub(crate) timeouts_s: &'a [AtomicU32; TCP_TIMEOUTS],
}

impl TcpPolicyRef<'_> {
    #[inline]
    pub(crate) fn timeout(self, timeout: TcpTimeout) -> u32 {
        self.timeouts_s[timeout.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn is_loose(self) -> bool {
        self.rules & IS_LOOSE != 0
    }

    pub(crate) fn is_liberal(self) -> bool {
        self.rules & IS_LIBERAL != 0
    }

    pub(crate) fn ignores_invalid_rst(self) -> bool {
        self.rules & IGNORES_INVALID_RST != 0
    }
}
