use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// What guests do to each other while they are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pairs of guests, each sending as fast as it can, one way or both.
    Stream {
        /// Pairs, 1 to 128.
        pairs: u16,
        /// Whether the second guest of each pair sends, too.
        both_ways: bool,
    },
    /// Several guests send to one.
    FanIn {
        /// Guests that send.
        senders: u16,
    },
    /// One guest sends at a set rate.
    Offered {
        /// Packets per second.
        rate_pps: u64,
    },
    /// One guest sends packets at a set rate, each the first of a new flow: of UDP ports, or of addresses that are known.
    First {
        /// Packets per second.
        rate_pps: u64,
    },
    /// One packet there and back, then the next.
    RoundTrip {
        /// Guests sleep until a packet comes (else they poll).
        sleeping: bool,
        /// From an answer to the next question.
        pause: Duration,
    },
    /// Guests that are connected and silent.
    Idle {
        /// How many.
        guests: u16,
    },
}

/// Guests of one measurement.
pub(crate) const GUESTS_MAX: u16 = 256;
/// Different flows, or addresses.
pub(crate) const FLOWS_MAX: u32 = 1 << 20;
/// New flows per second.
const FIRST_PPS_MAX: u64 = 1_000_000;
/// Least bytes of a frame: headers and the mark by which the receiver knows it.
pub(crate) const FRAME_BYTES_MIN: u32 = 60;
/// Most bytes of a frame: an IP packet of 65535 bytes behind its Ethernet header.
pub(crate) const FRAME_BYTES_MAX: u32 = 65_549;
/// Frames above this are TCP segments that the sender leaves to be cut (TSO).
pub(crate) const UNCUT_FRAME_BYTES_MAX: u32 = 9_018;

/// One piece of work. Its text form, as in `stream,size=64,flows=1000`, is its name in every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Who sends when.
    pub kind: Kind,
    /// Bytes of a frame in memory: from the Ethernet header on, without frame check sequence.
    pub frame_bytes: u32,
    /// The sender writes all of each frame and the receiver reads all of it; else only headers are touched.
    pub touched: bool,
    /// Entries of each ring.
    pub ring_entries: u16,
    /// UDP flows of each sender, in turns.
    pub flows: u32,
    /// Addresses that each guest sends from and is sent to, in turns.
    pub macs: u32,
}

/// What a workload is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Millions of packets received in a second. More is better.
    Mpps,
    /// Gigabits of frames received in a second. More is better.
    Gbps,
    /// Microseconds of a round trip, or of a first packet's way, median. Less is better.
    Micros,
    /// Percent of a core that the back end takes. Less is better.
    CpuPercent,
}

impl Metric {
    /// Its unit, as in a column's head.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Mpps => "Mpps",
            Self::Gbps => "Gbit/s",
            Self::Micros => "µs",
            Self::CpuPercent => "% CPU",
        }
    }

    /// Whether a larger value is the better one.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Mpps | Self::Gbps)
    }
}

impl Default for Workload {
    fn default() -> Self {
        let kind = Kind::Stream { pairs: 1, both_ways: false };
        Self { kind, frame_bytes: 64, touched: false, ring_entries: 256, flows: 1, macs: 1 }
    }
}

impl Workload {
    /// What it is judged by: packets below 512 bytes, bits above.
    #[must_use]
    pub fn metric(&self) -> Metric {
        match self.kind {
            Kind::First { .. } | Kind::RoundTrip { .. } => Metric::Micros,
            Kind::Idle { .. } | Kind::Offered { .. } => Metric::CpuPercent,
            _ if self.frame_bytes < 512 => Metric::Mpps,
            _ => Metric::Gbps,
        }
    }

    /// Guests that it needs.
    #[must_use]
    pub fn guests(&self) -> u16 {
        match self.kind {
            Kind::Stream { pairs, .. } => 2 * pairs,
            Kind::FanIn { senders } => senders + 1,
            Kind::Offered { .. } | Kind::First { .. } | Kind::RoundTrip { .. } => 2,
            Kind::Idle { guests } => guests,
        }
    }

