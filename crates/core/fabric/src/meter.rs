//! Costs of access to guests' memory, by port. A front end can make any access to its memory wait, or cost pages.
//!
//! A lap is the work between two calls of the meter. The memory of one port at most is touched in it:
//!
//! ```text
//!   visit:  None │ fetch, touch the frames: sender │ decide: None │ copy: receiver
//!   drain:  None │ (receiver │ touch a waiting frame: its sender │ copy: receiver) x waiting
//! ```

use lasthop_module_api::PortId;

use crate::{Fabric, RingId};

/// Told whenever a fabric that is metered has been at one port's memory.
pub trait VisitMeter: Send {
    /// The work since the last call was done in the memory of `port`; `None`: in no port's. It stands for `weight` times as
    /// much. Returns the time in ns that its page faults took, to be charged to the port.
    fn lap(&mut self, port: Option<PortId>, weight: u64) -> u64;
}

/// A meter, and its arguments.
#[derive(Default)]
pub(crate) struct Metering {
    pub(crate) meter: Option<Box<dyn VisitMeter>>,
    /// 0: it is told nothing.
    pub(crate) weight: u64,
    /// A port may have to rest, and none longer than this.
    pub(crate) has_resting: bool,
    pub(crate) rest_until_ns: u64,
}

impl std::fmt::Debug for Metering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "weight {}", self.weight)
    }
}

impl Fabric {
    /// Sets the meter that is called while the fabric is metered.
    pub fn set_meter(&mut self, meter: Box<dyn VisitMeter>) {
        self.senders.metering.meter = Some(meter);
    }

    /// Starts metering, or stops it if `weight` is 0. While metered, each frame is touched before it is
    /// delivered, also one that waited. So the cost of its sender's memory is told apart from that of its receivers, and
    /// packets are copied one by one.
    pub fn set_metered(&mut self, weight: u64) {
        self.receivers.leases.set_off(weight > 0);
        self.senders.metering.weight = weight;
    }

    #[inline]
    pub(crate) fn lap(&mut self, port: Option<PortId>) {
        if self.senders.is_metered() {
            self.senders.tell_lap(port);
        }
    }

    /// Whether nothing is to be taken from `port` at `now_ns`, since page faults in its memory took long.
    #[inline]
    pub(crate) fn is_resting(&mut self, port: PortId, now_ns: u64) -> bool {
        self.senders.metering.has_resting && self.senders.look_at_rest(port, now_ns)
    }

    /// As [`Self::lap`] of a ring's port, after a batch was fetched from it.
    #[inline]
    pub(crate) fn lap_fetched(&mut self, ring: RingId) {
        if self.senders.is_metered() {
            self.senders.list(&mut self.fetched, 0);
            self.touch_fetched(ring);
            self.senders.tell_lap(Some(ring.port));
        }
    }

    /// Reads a byte of each page that the frames of this visit and their ring's next used entries are in.
    #[cold]
    fn touch_fetched(&mut self, ring: RingId) {
        let packets = &self.fetched.packets[..self.fetched.len];
        for packet in packets {
            let Some(source) = self.senders.source(*packet) else { continue };
            let segments = source.segments(*packet, &mut self.segments).unwrap_or_default();
            segments.iter().for_each(|segment| source.map().touch(*segment));
        }
        let count = packets.len() as u16; // a batch at most
        if let Some(queue) = self.senders.queue_mut(ring) {
            queue.ring.touch_used(count);
        }
    }
}
