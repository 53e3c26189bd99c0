//! A transmit ring that moves to another worker while packets of it wait for a receiver (`fabric/src/tx/moves.rs`,
//! `engine/src/moves.rs`), in every order of the workers. Task queues, hand-over, completion queues and the list of moved rings are the
//! product's code.
//!
//! ```text
//!   control side ──task──> old home: release ──task──> new home: adopt, take chains, settle
//!                             │ lent packets               ^
//!   receiver's worker  <──────┘ returns ──> counted here ──┘ told by a task
//! ```

#[path = "../../../engine/src/hand_over.rs"]
mod hand_over;
#[expect(dead_code, reason = "which workers to wake")]
#[path = "../../../fabric/src/tx/moved.rs"]
mod moved;
#[expect(dead_code, reason = "the number of tasks")]
#[path = "../../../engine/src/task_queue.rs"]
mod task_queue;

/// The primitives that the files above use.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

mod reference {
    /// A packet that its home has lent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PacketRef {
        pub(crate) chain: u8,
        pub(crate) home: u8,
    }

    impl PacketRef {
        pub(crate) fn ring(self) -> crate::RingId {
            crate::RingId
        }
    }
}

/// There is one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingId;

use hand_over::{FirstStep, await_release, pass_on};
use lasthop_sync_model::{Bounded, bounded};
use loom::sync::{Arc, mpsc};
use loom::thread;
use moved::{Moved, SettledCopy};
use reference::PacketRef;
use task_queue::TaskQueue;

const OLD: u8 = 0;
const NEW: u8 = 1;
const CHAINS: u8 = 3;

/// The state of the transmit ring, which only its home has.
#[derive(Debug, Default)]
struct Ring {
    next: u8,
    /// Copies that wait, and those that a former home counts.
    waiting: u32,
    elsewhere: u32,
    completed: Vec<u8>,
}

enum Task {
    Move,
    Adopt(Ring),
    Settle(Vec<SettledCopy>),
    /// Another task of the control side, which needs the ring.
    Use,
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NotRunning,
}

/// A worker.
#[derive(Default)]
struct Worker {
    number: u8,
    ring: Option<Ring>,
    moved: Moved,
    counted: Vec<u8>,
    uses: u32,
}

/// The workers' task queues and completion queues, the packets at the receiver, and the move.
struct Switch {
    tasks: [TaskQueue<Worker, Task>; 2],
    returns: [Bounded<PacketRef>; 2],
    left: Bounded<PacketRef>,
    first: FirstStep,
    answer: mpsc::Sender<Result<(), Refusal>>,
}

impl Switch {
    fn new() -> (Arc<Self>, mpsc::Receiver<Result<(), Refusal>>) {
        let (answer, answered) = mpsc::channel();
        let switch = Self {
            tasks: std::array::from_fn(|_| TaskQueue::new()),
            returns: std::array::from_fn(|_| Bounded::new(4)),
            left: Bounded::new(4),
            first: FirstStep::new(),
            answer,
        };
        (Arc::new(switch), answered)
    }

    /// The receiver's worker finishes what waits.
    fn deliver(&self) {
        while let Some(packet) = self.left.pop() {
            self.returns[usize::from(packet.home)].push(packet).expect("it holds what a worker lends");
        }
    }
}

impl Worker {
    fn home() -> Self {
        Self { number: OLD, ring: Some(Ring::default()), ..Self::default() }
    }

    fn other() -> Self {
        Self { number: NEW, ..Self::default() }
    }

    /// Takes the next chain, whose packet waits for a receiver.
    fn visit(&mut self, switch: &Switch) {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.next < CHAINS) else { return };
        let packet = PacketRef { chain: ring.next, home: self.number };
        ring.next += 1;
        ring.waiting += 1;
        switch.left.push(packet).unwrap();
    }

    fn take_returns(&mut self, switch: &Switch) {
        while let Some(packet) = switch.returns[usize::from(self.number)].pop() {
            self.counted.push(packet.chain);
            if self.moved.is_of_one(packet) {
                let home = self.moved.settle(packet, false);
                assert_eq!(home, Some(NEW));
            } else {
                let ring = self.ring.as_mut().expect("its ring is here");
                ring.waiting -= 1;
                ring.completed.push(packet.chain);
            }
        }
        while let Some((home, copies)) = self.moved.take_settled() {
            switch.tasks[usize::from(home)].post(Task::Settle(copies));
        }
    }

    fn release(&mut self, switch: &Switch) -> Result<Ring, Refusal> {
        self.take_returns(switch);
        let mut ring = self.ring.take().ok_or(Refusal::NotRunning)?;
        ring.elsewhere = ring.waiting;
        self.moved.leave(RingId, NEW, ring.waiting);
        Ok(ring)
    }

    fn run(&mut self, task: Task, switch: &Switch) {
        match task {
            Task::Move => {
                let give = |ring| {
                    switch.tasks[usize::from(NEW)]
                        .give(Task::Adopt(ring), |worker, task| worker.run(task, switch));
                };
                let answer = |answer| switch.answer.send(answer).unwrap();
                pass_on(&switch.first, || self.release(switch), give, answer);
            }
            Task::Adopt(ring) => self.ring = Some(ring),
            Task::Settle(copies) => {
                let ring = self.ring.as_mut().expect("adopted before");
                for SettledCopy { packet, is_slow } in copies {
                    assert!(!is_slow);
                    ring.elsewhere -= 1;
                    ring.waiting -= 1;
                    ring.completed.push(packet.chain);
                }
            }
            Task::Use => {
                assert!(self.ring.is_some(), "it is behind the ring");
                self.uses += 1;
            }
        }
    }

    /// One round: tasks, returns, a visit.
    fn round(&mut self, switch: &Switch) {
        while let Some(task) = switch.tasks[usize::from(self.number)].take() {
            self.run(task, switch);
        }
        self.take_returns(switch);
        self.visit(switch);
    }
}

