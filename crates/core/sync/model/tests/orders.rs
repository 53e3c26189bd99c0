//! A home and a helper that copy the frames of one receiver (`fabric/src/help.rs`, `fabric/src/rx/shared.rs`), in every order of
//! their steps. Lock, leases, order and mailboxes are the product's code.
//!
//! ```text
//!   home     queues frames, gives the order, copies some, gives up, takes the order back, delivers the rest
//!   helper   sleeps or not, copies some, gives its order up, back to the home if frames are left
//! ```

use std::collections::VecDeque;

use lasthop_sync_model::{
    Bounded, CombiningGuard, CombiningLock, LeaseOrder, OrderFlag, SleepFlag, bounded, full_fence,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const HOME: u8 = 0;
const HELPER: u8 = 1;
const FRAMES: u8 = 3;

/// The state under the claim.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<u8>,
    leases: LeaseOrder,
    used: u16,
    /// The frames that the guest sees.
    published: Vec<u8>,
}

struct Place {
    lock: CombiningLock<Queue, u8>,
    buffers: Vec<UnsafeCell<u8>>,
    help: OrderFlag,
    /// Of the home and of the helper.
    mailboxes: [Bounded<()>; 2],
    sleeps: [SleepFlag; 2],
}

type Claim<'a> = CombiningGuard<'a, Queue, u8>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Reserved,
    Nothing,
    Busy,
}

/// A worker's frame with a buffer, and whether it has to see to the place again.
#[derive(Default)]
struct Worker {
    number: u8,
    hand: Option<(u16, u8)>,
    has_follow_up: bool,
}

impl Place {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lock: CombiningLock::new(Queue::default(), 2),
            buffers: (0..FRAMES).map(|_| UnsafeCell::new(u8::MAX)).collect(),
            help: OrderFlag::default(),
            mailboxes: std::array::from_fn(|_| Bounded::new(2)),
            sleeps: std::array::from_fn(|_| SleepFlag::default()),
        })
    }

    fn fill(&self, (entry, frame): (u16, u8)) {
        // loom fails if another thread has the buffer.
        self.buffers[usize::from(entry)].with_mut(|buffer| unsafe { *buffer = frame });
    }

    fn publish(&self, claim: &mut Claim<'_>) {
        let end = claim.leases.end_finished(self.lock.publish_order()).unwrap_or(claim.used);
        for entry in claim.published.len()..usize::from(end) {
            let frame = self.buffers[entry].with(|buffer| unsafe { *buffer });
            claim.published.push(frame);
        }
    }

    /// Publishes, and releases the claim. Returns whether frames wait that nobody else sees to.
    fn close<'a>(&'a self, mut claim: Claim<'a>) -> bool {
        loop {
            self.publish(&mut claim);
            let waits = !claim.waiting.is_empty();
            if !claim.release() {
                return waits;
            }
            let Some(again) = self.lock.try_lock() else { return false };
            claim = again;
            self.serve(&mut claim);
        }
    }

    fn serve(&self, claim: &mut Claim<'_>) {
        while let Some(frame) = claim.waiting.pop_front() {
            self.fill((claim.used, frame));
            claim.used += 1;
        }
    }

    fn take(&self, claim: &mut Claim<'_>, worker: &mut Worker) -> Step {
        if !claim.leases.may_extend(worker.number) {
            return Step::Busy;
        }
        let Some(frame) = claim.waiting.pop_front() else { return Step::Nothing };
        let entry = claim.used;
        claim.used += 1;
        claim.leases.open_or_extend(worker.number, entry, self.lock.publish_order());
        worker.hand = Some((entry, frame));
        Step::Reserved
    }

    /// Copies `worker`'s frame and takes the next one if it `wants_more`. Returns its follow-up, too, unless another has the claim.
    fn step(&self, worker: &mut Worker, wants_more: bool) -> (Step, Option<bool>) {
        if let Some(hand) = worker.hand.take() {
            self.fill(hand);
            self.lock.publish_order().finish(worker.number);
        }
        let Some(mut claim) = self.lock.try_lock_again() else { return (Step::Busy, None) };
        self.publish(&mut claim);
        let step = if wants_more { self.take(&mut claim, worker) } else { Step::Busy };
        (step, Some(self.close(claim)))
    }

    /// The home's part: `frames` of its own copies, then it gives up.
    fn visit(&self, home: &mut Worker, frames: u8) -> bool {
        let mut claim = self.lock.try_lock().expect("no helper comes without an order");
        claim.waiting.extend(0..FRAMES);
        assert!(self.help.give(&self.mailboxes[usize::from(HELPER)], ()));
        full_fence();
        let has_woken = self.sleeps[usize::from(HELPER)].wake();
        home.has_follow_up = self.close(claim);
        for number in 0..=frames {
            let (step, follow_up) = self.step(home, number < frames);
            home.has_follow_up = follow_up.unwrap_or(true);
            if step != Step::Reserved {
                break;
            }
        }
        has_woken
    }

    /// The helper's part once it has an order: `frames` copies at most. Returns whether it wakes the home.
    fn help(&self, helper: &mut Worker, frames: u8) -> bool {
        let mut taken = 0;
        loop {
            let wants_more = taken < frames;
            let (step, follow_up) = self.step(helper, wants_more);
            match step {
                Step::Reserved => taken += 1,
                Step::Busy if wants_more => thread::yield_now(),
                Step::Busy | Step::Nothing => {
                    self.help.end();
                    if follow_up != Some(true) {
                        return false;
                    }
                    self.mailboxes[usize::from(HOME)].push(()).expect("one order, so there is room");
                    full_fence();
                    return self.sleeps[usize::from(HOME)].wake();
                }
            }
        }
    }

    /// Takes orders that came back; delivers what waits if the home has to.
    fn round(&self, home: &mut Worker) {
        while self.mailboxes[usize::from(HOME)].pop().is_some() {
            home.has_follow_up = true;
        }
        if home.has_follow_up
            && let Some(mut claim) = self.lock.try_lock()
        {
            self.serve(&mut claim);
            home.has_follow_up = self.close(claim);
        }
    }
}

