//! The data movement table of a switch: a row for each receive queue of each guest in the view (Liao and Bhuyan, 4.4).
//!
//! ```text
//!   worker: visit ──delivered──> row of the queue: does its vCPU run? who touched it last? near which CPU?
//!   worker: large frames ──> row ──> a helper near that CPU      `lasthop sched show --table` ──> all rows
//! ```
//!
//! A row is a word that all workers share; the one that delivers updates it, once in [`ROW_NS`] at most. The decisions
//! are those of `lasthop_sched::QueueRow`. Without a view, or with the policy off, there is no table.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use lasthop_fabric::RingId;
use lasthop_fabric::bounds::QUEUE_PAIRS_MAX;
use lasthop_module_api::{PORTS_MAX, PortId};
use lasthop_sched::{Activity, CpuDistance, Landing, LastTouch, QueueRow, VcpuRule, distance, wake_hint};

use crate::scheduler_view::SchedulerView;

/// Shortest time between two updates of a row, in ns. An update reads a word that another CPU may have written.
const ROW_NS: u64 = 20_000;
/// Shortest time between two searches for the thread of a guest that ran last, in ns: one reads up to 256 words.
const SEARCH_NS: u64 = 1_000_000;
/// The most rows of a report: 16 guests with 64 queues each, or 1024 with one.
pub const REPORTED_ROWS_MAX: usize = 1024;

/// A row for a report, with the present state of its vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRow {
    /// The receive queue.
    pub ring: RingId,
    /// The index of its vCPU among the guest's threads, if one is known.
    pub vcpu: Option<usize>,
    /// Its thread's number on the host.
    pub tid: Option<u32>,
    /// Why this one.
    pub rule: VcpuRule,
    /// The row.
    pub row: QueueRow,
    /// The CPUs on which a sleeping vCPU would find its packets in the last-level cache; empty if that is no choice.
    pub hint: Vec<usize>,
}

/// The rows of all guests in the view.
#[derive(Debug)]
pub(crate) struct MovementTable(Vec<Option<Box<GuestRows>>>);

/// The rows of a port's guest.
#[derive(Debug)]
struct GuestRows {
    /// The thread that ran last, plus 1, and when it was searched.
    last_ran: AtomicU16,
    searched_ns: AtomicU64,
    rows: [RowWord; QUEUE_PAIRS_MAX as usize],
}

/// A row that workers share, and the time of its last update.
#[derive(Debug, Default)]
struct RowWord {
    word: AtomicU64,
    /// The index of its vCPU, plus 1.
    vcpu: AtomicU16,
    updated_ns: AtomicU64,
}

/// Packets of one visit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) port: PortId,
    /// The receive queues that they went to, as bits.
    pub(crate) queues: u64,
    /// Number of open receive queues.
    pub(crate) open: u32,
    /// The CPU that wrote.
    pub(crate) writer: u16,
    pub(crate) now_ns: u64,
}

impl Default for GuestRows {
    fn default() -> Self {
        let rows = std::array::from_fn(|_| RowWord::default());
        Self { last_ran: AtomicU16::new(0), searched_ns: AtomicU64::new(0), rows }
    }
}

