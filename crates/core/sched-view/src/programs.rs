//! The BPF programs that write the view.
//!
//! Each runs with interrupts off, in the kernel's scheduler: a few dozen instructions, no loop. The clock is read only for
//! threads that are tracked, and for a CPU that becomes idle. A thread that goes to sleep makes an event if the switch
//! process has asked for it.

use lasthop_bpf::{
    Assembler, CodeError, Condition, Label, Licence, LoadError, Map, Operand, Operation, Program,
    ProgramKind, Register, Width, helper,
};
use thiserror::Error;

use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

use crate::layout::{
    BUCKETS, CPU_SHIFT, CPUS_MAX, ENTRY_SHIFT, GENERATION_MASK, GENERATION_SHIFT, KNOWN, LOOKUP_TID_SHIFT,
    THREADS_AT, THREADS_MAX, TID_MASK, TIME_SHIFT, TIME_UNIT_SHIFT, WAITING_WORD, WAKERS_MAX, WAYS, activity,
};
use crate::offsets::{MigrateEvent, SwitchEvent, TaskEvent, TaskOffsets};

const WORD_BYTES: usize = 8;
/// The shift from a slot's number to the position of its wake-up in bytes.
const WAKE_UP_SHIFT: i32 = 3;
const WAITING: i16 = (WAITING_WORD * WORD_BYTES) as i16;
/// TASK_DEAD (linux/sched.h): the last switch of a thread that has ended.
const TASK_DEAD: u32 = 0x80;
/// The shift from a bucket's number to its position in bytes.
const BUCKET_SHIFT: i32 = 5;
/// The place of a lookup word on a program's stack.
const FOUND: i16 = -8;
/// The place of the lookup word of a thread that goes to sleep.
const SLEEPER: i16 = FOUND - 8;

/// The mask of the generation in a word.
const GENERATION_BITS: i32 = (GENERATION_MASK as i32) << GENERATION_SHIFT;

const _: () = assert!(WAYS * WORD_BYTES == 1 << BUCKET_SHIFT);

/// Why a program could not be loaded.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    #[error(transparent)]
    Code(#[from] CodeError),
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The maps of all programs.
#[derive(Debug)]
pub(crate) struct ViewMaps {
    /// `layout`: frozen, so that only programs write it.
    pub(crate) view: Map,
    /// `layout`: the slots of tracked threads.
    pub(crate) lookup: Map,
    /// `layout`: the workers to be woken by events.
    pub(crate) wake_ups: Map,
    /// The workers' event queues.
    pub(crate) queues: [Map; WAKERS_MAX],
    /// The same for programs, by the worker's number.
    pub(crate) queue_of_worker: Map,
}

/// A program under construction, with the parts that all programs share.
struct Code<'maps> {
    code: Assembler<'maps>,
    maps: &'maps ViewMaps,
    /// The end of the program.
    out: Label,
}

impl<'maps> Code<'maps> {
    fn new(maps: &'maps ViewMaps) -> Self {
        let mut code = Assembler::new();
        let out = code.label();
        Self { code, maps, out }
    }

    fn load(mut self, kind: ProgramKind, licence: Licence, name: &str) -> Result<Program, ProgramError> {
        self.code.place(self.out).set(R0, 0).exit();
        Ok(Program::load(kind, licence, name, &self.code.finish()?)?)
    }

    /// Sets `to` to the address of the entry of CPU `cpu`; ends the program if the CPU is not in the view.
    fn cpu_entry(&mut self, to: Register, cpu: Register) {
        self.code.jump_if(Condition::AtLeast, cpu, CPUS_MAX.cast_signed(), self.out);
        self.code.copy(R3, cpu).compute(Operation::ShiftLeft, R3, ENTRY_SHIFT);
        self.code.set_map_value(to, &self.maps.view).compute(Operation::Add, to, R3);
    }

    /// Decrements the waiting threads at `entry`; changes r3.
    fn wait_ends(&mut self, entry: Register) {
        let none = self.code.label();
        self.code.load(Width::U64, R3, entry, WAITING);
        self.code.jump_if(Condition::Equal, R3, 0, none);
        self.code.compute(Operation::Copy, R3, -1).atomic_add(entry, WAITING, R3).place(none);
    }

