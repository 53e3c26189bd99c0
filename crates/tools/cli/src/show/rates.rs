//! Rates as a table.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::rates::{PortRates, Rates};

use super::fold::for_screen;
use super::table::Table;

/// Name of the port that the switch itself sends from.
const INTERNAL: &str = "internal";
/// Lines beside those of vnics: headings, total, omitted ones, and the cursor's.
const FRAME_LINES: usize = 4;

/// The order of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By name
    Name,
    /// Those that move most
    Rate,
    /// Those that lose most
    Drops,
}

/// The form of an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) sort: Sort,
    /// Number of lines of the screen, the cursor's included; if vnics do not fit, the active ones are shown.
    pub(crate) rows: Option<usize>,
}

/// A line of a table that can be sorted.
pub(crate) trait Sorted {
    fn name(&self) -> &str;
    /// Packets or bits of both directions, and drops: more than 0 for every port that is not idle.
    fn moved(&self) -> f64;
    fn lost(&self) -> f64;
}

impl Sorted for PortRates {
    fn name(&self) -> &str {
        &self.name
    }

    fn moved(&self) -> f64 {
        self.rx_bits_per_s + self.tx_bits_per_s + self.drops_per_s()
    }

    fn lost(&self) -> f64 {
        self.drops_per_s()
    }
}

impl Sort {
    /// The order of two lines; those that are alike go by name.
    pub(crate) fn compare(self, one: &impl Sorted, other: &impl Sorted) -> Ordering {
        let key = match self {
            Self::Name => Ordering::Equal,
            Self::Rate => other.moved().total_cmp(&one.moved()),
            Self::Drops => other.lost().total_cmp(&one.lost()),
        };
        key.then_with(|| one.name().cmp(other.name()))
    }

    /// Of vnics that are behind the shown ones.
    fn rest(self) -> &'static str {
        match self {
            Self::Name => "follow by name",
            Self::Rate => "move less",
            Self::Drops => "lose less",
        }
    }
}

/// One interval: a line for each vnic and one for all, followed by the drops.
pub(crate) fn rates(rates: &Rates, view: View) -> String {
    let mut ports: Vec<&PortRates> = rates.ports.iter().filter(|port| port.name != INTERNAL).collect();
    if ports.is_empty() {
        return "no vnics; make one with: lasthop port add NAME,backend=vhost-user\n".to_owned();
    }
    let all = (ports.len() > 1).then(|| row(&sum(&ports)));
    let rest = fit(&mut ports, view);
    let headings =
        ["VNIC", "STATE", ">FROM GUEST pkt/s", ">bit/s", ">TO GUEST pkt/s", ">bit/s", ">DROPPED pkt/s"];
    let mut table = Table::new(&headings);
    ports.iter().map(|port| row(port)).chain(all).for_each(|cells| table.row(cells));
    let drops: String = ports.iter().map(|port| drop_lines(port)).collect();
    let lines = table.text() + &rest + &for_screen(&drops);
    // The cursor stands below the last line: a screen that is full would lose its first one.
    let rows = view.rows.map_or(usize::MAX, |rows| rows.saturating_sub(1).max(1));
    lines.lines().take(rows).fold(String::new(), |text, line| text + line + "\n")
}

/// Sorts vnics, and omits those that do not fit; returns a line about these.
fn fit(ports: &mut Vec<&PortRates>, view: View) -> String {
    ports.sort_by(|one, other| view.sort.compare(*one, *other));
    let room = view.rows.map_or(usize::MAX, |rows| rows.saturating_sub(FRAME_LINES).max(1));
    if ports.len() <= room {
        return String::new();
    }
    let vnics = ports.len();
    ports.retain(|port| port.moved() > 0.0);
    let (moving, idle) = (ports.len(), vnics - ports.len());
    ports.truncate(room);
    match moving - ports.len() {
        0 => format!("{idle} others are idle\n"),
        more => format!("{more} more {}, {idle} are idle\n", view.sort.rest()),
    }
}

fn row(port: &PortRates) -> Vec<String> {
    let numbers = [
        port.rx_packets_per_s,
        port.rx_bits_per_s,
        port.tx_packets_per_s,
        port.tx_bits_per_s,
        port.drops_per_s(),
    ];
    [port.name.clone(), port.state.clone()].into_iter().chain(numbers.map(short)).collect()
}

/// The sum of all vnics. A packet from one to another counts in both directions, a drop at both its ends.
fn sum(ports: &[&PortRates]) -> PortRates {
    let sum = |rate: fn(&PortRates) -> f64| ports.iter().map(|port| rate(port)).sum();
    let drops = sum(PortRates::drops_per_s);
    PortRates {
        name: "all".to_owned(),
        rx_packets_per_s: sum(|port| port.rx_packets_per_s),
        rx_bits_per_s: sum(|port| port.rx_bits_per_s),
        tx_packets_per_s: sum(|port| port.tx_packets_per_s),
        tx_bits_per_s: sum(|port| port.tx_bits_per_s),
        rx_drops_per_s: [(String::new(), drops)].into(),
        ..PortRates::default()
    }
}