impl RowWord {
    /// Continues a row of the former table.
    fn take_over(&self, former: &Self) {
        self.word.store(former.word.load(Ordering::Relaxed), Ordering::Relaxed);
        self.vcpu.store(former.vcpu.load(Ordering::Relaxed), Ordering::Relaxed);
        self.updated_ns.store(former.updated_ns.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn load(&self) -> QueueRow {
        row_of(self.word.load(Ordering::Relaxed))
    }

    /// An unchanged word keeps its cache line.
    fn store(&self, row: QueueRow) {
        let word = word_of(row);
        if self.word.load(Ordering::Relaxed) != word {
            self.word.store(word, Ordering::Relaxed);
        }
    }
}

impl GuestRows {
    /// The thread that ran last, from a search of the last millisecond.
    fn last_ran(&self, view: &dyn SchedulerView, port: PortId, now_ns: u64) -> Option<usize> {
        if now_ns.saturating_sub(self.searched_ns.load(Ordering::Relaxed)) >= SEARCH_NS {
            self.searched_ns.store(now_ns, Ordering::Relaxed);
            let found = view.last_vcpu(port).and_then(|index| u16::try_from(index + 1).ok());
            self.last_ran.store(found.unwrap_or(0), Ordering::Relaxed);
        }
        usize::from(self.last_ran.load(Ordering::Relaxed)).checked_sub(1)
    }

    fn deliver(&self, view: &dyn SchedulerView, to: &Delivery, queue: usize) -> Option<Landing> {
        let cell = self.rows.get(queue)?;
        let since_ns = to.now_ns.saturating_sub(cell.updated_ns.load(Ordering::Relaxed));
        if since_ns < ROW_NS {
            return None;
        }
        let vcpus = view.vcpus(to.port);
        let rule = VcpuRule::new(vcpus, to.open as usize)?;
        let vcpu = rule.vcpu(queue, vcpus, || self.last_ran(view, to.port, to.now_ns));
        let mut row = cell.load();
        let landing = row.deliver(vcpu.and_then(|vcpu| view.vcpu(to.port, vcpu)), since_ns, to.writer);
        cell.store(row);
        cell.vcpu.store(vcpu.map_or(0, |vcpu| vcpu as u16 + 1), Ordering::Relaxed);
        cell.updated_ns.store(to.now_ns, Ordering::Relaxed);
        landing
    }
}

impl MovementTable {
    /// A table for the guests of `view`. Rows of ports that `former` has are kept: one of an earlier guest costs a decision
    /// at most.
    pub(crate) fn new(view: &dyn SchedulerView, former: Option<&Self>) -> Self {
        let rows = |number: usize| {
            let port = PortId(number as u16);
            (view.vcpus(port).count > 0).then(|| {
                let rows = Box::<GuestRows>::default();
                if let Some(former) = former.and_then(|former| former.guest(port)) {
                    rows.rows.iter().zip(&former.rows).for_each(|(row, former)| row.take_over(former));
                }
                rows
            })
        };
        Self((0..PORTS_MAX).map(rows).collect())
    }

    fn guest(&self, port: PortId) -> Option<&GuestRows> {
        self.0.get(port.index())?.as_deref()
    }

    /// Updates the rows of the queues that packets went to. Reports each landing by the distance of its CPUs.
    pub(crate) fn deliver(
        &self,
        view: &dyn SchedulerView,
        to: &Delivery,
        mut landed: impl FnMut(CpuDistance),
    ) {
        let Some(guest) = self.guest(to.port) else { return };
        let mut left = to.queues;
        while left != 0 {
            let queue = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(Landing { wrote, ran }) = guest.deliver(view, to, queue) {
                landed(distance(view.places(), usize::from(wrote), usize::from(ran)));
            }
        }
    }

    /// The CPU near which copies for a receive queue are made, by the present state of its vCPU, and the CPU of that vCPU;
    /// `None` if they are not known. A queue without a delivery so far has none.
    pub(crate) fn cpus(&self, view: &dyn SchedulerView, ring: RingId) -> Option<(u16, u16)> {
        let cell = self.guest(ring.port)?.rows.get(usize::from(ring.queue))?;
        let vcpu = usize::from(cell.vcpu.load(Ordering::Relaxed)).checked_sub(1)?;
        let (vcpu, mut row) = (view.vcpu(ring.port, vcpu)?, cell.load());
        row.observe(Some(vcpu), 0);
        row.cpu.map(|cpu| (cpu, vcpu.cpu))
    }
}

/// A row as a word: activity in bits 0 and 1, last touch in bits 2 and 3, then a bit and the CPU. 0: nothing is known.
fn word_of(row: QueueRow) -> u64 {
    let activity = match row.activity {
        None => 0,
        Some(Activity::Running) => 1,
        Some(Activity::Runnable) => 2,
        Some(Activity::Blocked) => 3,
    };
    let touch = match row.last_touch {
        None => 0,
        Some(LastTouch::Switch) => 1 << 2,
        Some(LastTouch::Scheduler) => 2 << 2,
    };
    activity | touch | row.cpu.map_or(0, |cpu| 1 << 4 | u64::from(cpu) << 5)
}

fn row_of(word: u64) -> QueueRow {
    let activity = match word & 3 {
        1 => Some(Activity::Running),
        2 => Some(Activity::Runnable),
        3 => Some(Activity::Blocked),
        _ => None,
    };
    let last_touch = match word >> 2 & 3 {
        1 => Some(LastTouch::Switch),
        2 => Some(LastTouch::Scheduler),
        _ => None,
    };
    QueueRow { activity, last_touch, cpu: (word & 1 << 4 != 0).then_some((word >> 5) as u16) }
}

/// The row of a queue of a guest with `open` receive queues. `last_ran` finds the guest's thread that ran last. Without a table it has the state of its vCPU alone.
pub(crate) fn reported(
    view: &dyn SchedulerView,
    table: Option<&MovementTable>,
    (ring, open): (RingId, usize),
    last_ran: &dyn Fn() -> Option<usize>,
    now_ns: u64,
) -> Option<ReportedRow> {
    let vcpus = view.vcpus(ring.port);
    let rule = VcpuRule::new(vcpus, open)?;
    let vcpu = rule.vcpu(usize::from(ring.queue), vcpus, last_ran);
    let cell = table.and_then(|table| table.guest(ring.port)?.rows.get(usize::from(ring.queue)));
    let mut row = cell.map(RowWord::load).unwrap_or_default();
    let updated_ns = cell.map_or(0, |cell| cell.updated_ns.load(Ordering::Relaxed));
    row.observe(vcpu.and_then(|vcpu| view.vcpu(ring.port, vcpu)), now_ns.saturating_sub(updated_ns));
    let hint = wake_hint(&row, view.places(), |_| true).into_iter().flatten().collect();
    let tid = vcpu.and_then(|vcpu| view.vcpu_tid(ring.port, vcpu));
    Some(ReportedRow { ring, vcpu, tid, rule, row, hint })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_sched::{CpuPlace, CpuState, GuestVcpus, GuestView, ThreadState};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    const PORT: PortId = PortId(3);

    /// A view of one guest on eight CPUs, four in each last-level cache.
    #[derive(Debug)]
    struct TestView {
        threads: Mutex<Vec<ThreadState>>,
        places: Vec<CpuPlace>,
        reads: AtomicUsize,
    }

    impl TestView {
        fn new(threads: impl IntoIterator<Item = ThreadState>) -> Self {
            let places = (0..8).map(|cpu| CpuPlace { group: cpu, llc: cpu / 4, node: cpu / 4 }).collect();
            Self { threads: Mutex::new(threads.into_iter().collect()), places, reads: AtomicUsize::new(0) }
        }

        fn set(&self, index: usize, activity: Activity, cpu: u16) {
            self.threads.lock().unwrap()[index] = state(activity, cpu);
        }
    }

    impl SchedulerView for TestView {
        fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
            None
        }

        fn cpu(&self, _: u16) -> Option<CpuState> {
            None
        }

        fn vcpus(&self, port: PortId) -> GuestVcpus {
            let count = if port == PORT { self.threads.lock().unwrap().len() } else { 0 };
            GuestVcpus { count, is_ordered: false }
        }

        fn vcpu(&self, _: PortId, index: usize) -> Option<ThreadState> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.threads.lock().unwrap().get(index).copied()
        }

        fn last_vcpu(&self, _: PortId) -> Option<usize> {
            let threads = self.threads.lock().unwrap();
            self.reads.fetch_add(threads.len(), Ordering::Relaxed);
            lasthop_sched::last_ran(threads.iter().copied().map(Some))
        }

        fn places(&self) -> &[CpuPlace] {
            &self.places
        }
    }

