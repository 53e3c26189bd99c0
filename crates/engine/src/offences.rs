use std::collections::HashMap;
use std::time::{Duration, Instant};

use lasthop_verdict::PortId;

/// Times that a port may hold a worker up before it is held itself: front ends make mistakes.
const FREE: u32 = 3;
/// How long a port is held. Each time costs the others some 100 ms, so what is left of it is one part in 600.
const HOLD: Duration = Duration::from_secs(60);

/// Which ports held workers up, so that a front end that comes back at once does not do it all the time.
#[derive(Debug, Default)]
pub(crate) struct Offences(HashMap<PortId, Offender>);

#[derive(Debug)]
struct Offender {
    count: u32,
    last: Instant,
}

impl Offences {
    /// `port` held a worker up.
    pub(crate) fn record(&mut self, port: PortId, now: Instant) {
        let offender = self.0.entry(port).or_insert(Offender { count: 0, last: now });
        (offender.count, offender.last) = (offender.count.saturating_add(1), now);
    }

    /// How long the rings of `port` must not be started yet.
    pub(crate) fn hold(&self, port: PortId, now: Instant) -> Option<Duration> {
        let offender = self.0.get(&port).filter(|offender| offender.count > FREE)?;
        HOLD.checked_sub(now.saturating_duration_since(offender.last)).filter(|left| !left.is_zero())
    }

    /// The port is removed.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_held_after_some_offences_and_after_each_one_then() {
        let (mut offences, start) = (Offences::default(), Instant::now());
        for _ in 0..FREE {
            assert_eq!(offences.hold(PortId(1), start), None);
            offences.record(PortId(1), start);
        }
        assert_eq!(offences.hold(PortId(1), start), None);
        offences.record(PortId(1), start);
        assert_eq!(offences.hold(PortId(1), start), Some(HOLD));
        assert_eq!(offences.hold(PortId(2), start), None);
        assert_eq!(offences.hold(PortId(1), start + HOLD), None);
        offences.record(PortId(1), start + HOLD);
        assert_eq!(offences.hold(PortId(1), start + HOLD + HOLD / 2), Some(HOLD / 2));
        offences.forget(PortId(1));
        assert_eq!(offences.hold(PortId(1), start + HOLD), None);
    }
}
