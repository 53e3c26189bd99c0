//! A home and a helper at one ring, in selected orders of their steps.

use lasthop_fabric::{Capabilities, Fabric, HelpShare, HelpStep, HelperFinder, LargeCopies, RingId};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::contention::{RECEIVER, arrived, counters, fan_in_of};
use crate::support::{TestGuest, everything, frame};
use crate::tcp::{check_tcp, tcp_frame, tso4};

/// Bytes of a large frame here.
const LARGE: usize = 1600;

/// Finds worker 1, unless it is away.
#[derive(Clone, Default)]
struct OneHelper {
    /// How many packets it shares.
    packets_max: u32,
    finds: Arc<AtomicUsize>,
    wakes: Arc<AtomicUsize>,
    is_away: Arc<AtomicBool>,
    /// Whether the switch completed the checksums of the last copies.
    is_summed: Arc<AtomicBool>,
}

impl HelperFinder for OneHelper {
    fn find(&mut self, ring: RingId, copies: LargeCopies) -> Option<HelpShare> {
        assert_eq!((ring, copies.waiting), (RingId { port: RECEIVER, queue: 0 }, 0));
        assert!(copies.bytes >= u64::from(copies.packets) * LARGE as u64);
        self.finds.fetch_add(1, Ordering::Relaxed);
        self.is_summed.store(copies.is_summed, Ordering::Relaxed);
        let packets = self.packets_max.min(copies.packets);
        (!self.is_away.load(Ordering::Relaxed)).then_some(HelpShare { helper: 1, packets })
    }

