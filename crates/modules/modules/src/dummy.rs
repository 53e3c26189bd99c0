//! Joins ports in pairs, in the order in which they are added, and reads no header (mSwitch's dummy module).

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lasthop_module_api::{
    Batch, DropReason, Header, Module, PORTS_MAX, PortId, PortSettings, PortVlans, Reasons, Verdicts,
};

/// Forwards frames from one port of a pair to the other: the cost of the switch without a decision.
///
/// It does not read addresses, so it cannot enforce a port's `mac`. The internal port is never part of a pair.
#[derive(Debug)]
pub struct Dummy {
    /// By port: the other port of the pair, or `INTERNAL` if there is none.
    partners: Box<[AtomicU16]>,
    control: Mutex<Control>,
}

/// The existing ports; only adding and removing ports uses this.
#[derive(Debug, Default)]
struct Control {
    ports: Vec<PortId>,
    /// Ports without a partner, the longest waiting first.
    single: Vec<PortId>,
}

impl Default for Dummy {
    fn default() -> Self {
        let partners = (0..PORTS_MAX).map(|_| AtomicU16::new(PortId::INTERNAL.0)).collect();
        Self { partners, control: Mutex::default() }
    }
}

impl Dummy {
    fn partner(&self, port: PortId) -> Option<PortId> {
        // Relaxed: the port's number is the only data.
        let partner = PortId(self.partners.get(port.index())?.load(Ordering::Relaxed));
        (partner != PortId::INTERNAL).then_some(partner)
    }

    fn set_partner(&self, port: PortId, partner: PortId) {
        if let Some(slot) = self.partners.get(port.index()) {
            slot.store(partner.0, Ordering::Relaxed);
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, control: &mut Control, port: PortId) {
        if control.single.is_empty() {
            control.single.push(port);
            return;
        }
        let partner = control.single.remove(0);
        self.set_partner(port, partner);
        self.set_partner(partner, port);
    }
}

impl Module for Dummy {
    fn name(&self) -> &'static str {
        "dummy"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        let packets = 0..batch.headers.len();
        match self.partner(batch.port) {
            Some(partner) => verdicts.output_run(0, packets.len(), partner),
            None => packets.for_each(|packet| verdicts.drop_packet(packet, DropReason::NoDestination)),
        }
    }

    fn explain(
        &self,
        (port, _): (PortId, &Header),
        _now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        match self.partner(port) {
            Some(partner) => {
                reasons.tell("pair", format!("{} is the other port of its pair", reasons.name(partner)));
                verdicts.output(0, partner);
            }
            None => {
                reasons.tell("pair", "the port has no other one to be a pair with");
                verdicts.drop_packet(0, DropReason::NoDestination);
            }
        }
        true
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::check_number(port, settings)?;
        refuse_headers(settings)?;
        let mut control = self.control();
        if control.ports.contains(&port) {
            return Err(format!(
                "port {port} exists already; remove it before \"{}\" takes its place",
                settings.name
            ));
        }
        control.ports.push(port);
        if port != PortId::INTERNAL {
            self.join(&mut control, port);
        }
        Ok(())
    }

    fn port_changed(&self, _: PortId, settings: &PortSettings) -> Result<(), String> {
        refuse_headers(settings)
    }

    fn port_removed(&self, port: PortId) {
        let mut control = self.control();
        control.ports.retain(|other| *other != port);
        control.single.retain(|other| *other != port);
        if let Some(partner) = self.partner(port) {
            self.set_partner(port, PortId::INTERNAL);
            self.set_partner(partner, PortId::INTERNAL);
            control.single.push(partner);
        }
    }
}

