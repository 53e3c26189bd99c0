//! Checks processes that are restarted when they end.

use super::finding::Verdict;
use lasthop_api::readable::{count, time};
use lasthop_api::report::Ended;

/// A process younger than this, after one that died, may die again.
pub(super) const YOUNG_MS: u64 = 60_000;

/// The number of a process's restarts.
#[derive(Clone, Copy)]
pub(super) struct Restarts<'a> {
    /// Its name.
    pub(super) process: &'a str,
    pub(super) number: u64,
    pub(super) last_end: Option<&'a Ended>,
    /// The remedy.
    pub(super) remedy: &'a str,
}

impl Restarts<'_> {
    /// `3 restarts`.
    pub(super) fn text(self) -> String {
        count(usize::try_from(self.number).unwrap_or(usize::MAX), "restart")
    }

    /// The finding that it is not running at present.
    pub(super) fn down(self) -> Verdict {
        Verdict::broken(self.story("does not stay up"), self.remedy)
    }

    /// The finding that it was restarted recently, after its predecessor `ended`.
    pub(super) fn young(self, ended: &str) -> Verdict {
        Verdict::warning(self.story(&format!("{ended} and was started again")), self.remedy)
    }

    fn story(self, what: &str) -> String {
        let last = |end: &Ended| format!(": the last one {} {} ago", end.why, time(end.ago_ms));
        let last = self.last_end.map(last).unwrap_or_default();
        format!("the {} process {what} ({}){last}", self.process, self.text())
    }
}