/// All workers go on until nothing is left. Then each chain is completed once and counted once, by the worker that took it.
fn settle(switch: &Switch, workers: [&mut Worker; 2], has_moved: bool) {
    let [old, new] = workers;
    for _ in 0..2 * CHAINS {
        switch.deliver();
        old.round(switch);
        new.round(switch);
    }
    let (at, other) = if has_moved { (&*new, &*old) } else { (&*old, &*new) };
    let ring = at.ring.as_ref().expect("the ring is at its home");
    assert!(other.ring.is_none(), "and nowhere else");
    let mut completed = ring.completed.clone();
    completed.sort_unstable();
    assert_eq!(completed, (0..CHAINS).collect::<Vec<_>>(), "each chain is completed once");
    assert_eq!((ring.waiting, ring.elsewhere, ring.next), (0, 0, CHAINS));
    let mut counted = [&old.counted[..], &new.counted[..]].concat();
    counted.sort_unstable();
    assert_eq!(counted, completed, "each is counted once");
    assert!(has_moved || new.counted.is_empty());
    assert_eq!(at.uses, 1, "the control side finds the ring at its home");
}

/// The old home takes two chains, moves the ring and goes on; the new home takes the next one; the receiver's worker returns both. The
/// control side waits.
#[test]
fn a_ring_that_moves_loses_no_chain_and_counts_each_once() {
    bounded().check(|| {
        let (switch, answered) = Switch::new();
        let mut old = Worker::home();
        (0..2).for_each(|_| old.visit(&switch));
        switch.tasks[usize::from(OLD)].post(Task::Move);
        let of_new = Arc::clone(&switch);
        let new = thread::spawn(move || {
            let mut new = Worker::other();
            new.round(&of_new);
            new.round(&of_new);
            new
        });
        let of_receiver = Arc::clone(&switch);
        let receiver = thread::spawn(move || of_receiver.deliver());
        old.round(&switch);
        let answer = await_release(&switch.first, || answered.recv().ok());
        assert_eq!(answer, Some(Ok(())));
        switch.tasks[usize::from(NEW)].post(Task::Use);
        old.round(&switch);
        receiver.join().unwrap();
        settle(&switch, [&mut old, &mut new.join().unwrap()], true);
    });
}

/// As before, while the new home's thread takes its worker: the thread that has the worker adopts the ring.
#[test]
fn a_ring_finds_a_worker_whose_thread_begins() {
    bounded().check(|| {
        let (switch, _answered) = Switch::new();
        let mut old = Worker::home();
        old.visit(&switch);
        switch.tasks[usize::from(NEW)].park(Worker::other());
        switch.tasks[usize::from(OLD)].post(Task::Move);
        let of_new = Arc::clone(&switch);
        let new = thread::spawn(move || {
            let mut new = of_new.tasks[usize::from(NEW)].take_worker().expect("parked");
            new.round(&of_new);
            new
        });
        switch.deliver();
        old.round(&switch);
        switch.tasks[usize::from(NEW)].post(Task::Use);
        settle(&switch, [&mut old, &mut new.join().unwrap()], true);
    });
}

/// The control side gives up while the old home begins: either the ring moves and the control side knows, or nothing does.
#[test]
fn a_control_side_that_gives_up_knows_where_the_ring_is() {
    bounded().check(|| {
        let (switch, answered) = Switch::new();
        switch.tasks[usize::from(OLD)].post(Task::Move);
        let of_old = Arc::clone(&switch);
        let old = thread::spawn(move || {
            let mut old = Worker::home();
            old.round(&of_old);
            old
        });
        let mut tries = 0;
        let answer = await_release(&switch.first, || {
            tries += 1;
            // Time is over at once; the second wait ends with the answer.
            if tries == 1 { None } else { answered.recv().ok() }
        });
        let has_moved = answer == Some(Ok(()));
        assert!(has_moved || answer.is_none());
        let home = if has_moved { NEW } else { OLD };
        switch.tasks[usize::from(home)].post(Task::Use);
        settle(&switch, [&mut old.join().unwrap(), &mut Worker::other()], has_moved);
    });
}
