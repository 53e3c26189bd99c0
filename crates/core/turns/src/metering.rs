//! Laps of visits, and the rests after page faults in them.

use std::fmt;

use lasthop_module_api::PortId;

/// Called at the end of each lap while a worker's visits are metered.
pub trait VisitMeter: Send {
    /// Ends a lap in the memory of `port`, or in no port's memory if `None`. The lap counts `weight` times. Returns the
    /// time of its page faults in ns, to be charged to the port.
    fn lap(&mut self, port: Option<PortId>, weight: u64) -> u64;
}

/// The meter of a worker's visits, and whether ports rest after the faults that it saw.
#[derive(Default)]
pub struct Metering {
    meter: Option<Box<dyn VisitMeter>>,
    /// The weight of a lap; 0 if metering is off.
    weight: u64,
    /// Whether some port may have to rest, and until when.
    has_resting: bool,
    rest_until_ns: u64,
    /// Metering is on, or some port may have to rest.
    is_active: bool,
}

impl fmt::Debug for Metering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}", self.weight)
    }
}

impl Metering {
    /// Sets the meter that is called while metering is on.
    pub fn set_meter(&mut self, meter: Box<dyn VisitMeter>) {
        self.meter = Some(meter);
    }

    /// Starts metering, or stops it if `weight` is 0. Ports that rest still do.
    pub fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
        self.is_active = weight > 0 || self.has_resting;
    }

    /// Whether a meter is called.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.weight > 0
    }

    /// Whether metering is on, or some port may have to rest: one look tells visits that have to do with neither.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Whether some port may have to rest.
    #[inline]
    #[must_use]
    pub fn has_resting(&self) -> bool {
        self.has_resting
    }

    /// Ends a lap; see [`VisitMeter::lap`].
    pub fn lap(&mut self, port: Option<PortId>) -> u64 {
        self.meter.iter_mut().map(|meter| meter.lap(port, self.weight)).sum()
    }

    /// Notes that a port was charged for faults, and may have to rest.
    pub fn begin_rest(&mut self) {
        self.set_resting(true);
    }

    /// Notes that a port rests until `until_ns`, and which time it is.
    pub fn rest(&mut self, until_ns: u64, now_ns: u64) {
        self.rest_until_ns = self.rest_until_ns.max(until_ns);
        self.set_resting(now_ns < self.rest_until_ns);
    }

    fn set_resting(&mut self, has_resting: bool) {
        self.has_resting = has_resting;
        self.is_active = self.weight > 0 || has_resting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lap has as many faults as its weight.
    struct Faults;

    impl VisitMeter for Faults {
        fn lap(&mut self, _: Option<PortId>, weight: u64) -> u64 {
            weight
        }
    }

    #[test]
    fn it_is_active_while_it_is_on_or_a_port_rests() {
        let mut metering = Metering::default();
        metering.set_meter(Box::new(Faults));
        assert!(!metering.is_active() && !metering.is_on());
        metering.set_weight(3);
        assert!(metering.is_active() && metering.is_on() && !metering.has_resting());
        assert_eq!(metering.lap(Some(PortId(1))), 3);
        metering.begin_rest();
        metering.set_weight(0);
        assert!(metering.is_active() && !metering.is_on() && metering.has_resting());
        metering.rest(100, 50);
        assert!(metering.is_active());
        metering.rest(80, 99);
        assert!(metering.is_active(), "another port rests until 100");
        metering.rest(80, 100);
        assert!(!metering.is_active() && !metering.has_resting());
    }
}
