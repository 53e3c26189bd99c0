//! Random schedules: no policy delays anything beyond its bound, with any view.
//!
//! The view is any sequence of states, true or not, so a lying guest or a late view cannot do worse.

use proptest::prelude::*;

use crate::bounds::{
    HELD_MAX_NS, NOTIFY_DELAY_MAX_NS, OFFER_NS, SATURATED_PERCENT, TRANSMIT_DELAY_MAX_NS, TRANSMIT_WATCH_NS,
    WATCH_NS,
};
use crate::{
    Activity, CpuDistance, CpuPlace, CpuState, GuestView, LastOffer, Look, LookRound, Notification, Notify,
    Occupancy, Occupant, OffloadCriteria, PendingCopies, PlaceCriteria, Reminder, Separation, SharedThread,
    ThreadState, Transmit, TransmitRing, UnansweredSignal, distance, look, notify, occupy, offload, place,
    remind, separate, transmit,
};

const STEPS: usize = 100;

fn thread() -> impl Strategy<Value = Option<ThreadState>> {
    let activity = prop::sample::select(vec![Activity::Running, Activity::Runnable, Activity::Blocked]);
    prop::option::weighted(0.9, (activity, 0..3_u16, 0..400_000_u64))
        .prop_map(|state| state.map(|(activity, cpu, for_ns)| ThreadState { activity, cpu, for_ns }))
}

/// Often a guest that still runs: only then does a policy delay something for long.
fn guest() -> impl Strategy<Value = Option<GuestView>> {
    let works = ThreadState { activity: Activity::Running, cpu: 1, for_ns: 0 };
    let any = prop::collection::vec(thread(), 0..4).prop_map(|threads| GuestView::new(0, threads));
    prop_oneof![
        6 => Just(Some(GuestView::new(0, [Some(works)]))),
        3 => any.prop_map(Some),
        1 => Just(None),
    ]
}

/// A step of a schedule: time passes, the view shows a state, and packets may arrive.
#[derive(Clone, Debug)]
struct Step {
    pause_ns: u64,
    guest: Option<GuestView>,
    has_packets: bool,
    has_progressed: bool,
    is_full: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..30_000_u64, guest(), any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.1))
        .prop_map(|(pause_ns, guest, has_packets, has_progressed, is_full)| Step {
            pause_ns,
            guest,
            has_packets,
            has_progressed,
            is_full,
        });
    prop::collection::vec(step, 1..STEPS)
}

/// The times within a caller's pause at which it has to act: at the time of a decision, and at the pause's end.
fn stops(now_ns: u64, end_ns: u64, due_ns: Option<u64>) -> impl Iterator<Item = u64> {
    due_ns.filter(|due_ns| (now_ns..end_ns).contains(due_ns)).into_iter().chain([end_ns])
}

/// CPUs with caches and nodes in any form, and which of them are idle.
fn machine() -> impl Strategy<Value = Vec<(CpuPlace, bool)>> {
    let cpu = (0..6_u16, 0..3_u16, any::<bool>());
    // A group lies in one LLC, an LLC in one node.
    let placed = cpu.prop_map(|(group, node, idle)| {
        let group = 10 * node + group;
        (CpuPlace { group, llc: group / 2, node }, idle)
    });
    prop::collection::vec(placed, 1..40)
}

