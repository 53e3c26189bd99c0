//! The control queue (virtio 1.2, 5.1.6.5) of guests without a VMM in between, which would otherwise wait for ever.

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_guestmem::{Cursor, MemoryMap, Segment, Word};
use lasthop_ring::{DeviceRing, Direction, RingError, walk};

const CLASS_MQ: u8 = 4;
const MQ_VQ_PAIRS_SET: u8 = 0;
const ACK_OK: u8 = 0;
const ACK_ERR: u8 = 1;
/// Pieces of one command: Linux uses three.
const SEGMENTS_MAX: usize = 16;
/// Commands served at a time; a guest has one under way.
const COMMANDS_MAX: usize = 64;

/// What a guest asked for, and was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Use this many queue pairs.
    QueuePairs(u16),
}

/// A control ring and the memory that it lies in.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    pub(crate) ring: DeviceRing,
    pub(crate) map: Arc<MemoryMap>,
    /// Index of the virtqueue: behind all queue pairs.
    pub(crate) index: u16,
    pub(crate) queue_pairs_max: u16,
    /// Where a successor finds what was granted.
    pub(crate) granted: Option<Word>,
    pub(crate) error: Option<RingError>,
}

impl ControlQueue {
    /// Answers pending commands and asks for the next kick. Returns what was granted and whether to signal the guest.
    pub(crate) fn serve(&mut self) -> (ArrayVec<Command, COMMANDS_MAX>, bool) {
        let mut granted = ArrayVec::new();
        let mut served = 0;
        while self.error.is_none() && served < COMMANDS_MAX {
            match self.serve_one(&mut granted) {
                Ok(true) => served += 1,
                Ok(false) => break,
                Err(error) => self.error = Some(error),
            }
        }
        // A guest that has more under way than is served at a time has to kick again.
        let _ = self.ring.arm_kicks();
        self.ring.publish();
        (granted, served > 0 && self.ring.needs_signal())
    }

    fn serve_one(&mut self, granted: &mut ArrayVec<Command, COMMANDS_MAX>) -> Result<bool, RingError> {
        if self.ring.pending()? == 0 && !self.ring.arm_kicks()? {
            return Ok(false);
        }
        let head = self.ring.head(0)?;
        let mut readable = ArrayVec::<Segment, SEGMENTS_MAX>::new();
        let mut writable = ArrayVec::<Segment, SEGMENTS_MAX>::new();
        walk(&self.ring, &self.map, head, Direction::Both, &mut 0, |segment, is_writable| {
            let list = if is_writable { &mut writable } else { &mut readable };
            list.try_push(segment).is_ok()
        })?;
        self.ring.take(1);
        let command = self.parse(&readable);
        if let (Some(Command::QueuePairs(pairs)), Some(word)) = (command, &self.granted) {
            word.store(u32::from(pairs));
        }
        let ack = if command.is_some() { ACK_OK } else { ACK_ERR };
        let written = Cursor::new(&self.map, &writable).write(&[ack]).unwrap_or(0);
        granted.extend(command);
        self.ring.complete(head, written as u32);
        Ok(true)
    }

    fn parse(&self, readable: &[Segment]) -> Option<Command> {
        let mut bytes = [0; 4];
        let len = Cursor::new(&self.map, readable).read(&mut bytes).ok()?;
        let [CLASS_MQ, MQ_VQ_PAIRS_SET, low, high] = bytes else { return None };
        let pairs = u16::from_le_bytes([low, high]);
        (len == 4 && (1..=self.queue_pairs_max).contains(&pairs)).then_some(Command::QueuePairs(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_guestmem::{Mapping, Region};
    use lasthop_ring::{DriverRing, RingAddresses, RingMemory};

    const COMMAND: u64 = 8192;
    const ACK: u64 = 8256;

    fn queue() -> (ControlQueue, DriverRing) {
        let mapping = Arc::new(Mapping::anonymous(16384).unwrap());
        let map = Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap());
        let addresses = RingAddresses { descriptors: 0, available: 1024, used: 2048 };
        let memory = || RingMemory::new(&map, 16, addresses).unwrap();
        let driver = DriverRing::new(memory(), false);
        let ring = DeviceRing::new(memory(), 0, false);
        (ControlQueue { ring, map, index: 4, queue_pairs_max: 2, granted: None, error: None }, driver)
    }

    fn ask(queue: &mut ControlQueue, driver: &mut DriverRing, command: &[u8]) -> (Vec<Command>, u8) {
        let at = |addr, len| queue.map.translate(addr, len, &mut 0).unwrap();
        queue.map.write(at(COMMAND, 4), 0, command).unwrap();
        queue.map.write(at(ACK, 1), 0, &[0xee]).unwrap();
        // As Linux does: class and command, then data, then the ack.
        driver.add(&[(COMMAND, 2), (COMMAND + 2, command.len() as u32 - 2)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        let (granted, signal) = queue.serve();
        assert!(signal);
        assert_eq!(driver.take_used().unwrap().unwrap().len, 1);
        let mut ack = [0];
        queue.map.read(queue.map.translate(ACK, 1, &mut 0).unwrap(), 0, &mut ack).unwrap();
        (granted.to_vec(), ack[0])
    }

    #[test]
    fn queue_pairs_are_granted_within_range_and_all_else_is_answered_with_an_error() {
        let (mut queue, mut driver) = queue();
        assert_eq!(ask(&mut queue, &mut driver, &[4, 0, 2, 0]), (vec![Command::QueuePairs(2)], ACK_OK));
        for refused in [[4, 0, 0, 0], [4, 0, 3, 0], [4, 1, 1, 0], [0, 0, 1, 0]] {
            assert_eq!(ask(&mut queue, &mut driver, &refused), (vec![], ACK_ERR), "{refused:?}");
        }
        assert_eq!(ask(&mut queue, &mut driver, &[4, 0, 1]), (vec![], ACK_ERR), "cut short");
    }

    #[test]
    fn a_broken_control_ring_is_stopped() {
        let (mut queue, mut driver) = queue();
        driver.add(&[(1 << 40, 2)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        assert_eq!(queue.serve().0.len(), 0);
        assert!(matches!(queue.error, Some(RingError::BufferOutside(..))));
    }
}
