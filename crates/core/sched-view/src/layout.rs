//! The words of the view.
//!
//! ```text
//!   word 0      ┌───────────────── CPU 0 ─────────────────┐
//!               │ occupant │ waiting │ (six words unused) │  64 bytes: a cache line, since each CPU writes its own
//!   word 8      ├───────────────── CPU 1 ─────────────────┤
//!               │ ...                                     │
//!   word 8192   ├───────────────── slot 0 ────────────────┤
//!               │ thread   │ (seven words unused)         │
//!   word 16384  └─────────────────────────────────────────┘
//!
//!               63                     24 23          12 11        2 1        0
//!   occupant    │ idle since, 1.024 us   │ 1 │ thread's number (22 bits)       │  0: not known yet
//!   thread      │ since, 1.024 us        │ generation   │ CPU       │ activity │
//!
//!               63                     32 31          24 23        12 9        0
//!   lookup      │ thread's number        │              │ generation │ slot     │  0: none
//! ```
//!
//! An entry is one word because BPF programs cannot order two stores on every machine; a sequence counter needs that.
//! Bits 24 to 63 are CLOCK_MONOTONIC in units of 1024 ns. They wrap after 13 days, so older times look younger. A
//! thread that has a CPU leaves these bits zero in the CPU's word: reading the clock is half of a switch's cost.
//! Activity 0 means that the slot is free. A slot's generation is another one for its next thread.
//!
//! A third map, the wake-ups, has a word for each slot: the worker that an event wakes when the thread goes to sleep, plus
//! 1; 0: none. The switch process sets it, the event clears it.
//!
//! The programs find a thread's slot in another map, the lookup, which only the supervisor can map: buckets of four words,
//! one for each value of a thread's lower 12 bits. A thread that is not tracked costs four loads from one cache line.

use lasthop_sched::{Activity, CpuState, Occupant, ThreadState};

/// The most CPUs of the view; further ones are not recorded. A thread's word has 10 bits for a CPU's number.
pub const CPUS_MAX: u32 = 1024;
/// The most tracked threads: those of 128 guests with eight vCPUs.
pub const THREADS_MAX: u32 = 1024;
/// Words of an entry.
pub(crate) const ENTRY_WORDS: usize = 8;
/// The shift from an entry's number to its position in bytes.
pub(crate) const ENTRY_SHIFT: i32 = 6;
/// The word of a CPU's entry that has the number of waiting threads.
pub(crate) const WAITING_WORD: usize = 1;
/// The first slot.
pub(crate) const THREADS_AT: usize = CPUS_MAX as usize * ENTRY_WORDS;
/// Words of the view.
pub(crate) const VIEW_WORDS: usize = THREADS_AT + THREADS_MAX as usize * ENTRY_WORDS;
/// The shift from ns to a unit of time.
pub(crate) const TIME_UNIT_SHIFT: u32 = 10;
/// The position of the time in a word.
pub(crate) const TIME_SHIFT: u32 = 24;
const TIME_BITS: u32 = 64 - TIME_SHIFT;
/// Bits of a thread's number: PID_MAX_LIMIT of Linux is 2^22.
pub(crate) const TID_MASK: u64 = (1 << 22) - 1;
/// Set in a CPU's word once it is known.
pub(crate) const KNOWN: u64 = 1 << 23;
/// Buckets of the lookup: four for each thread that can be tracked, so that more than [`WAYS`] threads rarely share
/// one.
pub(crate) const BUCKETS: usize = 4096;
/// Words of a bucket.
pub(crate) const WAYS: usize = 4;
/// Words of the lookup.
pub(crate) const LOOKUP_WORDS: usize = BUCKETS * WAYS;
/// Words of the wake-ups.
pub(crate) const WAKE_UP_WORDS: usize = THREADS_MAX as usize;
/// The most workers that events can wake, those of one switch.
pub const WAKERS_MAX: usize = 16;
/// Bytes of a worker's event queue: 256 events.
pub(crate) const QUEUE_BYTES: u32 = 4096;
/// The position of the thread's number in a word of the lookup.
pub(crate) const LOOKUP_TID_SHIFT: u32 = 32;
pub(crate) const GENERATION_SHIFT: u32 = 12;
pub(crate) const GENERATION_MASK: u16 = (1 << 12) - 1;
pub(crate) const CPU_SHIFT: u32 = 2;
const CPU_MASK: u64 = CPUS_MAX as u64 - 1;
const ACTIVITY_MASK: u64 = 0b11;

