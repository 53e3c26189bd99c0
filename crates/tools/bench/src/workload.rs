use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A traffic pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficKind {
    /// Pairs of guests, each sending as fast as it can, one way or both.
    Stream {
        /// Number of pairs, 1 to 128.
        pairs: u16,
        /// Whether the second guest of each pair sends, too.
        both_ways: bool,
    },
    /// Several guests send to one.
    FanIn {
        /// Number of senders.
        senders: u16,
    },
    /// One guest sends at a set rate.
    Offered {
        /// Packets per second.
        rate_pps: u64,
    },
    /// One guest sends packets at a set rate, each the first of a new flow: of UDP ports, or of known addresses.
    First {
        /// Packets per second.
        rate_pps: u64,
    },
    /// One packet there and back, then the next.
    RoundTrip {
        /// Whether guests sleep until a packet arrives; otherwise they poll.
        sleeping: bool,
        /// The time from an answer to the next request.
        pause: Duration,
    },
    /// Each guest sends to every other one, as fast as it can.
    AllToAll {
        /// Number of guests.
        guests: u16,
    },
    /// Guests that are connected and silent.
    Idle {
        /// Number of guests.
        guests: u16,
    },
    /// Guests of another program: DPDK's testpmd on two virtio-user ports.
    Stock(StockTraffic),
}

/// A forwarding mode of testpmd as the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockTraffic {
    /// Each port sends as fast as it can, and receives.
    FlowGen,
    /// As many frames circulate as a ring has entries: a port sends back each frame that it receives, with addresses
    /// and ports swapped.
    FiveTupleSwap,
    /// As `FiveTupleSwap`, but with the Ethernet addresses swapped.
    MacSwap,
    /// One guest sends as fast as it can, the other one receives; each has its own process.
    TxOnly,
    /// Two frames circulate, one from each side.
    RoundTrip,
}

impl StockTraffic {
    const ALL: [Self; 5] = [Self::FlowGen, Self::FiveTupleSwap, Self::MacSwap, Self::TxOnly, Self::RoundTrip];

    /// Its name in a workload's text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FlowGen => "flowgen",
            Self::FiveTupleSwap => "5tswap",
            Self::MacSwap => "macswap",
            Self::TxOnly => "txonly",
            Self::RoundTrip => "rtt",
        }
    }

    /// The forwarding mode of process `index`; there is more than one process only where modes differ.
    pub(crate) fn mode(self, index: usize) -> &'static str {
        match self {
            Self::FlowGen => "flowgen",
            Self::FiveTupleSwap => "5tswap",
            Self::MacSwap | Self::RoundTrip => "macswap",
            Self::TxOnly => ["txonly", "rxonly"][index.min(1)],
        }
    }
}

impl FromStr for StockTraffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|traffic| traffic.name() == text);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("testpmd has no traffic \"{text}\"; there are {}", names()))
    }
}

/// The most guests of one measurement.
pub(crate) const GUESTS_MAX: u16 = 256;
/// The most idle ports.
const IDLE_PORTS_MAX: u16 = 1000;
/// The most guests that each send to every other one: the number of pairs is quadratic.
const ALL_TO_ALL_MAX: u16 = 16;
/// The most flows or addresses.
pub(crate) const FLOWS_MAX: u32 = 1 << 20;
/// Sizes of frames of stock guests: UDP headers have to fit, and the frame has to fit in one of their buffers.
const STOCK_FRAME_BYTES: std::ops::RangeInclusive<u64> = 60..=9_000;
/// Entries of their rings: at least one burst, with half a ring from each side.
const STOCK_RING_ENTRIES: std::ops::RangeInclusive<u64> = 64..=1_024;
/// The most new flows per second.
const FIRST_PPS_MAX: u64 = 1_000_000;
/// The smallest frame: headers and the mark by which the receiver recognizes it.
pub(crate) const FRAME_BYTES_MIN: u32 = 60;
/// The largest frame: an IP packet of 65535 bytes and its Ethernet header.
pub(crate) const FRAME_BYTES_MAX: u32 = 65_549;
/// Larger frames are TCP segments that the sender leaves to segmentation (TSO).
pub(crate) const UNCUT_FRAME_BYTES_MAX: u32 = 9_018;

