//! Measures the time that a worker spends in each stage of its work, in a random sample of its rounds; used by
//! `lasthop profile`.
//!
//! **Purpose.** A worker calls [`Stages::mark`] at the end of each stage: the time since the previous mark is added to it.
//! Marks are at the ends of stages and never inside the loop over a batch. Without a profile each mark is a branch on one
//! byte.
//!
//! **Contract.** The stages of a round and its sleep add up to its time. The round before a sampled one has marks too, and
//! its times are discarded: code and data of the marks are cold in it, and would count as the stages' time. The rounds
//! before that one are timed as a whole, for comparison. All others are counted. Memory is allocated when a profile begins.
//!
//! **Not checked.** The clock, which the caller brings: it must not fall.
//!
//! **Threading.** Everything belongs to one worker.
//!
//! ```text
//!   plain ── plain ── reference ── … ── reference ── warm-up ── sampled ── plain
//! ```
//!
//! ```text
//!   round ── visit ──────────────────────────────────────────────────────────── visit ── kicks, tasks, sleep ── round
//!            Other│Fetch│Parse│LookUp│Queue│Copy│Publish│Completion│Other│Signal
//!            └──── added to the port if there were packets, else Poll ────────┘
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_module_api::PortId;
//! use lasthop_stages::{StageMeter, Stages, WorkStage};
//!
//! // Each round is sampled. A clock that stands still shows no time.
//! let mut stages = Stages::begin(Box::new(StageMeter::new(|| 7, 1, 1)));
//! stages.next_round(0, false);
//! stages.mark(WorkStage::Copy);
//! stages.mark_visit(PortId(1), 32);
//! let profile = stages.finish().unwrap();
//! assert_eq!((profile.ports[0].0, profile.ports[0].1.packets), (PortId(1), 32));
//! ```
#![forbid(unsafe_code)]

mod meter;
mod worker_stages;

pub use meter::StageMeter;
pub use worker_stages::Stages;

use lasthop_module_api::PortId;

/// A part of a worker's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum WorkStage {
    /// Looks for kicks and takes them.
    Kick,
    /// Reads available ring and descriptors of a transmit ring.
    Fetch,
    /// Reads and checks headers.
    Parse,
    /// The module's decision.
    LookUp,
    /// Sorts by destination, claims receive rings, and finds receive buffers.
    Queue,
    /// Copies frames.
    Copy,
    /// Writes used entries and index of receive rings.
    Publish,
    /// Settles packets, and shows their senders used entries.
    Completion,
    /// Writes call eventfds, and wakes other workers.
    Signal,
    /// Tasks of the control side.
    Control,
    /// Visits and rounds without packets.
    Poll,
    /// All other work.
    Other,
}

impl WorkStage {
    /// All stages, in the order in which a packet passes them.
    pub const ALL: [Self; STAGES] = [
        Self::Kick,
        Self::Fetch,
        Self::Parse,
        Self::LookUp,
        Self::Queue,
        Self::Copy,
        Self::Publish,
        Self::Completion,
        Self::Signal,
        Self::Control,
        Self::Poll,
        Self::Other,
    ];

    /// A word for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        const NAMES: [&str; STAGES] = [
            "kick",
            "fetch",
            "parse",
            "look-up",
            "queue",
            "copy",
            "publish",
            "completion",
            "signal",
            "control",
            "poll",
            "other",
        ];
        NAMES[self as usize]
    }
}

/// Number of stages.
const STAGES: usize = 12;

/// Ticks of a counter by stage, in the order of [`WorkStage::ALL`].
pub type StageTicks = [u64; STAGES];
/// Reads a counter that never falls.
pub type TickClock = fn() -> u64;

/// Sampled visits that found packets in one port's transmit rings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortTicks {
    /// Visits.
    pub visits: u64,
    /// Packets that they took.
    pub packets: u64,
    /// Their time.
    pub ticks: StageTicks,
}

/// Rounds with packets and without sleep, of a worker alone on its thread, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTime {
    /// Rounds.
    pub rounds: u64,
    /// Ns by the engine's clock, or ticks.
    pub time: u64,
}

/// The results of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageProfile {
    /// Number of rounds.
    pub rounds: u64,
    /// Number of sampled rounds.
    pub sampled: u64,
    /// Laps that were discarded, since the thread had lost its CPU.
    pub interrupted: u64,
    /// Time in sampled rounds that belongs to no port.
    pub own: StageTicks,
    /// Ticks asleep in sampled rounds.
    pub asleep: u64,
    /// Ticks from start to end of sampled rounds, without the marks' own cost and discarded laps. It is the sum of all
    /// stages and sleep, measured independently.
    pub outside: u64,
    /// Ports with sampled visits.
    pub ports: Vec<(PortId, PortTicks)>,
    /// Reference rounds, without marks, in ns.
    pub around: RoundTime,
    /// Rounds with marks, in ns: warm-ups and sampled ones.
    pub marked: RoundTime,
    /// Sampled rounds of the same kind: the sum of their stages, in ticks.
    pub within: RoundTime,
    /// Cost of one mark in ticks, which is subtracted from the stages.
    pub mark_ticks: u64,
}
