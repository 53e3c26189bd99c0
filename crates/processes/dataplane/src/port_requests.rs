//! Ports that controllers request and this process does not have: asks the supervisor for them, and tells it when they
//! are not needed any more.

use std::collections::{BTreeMap, BTreeSet};

use lasthop_device::{TunnelFacts, TunnelKind};
use lasthop_dpif::datapath::{Readiness, WantedPort};
use lasthop_dpif::family::{VportKind, VportOptions};
use lasthop_dpif::{Errno, Refusal};

use lasthop_wire::tunnel::{bareudp, geneve, vxlan};

use lasthop_api::orders::{Report, WantedDevice, WantedKind};

/// Requested ports, and reports for the supervisor.
#[derive(Debug, Default)]
pub(super) struct PortRequests {
    /// By name: the reason of a refusal, once it is known. There are as many as waiting clients.
    asked: BTreeMap<String, Option<Refusal>>,
    reports: Vec<Report>,
    /// Ports that stay until the supervisor knows that they are not needed any more.
    leaving: BTreeSet<String>,
}

impl PortRequests {
    /// Requests a missing port, possibly again.
    ///
    /// # Errors
    /// The supervisor's refusal, once.
    pub(super) fn want(&mut self, wanted: WantedPort<'_>) -> Result<Readiness, Refusal> {
        let kind = match wanted.kind {
            VportKind::Netdev => WantedKind::Netdev,
            VportKind::Internal => WantedKind::Internal,
            kind => match tunnel(kind, wanted.options) {
                Some(facts) => WantedKind::Tunnel(facts),
                // Others are refused.
                None => return Ok(Readiness::Ready),
            },
        };
        match self.asked.get(wanted.name) {
            Some(None) => {}
            Some(Some(refusal)) => {
                let refusal = *refusal;
                self.asked.remove(wanted.name);
                return Err(refusal);
            }
            None => {
                let (name, switch) = (wanted.name.to_owned(), wanted.datapath.to_owned());
                self.asked.insert(name.clone(), None);
                self.reports.push(Report::Wanted(WantedDevice { name, kind, switch }));
            }
        }
        Ok(Readiness::NotYet)
    }

    /// Requests a device that no client waits for.
    pub(super) fn want_for_ourselves(&mut self, wanted: WantedDevice) {
        self.reports.push(Report::Wanted(wanted));
    }

    /// Notes that the port exists.
    pub(super) fn arrived(&mut self, name: &str) {
        self.asked.remove(name);
    }

    /// Notes that the supervisor cannot have it.
    pub(super) fn denied(&mut self, name: &str, errno: i32) {
        if let Some(answer) = self.asked.get_mut(name) {
            *answer = Some(Refusal::new(Errno(errno), "the switch has no port for it; its log says why"));
        }
    }

    /// Releases a port, whether it exists or not yet.
    pub(super) fn release(&mut self, name: &str, is_there: bool) {
        self.asked.remove(name);
        if is_there {
            self.leaving.insert(name.to_owned());
        }
        self.reports.push(Report::Released { name: name.to_owned() });
    }

    /// Whether a port is about to be removed: a client that requests it has to wait for the next one.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.leaving.contains(name)
    }

    /// Notes that the port is removed.
    pub(super) fn left(&mut self, name: &str) {
        self.leaving.remove(name);
    }

    /// Takes the reports for the supervisor.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }
}

