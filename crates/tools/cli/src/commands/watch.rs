//! `lasthop stats --watch`: rates, interval by interval.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use log::info;
use serde_json::json;

use crate::output::{clear_screen, print, print_next, screen};
use crate::rates::Rates;
use crate::show::{self, Sort, View};
use lasthop_api::report::StatsReport;
use lasthop_runtime::fault::{Fault, Kind};

use super::ask::ApiRequest;
use super::pattern::Pattern;

/// Shortest and longest interval in seconds.
const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 3600.0;

/// Time between two reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval(Duration);

impl FromStr for Interval {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let seconds =
            text.parse::<f64>().ok().filter(|seconds| (SECONDS_MIN..=SECONDS_MAX).contains(seconds));
        seconds.map(|seconds| Self(Duration::from_secs_f64(seconds))).ok_or_else(|| {
            Fault::params(format!(
                "\"{text}\" is no number of seconds from {SECONDS_MIN} to {SECONDS_MAX}; a vnic's name goes first: \
                 lasthop stats NAME --watch"
            ))
        })
    }
}

impl ApiRequest {
    /// Shows rates until it is ended, or its reader is gone.
    pub(super) fn watch(
        &self,
        names: &[Pattern],
        interval: Interval,
        sort: Option<Sort>,
    ) -> Result<ExitCode, Fault> {
        let is_screen = !self.json && std::io::stdout().is_terminal();
        let (mut before, mut asked) = (self.counters(names)?, Instant::now());
        if is_screen {
            clear_screen()?;
            print(&format!("first rates in {} s", interval.0.as_secs_f64()))?;
        }
        let mut is_read = true;
        while is_read {
            std::thread::sleep(interval.0.saturating_sub(asked.elapsed()));
            let (after, now) = (self.later_counters(names)?, Instant::now());
            if let Some(after) = &after {
                let rates = Rates::between(&before, after, now - asked);
                if is_screen {
                    clear_screen()?;
                }
                is_read = print_next(&self.block(&rates, is_screen, sort))?;
            }
            (before, asked) = (after.unwrap_or_default(), now);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The next counters; `None` while the switch process is restarting, which then counts from zero.
    fn later_counters(&self, names: &[Pattern]) -> Result<Option<StatsReport>, Fault> {
        match self.counters(names) {
            Err(fault) if fault.kind == Kind::SwitchDown => {
                info!("{fault}");
                Ok(None)
            }
            counters => counters.map(Some),
        }
    }

    /// Shows one interval: a screen, a line of JSON, or lines followed by an empty one.
    fn block(&self, rates: &Rates, is_screen: bool, sort: Option<Sort>) -> String {
        let rows = if is_screen { screen().map(|screen| screen.rows) } else { None };
        let sort = sort.unwrap_or(if is_screen { Sort::Rate } else { Sort::Name });
        let view = View { sort, rows };
        match (self.json, is_screen) {
            (true, _) => json!(rates).to_string() + "\n",
            (false, true) => show::rates(rates, view),
            (false, false) => show::rates(rates, view) + "\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_and_fractions() {
        assert_eq!("0.5".parse::<Interval>().map(|interval| interval.0), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "vm1", "nan", "3601", "inf"] {
            let fault = text.parse::<Interval>().expect_err(text);
            assert!(fault.message.contains("lasthop stats NAME --watch"), "{fault}");
        }
    }
}