fn drop_lines(port: &PortRates) -> String {
    let line = |direction: &str, drops: &BTreeMap<String, f64>| {
        let reasons: Vec<String> =
            drops.iter().map(|(reason, rate)| format!("{reason} {}/s", short(*rate))).collect();
        if reasons.is_empty() {
            return String::new();
        }
        format!("{} dropped {direction} guest: {}\n", port.name, reasons.join(", "))
    };
    line("from", &port.rx_drops_per_s) + &line("to", &port.tx_drops_per_s)
}

/// A number with three significant digits and its SI prefix: `12.3k`.
pub(super) fn short(number: f64) -> String {
    let mut scaled = number + 0.0; // the sum of nothing is -0
    for prefix in ["", "k", "M", "G"] {
        if scaled < 999.5 {
            return format!("{}{prefix}", three_digits(scaled));
        }
        scaled /= 1000.0;
    }
    format!("{}T", three_digits(scaled))
}

fn three_digits(number: f64) -> String {
    match number {
        number if number == 0.0 || number >= 99.95 => format!("{number:.0}"),
        number if number >= 9.995 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::on_screen;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.5, 9.99, 10.0, 99.96, 999.4, 999.6, 1234.0, 8.5e6, 9.6e9, 2.5e12].map(short);
        assert_eq!(
            shown,
            ["0", "0.50", "9.99", "10.0", "100", "999", "1.00k", "1.23k", "8.50M", "9.60G", "2.50T"]
        );
    }

    #[test]
    fn vnics_their_sum_and_their_drops_are_shown() {
        let port = |name: &str, rate| PortRates {
            name: name.into(),
            state: "running".into(),
            rx_packets_per_s: rate,
            rx_drops_per_s: [("same_port".to_owned(), rate)].into(),
            ..PortRates::default()
        };
        let all =
            Rates { seconds: 1.0, ports: vec![port("internal", 9.0), port("a", 1500.0), port("b", 0.0)] };
        let text = rates(&all, View { sort: Sort::Name, rows: None });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("VNIC  STATE    FROM GUEST pkt/s"), "{text}");
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["a", "running", "1.50k", "0", "0", "0", "1.50k"]
        );
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["all", "1.50k", "0", "0", "0", "1.50k"]);
        assert_eq!(lines[4], "a dropped from guest: same_port 1.50k/s");
    }

    #[test]
    fn of_many_vnics_those_that_move_most_are_shown() {
        let port = |number: u32| PortRates {
            name: format!("vm{number}"),
            rx_bits_per_s: if number < 30 { f64::from(number) } else { 0.0 },
            ..PortRates::default()
        };
        let all = Rates { seconds: 1.0, ports: (0..500).map(port).collect() };
        let shown = |sort, rows| {
            let text = rates(&all, View { sort, rows });
            text.lines()
                .map(|line| line.split_whitespace().next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        let lines = shown(Sort::Rate, Some(24));
        assert_eq!((lines.len(), &lines[1][..], &lines[20][..], &lines[21][..]), (23, "vm29", "vm10", "all"));
        assert!(
            rates(&all, View { sort: Sort::Rate, rows: Some(24) }).contains("9 more move less, 471 are idle")
        );
        let rest = |sort| rates(&all, View { sort, rows: Some(24) });
        assert!(rest(Sort::Drops).contains("\n9 more lose less, 471 are idle"));
        assert!(rest(Sort::Name).contains("\n9 more follow by name, 471 are idle"));
        assert_eq!(shown(Sort::Name, None).len(), 502);
        assert_eq!(shown(Sort::Name, Some(40))[1..3], ["vm1", "vm10"]);
    }

    #[test]
    fn drops_do_not_push_the_headings_off_the_screen() {
        let drops = |rate| [("no_destination".to_owned(), rate), ("port_down".to_owned(), 0.5)].into();
        let port = |number: u32| PortRates {
            name: format!("vm{number}"),
            rx_drops_per_s: drops(f64::from(number)),
            tx_drops_per_s: drops(1.0),
            ..PortRates::default()
        };
        let all = Rates { seconds: 1.0, ports: (0..9).map(port).collect() };
        for rows in [8, 9, 24] {
            let text = on_screen(40, || rates(&all, View { sort: Sort::Drops, rows: Some(rows) }));
            assert!(text.ends_with('\n') && text.lines().count() < rows, "{rows} rows: {text}");
            assert!(text.starts_with("VNIC") && text.contains("\nvm8 "), "{text}");
            assert_eq!(text.contains("vm8 dropped from guest:"), rows == 24, "{text}");
        }
    }
}
