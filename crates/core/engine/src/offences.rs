//! Front ends that held workers up, and how long their ports are held for that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lasthop_module_api::PortId;

/// Times that a port may hold a worker up before it is held itself: front ends make mistakes.
const FREE: u32 = 3;
/// How long a port is held. Each offence costs the others some 100 ms, so at most one part in 600 of their time is lost.
const HOLD: Duration = Duration::from_secs(60);
/// After this time without an offence, a port is treated as one without any.
const FORGIVEN: Duration = Duration::from_secs(600);

/// How a front end held a worker up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offence {
    /// A write to a call descriptor had to wait.
    CallBlocks,
    /// Writes to call descriptors took the kernel long.
    CallSlow,
    /// Accesses to its memory had to wait.
    MemoryStalls,
    /// The switch had to fill too much of its memory.
    MemoryFilled,
}

impl Offence {
    /// Why its rings stopped, as its port's state has it.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::CallBlocks => {
                "a call eventfd blocks: the front end made it blocking and filled it; restart the guest"
            }
            Self::CallSlow => {
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

    /// Describes it, with the front end as the subject left out.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::CallBlocks => "made call eventfds blocking and filled them",
            Self::CallSlow => "made call eventfds slow to write",
            Self::MemoryStalls => "had its memory stall the switch",
            Self::MemoryFilled => "had the switch fill its sparse memory",
        }
    }

    /// Times that it counts: filled memory stays so when the guest comes back, so an honest one does not do that several times.
    fn weight(self) -> u32 {
        if self == Self::MemoryFilled { FREE + 1 } else { 1 }
    }

    /// Whether it is over when other call descriptors come.
    pub(crate) fn is_by_calls(self) -> bool {
        matches!(self, Self::CallBlocks | Self::CallSlow)
    }
}

/// Which ports held workers up, so that a front end that comes back at once does not do it all the time.
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
    /// `port` held a worker up.
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

    /// The port is removed.
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
    fn offences_are_forgiven_in_time() {
        let (mut offences, start) = (Offences::default(), Instant::now());
        for number in 0..2 * FREE {
            offences.record(PORT, Offence::CallSlow, start + number * FORGIVEN);
        }
        assert_eq!(offences.hold(PORT, start + (2 * FREE - 1) * FORGIVEN), None);
    }
}