/// Refuses settings that require a look at headers.
fn refuse_headers(settings: &PortSettings) -> Result<(), String> {
    if settings.policy.vlans == PortVlans::Any && !settings.policy.is_isolated {
        return Ok(());
    }
    let name = &settings.name;
    Err(format!(
        "the module \"dummy\" looks at no header and would not keep VLANs or isolated ports apart; leave out those \
         keys of \"{name}\", or use --module bridge"
    ))
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::PortPolicy;

    use super::*;
    use crate::testing::{Lab, frame};

    const NO_DESTINATION: Result<Vec<u16>, DropReason> = Err(DropReason::NoDestination);

    fn lab(ports: &[u16]) -> Lab<Dummy> {
        let mut lab = Lab::new(Dummy::default());
        for port in ports {
            lab.add(*port).expect("a new port is accepted");
        }
        lab
    }

    #[test]
    fn ports_are_joined_in_order_of_appearance() {
        let mut lab = lab(&[5, 2, 9, 4]);
        for (from, to) in [(5, 2), (2, 5), (9, 4), (4, 9)] {
            assert_eq!(lab.send(from, frame(1, 2)), Ok(vec![to]));
        }
    }

    #[test]
    fn frames_are_not_looked_at() {
        let mut lab = lab(&[1, 2]);
        assert_eq!(lab.send(1, Vec::new()), Ok(vec![2]));
        assert_eq!(lab.send(1, frame(1, 1)), Ok(vec![2]));
    }

    #[test]
    fn a_port_without_partner_drops() {
        let mut lab = lab(&[1, 2, 3]);
        assert_eq!(lab.send(3, frame(1, 2)), NO_DESTINATION);
        assert_eq!(lab.send(7, frame(1, 2)), NO_DESTINATION, "a port that was never added");
        assert_eq!(lab.send(u16::MAX, frame(1, 2)), NO_DESTINATION);
    }

    #[test]
    fn the_internal_port_has_no_partner() {
        let mut lab = lab(&[0, 1, 2]);
        assert_eq!(lab.send(0, frame(1, 2)), NO_DESTINATION);
        assert_eq!(lab.send(1, frame(1, 2)), Ok(vec![2]));
    }

    #[test]
    fn a_removed_ports_partner_is_free_for_the_next() {
        let mut lab = lab(&[1, 2, 3, 4]);
        lab.module.port_removed(PortId(2));
        assert_eq!(lab.send(1, frame(1, 2)), NO_DESTINATION);
        assert_eq!(lab.send(2, frame(1, 2)), NO_DESTINATION);
        lab.module.port_removed(PortId(3));
        lab.add(5).expect("a new port is accepted");
        assert_eq!(lab.send(5, frame(1, 2)), Ok(vec![1]), "the longest waiting first");
        assert_eq!(lab.send(4, frame(1, 2)), NO_DESTINATION);
        lab.add(2).expect("a number may come back");
        assert_eq!(lab.send(4, frame(1, 2)), Ok(vec![2]));
    }

    #[test]
    fn a_removed_single_port_is_not_joined_later() {
        let mut lab = lab(&[1]);
        lab.module.port_removed(PortId(1));
        lab.add(2).expect("a new port is accepted");
        assert_eq!(lab.send(2, frame(1, 2)), NO_DESTINATION);
    }

    #[test]
    fn isolation_and_vlans_are_refused() {
        let lab = lab(&[]);
        let settings = PortSettings {
            name: "a".into(),
            policy: PortPolicy { is_isolated: true, ..PortPolicy::default() },
            ..PortSettings::default()
        };
        let error = lab.module.port_added(PortId(1), &settings).expect_err("isolated");
        assert!(error.contains("--module bridge"), "{error}");
        let vlans = PortVlans::Access(5.try_into().expect("a VLAN"));
        let settings = PortSettings {
            name: "a".into(),
            policy: PortPolicy { vlans, ..PortPolicy::default() },
            ..PortSettings::default()
        };
        assert!(lab.module.port_added(PortId(1), &settings).is_err());
    }

    #[test]
    fn the_same_number_twice_and_numbers_too_high_are_refused() {
        let mut lab = lab(&[1]);
        assert!(lab.add(1).expect_err("twice").contains("port 1 exists already"));
        assert!(lab.add(PORTS_MAX as u16).expect_err("too high").contains("1023"));
    }
}
