//! The product's search for a helper (`engine/helper_finder.rs`, `engine/helpers.rs`), by a snapshot of the modelled CPUs.
//! The decisions `share_of_home`, `spread` and `place` are those of `lasthop-sched`.

use std::sync::{Arc, Mutex};

use lasthop_fabric::{HelpShare, HelperFinder, LargeCopies, RingId};
use lasthop_module_api::PortId;
use lasthop_sched::{
    CopyKind, CpuDistance, CpuPlace, HELPER_TURN_VISITS, OffloadCriteria, PlaceCriteria, QueueRow, distance,
    place, share_of_home, spread,
};

/// The product's criteria: `offload` of the configuration (docs/user/operating.md).
pub(crate) fn usual_offload() -> OffloadCriteria {
    OffloadCriteria {
        packet_bytes_min: 32_768,
        blocked_packets_max: 0,
        helper_packets_max: 32,
        ..OffloadCriteria::default()
    }
}

/// Visits with large frames, and placements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeskCounts {
    /// Visits that shared frames, and those that found no idle CPU.
    pub(crate) shared: u64,
    pub(crate) alone: u64,
    /// Placements for which a CPU of the receiver's LLC and one outside of it were free; those that took the former.
    pub(crate) both_free: u64,
    pub(crate) near: u64,
}

/// The view at the time of a visit.
#[derive(Debug, Default)]
pub(crate) struct HelperDesk {
    pub(crate) places: Vec<CpuPlace>,
    /// Whether no thread but a helper has or awaits a CPU.
    pub(crate) is_idle: Vec<bool>,
    /// The CPU of each card's guest. The view does not know those of a bench, which plays all guests in one thread.
    pub(crate) guest_cpus: Vec<Option<usize>>,
    /// The row of each card's receive queue; empty: the CPUs of the guests decide.
    pub(crate) rows: Vec<QueueRow>,
    /// The CPU of the worker that visits.
    pub(crate) own_cpu: usize,
    /// The CPU of each helper, and the number of the first one among all workers.
    pub(crate) helper_cpus: Vec<usize>,
    pub(crate) first: usize,
    pub(crate) offload: OffloadCriteria,
    pub(crate) place: PlaceCriteria,
    pub(crate) counts: DeskCounts,
    /// Helpers of a visit. The product has one; the further ones and their rings are noted for the simulation.
    pub(crate) visit_helpers: usize,
    pub(crate) further: Vec<(RingId, usize)>,
    /// CPUs that a visit has already.
    pub(crate) chosen: Vec<usize>,
}

impl HelperDesk {
    fn choose(
        &self,
        receiver: usize,
        port: PortId,
        criteria: PlaceCriteria,
        far_only: bool,
    ) -> Option<usize> {
        let has_helper = |cpu: usize| self.helper_cpus.contains(&cpu);
        let is_far = |cpu: usize| distance(&self.places, receiver, cpu) > CpuDistance::Llc;
        let guest_cpu = self.guest_cpus[port.index() - 1];
        let has_job =
            |cpu: usize| self.chosen.contains(&cpu) || cpu == self.own_cpu || Some(cpu) == guest_cpu;
        let is_free = |cpu: usize| self.is_idle[cpu] && !has_job(cpu);
        let is_idle = |cpu: usize| is_free(cpu) && (!far_only || is_far(cpu));
        let turn = spread(port.0, (self.counts.shared / HELPER_TURN_VISITS) as u32);
        place(&self.places, has_helper, is_idle, receiver, turn, criteria)
    }

    fn find(&mut self, port: PortId, copies: LargeCopies) -> Option<HelpShare> {
        let LargeCopies { packets, bytes, waiting, is_summed } = copies;
        let row = self.rows.get(port.index() - 1).and_then(|row| row.cpu);
        let receiver = self.guest_cpus[port.index() - 1].map(|cpu| row.map_or(cpu, usize::from));
        let receiver = receiver.unwrap_or(self.own_cpu);
        let is_far = distance(&self.places, self.own_cpu, receiver) > CpuDistance::Llc;
        let criteria = self.offload.of_kind(CopyKind { is_summed, is_far });
        let shared = share_of_home(packets, bytes, waiting, criteria)?;
        let cpu = self.choose(receiver, port, self.place, false);
        self.count(receiver, port, cpu);
        let seat = self.seat_of(cpu?)?;
        self.chosen.extend(cpu);
        for _ in 1..self.visit_helpers {
            let Some(more) = self.choose(receiver, port, self.place, false) else { break };
            self.chosen.push(more);
            let seat = self.seat_of(more);
            self.further.extend(seat.map(|seat| (RingId { port, queue: 0 }, seat)));
        }
        self.chosen.clear();
        Some(HelpShare { helper: (self.first + seat) as u8, packets: shared })
    }

    fn seat_of(&self, cpu: usize) -> Option<usize> {
        self.helper_cpus.iter().position(|at| *at == cpu)
    }

    fn count(&mut self, receiver: usize, port: PortId, chosen: Option<usize>) {
        let Some(cpu) = chosen else {
            self.counts.alone += 1;
            return;
        };
        let near = PlaceCriteria { farthest: self.place.farthest.min(CpuDistance::Llc), ..self.place };
        let has_near = self.choose(receiver, port, near, false).is_some();
        let has_far = self.choose(receiver, port, self.place, true).is_some();
        self.counts.shared += 1;
        if has_near && has_far {
            self.counts.both_free += 1;
            self.counts.near += u64::from(distance(&self.places, receiver, cpu) <= CpuDistance::Llc);
        }
    }
}

/// Finds helpers for the fabric of a worker. One thread runs all, so the lock is always free.
pub(crate) struct DeskFinder(pub(crate) Arc<Mutex<HelperDesk>>);

impl HelperFinder for DeskFinder {
    fn find(&mut self, ring: RingId, copies: LargeCopies) -> Option<HelpShare> {
        self.0.lock().ok()?.find(ring.port, copies)
    }

    /// The simulation wakes each helper that has orders.
    fn wake(&mut self, _helper: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_helpers_go_first_and_are_counted() {
        let places: Vec<CpuPlace> =
            (0..16).map(|cpu| CpuPlace { group: cpu / 2, llc: cpu / 8, node: cpu / 8 }).collect();
        let mut desk = HelperDesk {
            is_idle: (0..16).map(|cpu| cpu > 1).collect(),
            guest_cpus: vec![Some(0)],
            own_cpu: 1,
            helper_cpus: (0..16).collect(),
            first: 1,
            offload: usual_offload(),
            places,
            ..HelperDesk::default()
        };
        let large = LargeCopies { packets: 4, bytes: 4 * 65_000, waiting: 0, is_summed: false };
        let share = desk.find(PortId(1), large).unwrap();
        assert!((3..9).contains(&share.helper) && share.packets == 4, "{share:?}");
        assert_eq!(
            desk.find(PortId(1), LargeCopies { packets: 1, ..large }),
            None,
            "one frame is not shared"
        );
        desk.is_idle[2..8].fill(false);
        assert!(desk.find(PortId(1), large).unwrap().helper >= 9);
        desk.is_idle.fill(false);
        assert_eq!(desk.find(PortId(1), large), None);
        assert_eq!(desk.counts, DeskCounts { shared: 2, alone: 1, both_free: 1, near: 1 });
    }
}
