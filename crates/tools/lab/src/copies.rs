//! Packets that were switched to one receiver: who copies each of them, and which copies are complete.
//!
//! ```text
//!   [ done | done | helper | receiver | receiver | free | free ]     in the order of the receive ring
//!   └─ visible ──┘ the receiver sees a packet when all before it are done, too
//! ```

use std::collections::VecDeque;

/// A packet that is to be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyJob {
    pub(crate) frame_bytes: u32,
    /// Where its bytes are: the sender's CPU.
    pub(crate) sender_cpu: usize,
}

/// The copies of one receiver.
#[derive(Debug, Default)]
pub(crate) struct CopyQueue {
    jobs: VecDeque<(CopyJob, Option<usize>)>,
    /// Number of the first job in `jobs`.
    base: u64,
    /// Number of the first job that is given to nobody.
    free: u64,
    /// Jobs that the receiver does itself.
    own: VecDeque<u64>,
    /// Whether the receiver knows of its own jobs.
    pub(crate) is_due: bool,
    /// Divisions so far.
    pub(crate) turn: u32,
}

impl CopyQueue {
    /// Enters a packet.
    pub(crate) fn push(&mut self, job: CopyJob) {
        self.jobs.push_back((job, None));
    }

    /// Jobs that are not complete.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Packets and bytes that are given to nobody, among the first `delivered` ones: those that have a buffer.
    pub(crate) fn unassigned(&self, delivered: usize) -> (u32, u64) {
        let from = (self.free - self.base) as usize;
        let to = delivered.min(self.jobs.len()).max(from);
        let bytes = self.jobs.range(from..to).map(|(job, _)| u64::from(job.frame_bytes)).sum();
        ((to - from) as u32, bytes)
    }

    /// Gives the first free job to somebody.
    pub(crate) fn assign(&mut self) -> u64 {
        self.free += 1;
        self.free - 1
    }

    /// Gives the first free job to the receiver.
    pub(crate) fn assign_own(&mut self) {
        let number = self.assign();
        self.own.push_back(number);
    }

    /// Gives a job back to the receiver.
    pub(crate) fn give_back(&mut self, number: u64) {
        let at = self.own.partition_point(|own| *own < number);
        self.own.insert(at, number);
    }

    /// The receiver's next own job.
    pub(crate) fn take_own(&mut self) -> Option<u64> {
        self.own.pop_front()
    }

    /// Whether the receiver has jobs of its own.
    pub(crate) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Job `number`, which is not complete.
    pub(crate) fn job(&self, number: u64) -> CopyJob {
        self.jobs[(number - self.base) as usize].0
    }

    /// Completes job `number` on `cpu`. Calls `visible` with the CPU of each packet that the receiver now sees.
    pub(crate) fn complete(&mut self, number: u64, cpu: usize, mut visible: impl FnMut(usize)) {
        self.jobs[(number - self.base) as usize].1 = Some(cpu);
        while let Some((_, Some(cpu))) = self.jobs.front() {
            visible(*cpu);
            self.jobs.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_become_visible_in_order() {
        let mut queue = CopyQueue::default();
        for frame_bytes in [100, 200, 300, 400] {
            queue.push(CopyJob { frame_bytes, sender_cpu: 0 });
        }
        assert_eq!(queue.unassigned(3), (3, 600), "the fourth one has no buffer");
        queue.assign_own();
        let [second, third] = [queue.assign(), queue.assign()];
        assert_eq!((queue.unassigned(4), queue.job(third).frame_bytes), ((1, 400), 300));
        let mut seen = Vec::new();
        queue.complete(third, 7, |cpu| seen.push(cpu));
        assert!(seen.is_empty(), "{seen:?}");
        queue.give_back(second);
        let own: Vec<u64> = std::iter::from_fn(|| queue.take_own()).collect();
        assert_eq!(own, [0, 1]);
        own.iter().for_each(|number| queue.complete(*number, 3, |cpu| seen.push(cpu)));
        assert_eq!((seen, queue.len()), (vec![3, 3, 7], 1));
    }
}
