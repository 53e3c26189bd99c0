//! Warnings about settings: shown with the vnic, so that users need not find out by lost packets.

use std::collections::HashMap;

use lasthop_api::report::{PortReport, StatsReport};

use super::port::Port;
use lasthop_device_ports::placeholder::MTU_USUAL;

/// Largest number of vnics that a warning names.
const NAMES_MAX: usize = 3;

/// The facts of all vnics that warnings need, collected once.
pub(super) struct WarningContext<'a> {
    inside: HashMap<&'a str, &'a PortReport>,
    /// MTU and name of each vnic of a switch, smallest first.
    mtus: HashMap<&'a str, Vec<(u16, &'a str)>>,
}

impl<'a> WarningContext<'a> {
    /// Collects them from all ports, and the switch's counters.
    pub(super) fn new(ports: impl Iterator<Item = &'a Port>, stats: &'a StatsReport) -> Self {
        let inside = stats.ports.iter().map(|inside| (inside.name.as_str(), inside)).collect();
        let mut warnings = Self { inside, mtus: HashMap::new() };
        for port in ports {
            let Some(mtu) = warnings.mtu(port) else { continue };
            let entry = (mtu, port.spec.common.name.as_str());
            warnings.mtus.entry(port.spec.common.switch.as_str()).or_default().push(entry);
        }
        warnings.mtus.values_mut().for_each(|mtus| mtus.sort_unstable());
        warnings
    }

    /// The switch's counters of a port.
    pub(super) fn inside(&self, port: &Port) -> Option<&'a PortReport> {
        self.inside.get(port.spec.common.name.as_str()).copied()
    }

    /// The warnings for a port.
    pub(super) fn warnings(&self, port: &Port) -> Vec<String> {
        let inside = self.inside.get(port.spec.common.name.as_str());
        let not_taken = inside.and_then(|inside| mtu_not_taken(port, inside));
        let disagrees = inside.and_then(|inside| mtu_of_vmm(port, inside));
        let limits = port.placeholder.as_ref().and_then(|placeholder| placeholder.limits.warning());
        let bridge = port.device().filter(|device| device.is_of_bridge()).map(|_| {
            format!("{} is a port of a Linux bridge, too: both forward each frame", port.spec.device_name())
        });
        let of_mtu = not_taken.into_iter().chain(disagrees).chain(self.mtu_larger(port));
        of_mtu.chain(limits).chain(bridge).collect()
    }

    /// The MTU; `None` for a device that does not exist or is not open, since no packet passes it.
    fn mtu(&self, port: &Port) -> Option<u16> {
        if let Some(device) = port.device() {
            let mtu = device.facts().and(device.mtu_bytes())?;
            return Some(u16::try_from(mtu).unwrap_or(u16::MAX));
        }
        let told = self.inside.get(port.spec.common.name.as_str()).and_then(|inside| inside.guest_mtu);
        Some(told.or(port.spec.common.mtu).unwrap_or(MTU_USUAL))
    }

    fn mtu_larger(&self, port: &Port) -> Option<String> {
        let own = self.mtu(port)?;
        let mtus = self.mtus.get(port.spec.common.switch.as_str()).map(Vec::as_slice).unwrap_or_default();
        let smaller = &mtus[..mtus.partition_point(|(mtu, _)| *mtu < own)];
        if smaller.is_empty() {
            return None;
        }
        let named: Vec<String> =
            smaller.iter().take(NAMES_MAX).map(|(mtu, name)| format!("{name} has {mtu}")).collect();
        let more = match smaller.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more have less"),
        };
        let named = named.join(", ");
        Some(format!(
            "mtu is {own}, but {named}{more}; larger packets to them may be lost: give all the same"
        ))
    }
}

fn mtu_not_taken(port: &Port, inside: &PortReport) -> Option<String> {
    let mtu = mtu_told(port)?;
    let is_taken = inside.features.iter().any(|feature| feature == "MTU");
    let is_known = inside.features.is_empty() || is_taken || inside.guest_mtu.is_some();
    (!is_known).then(|| {
        format!("mtu={mtu} did not reach its guest (feature MTU not negotiated); set it in the guest, too; QEMU: host_mtu={mtu}")
    })
}

