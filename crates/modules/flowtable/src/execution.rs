//! Actions that the control plane has executed for a packet that it sent.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use lasthop_flow::Action;
use lasthop_module_api::DropReason;
use lasthop_wire::{Metadata, OuterHeader};

use crate::program::{Code, Step, read_ct};
use crate::{FlowTable, UnsupportedFlow};

/// Stands for the flow's number in userspace actions of packets that the control plane executes: this bit, and the
/// execution's number.
pub const EXECUTED: u32 = 1 << 31;

/// Words of a program that is kept with its packet: more than a bridge's usual one.
const SHORT_WORDS: usize = 4;

/// Actions as words. The main thread makes them and a worker drops them; memory of another thread's is slow to free.
#[derive(Debug)]
pub(crate) enum Program {
    Short { words: [AtomicU64; SHORT_WORDS], len: usize },
    Long(Box<[AtomicU64]>),
}

impl Program {
    fn of(program: &[u64]) -> Self {
        if program.len() > SHORT_WORDS {
            return Self::Long(program.iter().copied().map(AtomicU64::new).collect());
        }
        let word = |index| AtomicU64::new(program.get(index).copied().unwrap_or(0));
        Self::Short { words: std::array::from_fn(word), len: program.len() }
    }
}

impl Deref for Program {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Short { words, len } => words.get(..*len).unwrap_or_default(),
            Self::Long(words) => words,
        }
    }
}

/// The actions of a packet that the control plane sent.
#[derive(Debug)]
pub struct Execution {
    pub(crate) metadata: Metadata,
    pub(crate) program: Program,
    pub(crate) number: u32,
    /// The tunnel that the packet was received through.
    pub(crate) tunnel: Option<OuterHeader>,
}

impl Execution {
    /// Compiles `actions` of the control plane of `table` for a packet that is treated as received by
    /// `metadata.in_port`. Upcalls by its userspace actions name `number`, below [`EXECUTED`], in place of a flow.
    ///
    /// # Errors
    /// If an action is not supported.
    pub fn new(
        table: &FlowTable,
        metadata: Metadata,
        actions: &[Action],
        number: u32,
    ) -> Result<Self, UnsupportedFlow> {
        let program = Program::of(&table.compile(actions)?);
        Ok(Self { metadata, program, number: number | EXECUTED, tunnel: None })
    }

    /// Sets the tunnel that the packet was received through.
    #[must_use]
    pub fn with_tunnel(self, tunnel: Option<OuterHeader>) -> Self {
        Self { tunnel, ..self }
    }

    /// Resumes suspended actions ([`UpcallReason::Suspended`](lasthop_module_api::UpcallReason::Suspended)) for the
    /// whole packet; `flow` and `words` are those of the fragment that arrived last. `None` if the words are not from a
    /// flow table.
    #[must_use]
    pub fn resumed(metadata: Metadata, flow: u32, words: &[u64]) -> Option<Self> {
        suspended_zone(words)?;
        let program = Program::of(words);
        Some(Self { metadata, program, number: flow, tunnel: None })
    }

    /// As [`Self::resumed`], for a packet whose bytes are all in `frame`. The first action, `ct`, is executed here,
    /// since it needs more of the packet than a worker sees. The packet was received by `port` at `now_ms`
    /// (CLOCK_MONOTONIC).
    ///
    /// # Errors
    /// The reason to drop the packet.
    pub fn resumed_behind_ct(
        table: &FlowTable,
        mut metadata: Metadata,
        (flow, words): (u32, &[u64]),
        frame: &mut Vec<u8>,
        (port, now_ms): (u16, u64),
    ) -> Result<Self, DropReason> {
        let impossible = DropReason::ActionImpossible;
        suspended_zone(words).ok_or(impossible)?;
        let rest = Program::of(words.get(1..).unwrap_or_default());
        let (request, len) = read_ct(Step(words.first().copied().ok_or(impossible)?), &rest);
        table.tracking.track_whole((frame, &mut metadata.ct), &request, (port, now_ms))?;
        let program = Program::of(words.get(1 + len..).unwrap_or_default());
        Ok(Self { metadata, program, number: flow, tunnel: None })
    }
}

/// The zone of the `ct` action at the start of suspended actions; `None` if they start with another action.
#[must_use]
pub fn suspended_zone(words: &[u64]) -> Option<u16> {
    let step = Step(*words.first()?);
    step.is(Code::Ct).then(|| step.operand(0, 16) as u16)
}