/// A workload. Its text form, as in `stream,size=64,flows=1000`, is its name in every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The traffic pattern.
    pub kind: TrafficKind,
    /// Bytes of a frame from the Ethernet header on, without frame check sequence.
    pub frame_bytes: u32,
    /// Whether the sender writes and the receiver reads every byte of a frame; otherwise they access only headers.
    pub touched: bool,
    /// Entries of each ring.
    pub ring_entries: u16,
    /// UDP flows of each sender, used in turn.
    pub flows: u32,
    /// Addresses of each guest, used in turn as source and destination.
    pub macs: u32,
    /// Further guests that are connected and send nothing.
    pub idle_ports: u16,
    /// Whether stock guests offer mergeable receive buffers.
    pub mergeable: bool,
    /// Whether stock guests offer to use buffers in order.
    pub in_order: bool,
    /// Whether stock guests offer packed rings. A back end without them gets split ones.
    pub packed: bool,
    /// Whether guests take TCP segments that are still to be cut. If not, the back end cuts them.
    pub tso: bool,
    /// Pause between two looks of the guests at their rings, so that they leave most of their CPU to others.
    pub nap: Duration,
    /// Whether guests sleep until their back end signals received frames.
    pub signalled: bool,
}

/// The metric of a workload.
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
    /// The unit, as in a column's head.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Mpps => "Mpps",
            Self::Gbps => "Gbit/s",
            Self::Micros => "µs",
            Self::CpuPercent => "% CPU",
        }
    }

    /// Whether larger values are better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Mpps | Self::Gbps)
    }
}

impl Default for Workload {
    fn default() -> Self {
        let kind = TrafficKind::Stream { pairs: 1, both_ways: false };
        Self {
            kind,
            frame_bytes: 64,
            touched: false,
            ring_entries: 256,
            flows: 1,
            macs: 1,
            idle_ports: 0,
            mergeable: true,
            in_order: true,
            packed: false,
            tso: true,
            nap: Duration::ZERO,
            signalled: false,
        }
    }
}

impl Workload {
    /// Packets for frames below 512 bytes, bits for larger ones.
    #[must_use]
    pub fn metric(&self) -> Metric {
        match self.kind {
            TrafficKind::First { .. }
            | TrafficKind::RoundTrip { .. }
            | TrafficKind::Stock(StockTraffic::RoundTrip) => Metric::Micros,
            TrafficKind::Idle { .. } | TrafficKind::Offered { .. } => Metric::CpuPercent,
            _ if self.frame_bytes < 512 => Metric::Mpps,
            _ => Metric::Gbps,
        }
    }

    /// The number of guests, including idle ones.
    #[must_use]
    pub fn guests(&self) -> u16 {
        self.active_guests() + self.idle_ports
    }

    /// The number of guests that take part in the pattern.
    fn active_guests(&self) -> u16 {
        match self.kind {
            TrafficKind::Stream { pairs, .. } => 2 * pairs,
            TrafficKind::FanIn { senders } => senders + 1,
            TrafficKind::Offered { .. }
            | TrafficKind::First { .. }
            | TrafficKind::RoundTrip { .. }
            | TrafficKind::Stock(_) => 2,
            TrafficKind::AllToAll { guests } | TrafficKind::Idle { guests } => guests,
        }
    }

    /// The shortest useful duration.
    #[must_use]
    pub fn least_duration(&self) -> Duration {
        match self.kind {
            TrafficKind::Idle { .. } => Duration::from_secs(3),
            TrafficKind::RoundTrip { pause, .. } => 10 * pause,
            _ => Duration::ZERO,
        }
    }

    /// Whether guests poll, so that they take all of their CPU.
    #[must_use]
    pub fn guests_poll(&self) -> bool {
        let sleep =
            matches!(self.kind, TrafficKind::Idle { .. } | TrafficKind::RoundTrip { sleeping: true, .. });
        !sleep && self.nap.is_zero() && !self.signalled
    }

    /// The pause before the workload, in which the back end may finish earlier work: it evicts flows that expired while
    /// it was frozen, threads that watch the start of guests go to sleep, and a watchdog sees that there is no work.
    #[must_use]
    pub(crate) fn calm(&self) -> Duration {
        match self.kind {
            TrafficKind::First { .. } => Duration::from_secs(1),
            TrafficKind::Idle { .. } => Duration::from_secs(6),
            _ => Duration::ZERO,
        }
    }

    /// Whether a back end that sleeps when idle would sleep during the workload.
    #[must_use]
    pub fn lets_sleep(&self) -> bool {
        const LONG: Duration = Duration::from_micros(200);
        matches!(self.kind, TrafficKind::RoundTrip { pause, .. } if pause >= LONG)
    }

