//! When to act: decisions as pure functions of the view of the scheduler, of queues, of history and of the time.
//!
//! **Purpose.** A switch without its own CPU has to poll, yield its CPU and signal guests at the right time. If the
//! host's scheduler is visible, it can decide; otherwise it guesses:
//!
//! ```text
//!   [look]      poll, give the CPU away, or sleep        else: for a learned time
//!   [occupy]    keep the CPU, or offer it                else: an offer every 20 us
//!   [remind]    a second signal, or none                 else: after 100 us, by trust
//!   [notify]    signal a receiver now, or later          else: now
//!   [transmit]  let a sender kick, or look by a timer    else: let it kick
//!   [offload]   who copies: the receiver, or an idle CPU     else: the home alone
//!   [place]     which idle CPU                               else: none
//!   [separate]  whether a worker gets a thread of its own      else: by its thread's load
//!   [gather]      which threads share a last-level cache, each second; needs no view
//!   [QueueRow]  near which CPU the packets of a receive queue should be      else: near the guest's first thread
//!   [steal_credit]   whose share of the CPU an idle thread lends, each second; needs no view
//! ```
//!
//! **Contract.** No clock, no descriptor, no thread, no allocation. The same arguments give the same decision. Times
//! are ns of one clock. The view may be late, missing or wrong: this affects the timing, but never exceeds a bound of
//! `bounds.rs`.
//!
//! **Not checked.** The caller acts on each decision, and asks again whenever it has read the view: once a round, never
//! per packet.
//!
//! **Threading.** Functions without side effects, for any thread.
//!
//! # Examples
//!
//! ```
//! use lasthop_sched::{GuestView, Look, LookRound, look};
//!
//! let round = LookRound { idle_ns: 60_000, learned_ns: 50_000, max_ns: 200_000, is_posted: false };
//! assert_eq!(look(&round, None), Look::Sleep);
//! // The guest works on its answer on another CPU, so the thread polls beyond the time that it learned.
//! let works = GuestView { running: 1, ..GuestView::default() };
//! assert_eq!(look(&round, Some(&works)), Look::Poll);
//! // The guest waits for the CPU on which this thread polls.
//! let waits = GuestView { waiting_here: 1, ..GuestView::default() };
//! assert_eq!(look(&round, Some(&waits)), Look::Yield);
//! ```
#![forbid(unsafe_code)]

pub mod bounds;
mod gather;
mod guest;
mod look;
mod measured;
mod movement;
mod notify;
mod offload;
mod place;
mod policy;
mod separate;
mod shares;
mod transmit;

pub use gather::{BATCHES_PER_SLICE, BatchFlow, GatheredThread, SLICE_NS, gather};
pub use guest::GuestView;
pub use guest::{Activity, CpuState, Occupant, ThreadState};
pub use look::{LastOffer, Occupancy, occupy};
pub use look::{Look, LookRound, look};
pub use measured::{GROUP_NS_MAX, LLC_NS_MAX, LineTime, measured_places};
pub use movement::{GuestVcpus, Landing, LastTouch, QueueRow, VcpuRule, last_ran, wake_hint};
pub use notify::{Notification, Notify, notify};
pub use notify::{Reminder, UnansweredSignal, remind};
pub use offload::{
    CopyKind, CopyShares, HELPER_TURN_VISITS, OffloadCriteria, PendingCopies, offload, share_of_home, spread,
};
pub use place::{CpuDistance, CpuPlace, PlaceCriteria, distance, place};
pub use policy::{Mode, Modes, Policy};
pub use separate::{IDLE_CPUS_MAX, Separation, SharedThread, separate};
pub use shares::{ThreadLoad, ThreadShare, ThreadUse, steal_credit};
pub use transmit::{Transmit, TransmitRing, transmit};

#[cfg(test)]
mod schedules;
