//! Front ends that blocked workers, and how long their ports are held for that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lasthop_module_api::PortId;

/// Times that a port may block a worker before it is held: front ends make mistakes.
const FREE: u32 = 3;
/// How long a port is held. An offence costs other ports some 100 ms, four very slow calls up to 400 ms, so they lose one
/// part in 150 of their time at most.
const HOLD: Duration = Duration::from_secs(60);
/// Time without an offence after which all are forgotten.
const FORGIVEN: Duration = Duration::from_secs(600);

/// How a front end blocked a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offence {
    /// A write to a call descriptor blocked.
    CallBlocks,
    /// Writes to call descriptors took the kernel long.
    CallSlow,
    /// Writes to a call descriptor took the kernel very long, several times in a row.
    CallVerySlow,
    /// Accesses to its memory had to wait.
    MemoryStalls,
    /// The switch had to fill too much of its memory.
    MemoryFilled,
}

impl Offence {
    /// Why its rings stopped, for the port's state.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::CallBlocks => {
                "a call eventfd blocks: the front end made it blocking and filled it; restart the guest"
            }
            Self::CallSlow | Self::CallVerySlow => {
                "a call eventfd is slow: too many wait for it, such as watches of epoll; restart the guest"
            }
            Self::MemoryStalls => {
                "its memory stalls the switch: holes are punched into its file all the time; restart the guest"
            }
            Self::MemoryFilled => {
                "its memory is sparse, and the switch would have to fill too much of it; have the VMM allocate it \
                 (QEMU: prealloc=on)"
            }
        }
    }

    /// The offence without its subject, the front end.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::CallBlocks => "made call eventfds blocking and filled them",
            Self::CallSlow | Self::CallVerySlow => "made call eventfds slow to write",
            Self::MemoryStalls => "had its memory stall the switch",
            Self::MemoryFilled => "had the switch fill its sparse memory",
        }
    }

    /// How often it counts: filled memory stays filled when the guest returns, so an honest guest does not do that
    /// several times. Very slow calls cost other ports several times as much as the others do.
    fn weight(self) -> u32 {
        match self {
            Self::CallBlocks | Self::CallSlow | Self::MemoryStalls => 1,
            Self::CallVerySlow => 2,
            Self::MemoryFilled => FREE + 1,
        }
    }

    /// Whether new call descriptors end it.
    pub(crate) fn is_by_calls(self) -> bool {
        matches!(self, Self::CallBlocks | Self::CallSlow | Self::CallVerySlow)
    }
}

/// The ports that blocked workers, so that a front end that reconnects at once cannot repeat it all the time.
#[derive(Debug, Default)]
pub(crate) struct Offences(HashMap<PortId, Offender>);

#[derive(Debug)]
struct Offender {
    count: u32,
    last: Instant,
    /// Its last offence.
    offence: Offence,
}

impl Offences {
    /// Notes that `port` blocked a worker.
    pub(crate) fn record(&mut self, port: PortId, offence: Offence, now: Instant) {
        let offender = self.0.entry(port).or_insert(Offender { count: 0, last: now, offence });
        if now.saturating_duration_since(offender.last) >= FORGIVEN {
            offender.count = 0;
        }
        *offender = Offender { count: offender.count.saturating_add(offence.weight()), last: now, offence };
    }

    /// How long the rings of `port` must not be started yet, and why.
    pub(crate) fn hold(&self, port: PortId, now: Instant) -> Option<(Duration, Offence)> {
        let offender = self.0.get(&port).filter(|offender| offender.count > FREE)?;
        let left = HOLD.checked_sub(now.saturating_duration_since(offender.last))?;
        (!left.is_zero()).then_some((left, offender.offence))
    }

    /// Removes a port.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(1);

    #[test]
    fn a_port_is_held_after_some_offences_and_after_each_one_then() {
        let (mut offences, start) = (Offences::default(), Instant::now());
        for _ in 0..FREE {
            assert_eq!(offences.hold(PORT, start), None);
            offences.record(PORT, Offence::CallBlocks, start);
        }
        assert_eq!(offences.hold(PORT, start), None);
        offences.record(PORT, Offence::CallSlow, start);
        assert_eq!(offences.hold(PORT, start), Some((HOLD, Offence::CallSlow)));
        assert_eq!(offences.hold(PortId(2), start), None);
        assert_eq!(offences.hold(PORT, start + HOLD), None);
        offences.record(PORT, Offence::CallBlocks, start + HOLD);
        assert_eq!(offences.hold(PORT, start + HOLD + HOLD / 2), Some((HOLD / 2, Offence::CallBlocks)));
        offences.forget(PORT);
        assert_eq!(offences.hold(PORT, start + HOLD), None);
    }

    #[test]
    fn a_port_with_very_slow_calls_is_held_after_the_second_time() {
        let (mut offences, start) = (Offences::default(), Instant::now());
        offences.record(PORT, Offence::CallVerySlow, start);
        assert_eq!(offences.hold(PORT, start), None);
        offences.record(PORT, Offence::CallVerySlow, start);
        assert_eq!(offences.hold(PORT, start), Some((HOLD, Offence::CallVerySlow)));
    }

    #[test]
    fn offences_are_forgiven_in_time() {
        let (mut offences, start) = (Offences::default(), Instant::now());
        for number in 0..2 * FREE {
            offences.record(PORT, Offence::CallSlow, start + number * FORGIVEN);
        }
        assert_eq!(offences.hold(PORT, start + (2 * FREE - 1) * FORGIVEN), None);
    }
}