proptest! {
    /// Each packet is copied once, small ones never elsewhere. Helpers take no more than they have room for, and a
    /// sleeping receiver copies no more than it may while they have room.
    #[test]
    fn copies_are_divided_without_rest(
        packets in 0..300_u32,
        packet_bytes in 60..70_000_u32,
        is_receiver_blocked in any::<bool>(),
        helper_room in 0..400_u32,
        packet_bytes_min in 0..9000_u32,
        blocked_packets_max in 0..20_u32,
    ) {
        let bytes = u64::from(packets) * u64::from(packet_bytes);
        let criteria = OffloadCriteria { packet_bytes_min, blocked_packets_max, ..OffloadCriteria::default() };
        let shares = offload(&PendingCopies { packets, bytes, is_receiver_blocked }, helper_room, criteria);
        prop_assert_eq!(shares.receiver + shares.helper, packets);
        prop_assert!(shares.helper == 0 || packet_bytes >= packet_bytes_min);
        prop_assert!(shares.helper <= helper_room);
        if shares.helper > 0 && shares.helper < helper_room {
            prop_assert_eq!(shares.receiver, if is_receiver_blocked { blocked_packets_max } else { 0 });
        }
    }

    /// The chosen CPU is idle and not the receiver's; no other one that fulfils the criteria is nearer.
    #[test]
    fn no_nearer_cpu_is_left_out(cpus in machine(), receiver in 0..40_usize, hash in any::<u32>(), whole_group in any::<bool>()) {
        let places: Vec<CpuPlace> = cpus.iter().map(|(place, _)| *place).collect();
        let receiver = receiver % cpus.len();
        let is_free = |cpu: usize| cpu != receiver && cpus[cpu].1;
        let fits = |cpu: usize| {
            let mut group = (0..cpus.len()).filter(|other| places[*other].group == places[cpu].group);
            is_free(cpu) && (!whole_group || group.all(is_free))
        };
        let nearest = (0..cpus.len()).filter(|cpu| fits(*cpu)).map(|cpu| distance(&places, receiver, cpu)).min();
        for farthest in [CpuDistance::Llc, CpuDistance::Node, CpuDistance::Far] {
            let criteria = PlaceCriteria { whole_group, farthest };
            let chosen = place(&places, |_| true, |cpu| cpus[cpu].1, receiver, hash, criteria);
            prop_assert!(chosen.is_none_or(fits));
            let wanted = nearest.filter(|nearest| *nearest <= farthest);
            prop_assert_eq!(chosen.map(|cpu| distance(&places, receiver, cpu)), wanted);
        }
    }

    #[test]
    fn a_receiver_is_told_of_each_packet_in_time(steps in steps()) {
        let (mut now_ns, mut first_ns, mut signalled_ns, mut due_ns) = (1_000_000, None, None, None);
        for step in steps {
            let end_ns = now_ns + step.pause_ns;
            for at_ns in stops(now_ns, end_ns, due_ns) {
                now_ns = at_ns;
                if step.has_packets && at_ns == end_ns {
                    first_ns = first_ns.or(Some(at_ns));
                }
                let Some(first) = first_ns else { continue };
                prop_assert!(at_ns - first <= NOTIFY_DELAY_MAX_NS, "{} ns", at_ns - first);
                let pending = Notification {
                    is_wanted: true,
                    first_ns: first,
                    signalled_ns,
                    has_progressed: step.has_progressed,
                    is_full: step.is_full,
                };
                match notify(&pending, step.guest.as_ref(), at_ns) {
                    Notify::Now => (first_ns, signalled_ns, due_ns) = (None, Some(at_ns), None),
                    Notify::At(at) => {
                        prop_assert!(at > at_ns && at <= first + NOTIFY_DELAY_MAX_NS);
                        due_ns = Some(at);
                    }
                    Notify::Unwanted => prop_assert!(false, "it was wanted"),
                }
            }
        }
    }

    #[test]
    fn a_sender_s_packets_are_taken_in_time(steps in steps()) {
        let mut ring = TransmitRing { visited_ns: 1_000_000, worked_ns: 1_000_000 };
        // When the oldest pending packet was posted; whether the sender kicks.
        let (mut now_ns, mut posted_ns, mut is_armed, mut due_ns) = (1_000_000, None, false, None);
        for step in steps {
            let end_ns = now_ns + step.pause_ns;
            for at_ns in stops(now_ns, end_ns, due_ns) {
                now_ns = at_ns;
                if step.has_packets && at_ns == end_ns {
                    posted_ns = posted_ns.or(Some(at_ns));
                }
                let waited_ns = posted_ns.map_or(0, |posted_ns: u64| at_ns - posted_ns);
                prop_assert!(waited_ns <= TRANSMIT_DELAY_MAX_NS, "{waited_ns} ns");
                if is_armed && posted_ns.is_some() {
                    // It has kicked.
                    ring = TransmitRing { visited_ns: at_ns, worked_ns: at_ns };
                    (posted_ns, is_armed) = (None, false);
                } else if is_armed {
                    continue;
                }
                match transmit(ring, step.guest.as_ref(), at_ns) {
                    // The check after arming finds posted packets (`ring/rendezvous.rs`).
                    Transmit::Arm => (posted_ns, is_armed, due_ns) = (None, true, None),
                    Transmit::Visit => {
                        let worked_ns = if posted_ns.is_some() { at_ns } else { ring.worked_ns };
                        (ring, posted_ns) = (TransmitRing { visited_ns: at_ns, worked_ns }, None);
                        due_ns = Some(at_ns + TRANSMIT_DELAY_MAX_NS);
                    }
                    Transmit::VisitBy(by_ns) => {
                        prop_assert!(by_ns > at_ns && by_ns <= ring.visited_ns + TRANSMIT_DELAY_MAX_NS);
                        due_ns = Some(by_ns);
                    }
                }
            }
        }
    }

    /// A sender that runs for ever and sends nothing costs no more than the visits of one watch.
    #[test]
    fn visits_in_vain_end(steps in steps()) {
        let (mut ring, mut now_ns) = (TransmitRing { visited_ns: 1, worked_ns: 1 }, 1);
        for step in steps {
            now_ns += step.pause_ns;
            match transmit(ring, step.guest.as_ref(), now_ns) {
                Transmit::Arm => break,
                Transmit::Visit => ring.visited_ns = now_ns,
                Transmit::VisitBy(_) => {}
            }
            prop_assert!(now_ns - ring.worked_ns < TRANSMIT_WATCH_NS);
        }
    }

    /// A signal is followed by another one, or by the end of the watch; no guest is watched for longer.
    #[test]
    fn a_signal_that_is_not_answered_is_settled_in_time(steps in steps()) {
        let mut age_ns = 0;
        for step in steps {
            let reminder = remind(UnansweredSignal { age_ns }, step.guest.as_ref());
            prop_assert!(age_ns < WATCH_NS || reminder != Reminder::Watch);
            let is_seen_awake = step.guest.is_some_and(|guest| guest.is_known() && !guest.is_blocked());
            prop_assert!(!is_seen_awake || reminder != Reminder::Signal);
            if reminder != Reminder::Watch {
                break;
            }
            age_ns += step.pause_ns;
        }
    }

    #[test]
    fn looking_in_vain_ends(steps in steps(), learned_ns in 0..400_000_u64, max_ns in 0..300_000_u64) {
        let mut idle_ns = 0;
        for step in steps {
            let round = LookRound { idle_ns, learned_ns, max_ns, is_posted: step.is_full };
            let looked = look(&round, step.guest.as_ref());
            prop_assert!(idle_ns < max_ns || looked == Look::Sleep);
            idle_ns = if step.has_packets || looked == Look::Sleep { 0 } else { idle_ns + step.pause_ns };
        }
    }

    /// Workers of a saturated thread are held for a bounded time, those of another one are only while they would leave without a
    /// view. None leaves a thread that has little to do.
    #[test]
    fn workers_of_a_saturated_thread_are_not_held_for_long(
        windows in prop::collection::vec((0..=100_u64, prop::option::of(0..4_u16), 4_000_000..30_000_000_u64), 1..STEPS),
        load_least in prop::sample::select(vec![0, SATURATED_PERCENT + 1]),
    ) {
        let (mut now_ns, mut since_ns) = (0, None);
        for (load, idle_cpus, window_ns) in windows {
            now_ns += window_ns;
            let load_percent = load.max(load_least);
            since_ns = since_ns.or(Some(now_ns)).filter(|_| load_percent > SATURATED_PERCENT);
            let saturated_ns = now_ns - since_ns.unwrap_or(now_ns);
            let thread = SharedThread { load_percent, saturated_ns };
            let (decided, unseen) = (separate(thread, idle_cpus), separate(thread, None));
            if saturated_ns >= HELD_MAX_NS {
                prop_assert!(decided.is_apart(), "{thread:?}, {idle_cpus:?}");
            }
            prop_assert!(decided != Separation::Held || (unseen.is_apart() && idle_cpus == Some(0)));
            prop_assert!(decided.is_apart() <= (unseen.is_apart() || idle_cpus >= Some(2)));
            if decided.is_apart() {
                since_ns = None;
            }
        }
    }

    /// Wrong counts cost no more offers than guessing does.
    #[test]
    fn offers_that_nothing_takes_are_as_rare_as_without_a_view(counts in prop::collection::vec((0..3_u32, 0..30_000_u64), 1..STEPS)) {
        let (mut last, mut now_ns, mut offers) = (None, 0_u64, 0);
        for (waiting, pause_ns) in counts {
            now_ns += pause_ns;
            let cpu = CpuState { occupant: Occupant::Thread(1), waiting };
            let offer = last.map(|at_ns| LastOffer { age_ns: now_ns - at_ns, was_taken: false });
            if occupy(Some(&cpu), offer) == Occupancy::Offer {
                (last, offers) = (Some(now_ns), offers + 1);
            }
        }
        prop_assert!(offers <= 1 + now_ns / OFFER_NS);
    }
}
