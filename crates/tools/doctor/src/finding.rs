//! The doctor's findings: one for each link of each vnic, and some for the switch and its host, such as the restarts of
//! a process.

use lasthop_api::readable::{count, time};
use lasthop_api::report::Ended;
use lasthop_runtime::procfs;
use serde::Serialize;

/// The state of a link, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum State {
    /// Packets do not pass here.
    #[serde(rename = "not ok")]
    NotOk,
    /// Packets pass, but something is lost or slower than it could be.
    #[serde(rename = "warning")]
    Warning,
    /// Unknown, mostly since an earlier link is broken.
    #[serde(rename = "unknown")]
    Unknown,
    #[serde(rename = "ok")]
    Ok,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NotOk => "not ok",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Ok => "ok",
        }
    }
}

/// The conditions for packets to pass, in the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Link {
    /// The machine: limits, CPUs.
    Host,
    /// The switch process.
    Switch,
    /// The vnic's socket.
    Socket,
    /// A front end at the other end of it.
    Peer,
    /// Features agreed with the guest's driver.
    Negotiation,
    /// The guest's memory.
    Memory,
    /// Its virtqueues.
    Rings,
    /// The link state that the guest is told.
    #[serde(rename = "link")]
    Cable,
    /// Addresses behind the port.
    Learning,
    /// Packets lost.
    Drops,
    /// The network device of a port.
    Device,
    /// The process that serves it.
    Driver,
    /// The process that decides about packets without a flow.
    Controller,
}

impl Link {
    /// The chain of one vnic.
    pub(crate) const CHAIN: [Self; 8] = [
        Self::Socket,
        Self::Peer,
        Self::Negotiation,
        Self::Memory,
        Self::Rings,
        Self::Cable,
        Self::Learning,
        Self::Drops,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Switch => "switch",
            Self::Socket => "socket",
            Self::Peer => "peer",
            Self::Negotiation => "negotiation",
            Self::Memory => "memory",
            Self::Rings => "rings",
            Self::Cable => "link",
            Self::Learning => "learning",
            Self::Drops => "drops",
            Self::Device => "device",
            Self::Driver => "driver",
            Self::Controller => "controller",
        }
    }
}

/// One sentence about one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) state: State,
    /// `None` for the switch and the host.
    pub(crate) vnic: Option<String>,
    pub(crate) link: Link,
    pub(crate) text: String,
    pub(crate) remedy: Option<String>,
    /// Nothing is wrong but that a guest is off, as guests may be.
    #[serde(skip)]
    pub(crate) is_absence: bool,
}

/// The verdict about links after a broken one.
pub(crate) const NOT_REACHED: &str = "not reached";

/// A judgement about a link, before it belongs to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) state: State,
    pub(crate) text: String,
    pub(crate) remedy: Option<String>,
    is_absence: bool,
}

impl Verdict {
    /// A verdict without a remedy.
    pub(crate) fn of(state: State, text: impl Into<String>) -> Self {
        Self { state, text: text.into(), remedy: None, is_absence: false }
    }

    pub(crate) fn with(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self::of(State::Ok, text)
    }

    /// Nothing is wrong, and something could be better.
    pub(crate) fn hint(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::ok(text).with(remedy)
    }

    pub(crate) fn unknown(text: impl Into<String>) -> Self {
        Self::of(State::Unknown, text)
    }

    /// The verdict about a link after a broken one.
    pub(crate) fn not_reached() -> Self {
        Self::unknown(NOT_REACHED)
    }

    pub(crate) fn broken(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::of(State::NotOk, text).with(remedy)
    }

    /// The verdict that a guest is off.
    pub(crate) fn absent(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { is_absence: true, ..Self::broken(text, remedy) }
    }

    pub(crate) fn warning(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::of(State::Warning, text).with(remedy)
    }

    pub(crate) fn about(self, vnic: Option<&str>, link: Link) -> Finding {
        let Self { state, text, remedy, is_absence } = self;
        Finding { state, vnic: vnic.map(str::to_owned), link, text, remedy, is_absence }
    }
}

/// The finding that a process was stopped by a signal, and its effect.
pub(super) fn stopped(process: &str, pid: u32, effect: &str) -> Option<Verdict> {
    procfs::is_stopped(pid).then(|| {
        Verdict::broken(
            format!("the {process} process {pid} is stopped (T): {effect}"),
            format!("continue it: kill -CONT {pid}"),
        )
    })
}

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