    fn state(activity: Activity, cpu: u16) -> ThreadState {
        ThreadState { activity, cpu, for_ns: u64::MAX }
    }

    fn delivery(queues: u64, open: u32, now_ns: u64) -> Delivery {
        Delivery { port: PORT, queues, open, writer: 1, now_ns }
    }

    fn ring(queue: u16) -> RingId {
        RingId { port: PORT, queue }
    }

    #[test]
    fn each_queue_has_the_cpu_of_its_vcpu_and_sleepers_that_of_the_writer() {
        let view = TestView::new([state(Activity::Running, 2), state(Activity::Blocked, 6)]);
        let (table, mut landed) = (MovementTable::new(&view, None), Vec::new());
        let cpus = |table: &MovementTable| [0, 1].map(|queue| table.cpus(&view, ring(queue)));
        assert_eq!(cpus(&table), [None, None], "no packets so far");
        table.deliver(&view, &delivery(0b11, 2, ROW_NS), |distance| landed.push(distance));
        assert_eq!(cpus(&table), [Some((2, 2)), Some((1, 6))]);
        let reported =
            reported(&view, Some(&table), (ring(1), 2), &|| view.last_vcpu(PORT), 2 * ROW_NS).unwrap();
        assert_eq!((reported.vcpu, reported.rule), (Some(1), VcpuRule::SameNumber));
        assert_eq!((reported.row.last_touch, reported.hint), (Some(LastTouch::Switch), vec![0, 1, 2, 3]));
        view.set(1, Activity::Running, 6);
        assert_eq!(cpus(&table), [Some((2, 2)), Some((6, 6))], "at once, without a delivery");
        let kept = MovementTable::new(&view, Some(&table));
        assert_eq!(kept.guest(PORT).unwrap().rows[1].load().last_touch, Some(LastTouch::Switch));
        assert!(kept.guest(PortId(1)).is_none());
    }

