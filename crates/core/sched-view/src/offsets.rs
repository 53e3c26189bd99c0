//! The offsets of the fields that the programs read, for the running kernel.

use lasthop_bpf::btf::{MemberError, TracepointError};
use lasthop_bpf::{Btf, Width};
use thiserror::Error;

const TASK: &str = "task_struct";

/// Why the programs cannot be built for this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OffsetError {
    /// A member of a structure.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A tracepoint or an argument.
    #[error(transparent)]
    Tracepoint(#[from] TracepointError),
}

/// Offsets in `struct task_struct`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskOffsets {
    pub(crate) pid: i16,
    pub(crate) cpu: i16,
    pub(crate) on_rq: i16,
    /// A byte, in kernels that let sleeping tasks stay queued.
    pub(crate) sched_delayed: Option<i16>,
}

impl TaskOffsets {
    pub(crate) fn of(btf: &Btf) -> Result<Self, OffsetError> {
        let number = |path: &str| btf.offset(TASK, path, Width::U32);
        Ok(Self {
            pid: number("pid")?,
            // The second one without CONFIG_THREAD_INFO_IN_TASK or before Linux 5.16.
            cpu: number("thread_info.cpu").or_else(|_| number("cpu"))?,
            on_rq: number("on_rq")?,
            sched_delayed: btf.offset(TASK, "se.sched_delayed", Width::U8).ok(),
        })
    }
}

/// A tracepoint that has one task as an argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskEvent {
    pub(crate) btf_id: u32,
    pub(crate) task: i16,
}

impl TaskEvent {
    pub(crate) fn of(btf: &Btf, name: &str) -> Result<Self, OffsetError> {
        let tracepoint = btf.tracepoint(name)?;
        Ok(Self { btf_id: tracepoint.btf_id(), task: tracepoint.pointer("p", TASK)? })
    }
}

/// The tracepoint `sched_switch`. Linux 5.18 added its last argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchEvent {
    pub(crate) btf_id: u32,
    pub(crate) preempt: i16,
    pub(crate) prev: i16,
    pub(crate) next: i16,
    pub(crate) prev_state: i16,
}

impl SwitchEvent {
    pub(crate) fn of(btf: &Btf) -> Result<Self, OffsetError> {
        let tracepoint = btf.tracepoint("sched_switch")?;
        Ok(Self {
            btf_id: tracepoint.btf_id(),
            preempt: tracepoint.number("preempt", Width::U8)?,
            prev: tracepoint.pointer("prev", TASK)?,
            next: tracepoint.pointer("next", TASK)?,
            prev_state: tracepoint.number("prev_state", Width::U32)?,
        })
    }
}

/// The tracepoint `sched_migrate_task`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MigrateEvent {
    pub(crate) event: TaskEvent,
    pub(crate) to_cpu: i16,
}

impl MigrateEvent {
    pub(crate) fn of(btf: &Btf) -> Result<Self, OffsetError> {
        let event = TaskEvent::of(btf, "sched_migrate_task")?;
        let to_cpu = btf.tracepoint("sched_migrate_task")?.number("dest_cpu", Width::U32)?;
        Ok(Self { event, to_cpu })
    }
}