    /// Least time in which there is something to be seen.
    #[must_use]
    pub fn least_duration(&self) -> Duration {
        match self.kind {
            Kind::Idle { .. } => Duration::from_secs(3),
            Kind::RoundTrip { pause, .. } => 10 * pause,
            _ => Duration::ZERO,
        }
    }

    /// Whether guests look for frames without end, so that they take all of their CPU.
    #[must_use]
    pub fn guests_poll(&self) -> bool {
        !matches!(self.kind, Kind::Idle { .. } | Kind::RoundTrip { sleeping: true, .. })
    }

    /// Time before it begins, in which the back end may finish earlier work: flows that were not used while it stood still are
    /// evicted once it runs again, threads that watch the start of guests fall asleep, and a watchdog sees that there is no work.
    #[must_use]
    pub(crate) fn calm(&self) -> Duration {
        match self.kind {
            Kind::First { .. } => Duration::from_secs(1),
            Kind::Idle { .. } => Duration::from_secs(6),
            _ => Duration::ZERO,
        }
    }

    /// Whether a back end that sleeps when there is nothing to do would sleep in between.
    #[must_use]
    pub fn lets_sleep(&self) -> bool {
        const LONG: Duration = Duration::from_micros(200);
        matches!(self.kind, Kind::RoundTrip { pause, .. } if pause >= LONG)
    }

    /// Whether frames go out as TCP segments to be cut.
    #[must_use]
    pub fn uncut(&self) -> bool {
        self.frame_bytes > UNCUT_FRAME_BYTES_MAX
    }

    fn check(self) -> Result<Self, String> {
        let range = |name, value: u64, low: u64, high: u64| {
            let fits = (low..=high).contains(&value);
            if fits { Ok(()) } else { Err(format!("{name} is {low} to {high}, not {value}")) }
        };
        range("size", self.frame_bytes.into(), FRAME_BYTES_MIN.into(), FRAME_BYTES_MAX.into())?;
        range("ring", self.ring_entries.into(), 2, lasthop_ring::RING_ENTRIES_MAX.into())?;
        range("flows", self.flows.into(), 1, FLOWS_MAX.into())?;
        range("macs", self.macs.into(), 1, FLOWS_MAX.into())?;
        range("the number of guests", self.guests().into(), 1, GUESTS_MAX.into())?;
        match self.kind {
            Kind::Offered { rate_pps } => range("offered", rate_pps, 1, 1_000_000_000)?,
            Kind::First { rate_pps } => {
                range("first", rate_pps, 1, FIRST_PPS_MAX)?;
                if (self.macs == 1) == (self.flows == 1) || self.uncut() {
                    return Err(
                        "first wants flows=N or macs=N, which are new in turns, and no TCP frames".to_owned()
                    );
                }
            }
            _ => {}
        }
        if !self.ring_entries.is_power_of_two() {
            return Err(format!("ring is a power of two, not {}", self.ring_entries));
        }
        Ok(self)
    }

    fn set(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
        match (key, value) {
            ("size", Some(value)) => self.frame_bytes = number(key, value)?,
            ("ring", Some(value)) => self.ring_entries = number(key, value)?,
            ("flows", Some(value)) => self.flows = number(key, value)?,
            ("macs", Some(value)) => self.macs = number(key, value)?,
            ("touched", None) => self.touched = true,
            ("stream", None) => {}
            ("pairs", Some(value)) => self.set_pairs(number(key, value)?),
            ("both", None) => self.set_both_ways(),
            ("fan-in", Some(value)) => self.kind = Kind::FanIn { senders: number(key, value)? },
            ("offered", Some(value)) => self.kind = Kind::Offered { rate_pps: number(key, value)? },
            ("first", Some(value)) => self.kind = Kind::First { rate_pps: number(key, value)? },
            ("idle", Some(value)) => self.kind = Kind::Idle { guests: number(key, value)? },
            ("rtt", None) => self.kind = Kind::RoundTrip { sleeping: false, pause: Duration::ZERO },
            ("sleep" | "pause-us", _) => self.set_round_trip(key, value)?,
            _ => return Err(format!("\"{word}\" is no part of a workload; {GRAMMAR}")),
        }
        Ok(())
    }