    #[test]
    fn landings_are_counted_by_their_distance() {
        let view = TestView::new([state(Activity::Blocked, 0)]);
        let (table, mut landed) = (MovementTable::new(&view, None), Vec::new());
        let mut now_ns = ROW_NS;
        let mut deliver = |activity, cpu| {
            view.set(0, activity, cpu);
            table.deliver(&view, &delivery(1, 1, now_ns), |distance| landed.push(distance));
            now_ns += ROW_NS;
        };
        for cpu in [1, 3, 3, 7] {
            deliver(Activity::Blocked, 0);
            deliver(Activity::Running, cpu);
            deliver(Activity::Running, cpu);
        }
        assert_eq!(landed, [CpuDistance::Same, CpuDistance::Llc, CpuDistance::Llc, CpuDistance::Far]);
    }

    #[test]
    fn any_number_of_threads_queues_and_visits_costs_little() {
        const END_NS: u64 = 100_000_000;
        let view = TestView::new((0..256).map(|_| state(Activity::Blocked, 5)));
        let (table, mut landed) = (MovementTable::new(&view, None), Vec::new());
        for now_ns in (SEARCH_NS..END_NS).step_by(1000) {
            // Queues come and go: no two visits find the same ones open.
            table.deliver(&view, &delivery(u64::MAX, (now_ns / 1000) as u32 % 64, now_ns), |distance| {
                landed.push(distance)
            });
        }
        let (updates, searches) = (64 * END_NS / ROW_NS, END_NS / SEARCH_NS);
        let reads = view.reads.load(Ordering::Relaxed) as u64;
        assert!(reads <= updates + 256 * searches, "{reads}");
        assert!(reads > updates / 2, "{reads}");
    }

    #[test]
    fn threads_and_queues_that_are_gone_are_no_trouble() {
        let view = TestView::new([state(Activity::Running, 2), state(Activity::Running, 3)]);
        let (table, mut landed) = (MovementTable::new(&view, None), Vec::new());
        table.deliver(&view, &delivery(0b10, 2, ROW_NS), |distance| landed.push(distance));
        view.threads.lock().unwrap().pop();
        assert_eq!(table.cpus(&view, ring(1)), None);
        table.deliver(&view, &delivery(u64::MAX, 0, 2 * ROW_NS), |distance| landed.push(distance));
        assert_eq!(table.cpus(&view, ring(63)), Some((2, 2)), "of the only thread");
        assert_eq!(
            (table.cpus(&view, ring(64)), table.cpus(&view, RingId { port: PortId(u16::MAX), queue: 0 })),
            (None, None)
        );
        view.threads.lock().unwrap().clear();
        table.deliver(&view, &delivery(1, 1, 4 * ROW_NS), |distance| landed.push(distance));
        assert!(reported(&view, Some(&table), (ring(0), 1), &|| view.last_vcpu(PORT), 5 * ROW_NS).is_none());
    }

    #[test]
    fn any_word_is_a_row_and_each_row_a_word() {
        for word in 0..1 << 21 {
            let row = row_of(word);
            assert_eq!(row_of(word_of(row)), row);
            assert!(row_of(u64::MAX << 21 | word) == row);
        }
    }
}