/// The MTU that a guest is offered; a tap's is not.
fn mtu_told(port: &Port) -> Option<u16> {
    port.spec.common.mtu.filter(|_| port.spec.is_vhost_user())
}

fn mtu_of_vmm(port: &Port, inside: &PortReport) -> Option<String> {
    let (mtu, guests) = (mtu_told(port)?, inside.guest_mtu?);
    (mtu != guests).then(|| format!("mtu={mtu}, but its VMM tells its guest {guests}; make them the same"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> Port {
        // In the other mode no file is made.
        let spec = lasthop_api::port::vnic(&format!("{text},mode=connect")).expect("a vnic");
        Port::open(spec, std::path::Path::new("/d")).expect("a port")
    }

    fn stats(name: &str, features: &[&str], guest_mtu: Option<u16>) -> StatsReport {
        let features = features.iter().map(|name| (*name).to_owned()).collect();
        let port = PortReport { name: name.to_owned(), features, guest_mtu, ..PortReport::default() };
        StatsReport { ports: vec![port], workers: vec![], ..StatsReport::default() }
    }

    fn alone(text: &str, stats: &StatsReport) -> Vec<String> {
        let port = port(text);
        WarningContext::new([&port].into_iter(), stats).warnings(&port)
    }

    #[test]
    fn an_mtu_that_the_guest_did_not_take_is_told() {
        let warnings = alone("a,mtu=1400", &stats("a", &["CSUM"], None));
        assert!(warnings.len() == 1 && warnings[0].contains("host_mtu=1400"), "{warnings:?}");
        for quiet in
            [stats("a", &[], None), stats("a", &["CSUM", "MTU"], None), stats("a", &["CSUM"], Some(1400))]
        {
            assert_eq!(alone("a,mtu=1400", &quiet), Vec::<String>::new());
        }
        assert_eq!(alone("a", &stats("a", &["CSUM"], None)), Vec::<String>::new());
        let warnings = alone("a,mtu=1400", &stats("a", &["CSUM"], Some(1500)));
        assert!(warnings.len() == 1 && warnings[0].contains("tells its guest 1500"), "{warnings:?}");
    }

    #[test]
    fn the_mtu_of_a_tap_is_told_to_no_guest() {
        let spec = "t,tap=t,mtu=1400".parse().expect("a port");
        let tap = Port::open(spec, std::path::Path::new("/d")).expect("a port");
        let stats = stats("t", &["CSUM"], None);
        assert_eq!(WarningContext::new([&tap].into_iter(), &stats).warnings(&tap), Vec::<String>::new());
    }

    #[test]
    fn who_has_more_than_others_is_told() {
        let ports = ["a,mtu=9000", "b", "c,mtu=1400", "d", "e,mtu=8999"].map(port);
        let stats = StatsReport::default();
        let warnings = |index: usize| WarningContext::new(ports.iter(), &stats).warnings(&ports[index]);
        let text = "mtu is 9000, but c has 1400, b has 1500, d has 1500 and 1 more have less; \
                    larger packets to them may be lost: give all the same";
        assert_eq!(warnings(0), [text]);
        assert_eq!(warnings(1).len(), 1, "the usual size is larger than 1400");
        assert_eq!(warnings(2), Vec::<String>::new());
    }

    #[test]
    fn vnics_of_other_switches_do_not_matter() {
        let ports =
            ["a,mtu=9000", "b,switch=red", "c,switch=blue,mtu=9000", "d,switch=red,mtu=1501"].map(port);
        let stats = StatsReport::default();
        let warnings = WarningContext::new(ports.iter(), &stats);
        let count = |index: usize| warnings.warnings(&ports[index]).len();
        assert_eq!([0, 1, 2, 3].map(count), [0, 0, 0, 1]);
    }
}
