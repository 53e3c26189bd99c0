//! Ports that controllers want and this process does not have: the supervisor is asked for them, and told when they are no longer
//! wanted.

use std::collections::{BTreeMap, BTreeSet};

use lasthop_device::{TunnelFacts, TunnelKind};
use lasthop_dpif::datapath::{Readiness, WantedPort};
use lasthop_dpif::family::{VportKind, VportOptions};
use lasthop_dpif::{Errno, Refusal};

use lasthop_wire::tunnel::{geneve, vxlan};

use lasthop_api::orders::{Report, WantedDevice, WantedKind};

/// Wanted ports, and reports for the supervisor.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// By name: why not, once that is known. As many as there are clients that wait.
    asked: BTreeMap<String, Option<Refusal>>,
    reports: Vec<Report>,
    /// Ports that stay until the supervisor has heard that they are no longer wanted.
    leaving: BTreeSet<String>,
}

impl Wishes {
    /// A port that is not there is wanted, possibly not for the first time.
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

    /// A device is wanted for which no client waits.
    pub(super) fn want_for_ourselves(&mut self, wanted: WantedDevice) {
        self.reports.push(Report::Wanted(wanted));
    }

    /// The port is there.
    pub(super) fn arrived(&mut self, name: &str) {
        self.asked.remove(name);
    }

    /// The supervisor cannot have it.
    pub(super) fn denied(&mut self, name: &str, errno: i32) {
        if let Some(answer) = self.asked.get_mut(name) {
            *answer = Some(Refusal::new(Errno(errno), "the switch has no port for it; its log says why"));
        }
    }

    /// The port is no longer wanted, whether it is there or to come.
    pub(super) fn release(&mut self, name: &str, is_there: bool) {
        self.asked.remove(name);
        if is_there {
            self.leaving.insert(name.to_owned());
        }
        self.reports.push(Report::Released { name: name.to_owned() });
    }

    /// Whether a port is about to go: a client that wants it has to wait for the next one.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.leaving.contains(name)
    }

    /// The port is there no more.
    pub(super) fn left(&mut self, name: &str) {
        self.leaving.remove(name);
    }

    /// Reports for the supervisor.
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
        VportKind::Vxlan => at(TunnelKind::Vxlan, vxlan::PORT),
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

    fn told(wishes: &mut Wishes) -> Vec<String> {
        let told = |report| match report {
            Report::Wanted(wanted) => format!("{} for {}", wanted.name, wanted.switch),
            Report::Released { name } => format!("not {name}"),
            _ => "?".to_owned(),
        };
        wishes.take_reports().into_iter().map(told).collect()
    }

    #[test]
    fn the_supervisor_is_asked_once() {
        let mut wishes = Wishes::default();
        for _ in 0..3 {
            assert_eq!(wishes.want(WANTED), Ok(Readiness::NotYet));
        }
        assert_eq!(told(&mut wishes), ["br0 for ovs-system"]);
        wishes.arrived("br0");
        wishes.release("br0", true);
        assert!(wishes.is_leaving("br0"));
        assert_eq!(wishes.want(WANTED), Ok(Readiness::NotYet));
        assert_eq!(told(&mut wishes), ["not br0", "br0 for ovs-system"], "in this order");
        wishes.left("br0");
        assert!(!wishes.is_leaving("br0"));
    }

    #[test]
    fn what_is_denied_may_be_asked_for_again() {
        let mut wishes = Wishes::default();
        let _ = wishes.want(WANTED);
        wishes.denied("br0", 17);
        assert_eq!(wishes.want(WANTED).map_err(|refusal| refusal.errno), Err(Errno::EEXIST));
        assert_eq!(wishes.want(WANTED), Ok(Readiness::NotYet));
        assert_eq!(told(&mut wishes).len(), 2);
        wishes.denied("br1", 17);
        wishes.release("br0", false);
        wishes.denied("br0", 17);
        assert!(wishes.asked.is_empty(), "nobody waits for an answer");
    }

    #[test]
    fn the_supervisor_is_asked_for_a_tunnel_s_end() {
        let mut wishes = Wishes::default();
        let options = Some(VportOptions { dst_port: Some(8472), is_gbp: true });
        assert_eq!(
            wishes.want(WantedPort { kind: VportKind::Vxlan, options, ..WANTED }),
            Ok(Readiness::NotYet)
        );
        let facts = TunnelFacts { kind: TunnelKind::VxlanGbp, port: 8472 };
        let [Report::Wanted(WantedDevice { kind: WantedKind::Tunnel(asked), .. })] =
            wishes.take_reports()[..]
        else {
            panic!("another report")
        };
        assert_eq!(asked, facts);
        let told = |kind| tunnel(kind, None).map(|facts| (facts.kind, facts.port));
        assert_eq!(told(VportKind::Geneve), Some((TunnelKind::Geneve, 6081)));
        assert_eq!(told(VportKind::Gre), Some((TunnelKind::Gre, 0)));
        assert_eq!(told(109.into()), Some((TunnelKind::Ip6Gre, 0)), "a number of Open vSwitch's own");
        let lisp = VportKind::Other(105);
        assert_eq!(wishes.want(WantedPort { kind: lisp, ..WANTED }), Ok(Readiness::Ready));
    }
}
