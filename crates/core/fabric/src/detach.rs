//! Detaches waiting packets that hold back completed chains of their ring.

use crate::rx::receive_ring::FollowUp;
use crate::tx::tx_queue::Obstacle;
use crate::{Fabric, RingId, Tools, tools};

impl Fabric {
    /// Detaches, after rings were published, the waiting packets that hold back completed chains. A packet that finds
    /// no room stays: its guest gets no chain behind it back until the packet is delivered or dropped, or there is
    /// room.
    #[inline]
    pub(crate) fn detach_obstacles(&mut self) {
        while let Some(ring) = self.senders.next_obstructed() {
            self.detach_obstacle(ring);
        }
    }

    #[cold]
    fn detach_obstacle(&mut self, sender: RingId) {
        let mut is_late = false;
        while let Some(obstacle) = self.senders.obstacle(sender) {
            let count = match obstacle {
                Obstacle::At(place) => self.detach_at(place, sender, &mut is_late),
                Obstacle::Scattered => {
                    let places: Vec<RingId> = self.receivers.rings().collect();
                    places.into_iter().map(|place| self.detach_at(place, sender, &mut is_late)).sum()
                }
            };
            if count == 0 {
                break;
            }
            self.senders.publish_ring(sender, &mut self.signals);
        }
        if is_late {
            self.senders.mark_dirty(sender);
        }
    }

    /// Detaches the packets of `sender` that wait at `place`. Returns their number. If another worker has the claim,
    /// sets `is_late`, and this worker tries again.
    fn detach_at(&mut self, place: RingId, sender: RingId, is_late: &mut bool) -> usize {
        let count = self.receivers.with_claim(place, &mut tools!(self), |service| service.detach(sender));
        if count.is_none() && self.receivers.ring(place).is_some() {
            self.receivers.note(place, FollowUp::Now);
            *is_late = true;
        }
        count.unwrap_or(0)
    }
}
