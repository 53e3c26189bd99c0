//! Limits on a tap that passes no packets, as Open vSwitch sets them for `ingress_policing_rate` and `qos` of a guest's
//! port. They have no effect, and the user gets a warning.

use crate::links::TrafficLimit;

/// The limits that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficLimits {
    is_policed: bool,
    is_shaped: bool,
}

impl TrafficLimits {
    /// Notes that one was set or removed.
    pub fn take(&mut self, limit: TrafficLimit, is_set: bool) {
        match limit {
            TrafficLimit::Policing => self.is_policed = is_set,
            TrafficLimit::Qos => self.is_shaped = is_set,
        }
    }

    /// The warning about them.
    pub fn warning(self) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_until_it_is_gone() {
        let mut limits = TrafficLimits::default();
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