    /// Whether frames are sent as TCP segments that are still to be segmented.
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
        range("the number of guests", self.active_guests().into(), 1, GUESTS_MAX.into())?;
        range("idle-ports", self.idle_ports.into(), 0, IDLE_PORTS_MAX.into())?;
        match self.kind {
            TrafficKind::Offered { rate_pps } => range("offered", rate_pps, 1, 1_000_000_000)?,
            TrafficKind::First { rate_pps } => {
                range("first", rate_pps, 1, FIRST_PPS_MAX)?;
                if (self.macs == 1) == (self.flows == 1) || self.uncut() {
                    return Err(
                        "first wants flows=N or macs=N, which are new in turns, and no TCP frames".to_owned()
                    );
                }
            }
            TrafficKind::AllToAll { guests } => range("all-to-all", guests.into(), 2, ALL_TO_ALL_MAX.into())?,
            TrafficKind::Stock(traffic) => self.check_stock(traffic)?,
            _ => {}
        }
        let is_usual_driver = self.mergeable && self.in_order && !self.packed;
        if !(is_usual_driver || matches!(self.kind, TrafficKind::Stock(_))) {
            let text =
                "mrg=off, in-order=off and packed=on go behind testpmd=, as in testpmd=flowgen,mrg=off";
            return Err(text.to_owned());
        }
        if !self.tso && !self.uncut() {
            return Err(format!("tso=off goes with frames above {UNCUT_FRAME_BYTES_MAX} bytes"));
        }
        let naps = matches!(
            self.kind,
            TrafficKind::Stream { .. } | TrafficKind::FanIn { .. } | TrafficKind::AllToAll { .. }
        );
        if !self.nap.is_zero() && !naps {
            return Err("nap-us goes with stream, pairs=N, fan-in=N or all-to-all=N".to_owned());
        }
        let has_one_receiver = matches!(
            self.kind,
            TrafficKind::Stream { pairs: 1, both_ways: false } | TrafficKind::FanIn { .. }
        );
        if self.signalled && (!has_one_receiver || !self.nap.is_zero()) {
            return Err("signalled goes with stream or fan-in=N, without nap-us".to_owned());
        }
        if !self.ring_entries.is_power_of_two() {
            return Err(format!("ring is a power of two, not {}", self.ring_entries));
        }
        Ok(self)
    }

    fn check_stock(&self, traffic: StockTraffic) -> Result<(), String> {
        if !STOCK_FRAME_BYTES.contains(&self.frame_bytes.into()) {
            return Err(format!(
                "frames of testpmd have {STOCK_FRAME_BYTES:?} bytes, not {}",
                self.frame_bytes
            ));
        }
        if !STOCK_RING_ENTRIES.contains(&self.ring_entries.into()) {
            return Err(format!(
                "rings of testpmd have {STOCK_RING_ENTRIES:?} entries, not {}",
                self.ring_entries
            ));
        }
        if self.touched
            || self.macs != 1
            || self.idle_ports != 0
            || (self.flows != 1 && traffic != StockTraffic::FlowGen)
        {
            return Err(
                "testpmd takes no touched, macs or idle-ports, and flows only as in testpmd=flowgen,flows=N"
                    .to_owned(),
            );
        }
        Ok(())
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
            ("fan-in", Some(value)) => self.kind = TrafficKind::FanIn { senders: number(key, value)? },
            ("offered", Some(value)) => self.kind = TrafficKind::Offered { rate_pps: number(key, value)? },
            ("first", Some(value)) => self.kind = TrafficKind::First { rate_pps: number(key, value)? },
            ("idle", Some(value)) => self.kind = TrafficKind::Idle { guests: number(key, value)? },
            ("testpmd", Some(value)) => self.kind = TrafficKind::Stock(value.parse()?),
            ("all-to-all", Some(value)) => self.kind = TrafficKind::AllToAll { guests: number(key, value)? },
            ("idle-ports", Some(value)) => self.idle_ports = number(key, value)?,
            ("in-order", Some("on")) => self.in_order = true,
            ("in-order", Some("off")) => self.in_order = false,
            ("packed", Some("on")) => self.packed = true,
            ("packed", Some("off")) => self.packed = false,
            ("mrg", Some("on")) => self.mergeable = true,
            ("mrg", Some("off")) => self.mergeable = false,
            ("tso", Some("on")) => self.tso = true,
            ("tso", Some("off")) => self.tso = false,
            ("nap-us", Some(value)) => self.nap = Duration::from_micros(number(key, value)?),
            ("signalled", None) => self.signalled = true,
            ("rtt", None) => self.kind = TrafficKind::RoundTrip { sleeping: false, pause: Duration::ZERO },
            ("sleep" | "pause-us", _) => self.set_round_trip(key, value)?,
            _ => return Err(format!("\"{word}\" is no part of a workload; {GRAMMAR}")),
        }
        Ok(())
    }

    fn set_pairs(&mut self, pairs: u16) {
        let both_ways = matches!(self.kind, TrafficKind::Stream { both_ways: true, .. });
        self.kind = TrafficKind::Stream { pairs, both_ways };
    }

    fn set_both_ways(&mut self) {
        let pairs = if let TrafficKind::Stream { pairs, .. } = self.kind { pairs } else { 1 };
        self.kind = TrafficKind::Stream { pairs, both_ways: true };
    }

    fn set_round_trip(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let TrafficKind::RoundTrip { sleeping, pause } = &mut self.kind else {
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

/// The parts of a workload's text.
pub const GRAMMAR: &str = "write stream, both, pairs=N, fan-in=N, all-to-all=N, offered=PPS, first=PPS, rtt[,sleep][,pause-us=N], idle=N or \
                           testpmd=flowgen|5tswap|macswap|txonly|rtt, then size=BYTES, ring=ENTRIES, flows=N, macs=N, \
                           touched, idle-ports=N, mrg=on|off, in-order=on|off, packed=on|off, tso=on|off, nap-us=N, signalled, separated by commas";

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

impl fmt::Display for TrafficKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream { pairs: 1, both_ways: false } => f.write_str("stream"),
            Self::Stream { pairs: 1, both_ways: true } => f.write_str("both"),
            Self::Stream { pairs, both_ways } => {
                write!(f, "pairs={pairs}{}", if *both_ways { ",both" } else { "" })
            }
            Self::FanIn { senders } => write!(f, "fan-in={senders}"),
            Self::AllToAll { guests } => write!(f, "all-to-all={guests}"),
            Self::Offered { rate_pps } => write!(f, "offered={rate_pps}"),
            Self::First { rate_pps } => write!(f, "first={rate_pps}"),
            Self::Idle { guests } => write!(f, "idle={guests}"),
            Self::Stock(traffic) => write!(f, "testpmd={}", traffic.name()),
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
        f.write_str(if self.touched { ",touched" } else { "" })?;
        if self.idle_ports > 0 {
            write!(f, ",idle-ports={}", self.idle_ports)?;
        }
        f.write_str(if self.mergeable { "" } else { ",mrg=off" })?;
        f.write_str(if self.in_order { "" } else { ",in-order=off" })?;
        f.write_str(if self.packed { ",packed=on" } else { "" })?;
        f.write_str(if self.tso { "" } else { ",tso=off" })?;
        if self.signalled {
            f.write_str(",signalled")?;
        }
        if self.nap.is_zero() { Ok(()) } else { write!(f, ",nap-us={}", self.nap.as_micros()) }
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
            "testpmd=flowgen,size=64,ring=1024,flows=1000",
            "testpmd=5tswap,size=1500,ring=256,mrg=off",
            "testpmd=rtt,size=64,ring=256",
            "testpmd=rtt,size=64,ring=256,mrg=off,in-order=off",
            "testpmd=macswap,size=64,ring=256,packed=on",
            "all-to-all=4,size=64,ring=256",
            "stream,size=64,ring=256,touched,idle-ports=1000",
            "fan-in=4,size=65000,ring=256,tso=off,signalled",
        ] {
            assert_eq!(text.parse::<Workload>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("pairs=2,signalled", "signalled goes with stream or fan-in=N"),
            ("stream,signalled,nap-us=500", "without nap-us"),
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
            ("testpmd=io", "there are flowgen, 5tswap, macswap, txonly, rtt"),
            ("testpmd=flowgen,touched", "testpmd takes no touched"),
            ("testpmd=rtt,flows=2", "testpmd takes no touched"),
            ("testpmd=rtt,size=9018", "60..=9000 bytes"),
            ("testpmd=rtt,ring=32", "64..=1024 entries"),
            ("stream,mrg=off", "go behind testpmd="),
            ("stream,in-order=off", "go behind testpmd="),
            ("stream,packed=on", "go behind testpmd="),
            ("all-to-all=1", "all-to-all is 2 to 16"),
            ("stream,idle-ports=1001", "idle-ports is 0 to 1000"),
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
        assert_eq!(metric("testpmd=flowgen"), Metric::Mpps);
        assert_eq!(metric("testpmd=rtt"), Metric::Micros);
    }
}