/// The tunnel's end that such a port is: at the wanted UDP port, or else at the one that IANA assigned. None of ports that are none.
pub(super) fn tunnel(kind: VportKind, options: Option<VportOptions>) -> Option<TunnelFacts> {
    let at = |kind: TunnelKind, assigned: u16| {
        let wanted = options.and_then(|options| options.dst_port);
        Some(TunnelFacts { kind, port: wanted.unwrap_or(assigned) })
    };
    let portless = |kind: TunnelKind| Some(TunnelFacts { kind, port: 0 });
    match kind {
        VportKind::Geneve => at(TunnelKind::Geneve, geneve::PORT),
        VportKind::Vxlan if options.is_some_and(|options| options.is_gbp) => {
            at(TunnelKind::VxlanGbp, vxlan::PORT)
        }
        VportKind::Vxlan if options.is_some_and(|options| options.is_gpe) => {
            at(TunnelKind::VxlanGpe, vxlan::PORT)
        }
        VportKind::Vxlan => at(TunnelKind::Vxlan, vxlan::PORT),
        VportKind::Bareudp => at(TunnelKind::Bareudp, bareudp::MPLS_PORT),
        VportKind::Gre => portless(TunnelKind::Gre),
        VportKind::Ip6Gre => portless(TunnelKind::Ip6Gre),
        VportKind::Erspan => portless(TunnelKind::Erspan),
        VportKind::Ip6Erspan => portless(TunnelKind::Ip6Erspan),
        VportKind::Netdev | VportKind::Internal | VportKind::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use lasthop_dpif::server::PeerId;

    use super::*;

    const WANTED: WantedPort<'static> = WantedPort {
        client: PeerId(1),
        datapath: "ovs-system",
        name: "br0",
        kind: VportKind::Internal,
        options: None,
    };

    fn told(port_requests: &mut PortRequests) -> Vec<String> {
        let told = |report| match report {
            Report::Wanted(wanted) => format!("{} for {}", wanted.name, wanted.switch),
            Report::Released { name } => format!("not {name}"),
            _ => "?".to_owned(),
        };
        port_requests.take_reports().into_iter().map(told).collect()
    }

    #[test]
    fn the_supervisor_is_asked_once() {
        let mut port_requests = PortRequests::default();
        for _ in 0..3 {
            assert_eq!(port_requests.want(WANTED), Ok(Readiness::NotYet));
        }
        assert_eq!(told(&mut port_requests), ["br0 for ovs-system"]);
        port_requests.arrived("br0");
        port_requests.release("br0", true);
        assert!(port_requests.is_leaving("br0"));
        assert_eq!(port_requests.want(WANTED), Ok(Readiness::NotYet));
        assert_eq!(told(&mut port_requests), ["not br0", "br0 for ovs-system"], "in this order");
        port_requests.left("br0");
        assert!(!port_requests.is_leaving("br0"));
    }

    #[test]
    fn what_is_denied_may_be_asked_for_again() {
        let mut port_requests = PortRequests::default();
        let _ = port_requests.want(WANTED);
        port_requests.denied("br0", 17);
        assert_eq!(port_requests.want(WANTED).map_err(|refusal| refusal.errno), Err(Errno::EEXIST));
        assert_eq!(port_requests.want(WANTED), Ok(Readiness::NotYet));
        assert_eq!(told(&mut port_requests).len(), 2);
        port_requests.denied("br1", 17);
        port_requests.release("br0", false);
        port_requests.denied("br0", 17);
        assert!(port_requests.asked.is_empty(), "nobody waits for an answer");
    }

    #[test]
    fn the_supervisor_is_asked_for_a_tunnel_s_end() {
        let mut port_requests = PortRequests::default();
        let options = Some(VportOptions { dst_port: Some(8472), is_gbp: true, is_gpe: false });
        assert_eq!(
            port_requests.want(WantedPort { kind: VportKind::Vxlan, options, ..WANTED }),
            Ok(Readiness::NotYet)
        );
        let facts = TunnelFacts { kind: TunnelKind::VxlanGbp, port: 8472 };
        let [Report::Wanted(WantedDevice { kind: WantedKind::Tunnel(asked), .. })] =
            port_requests.take_reports()[..]
        else {
            panic!("another report")
        };
        assert_eq!(asked, facts);
        let told = |kind| tunnel(kind, None).map(|facts| (facts.kind, facts.port));
        assert_eq!(told(VportKind::Geneve), Some((TunnelKind::Geneve, 6081)));
        assert_eq!(told(VportKind::Gre), Some((TunnelKind::Gre, 0)));
        assert_eq!(told(VportKind::Bareudp), Some((TunnelKind::Bareudp, 6635)));
        let gpe = Some(VportOptions { dst_port: None, is_gbp: false, is_gpe: true });
        assert_eq!(tunnel(VportKind::Vxlan, gpe).map(|facts| facts.kind), Some(TunnelKind::VxlanGpe));
        assert_eq!(told(109.into()), Some((TunnelKind::Ip6Gre, 0)), "a number of Open vSwitch's own");
        let lisp = VportKind::Other(105);
        assert_eq!(port_requests.want(WantedPort { kind: lisp, ..WANTED }), Ok(Readiness::Ready));
    }
}