    /// Increments the waiting threads at `entry`; changes r3.
    fn wait_begins(&mut self, entry: Register) {
        self.code.compute(Operation::Copy, R3, 1).atomic_add(entry, WAITING, R3);
    }

    /// Sets `to` to the time, at its position in a word; changes r0 to r5.
    fn time(&mut self, to: Register) {
        self.code.call(helper::KTIME_NS).copy(to, R0);
        self.code.compute(Operation::ShiftRight, to, TIME_UNIT_SHIFT.cast_signed());
        self.code.compute(Operation::ShiftLeft, to, TIME_SHIFT.cast_signed());
    }

    /// Sets r2 to the address of the word of `thread` in the lookup, and r3 to that word; jumps to `otherwise` if it is
    /// not tracked. Changes r1 to r4.
    fn find(&mut self, thread: Register, otherwise: Label) {
        let found = self.code.label();
        // The idle task has number 0, as words without a thread.
        self.code.jump_if(Condition::Equal, thread, 0, otherwise);
        self.code.copy(R1, thread).compute(Operation::And, R1, BUCKETS as i32 - 1);
        self.code.compute(Operation::ShiftLeft, R1, BUCKET_SHIFT);
        self.code.set_map_value(R2, &self.maps.lookup).compute(Operation::Add, R2, R1);
        for way in 0..WAYS {
            if way > 0 {
                self.code.compute(Operation::Add, R2, WORD_BYTES as i32);
            }
            self.code.load(Width::U64, R3, R2, 0).copy(R4, R3);
            self.code.compute(Operation::ShiftRight, R4, LOOKUP_TID_SHIFT.cast_signed());
            self.code.jump_if(Condition::Equal, R4, thread, found);
        }
        self.code.jump(otherwise).place(found);
    }

    /// Sets `to` to the address of slot `number`, a register that changes.
    fn slot_address(&mut self, to: Register, number: Register) {
        self.code.compute(Operation::And, number, THREADS_MAX.cast_signed() - 1);
        self.code.compute(Operation::ShiftLeft, number, ENTRY_SHIFT);
        self.code.compute(Operation::Add, number, (THREADS_AT * WORD_BYTES) as i32);
        self.code.set_map_value(to, &self.maps.view).compute(Operation::Add, to, number);
    }

    /// Writes a found thread's word: generation and slot from r3, time r8 (read if that is 0), CPU r7. Changes r0 to
    /// r5.
    fn write_thread(&mut self, activity: impl Into<Operand>) {
        let timed = self.code.label();
        self.code.jump_if(Condition::NotEqual, R8, 0, timed).store(Width::U64, R10, FOUND, R3);
        self.time(R8);
        self.code.load(Width::U64, R3, R10, FOUND).place(timed);
        self.code.copy(R2, R3).compute(Operation::And, R2, GENERATION_BITS);
        self.slot_address(R1, R3);
        self.code.compute(Operation::Or, R2, R8).copy(R4, R7);
        self.code.compute(Operation::ShiftLeft, R4, CPU_SHIFT.cast_signed());
        self.code.compute(Operation::Or, R2, R4).compute(Operation::Or, R2, activity);
        self.code.store(Width::U64, R1, 0, R2);
    }

    /// Makes the event that the switch process has asked for, now that the thread of the lookup word at `SLEEPER` sleeps.
    /// If there is none, jumps to `done`. Changes r0 to r5.
    fn wake_worker(&mut self, done: Label) {
        self.code.load(Width::U64, R3, R10, SLEEPER);
        self.code.compute(Operation::And, R3, THREADS_MAX.cast_signed() - 1);
        self.code.compute(Operation::ShiftLeft, R3, WAKE_UP_SHIFT);
        self.code.set_map_value(R1, &self.maps.wake_ups).compute(Operation::Add, R1, R3);
        self.code.load(Width::U64, R4, R1, 0).jump_if(Condition::Equal, R4, 0, done);
        self.code.store(Width::U64, R1, 0, 0);
        self.code.compute(Operation::Add, R4, -1).store(Width::U32, R10, SLEEPER, R4);
        self.code.set_map(R1, &self.maps.queue_of_worker).copy(R2, R10);
        self.code.compute(Operation::Add, R2, i32::from(SLEEPER)).call(helper::MAP_LOOKUP);
        self.code.jump_if(Condition::Equal, R0, 0, done).copy(R1, R0).copy(R2, R10);
        self.code.compute(Operation::Add, R2, i32::from(SLEEPER)).set(R3, WORD_BYTES as u32);
        self.code.set(R4, helper::FORCE_WAKE_UP).call(helper::RING_BUFFER_OUTPUT);
    }