/// Bits of an [`Activity`].
pub(crate) mod activity {
    pub(crate) const RUNNING: u32 = 1;
    pub(crate) const RUNNABLE: u32 = 2;
    pub(crate) const BLOCKED: u32 = 3;
}

/// A slot and its generation, by which processes identify a tracked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    number: u16,
    generation: u16,
}

impl Slot {
    /// From its two numbers; `None` if they are invalid.
    #[must_use]
    pub fn new(number: u16, generation: u16) -> Option<Self> {
        let is_valid = u32::from(number) < THREADS_MAX && generation <= GENERATION_MASK;
        is_valid.then_some(Self { number, generation })
    }

    /// The number, below [`THREADS_MAX`].
    #[must_use]
    pub fn number(self) -> u16 {
        self.number
    }

    /// The generation.
    #[must_use]
    pub fn generation(self) -> u16 {
        self.generation
    }

    /// The name of the slot's next thread.
    pub(crate) fn next(self) -> Self {
        Self { generation: (self.generation + 1) & GENERATION_MASK, ..self }
    }

    /// The index of its word.
    pub(crate) fn word(self) -> usize {
        THREADS_AT + usize::from(self.number) * ENTRY_WORDS
    }

    /// The generation at its position in a word.
    fn generation_bits(self) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT
    }

    /// The word of the lookup that leads from a thread to this slot.
    pub(crate) fn lookup_word(self, tid: u32) -> u64 {
        u64::from(tid) << LOOKUP_TID_SHIFT | self.generation_bits() | u64::from(self.number)
    }
}

/// The time since that of `word`, in ns; 0 for a later time, as clocks of two CPUs may differ.
fn age_ns(word: u64, now_ns: u64) -> u64 {
    let mask = (1 << TIME_BITS) - 1;
    let age = (now_ns >> TIME_UNIT_SHIFT).wrapping_sub(word >> TIME_SHIFT) & mask;
    if age > mask / 2 { 0 } else { age << TIME_UNIT_SHIFT }
}

/// The state of a CPU, if it is known.
pub(crate) fn cpu_state(occupant: u64, waiting: u64, now_ns: u64) -> Option<CpuState> {
    let thread = (occupant & TID_MASK) as u32;
    let idle = Occupant::Idle { for_ns: age_ns(occupant, now_ns) };
    let state = CpuState {
        occupant: if thread == 0 { idle } else { Occupant::Thread(thread) },
        // Concurrent decrements of two CPUs can make it negative.
        waiting: waiting.cast_signed().clamp(0, i64::from(u32::MAX)) as u32,
    };
    (occupant & KNOWN != 0).then_some(state)
}

/// The state of the thread in a slot, if the word has that slot's generation.
pub(crate) fn thread_state(slot: Slot, word: u64, now_ns: u64) -> Option<ThreadState> {
    let generation = (word >> GENERATION_SHIFT) as u16 & GENERATION_MASK;
    let activity = match (word & ACTIVITY_MASK) as u32 {
        activity::RUNNING => Activity::Running,
        activity::RUNNABLE => Activity::Runnable,
        activity::BLOCKED => Activity::Blocked,
        _ => return None,
    };
    let cpu = (word >> CPU_SHIFT & CPU_MASK) as u16;
    (generation == slot.generation).then_some(ThreadState { activity, cpu, for_ns: age_ns(word, now_ns) })
}

