//! Limits that are set on a placeholder, as Open vSwitch does for `ingress_policing_rate` and `qos`: no packet of the guest
//! passes it, so they limit nothing. The user is warned of that.

use lasthop_netdev::links::{Limited, TrafficLimit};
use lasthop_runtime::log::say_of_others;

use super::Supervisor;

/// Those that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    is_policed: bool,
    is_shaped: bool,
}

impl Limits {
    fn take(&mut self, limit: TrafficLimit, is_set: bool) {
        match limit {
            TrafficLimit::Policing => self.is_policed = is_set,
            TrafficLimit::Qos => self.is_shaped = is_set,
        }
    }

    /// The warning about them.
    pub(super) fn warning(self) -> Option<String> {
        let what = match (self.is_policed, self.is_shaped) {
            (true, true) => "policing and QoS are",
            (true, false) => "policing is",
            (false, true) => "QoS is",
            (false, false) => return None,
        };
        Some(format!(
            "{what} set on its tap on the host, which no packet of its guest passes, so nothing is limited; use OpenFlow meters"
        ))
    }
}

impl Supervisor {
    /// A device has got a limit, or lost it.
    pub(super) fn heed_limit(&mut self, limited: &Limited) {
        let port = self.ports.values_mut().find_map(|port| {
            let placeholder = port.placeholder.as_mut()?;
            let is_meant = placeholder.host_device().index == limited.index;
            is_meant.then_some((&port.spec.name, &mut placeholder.limits))
        });
        let Some((name, limits)) = port else { return };
        limits.take(limited.limit, limited.is_set);
        if let Some(warning) = limits.warning().filter(|_| limited.is_set) {
            say_of_others!(Warning: "vnic {name}: {warning}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_until_it_is_gone() {
        let mut limits = Limits::default();
        let mut after = |limit, is_set| {
            limits.take(limit, is_set);
            let warning = limits.warning();
            warning.map(|text| text.split_once(" set ").expect("what it is").0.to_owned())
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(after(TrafficLimit::Policing, true), told("policing is"));
        assert_eq!(after(TrafficLimit::Qos, true), told("policing and QoS are"));
        assert_eq!(after(TrafficLimit::Policing, false), told("QoS is"));
        assert_eq!(after(TrafficLimit::Qos, false), None);
    }
}