/// Sleeps unless the mailbox of `worker` has something. Returns whether it sleeps.
fn sleeps(place: &Place, worker: u8) -> bool {
    let flag = &place.sleeps[usize::from(worker)];
    flag.prepare_sleep();
    full_fence();
    let has_some = !place.mailboxes[usize::from(worker)].is_empty();
    if has_some {
        flag.clear();
    }
    !has_some
}

/// All orders of a home that copies `of_home` frames and a helper that copies up to `of_helper`.
fn check(of_home: u8, of_helper: u8) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(2); // with three it takes minutes
    model.check(move || {
        let place = Place::new();
        let there = Arc::clone(&place);
        let helper = thread::spawn(move || {
            let mut helper = Worker { number: HELPER, ..Worker::default() };
            let is_asleep = sleeps(&there, HELPER);
            let has_order = there.mailboxes[usize::from(HELPER)].pop().is_some();
            (is_asleep, has_order, has_order && there.help(&mut helper, of_helper))
        });
        let mut home = Worker { number: HOME, ..Worker::default() };
        let helper_woken = place.visit(&mut home, of_home);
        place.round(&mut home);
        let is_asleep = !home.has_follow_up && sleeps(&place, HOME);
        let (helper_slept, had_order, mut home_woken) = helper.join().unwrap();
        if !had_order {
            assert!(!helper_slept || helper_woken, "it would sleep with an order");
            assert!(place.mailboxes[usize::from(HELPER)].pop().is_some());
            home_woken = place.help(&mut Worker { number: HELPER, ..Worker::default() }, of_helper);
        }
        let is_back = !place.mailboxes[usize::from(HOME)].is_empty();
        assert!(!is_asleep || !is_back || home_woken, "the home would sleep with an order back");
        if !is_asleep || home_woken {
            place.round(&mut home);
        }
        let claim = place.lock.try_lock().unwrap();
        assert_eq!(claim.published, (0..FRAMES).collect::<Vec<_>>(), "each once, in order, and none is left");
        assert!(claim.leases.is_empty() && !place.lock.has_work() && !home.has_follow_up);
        assert!(!place.help.is_given(), "the next frames can have an order");
    });
}

#[test]
fn a_home_that_gives_up_leaves_no_frame() {
    check(1, FRAMES);
}

#[test]
fn a_helper_that_gives_its_order_up_leaves_no_frame() {
    check(FRAMES, 1);
    check(FRAMES, 0);
}

#[test]
fn both_give_up() {
    check(1, 1);
    check(0, 1);
    check(0, 0);
}

/// Two homes give an order for one place, while its helper ends one.
#[test]
fn a_place_has_one_order_at_most() {
    bounded().check(|| {
        let (flag, mailbox) = (Arc::new(OrderFlag::default()), Arc::new(Bounded::new(2)));
        let givers: Vec<_> = (0..2_u8)
            .map(|number| {
                let (flag, mailbox) = (Arc::clone(&flag), Arc::clone(&mailbox));
                thread::spawn(move || flag.give(&mailbox, number))
            })
            .collect();
        let ended = mailbox.pop().into_iter().inspect(|_| flag.end()).count();
        let given = givers.into_iter().map(|giver| giver.join().unwrap()).filter(|given| *given).count();
        let left = std::iter::from_fn(|| mailbox.pop()).count();
        assert_eq!(given, ended + left);
        assert!(left <= 1, "the second one is given once the first has ended");
        assert_eq!(flag.is_given(), left == 1);
    });
}