/// Whether a slot's thread is gone, or has no state yet.
pub(crate) fn is_free(word: u64) -> bool {
    word & ACTIVITY_MASK == 0
}

/// The word of a thread.
pub(crate) fn thread_word(slot: Slot, activity: Activity, cpu: u16, now_ns: u64) -> u64 {
    let activity = match activity {
        Activity::Running => activity::RUNNING,
        Activity::Runnable => activity::RUNNABLE,
        Activity::Blocked => activity::BLOCKED,
    };
    let time = now_ns >> TIME_UNIT_SHIFT << TIME_SHIFT;
    let cpu = (u64::from(cpu) & CPU_MASK) << CPU_SHIFT;
    time | slot.generation_bits() | cpu | u64::from(activity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOT: Slot = Slot { number: 5, generation: 0xabc };

    #[test]
    fn slots_have_numbers_and_generations_in_range() {
        assert_eq!(
            Slot::new(1023, 0xfff).map(|slot| (slot.number(), slot.generation())),
            Some((1023, 0xfff))
        );
        assert_eq!((Slot::new(1024, 0), Slot::new(0, 0x1000)), (None, None));
        assert_eq!(Slot::new(7, 0xfff).map(Slot::next), Slot::new(7, 0));
        assert_eq!(Slot::new(1023, 0).map(Slot::word), Some(VIEW_WORDS - ENTRY_WORDS));
    }

    #[test]
    fn a_slot_s_later_thread_is_not_taken_for_the_earlier_one() {
        let word = thread_word(SLOT, Activity::Running, 3, 1 << 20);
        assert!(thread_state(SLOT, word, 1 << 20).is_some());
        assert_eq!(thread_state(SLOT.next(), word, 1 << 20), None);
    }

    #[test]
    fn a_cpu_without_a_word_is_not_known_and_counts_are_never_negative() {
        assert_eq!(cpu_state(0, 7, 1), None);
        let idle = cpu_state(1 << TIME_SHIFT | KNOWN, u64::MAX, 3 << TIME_UNIT_SHIFT).unwrap();
        assert_eq!(idle, CpuState { occupant: Occupant::Idle { for_ns: 2048 }, waiting: 0 });
        let early = cpu_state(1 << TIME_SHIFT | KNOWN, 0, 0).unwrap();
        assert_eq!(early.occupant, Occupant::Idle { for_ns: 0 }, "from a faster clock");
        let busy = cpu_state(KNOWN | 77, 2, 0).unwrap();
        assert_eq!(busy, CpuState { occupant: Occupant::Thread(77), waiting: 2 });
    }

    proptest! {
        #[test]
        fn a_word_says_what_was_put_in(
            number in 0..1024_u16, generation in 0..0x1000_u16, cpu in 0..1024_u16,
            since_ns in 0..1_u64 << 62, age_ns in 0..1_u64 << 48,
            activity in prop::sample::select(vec![Activity::Running, Activity::Runnable, Activity::Blocked]),
        ) {
            let slot = Slot::new(number, generation).unwrap();
            let word = thread_word(slot, activity, cpu, since_ns);
            let state = thread_state(slot, word, since_ns + age_ns).unwrap();
            prop_assert_eq!((state.activity, state.cpu), (activity, cpu));
            prop_assert!(state.for_ns.abs_diff(age_ns) < 1024);
        }

        /// Any word is a state, or `None`.
        #[test]
        fn any_words_will_do(words in any::<[u64; 2]>(), now_ns in any::<u64>()) {
            let [first, second] = words;
            if let Some(state) = cpu_state(first, second, now_ns) {
                prop_assert!(state.occupant != Occupant::Thread(0));
            }
            if let Some(state) = thread_state(SLOT, first, now_ns) {
                prop_assert!(u32::from(state.cpu) < CPUS_MAX);
            }
        }
    }
}
