//! State for executing actions: that of a batch, and that of one packet.

use std::sync::atomic::AtomicU64;

use lasthop_module_api::{DropReason, PortId, Verdicts};
use lasthop_wire::Key;

use crate::bounds::{DEPTH_MAX, RECIRCULATION_DEPTH_MAX, RECIRCULATIONS_MAX, STEPS_MAX};
use crate::cache::Hit;
use crate::meter::Meters;
use crate::pending_filter::FilterKey;
use crate::shared::Shared;
use crate::slot::tag_of;
use crate::tracked_batch::TrackedBatch;
use crate::tracking::Tracking;
use crate::worker_state::WorkerState;

/// Packets of guests, devices and the control plane.
#[derive(Debug)]
pub(crate) struct Live;

/// Does actions, for one worker and one batch.
pub(crate) struct Executor<'a, C = Live> {
    pub(crate) shared: &'a Shared,
    pub(crate) meters: &'a Meters,
    pub(crate) tracking: &'a Tracking,
    pub(crate) local: &'a mut WorkerState,
    pub(crate) verdicts: &'a mut Verdicts,
    pub(crate) tracked: &'a mut TrackedBatch,
    pub(crate) now_ns: u64,
    /// The module's name in upcalls.
    pub(crate) origin: u16,
    /// Where packets come in.
    pub(crate) port: PortId,
    /// Whether packets may wait in their ring behind many others of their flow.
    pub(crate) may_pause: bool,
    pub(crate) course: C,
}

/// The source of a packet's actions.
pub(crate) enum ActionSource<'a> {
    /// An upcall: the hash of the packet's key, and the filter key of its flow's packets.
    Upcall(u64, FilterKey),
    /// The actions of its flow, and the flow's tag.
    Flow(u64, u32),
    /// Actions of an execute request, and the number that its upcalls carry in place of a flow's.
    Execute(&'a [AtomicU64], u32),
    /// None: fields are missing in the packet's key, so the control plane would decide on less than the packet has.
    Unread,
}

impl ActionSource<'_> {
    /// The source for a packet with this key, for which there is no flow.
    #[inline]
    pub(crate) fn of_miss(key: &Key, shared: &Shared, filter_key: FilterKey) -> Self {
        if key.is_unread() { Self::Unread } else { Self::Upcall(shared.secret.of_key(key), filter_key) }
    }
}

/// The result of one packet and its copies.
pub(crate) struct ActionResult {
    /// Copies that went somewhere.
    pub(crate) sent: u32,
    /// Why one that should have did not; said to the verdicts already if there is one that did.
    pub(crate) why: DropReason,
    pub(crate) is_said: bool,
    /// Steps and recirculations that are left to it and its copies.
    pub(crate) steps: u32,
    pub(crate) recirculations: u32,
    /// Recirculations within recirculations, and lists within lists, that are left at this point.
    pub(crate) recirculation_depth: u32,
    pub(crate) depth: u32,
}

impl ActionResult {
    pub(crate) fn for_packet() -> Self {
        Self {
            sent: 0,
            why: DropReason::FlowDrop,
            is_said: false,
            steps: STEPS_MAX,
            recirculations: RECIRCULATIONS_MAX,
            recirculation_depth: RECIRCULATION_DEPTH_MAX,
            depth: DEPTH_MAX,
        }
    }
}

/// The flow's tag in upcalls.
pub(crate) fn tag(hit: Hit) -> u32 {
    tag_of(hit.flow, hit.generation)
}