    /// Sets r9 to the task that the context, r1, has at `offset`, and r6 to its thread's number.
    fn task(&mut self, offset: i16, task: &TaskOffsets) {
        self.code.load(Width::U64, R9, R1, offset).load(Width::U32, R6, R9, task.pid);
    }
}

/// For `sched_switch`: records the CPU's next occupant, the waiting threads, and the states of the two threads if they
/// are tracked. Makes an event if prev goes to sleep and the switch process has asked for that.
///
/// r6: the context, later prev's activity; r7: the CPU; r8: the time, 0 while unknown; r9: next's number; on the stack:
/// prev's.
pub(crate) fn on_switch(
    maps: &ViewMaps,
    event: &SwitchEvent,
    task: &TaskOffsets,
) -> Result<Program, ProgramError> {
    const PREV: i16 = FOUND - 16;
    let mut view = Code::new(maps);
    view.code.copy(R6, R1).call(helper::CPU).copy(R7, R0);
    view.code.load(Width::U64, R9, R6, event.next).load(Width::U32, R9, R9, task.pid);
    view.code.load(Width::U64, R4, R6, event.prev).load(Width::U32, R4, R4, task.pid);
    view.code.store(Width::U32, R10, PREV, R4);
    view.enter_occupant();
    view.count_switch(event);

    let prev_done = view.code.label();
    let goes_on = view.code.label();
    view.code.load(Width::U32, R5, R10, PREV);
    view.find(R5, prev_done);
    // Another thread may soon have its number.
    view.code.jump_if(Condition::NotEqual, R6, 0, goes_on).store(Width::U64, R2, 0, 0).place(goes_on);
    view.code.store(Width::U64, R10, SLEEPER, R3);
    view.write_thread(R6);
    view.code.jump_if(Condition::NotEqual, R6, activity::BLOCKED.cast_signed(), prev_done);
    view.wake_worker(prev_done);
    view.code.place(prev_done);
    view.find(R9, view.out);
    view.write_thread(activity::RUNNING.cast_signed());
    view.load(ProgramKind::Tracing { btf_id: event.btf_id }, Licence::MitOrGpl, "lasthop_switch")
}

impl Code<'_> {
    /// Records that the CPU, r7, has next, r9; r8 becomes the time if next is the idle task, otherwise 0; r2 the CPU's
    /// entry.
    fn enter_occupant(&mut self) {
        let busy = self.code.label();
        self.code.compute(Operation::Copy, R8, 0).jump_if(Condition::NotEqual, R9, 0, busy);
        self.time(R8);
        self.code.place(busy);
        self.cpu_entry(R2, R7);
        self.code.copy(R3, R8).compute(Operation::Or, R3, R9).compute(Operation::Or, R3, KNOWN as i32);
        self.code.store(Width::U64, R2, 0, R3);
    }

    /// Counts the threads that wait for the CPU with the entry r2, after prev, r4, was replaced by next, r9. r6, the
    /// context, becomes prev's activity.
    fn count_switch(&mut self, event: &SwitchEvent) {
        let [waits, blocks, sleeps, idles, counted] = [0; 5].map(|_| self.code.label());
        // The idle task never waits, and prev waits if it was preempted or yielded. The slot of an ended thread is
        // free.
        self.code.load(Width::U64, R1, R6, event.preempt).load(Width::U64, R3, R6, event.prev_state);
        self.code.compute(Operation::Copy, R6, 0);
        self.code.jump_if(Condition::AnySet, R3, TASK_DEAD.cast_signed(), sleeps);
        self.code.compute(Operation::Copy, R6, activity::BLOCKED.cast_signed()).place(sleeps);
        self.code.jump_if(Condition::Equal, R9, 0, idles).jump_if(Condition::Equal, R4, 0, blocks);
        self.code.jump_if_low(Condition::NotEqual, R1, 0, waits);
        self.code.jump_if_low(Condition::NotEqual, R3, 0, blocks);
        // Next's wait ends, prev's begins, so the number stays, apart from earlier waits that were missed.
        self.code.place(waits).compute(Operation::Copy, R6, activity::RUNNABLE.cast_signed());
        self.code.load(Width::U64, R3, R2, WAITING).jump_if(Condition::SignedAbove, R3, 0, counted);
        self.code.store(Width::U64, R2, WAITING, 1).jump(counted);
        self.code.place(blocks);
        self.wait_ends(R2);
        self.code.jump(counted);
        // Threads that waited elsewhere were counted there; on an idle CPU none waits.
        self.code.place(idles).store(Width::U64, R2, WAITING, 0);
        self.code.place(counted);
    }
}

