//! UDP ports of tunnels: how they are opened, and which were released a moment ago.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_api::settings::TunnelGro;
use lasthop_netdev::PortClaim;

/// How long the driver process or the service manager may take to close a released socket: they are busy, or stopped for a while.
const CLOSING_MAX: Duration = Duration::from_secs(60);
/// Released ports that are known. Beyond that a port is taken until its socket is closed.
const RELEASED_MAX: usize = 256;

/// How tunnels' ports are opened.
#[derive(Debug)]
pub(super) struct TunnelPorts {
    pub(super) gro: TunnelGro,
    released: BTreeMap<u16, Instant>,
}

impl TunnelPorts {
    pub(super) fn new(gro: TunnelGro) -> Self {
        Self { gro, released: BTreeMap::new() }
    }

    /// Notes that a tunnel's socket let others have its UDP port.
    pub(super) fn note_released(&mut self, port: u16, now: Instant) {
        self.released.retain(|_, at| now.duration_since(*at) < CLOSING_MAX);
        if self.released.len() < RELEASED_MAX || self.released.contains_key(&port) {
            self.released.insert(port, now);
        }
    }

    /// How the next tunnel at a UDP port gets it.
    pub(super) fn claim(&self, port: u16, now: Instant) -> PortClaim {
        match self.released.get(&port) {
            Some(at) if now.duration_since(*at) < CLOSING_MAX => PortClaim::AfterReleased,
            _ => PortClaim::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_known_as_released_for_a_while() {
        let (mut ports, start) = (TunnelPorts::new(TunnelGro::Auto), Instant::now());
        assert_eq!(ports.claim(6081, start), PortClaim::Alone);
        ports.note_released(6081, start);
        assert_eq!(ports.claim(6081, start + CLOSING_MAX / 2), PortClaim::AfterReleased);
        assert_eq!(ports.claim(4789, start), PortClaim::Alone);
        assert_eq!(ports.claim(6081, start + CLOSING_MAX), PortClaim::Alone);
    }

    #[test]
    fn released_ports_are_bounded() {
        let (mut ports, start) = (TunnelPorts::new(TunnelGro::Auto), Instant::now());
        (0..2000).for_each(|port| ports.note_released(port, start));
        assert_eq!(ports.released.len(), RELEASED_MAX);
        ports.note_released(9, start + CLOSING_MAX / 2);
        assert_eq!(ports.claim(9, start + CLOSING_MAX), PortClaim::AfterReleased, "it was released again");
        ports.note_released(9, start + CLOSING_MAX);
        assert_eq!(ports.released.len(), 1);
    }
}
