//! Logs flows that the switch refuses for lack of a feature. ovs-vswitchd retries with every packet, so each reason is
//! logged at intervals, with the number of refusals since then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use log::warn;

use lasthop_dpif::{Errno, Refusal};
use lasthop_flow::Match;

/// Time between two log lines for one reason.
const PAUSE: Duration = Duration::from_secs(60);

/// The packets of a flow, as the log names them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowPackets {
    pub(super) in_port: Option<u32>,
    ether_type: Option<u16>,
}

impl FlowPackets {
    pub(super) fn of(matches: &Match) -> Self {
        Self { in_port: matches.key.in_port, ether_type: matches.key.ether_type }
    }
}

/// By reason. The program has a fixed number of reasons.
#[derive(Debug, Default)]
pub(super) struct RefusedFlows {
    said: BTreeMap<&'static str, (Instant, u64)>,
}

impl RefusedFlows {
    /// Notes a refused flow for packets of `port`.
    pub(super) fn note(&mut self, port: &str, packets: FlowPackets, refusal: Refusal, now: Instant) {
        if refusal.errno != Errno::EINVAL {
            return;
        }
        let Some(refusals) = self.count(refusal.why, now) else { return };
        let kind = packets.ether_type.map_or_else(String::new, |kind| format!(", EtherType {kind:#06x}"));
        let why = refusal.why;
        warn!(limited = true; "refused a flow for packets from {port}{kind} ({refusals} since the last such line): {why} is not supported; its packets \
            are dropped, or each of them goes through the controller; take it out of the OpenFlow rules: docs/user/open-vswitch.md");
    }

    /// The number of refusals to log now, including this one; `None` if the reason was logged recently.
    fn count(&mut self, why: &'static str, now: Instant) -> Option<u64> {
        let (due, refusals) = self.said.entry(why).or_insert((now, 0));
        *refusals += 1;
        if now < *due {
            return None;
        }
        *due = now + PAUSE;
        Some(std::mem::take(refusals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_logged_at_once_and_then_once_in_a_while_with_its_number() {
        let (mut refused, now) = (RefusedFlows::default(), Instant::now());
        assert_eq!(refused.count("a", now), Some(1));
        assert_eq!(refused.count("a", now), None);
        assert_eq!(refused.count("b", now), Some(1));
        assert_eq!(refused.count("a", now + PAUSE / 2), None);
        assert_eq!(refused.count("a", now + PAUSE), Some(3));
    }
}
