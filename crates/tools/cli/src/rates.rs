//! Rates: the differences between counters at two times.

use std::time::Duration;

use serde::Serialize;

use lasthop_api::report::{DropCounts, PortReport, StatsReport};

/// The rates of the whole switch in one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Length of the interval.
    pub(crate) seconds: f64,
    pub(crate) ports: Vec<PortRates>,
}

/// The rates of a port: "rx" is from the guest, "tx" is to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PortRates {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) rx_packets_per_s: f64,
    pub(crate) rx_bits_per_s: f64,
    pub(crate) tx_packets_per_s: f64,
    pub(crate) tx_bits_per_s: f64,
    /// By reason, without reasons that did not occur.
    pub(crate) rx_drops_per_s: std::collections::BTreeMap<String, f64>,
    pub(crate) tx_drops_per_s: std::collections::BTreeMap<String, f64>,
}

impl Rates {
    /// The rates over the time `passed` between two reports. A port that was made again counts from zero.
    pub(crate) fn between(before: &StatsReport, after: &StatsReport, passed: Duration) -> Self {
        let seconds = passed.as_secs_f64().max(f64::MIN_POSITIVE);
        let nothing = PortReport::default();
        let ports = after.ports.iter().map(|port| {
            let earlier = before.ports.iter().find(|earlier| earlier.name == port.name);
            // Counters only grow: smaller ones belong to another port of the same name.
            let earlier = earlier.filter(|earlier| {
                earlier.taken_in() <= port.taken_in() && earlier.tx_packets <= port.tx_packets
            });
            PortRates::between(earlier.unwrap_or(&nothing), port, seconds)
        });
        Self { seconds, ports: ports.collect() }
    }
}

impl PortRates {
    fn between(before: &PortReport, after: &PortReport, seconds: f64) -> Self {
        let rate = |count: fn(&PortReport) -> u64| per_second(count(before), count(after), seconds);
        Self {
            name: after.name.clone(),
            state: after.state.clone(),
            rx_packets_per_s: rate(|port| port.rx_packets),
            rx_bits_per_s: 8.0 * rate(|port| port.rx_bytes),
            tx_packets_per_s: rate(|port| port.tx_packets),
            tx_bits_per_s: 8.0 * rate(|port| port.tx_bytes),
            rx_drops_per_s: drop_rates(&before.rx_drops, &after.rx_drops, seconds),
            tx_drops_per_s: drop_rates(&before.tx_drops, &after.tx_drops, seconds),
        }
    }

    /// Packets that were dropped coming from the guest or going to it.
    pub(crate) fn drops_per_s(&self) -> f64 {
        self.rx_drops_per_s.values().chain(self.tx_drops_per_s.values()).sum()
    }
}

fn per_second(before: u64, after: u64, seconds: f64) -> f64 {
    after.saturating_sub(before) as f64 / seconds
}

fn drop_rates(
    before: &DropCounts,
    after: &DropCounts,
    seconds: f64,
) -> std::collections::BTreeMap<String, f64> {
    let rate = |(reason, count): (&String, &u64)| {
        let earlier = before.get(reason).copied().unwrap_or(0);
        (reason.clone(), per_second(earlier, *count, seconds))
    };
    after.iter().map(rate).filter(|(_, rate)| *rate > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rx_packets: u64, rx_bytes: u64, drops: u64) -> StatsReport {
        let rx_drops = [("rx_timeout".to_owned(), drops), ("same_port".to_owned(), 7)].into();
        let port = PortReport { name: "a".into(), rx_packets, rx_bytes, rx_drops, ..PortReport::default() };
        StatsReport { ports: vec![port], workers: vec![], ..StatsReport::default() }
    }

    fn rates(before: &StatsReport, after: &StatsReport) -> PortRates {
        Rates::between(before, after, Duration::from_secs(2)).ports.remove(0)
    }

    #[test]
    fn differences_are_taken_per_second() {
        let rates = rates(&report(100, 1000, 0), &report(300, 21_000, 10));
        assert_eq!((rates.rx_packets_per_s, rates.rx_bits_per_s), (100.0, 80_000.0));
        assert_eq!(rates.rx_drops_per_s, [("rx_timeout".to_owned(), 5.0)].into());
        assert_eq!(rates.drops_per_s(), 5.0);
    }

    #[test]
    fn a_port_that_was_made_anew_counts_from_zero() {
        assert_eq!(rates(&report(100, 1000, 0), &report(20, 160, 0)).rx_packets_per_s, 10.0);
        assert_eq!(rates(&StatsReport::default(), &report(20, 160, 0)).rx_packets_per_s, 10.0);
    }
}