/// For `sched_wakeup` and `sched_wakeup_new`: one more thread waits for its CPU.
///
/// r6: the thread's number; r7: its CPU; r8: the time; r9: the task.
pub(crate) fn on_wake_up(
    maps: &ViewMaps,
    event: &TaskEvent,
    task: &TaskOffsets,
) -> Result<Program, ProgramError> {
    let mut view = Code::new(maps);
    view.task(event.task, task);
    view.code.load(Width::U32, R7, R9, task.cpu);
    view.cpu_entry(R2, R7);
    // A thread that was about to sleep, and still has its CPU, does not wait.
    view.code.load(Width::U64, R3, R2, 0).compute(Operation::And, R3, TID_MASK as i32);
    view.code.jump_if(Condition::Equal, R3, R6, view.out);
    view.wait_begins(R2);
    view.code.compute(Operation::Copy, R8, 0);
    view.find(R6, view.out);
    view.write_thread(activity::RUNNABLE.cast_signed());
    view.load(ProgramKind::Tracing { btf_id: event.btf_id }, Licence::MitOrGpl, "lasthop_wake_up")
}

/// For `sched_migrate_task`: a waiting thread now waits for another CPU. A sleeping one is counted when it wakes.
///
/// r6: the thread's number; r7: its new CPU; r8: the time; r9: the task.
pub(crate) fn on_migration(
    maps: &ViewMaps,
    migration: &MigrateEvent,
    task: &TaskOffsets,
) -> Result<Program, ProgramError> {
    let mut view = Code::new(maps);
    view.code.load(Width::U64, R7, R1, migration.to_cpu);
    view.task(migration.event.task, task);
    view.code.load(Width::U32, R2, R9, task.on_rq).jump_if(Condition::Equal, R2, 0, view.out);
    if let Some(sched_delayed) = task.sched_delayed {
        view.code.load(Width::U8, R2, R9, sched_delayed).jump_if(Condition::NotEqual, R2, 0, view.out);
    }
    view.code.load(Width::U32, R4, R9, task.cpu);
    view.cpu_entry(R2, R4);
    view.wait_ends(R2);
    view.cpu_entry(R2, R7);
    view.wait_begins(R2);
    view.code.compute(Operation::Copy, R8, 0);
    view.find(R6, view.out);
    view.write_thread(activity::RUNNABLE.cast_signed());
    let kind = ProgramKind::Tracing { btf_id: migration.event.btf_id };
    view.load(kind, Licence::MitOrGpl, "lasthop_migrate")
}

/// Runs on each CPU at the start, as an idle CPU would have no word until its first event: records its occupant.
pub(crate) fn enter_cpu(maps: &ViewMaps) -> Result<Program, ProgramError> {
    let mut view = Code::new(maps);
    view.code.call(helper::PID_TGID).copy(R9, R0).compute(Operation::And, R9, TID_MASK as i32);
    view.code.call(helper::CPU).copy(R7, R0);
    view.enter_occupant();
    view.code.store(Width::U64, R2, WAITING, 0);
    view.load(ProgramKind::RawTracepoint, Licence::Apache, "lasthop_cpu")
}

/// Runs with a slot's number, an earlier and a later word: the later one replaces the earlier one if that is unchanged.
/// So a sleeping thread has a state before it wakes.
pub(crate) fn enter_thread(maps: &ViewMaps) -> Result<Program, ProgramError> {
    let mut view = Code::new(maps);
    view.code.load(Width::U64, R4, R1, 0).load(Width::U64, R0, R1, 8).load(Width::U64, R6, R1, 16);
    view.slot_address(R2, R4);
    view.code.atomic_compare_exchange(R2, 0, R6);
    view.load(ProgramKind::RawTracepoint, Licence::Apache, "lasthop_thread")
}