    fn wake(&mut self, helper: usize) {
        assert_eq!(helper, 1);
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Finds the one helper. It is visited whether it sleeps or not. It shares all copies, or leaves up to three to the home.
pub(crate) struct TheHelper {
    pub(crate) helper: u8,
    pub(crate) finds: u32,
}

impl HelperFinder for TheHelper {
    fn find(&mut self, _: RingId, copies: LargeCopies) -> Option<HelpShare> {
        self.finds += 1;
        Some(HelpShare { helper: self.helper, packets: copies.packets.saturating_sub(self.finds % 4) })
    }

    fn wake(&mut self, _: usize) {}
}

/// A home with a sender, a helper, and how it is found.
fn with_helper(
    of_receiver: Capabilities,
    packets_max: u32,
) -> (Vec<Fabric>, TestGuest, TestGuest, OneHelper) {
    let (mut crew, receiver, mut senders) = fan_in_of(of_receiver, 2, &[0], 64);
    let finder = OneHelper { packets_max, ..OneHelper::default() };
    crew[0].begin_offload(LARGE as u32, Box::new(finder.clone()));
    (crew, receiver, senders.remove(0), finder)
}

fn send_large(guest: &mut TestGuest, numbers: std::ops::Range<u8>) {
    for number in numbers {
        assert!(guest.queue(&frame(number, guest.port.0 as u8, LARGE), Offload::default()));
    }
}

/// The helper copies one frame that it has buffers for.
fn help_once(helper: &mut Fabric) {
    helper.copy_help();
    assert_ne!(helper.begin_help(false), HelpStep::Reserved);
}

#[test]
fn home_and_helper_copy_in_turns_and_the_receiver_gets_the_sender_s_order() {
    let (mut crew, mut receiver, mut sender, finder) = with_helper(everything(), 8);
    crew[1].prepare_sleep();
    send_large(&mut sender, 0..4);
    assert_eq!(crew[0].begin_visit(sender.tx_ring(), 0), 4);
    assert_eq!(
        (finder.wakes.load(Ordering::Relaxed), crew[0].wakes()),
        (1, 0),
        "it sleeps, and is called at once"
    );
    assert_eq!(crew[1].begin_help(true), HelpStep::Reserved);
    crew[1].copy_help();
    assert_eq!(arrived(&mut receiver), []);
    assert_eq!(
        crew[1].begin_help(true),
        HelpStep::Reserved,
        "it publishes the first one, and takes the second"
    );
    assert_eq!(arrived(&mut receiver), [(2, 0)]);
    crew[0].copy_visit();
    assert_eq!(arrived(&mut receiver), [], "the home has copied both others: they are behind the helper's");
    crew[0].finish_visit();
    help_once(&mut crew[1]);
    assert_eq!(arrived(&mut receiver), [(2, 1), (2, 2), (2, 3)]);
    assert!(crew[0].take_returns());
    assert_eq!(sender.reclaim(), 4);
    assert_eq!((crew[0].handoff_counters().shared, crew[1].handoff_counters().shared), (2, 2));
    assert_eq!((counters(&crew, PortId(2)).forwarded, counters(&crew, RECEIVER).tx_packets), (4, 4));
}

#[test]
fn no_frame_depends_on_a_helper() {
    let (mut crew, mut receiver, mut sender, finder) = with_helper(everything(), 8);
    send_large(&mut sender, 0..3);
    assert_eq!(crew[0].visit(sender.tx_ring(), 0), 3);
    assert_eq!(arrived(&mut receiver), [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(finder.wakes.load(Ordering::Relaxed), 0, "it is awake: it finds the order by itself");
    assert!(crew[1].has_orders());
    assert_eq!((crew[1].begin_help(true), crew[1].begin_help(true)), (HelpStep::Done, HelpStep::Idle));
    assert!(!crew[1].has_orders());
    // A helper that gives its order up takes no frame.
    send_large(&mut sender, 3..5);
    assert_eq!(crew[0].begin_visit(sender.tx_ring(), 0), 2);
    assert_eq!((crew[1].begin_help(false), crew[1].has_orders()), (HelpStep::Busy, false));
    crew[0].copy_visit();
    crew[0].finish_visit();
    assert_eq!(arrived(&mut receiver), [(2, 3), (2, 4)]);
    assert_eq!((counters(&crew, PortId(2)).forwarded, crew[1].handoff_counters().shared), (5, 0));
}

/// Takes the signals; returns the number of those to the receiver.
fn receive_signals(home: &mut Fabric) -> usize {
    home.signals().drain(..).filter(|signal| signal.port == RECEIVER).count()
}

/// Visits the sender's ring. Returns the frames that had arrived at each call for early signals, of which each has one. A
/// receiver that `asks` asks for the next signal once it has taken all frames.
fn early_signals(home: &mut Fabric, sender: &TestGuest, receiver: &mut TestGuest, asks: bool) -> Vec<usize> {
    let mut calls = Vec::new();
    home.visit_in_turn_signalling(sender.tx_ring(), 0, &mut |home| {
        assert_eq!(receive_signals(home), 1, "one for a published frame");
        calls.push(arrived(receiver).len());
        if asks {
            assert!(!receiver.rx.arm_calls(), "it has taken all");
        }
    });
    calls
}

#[test]
fn a_receiver_that_asks_is_signalled_after_each_shared_frame() {
    let (mut crew, mut receiver, mut sender, _) = with_helper(everything(), 8);
    assert!(!receiver.rx.arm_calls());
    send_large(&mut sender, 0..3);
    assert_eq!(early_signals(&mut crew[0], &sender, &mut receiver, true), [1, 1, 1]);
    assert_eq!(receive_signals(&mut crew[0]), 0, "none is left for the end of the visit");
    // It asked once, and not again.
    send_large(&mut sender, 3..6);
    assert_eq!(early_signals(&mut crew[0], &sender, &mut receiver, false), [1]);
    assert_eq!((arrived(&mut receiver).len(), receive_signals(&mut crew[0])), (2, 0));
    // Small frames are not shared.
    assert!(!receiver.rx.arm_calls());
    (6..9).for_each(|number| assert!(sender.queue(&frame(number, 2, 100), Offload::default())));
    assert_eq!(early_signals(&mut crew[0], &sender, &mut receiver, true), []);
    assert_eq!((arrived(&mut receiver).len(), receive_signals(&mut crew[0])), (3, 1));
}

#[test]
fn small_packets_and_what_is_beyond_the_bound_are_not_shared() {
    let (mut crew, mut receiver, mut sender, finder) = with_helper(everything(), 2);
    let finds = || finder.finds.load(Ordering::Relaxed);
    (0..4).for_each(|number| assert!(sender.queue(&frame(number, 2, 100), Offload::default())));
    assert_eq!(crew[0].visit(sender.tx_ring(), 0), 4);
    assert_eq!((arrived(&mut receiver).len(), finds()), (4, 0));
    send_large(&mut sender, 4..5);
    assert_eq!(crew[0].visit(sender.tx_ring(), 0), 1);
    assert_eq!((arrived(&mut receiver).len(), finds()), (1, 0), "alone");
    send_large(&mut sender, 5..12);
    assert_eq!(crew[0].visit(sender.tx_ring(), 0), 7);
    assert_eq!(arrived(&mut receiver), [5, 6, 7, 8, 9, 10, 11].map(|number| (2, number)));
    assert_eq!((crew[0].handoff_counters().shared, finds()), (2, 1));
    finder.is_away.store(true, Ordering::Relaxed);
    send_large(&mut sender, 12..14);
    crew[0].visit(sender.tx_ring(), 0);
    assert_eq!((arrived(&mut receiver).len(), crew[0].handoff_counters().shared, finds()), (2, 2, 2));
    crew[0].end_offload();
    send_large(&mut sender, 14..16);
    crew[0].visit(sender.tx_ring(), 0);
    assert_eq!((arrived(&mut receiver).len(), finds()), (2, 2));
    assert_eq!(counters(&crew, PortId(2)).forwarded, 16);
}

#[test]
fn frames_without_buffers_wait_as_others_do() {
    let (mut crew, mut receiver, mut sender, _) = with_helper(everything(), 32);
    for first in [0, 20, 40, 60] {
        send_large(&mut sender, first..first + 20);
        while crew[0].visit(sender.tx_ring(), 0) > 0 {}
    }
    assert_eq!(counters(&crew, PortId(2)).waiting, 80 - 64, "there are 64 buffers");
    assert_ne!(crew[1].begin_help(true), HelpStep::Reserved, "nor does the helper find any");
    assert_eq!(crew[1].begin_help(true), HelpStep::Idle, "its order has ended");
    assert_eq!(arrived(&mut receiver).len(), 64, "which posts the buffers again");
    assert!(crew[0].drain_waiting());
    assert_eq!(arrived(&mut receiver).len(), 80 - 64);
    assert_eq!((counters(&crew, PortId(2)).forwarded, crew[0].deadline_ns()), (80, None));
}

#[test]
fn a_helper_cuts_frames_for_a_receiver_without_tso() {
    let plain = Capabilities { csum: false, tso4: false, ..everything() };
    let (mut crew, mut receiver, mut sender, _) = with_helper(plain, 8);
    let payload: Vec<u8> = (0..4000_u32).map(|at| (at * 7) as u8).collect();
    let (bytes, csum_start) = tcp_frame(false, &payload);
    let offload = tso4(csum_start, 1000);
    (0..4).for_each(|_| assert!(sender.queue(&bytes, offload)));
    // Part of them is cut by either.
    assert_eq!(crew[0].begin_visit(sender.tx_ring(), 0), 4);
    assert_eq!(crew[1].begin_help(true), HelpStep::Reserved);
    crew[0].copy_visit();
    help_once(&mut crew[1]);
    crew[0].finish_visit();
    crew[0].drain_waiting();
    crew[0].take_returns();
    let received: Vec<_> = std::iter::from_fn(|| receiver.receive()).collect();
    assert_eq!(received.len(), 16);
    for frames in received.chunks(4) {
        let parts: Vec<(u32, Vec<u8>)> = frames.iter().map(check_tcp).collect();
        assert!(parts.iter().zip(0..).all(|((seq, _), number)| *seq == 1_000_000 + 1000 * number));
        assert_eq!(parts.concat_payloads(), payload);
    }
    assert_eq!((sender.reclaim(), crew[1].handoff_counters().shared), (4, 1));
    let sums = counters(&crew, PortId(2));
    assert_eq!(
        (sums.forwarded, sums.segments_added, counters(&crew, RECEIVER).tx_csum_completed),
        (16, 12, 16)
    );
}

#[test]
fn buffers_are_shown_filled_after_a_visit_with_leases_and_shared_frames() {
    let (mut crew, mut receiver, mut sender, _) = with_helper(everything(), 2);
    let (ring, small) = (sender.tx_ring(), |number| (frame(number, 2, 100), Offload::default()));
    let queue = |sender: &mut TestGuest, (bytes, offload): (Vec<u8>, Offload)| {
        assert!(sender.queue(&bytes, offload));
    };
    queue(&mut sender, small(0));
    let (home, others) = crew.split_first_mut().unwrap();
    others[0].while_serving(receiver.tx_ring(), || home.visit(ring, 0)).unwrap();
    assert_eq!(arrived(&mut receiver), [(2, 0)], "from now on its copies are made without the claim");
    home.take_returns();
    send_large(&mut sender, 1..6);
    assert_eq!(crew[0].visit(ring, 0), 5);
    assert_eq!(arrived(&mut receiver), [1, 2, 3, 4, 5].map(|number| (2, number)));
    let handoffs = crew[0].handoff_counters();
    assert_eq!((handoffs.leased, handoffs.shared), (3, 2), "the home copied all");
    (6..8).for_each(|number| queue(&mut sender, small(number)));
    assert_eq!(crew[0].begin_visit(ring, 0), 2);
    assert_eq!(arrived(&mut receiver), [], "they are not copied yet");
    crew[0].copy_visit();
    crew[0].finish_visit();
    assert_eq!(arrived(&mut receiver), [(2, 6), (2, 7)]);
    assert_eq!(counters(&crew, PortId(2)).forwarded, 8);
}

/// The payload that segments carry.
trait Payloads {
    fn concat_payloads(&self) -> Vec<u8>;
}

impl Payloads for Vec<(u32, Vec<u8>)> {
    fn concat_payloads(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, payload)| payload.clone()).collect()
    }
}

#[test]
fn a_helper_that_gives_its_order_up_has_no_work_left() {
    let (mut crew, mut receiver, mut sender, _) = with_helper(everything(), 8);
    send_large(&mut sender, 0..4);
    assert_eq!(crew[0].begin_visit(sender.tx_ring(), 0), 4);
    assert_eq!(crew[1].begin_help(true), HelpStep::Reserved);
    crew[1].copy_help();
    crew[1].begin_help(false);
    assert_eq!((crew[1].waiting_rings(), crew[1].deadline_ns()), (&[][..], None), "its CPU is wanted");
    assert!(!crew[1].drain_waiting());
    assert_eq!(arrived(&mut receiver), [(2, 0)]);
    crew[0].copy_visit();
    crew[0].finish_visit();
    assert_eq!(arrived(&mut receiver), [(2, 1), (2, 2), (2, 3)]);
}

#[test]
fn a_finder_learns_whether_checksums_are_completed() {
    let plain = Capabilities { csum: false, tso4: false, ..everything() };
    for (of_receiver, gso_size, is_summed) in
        [(plain, 0, true), (plain, 1000, true), (everything(), 0, false)]
    {
        let (mut crew, _receiver, mut sender, finder) = with_helper(of_receiver, 8);
        let (bytes, csum_start) = tcp_frame(false, &[7; 4000]);
        let whole = tso4(csum_start, gso_size);
        let offload = if gso_size == 0 { Offload { gso_type: 0, ..whole } } else { whole };
        (0..2).for_each(|_| assert!(sender.queue(&bytes, offload)));
        assert_eq!(crew[0].visit(sender.tx_ring(), 0), 2);
        assert_eq!(finder.finds.load(Ordering::Relaxed), 1);
        assert_eq!(finder.is_summed.load(Ordering::Relaxed), is_summed, "{of_receiver:?} {offload:?}");
    }
    let (mut crew, _receiver, mut sender, finder) = with_helper(plain, 8);
    send_large(&mut sender, 0..2);
    crew[0].visit(sender.tx_ring(), 0);
    assert!(!finder.is_summed.load(Ordering::Relaxed), "they need none");
}