    fn set_pairs(&mut self, pairs: u16) {
        let both_ways = matches!(self.kind, Kind::Stream { both_ways: true, .. });
        self.kind = Kind::Stream { pairs, both_ways };
    }

    fn set_both_ways(&mut self) {
        let pairs = if let Kind::Stream { pairs, .. } = self.kind { pairs } else { 1 };
        self.kind = Kind::Stream { pairs, both_ways: true };
    }

    fn set_round_trip(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let Kind::RoundTrip { sleeping, pause } = &mut self.kind else {
            return Err(format!("{key} goes behind rtt, as in rtt,{key}"));
        };
        match (key, value) {
            ("sleep", None) => *sleeping = true,
            ("pause-us", Some(value)) => *pause = Duration::from_micros(number(key, value)?),
            _ => return Err(format!("\"{key}\" is no part of a workload; {GRAMMAR}")),
        }
        Ok(())
    }
}

/// What a workload's text may consist of.
pub const GRAMMAR: &str = "write stream, both, pairs=N, fan-in=N, offered=PPS, first=PPS, rtt[,sleep][,pause-us=N] or idle=N, then \
                           size=BYTES, ring=ENTRIES, flows=N, macs=N, touched, separated by commas";

fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key} takes a whole number, not \"{value}\""))
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut workload = Self::default();
        text.split(',').try_for_each(|word| workload.set(word))?;
        workload.check()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream { pairs: 1, both_ways: false } => f.write_str("stream"),
            Self::Stream { pairs: 1, both_ways: true } => f.write_str("both"),
            Self::Stream { pairs, both_ways } => {
                write!(f, "pairs={pairs}{}", if *both_ways { ",both" } else { "" })
            }
            Self::FanIn { senders } => write!(f, "fan-in={senders}"),
            Self::Offered { rate_pps } => write!(f, "offered={rate_pps}"),
            Self::First { rate_pps } => write!(f, "first={rate_pps}"),
            Self::Idle { guests } => write!(f, "idle={guests}"),
            Self::RoundTrip { sleeping, pause } => {
                write!(f, "rtt{}", if *sleeping { ",sleep" } else { "" })?;
                if pause.is_zero() { Ok(()) } else { write!(f, ",pause-us={}", pause.as_micros()) }
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},size={},ring={}", self.kind, self.frame_bytes, self.ring_entries)?;
        for (key, value) in [("flows", self.flows), ("macs", self.macs)] {
            if value != 1 {
                write!(f, ",{key}={value}")?;
            }
        }
        f.write_str(if self.touched { ",touched" } else { "" })
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_workload_is_read_back() {
        for text in [
            "stream,size=64,ring=256",
            "both,size=1500,ring=1024,touched",
            "pairs=4,size=64,ring=256,flows=1000,macs=1000",
            "pairs=4,both,size=64,ring=256",
            "fan-in=8,size=9000,ring=256",
            "offered=1000000,size=64,ring=256",
            "first=1000,size=64,ring=256,macs=1000",
            "rtt,size=64,ring=256",
            "rtt,sleep,pause-us=1000,size=64,ring=256",
            "idle=100,size=64,ring=256",
        ] {
            assert_eq!(text.parse::<Workload>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("stream,size=10", "size is 60 to 65549"),
            ("stream,ring=100", "power of two"),
            ("sleep", "behind rtt"),
            ("size", "no part of a workload"),
            ("pairs=x", "pairs takes a whole number"),
            ("pairs=200", "number of guests is 1 to 256"),
            ("flows=0", "flows is 1 to"),
            ("first=10", "first wants flows=N or macs=N"),
            ("first=10,flows=10,macs=10", "first wants flows=N or macs=N"),
            ("first=2000000,flows=10", "first is 1 to 1000000"),
        ] {
            let error = text.parse::<Workload>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn small_packets_are_counted_and_large_ones_weighed() {
        let metric = |text: &str| text.parse::<Workload>().expect(text).metric();
        assert_eq!(metric("stream,size=64"), Metric::Mpps);
        assert_eq!(metric("stream,size=1500"), Metric::Gbps);
        assert_eq!(metric("rtt"), Metric::Micros);
        assert_eq!(metric("idle=2"), Metric::CpuPercent);
    }
}
