//! The control queue (virtio 1.2, 5.1.6.5) of guests that no VMM serves, which would wait for an answer for ever.

use std::collections::HashMap;
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_guestmem::{Cursor, MemoryMap, Segment, Word};
use lasthop_module_api::PortId;
use lasthop_ring::{BufferAccess, DeviceRing, RingError, walk};

const CLASS_MQ: u8 = 4;
const MQ_VQ_PAIRS_SET: u8 = 0;
const ACK_OK: u8 = 0;
const ACK_ERR: u8 = 1;
/// Pieces of one command: Linux uses three.
const SEGMENTS_MAX: usize = 16;
/// Commands that are served at a time; a guest has one outstanding.
const COMMANDS_MAX: usize = 16;
/// Shortest time between two services, in ns. Guests send commands when they start or are reconfigured, and each may
/// change all rings of the port.
const PAUSE_NS: u64 = 10_000_000;

/// The result of serving the queue once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlOutcome {
    /// Number of answered commands.
    pub(crate) commands: usize,
    /// Queue pairs granted to the last command that asked for some.
    pub(crate) granted: Option<u16>,
    /// Whether the guest is to be signalled.
    pub(crate) signal: bool,
}

/// Limits how often a control queue is served.
#[derive(Debug, Default)]
pub(crate) struct ControlPace {
    next_ns: u64,
    is_late: bool,
}

/// A control ring and its memory.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    pub(crate) ring: DeviceRing,
    pub(crate) map: Arc<MemoryMap>,
    /// Index of the virtqueue: it follows all queue pairs.
    pub(crate) index: u16,
    pub(crate) queue_pairs_max: u16,
    /// Memory where a successor finds the number of granted queue pairs.
    pub(crate) granted: Option<Word>,
    /// The guest gave no kick descriptor: the queue is served after each pause.
    pub(crate) is_polled: bool,
    pub(crate) error: Option<RingError>,
    pub(crate) pace: ControlPace,
}

impl ControlQueue {
    /// Returns the earliest time of service if that is in the future. Otherwise the caller serves now, and a pause
    /// begins.
    pub(crate) fn defer(&mut self, now_ns: u64) -> Option<u64> {
        self.pace.is_late = now_ns < self.pace.next_ns;
        if self.pace.is_late {
            return Some(self.pace.next_ns);
        }
        self.pace.next_ns = now_ns + PAUSE_NS;
        None
    }

    /// The time of the next service of a queue that is polled, once this one is over.
    fn look_again(&mut self) -> Option<u64> {
        self.pace.is_late = self.is_polled && self.error.is_none();
        self.pace.is_late.then_some(self.pace.next_ns)
    }

    /// Whether it was deferred and not served since, or is polled.
    pub(crate) fn is_late(&self) -> bool {
        self.pace.is_late
    }

    /// Answers pending commands, and arms kicks.
    pub(crate) fn serve(&mut self) -> ControlOutcome {
        let (mut granted, mut commands) = (None, 0);
        while self.error.is_none() && commands < COMMANDS_MAX {
            match self.serve_one(&mut granted) {
                Ok(true) => commands += 1,
                Ok(false) => break,
                Err(error) => self.error = Some(error),
            }
        }
        // A guest with more commands than are served at a time has to kick again.
        let _ = self.ring.arm_kicks();
        self.ring.publish();
        ControlOutcome { commands, granted, signal: commands > 0 && self.ring.needs_signal() }
    }

    fn serve_one(&mut self, granted: &mut Option<u16>) -> Result<bool, RingError> {
        if self.ring.pending()? == 0 && !self.ring.arm_kicks()? {
            return Ok(false);
        }
        let head = self.ring.head(0)?;
        let mut readable = ArrayVec::<Segment, SEGMENTS_MAX>::new();
        let mut writable = ArrayVec::<Segment, SEGMENTS_MAX>::new();
        walk(&self.ring, &self.map, head, BufferAccess::Both, &mut 0, |segment, is_writable| {
            let list = if is_writable { &mut writable } else { &mut readable };
            list.try_push(segment).is_ok()
        })?;
        self.ring.take(1);
        let asked = self.parse(&readable);
        if let (Some(pairs), Some(word)) = (asked, &self.granted) {
            word.store(u32::from(pairs));
        }
        let ack = if asked.is_some() { ACK_OK } else { ACK_ERR };
        let written = Cursor::new(&self.map, &writable).write(&[ack]).unwrap_or(0);
        *granted = asked.or(*granted);
        self.ring.complete(head, written as u32);
        Ok(true)
    }

    /// The number of queue pairs that a command asks for, if it can be granted.
    fn parse(&self, readable: &[Segment]) -> Option<u16> {
        let mut bytes = [0; 4];
        let len = Cursor::new(&self.map, readable).read(&mut bytes).ok()?;
        let [CLASS_MQ, MQ_VQ_PAIRS_SET, low, high] = bytes else { return None };
        let pairs = u16::from_le_bytes([low, high]);
        (len == 4 && (1..=self.queue_pairs_max).contains(&pairs)).then_some(pairs)
    }
}

/// The control queues of a worker's ports.
#[derive(Debug)]
pub(crate) struct ControlQueues {
    queues: HashMap<PortId, ControlQueue>,
    /// The earliest time at which a deferred or polled queue is served.
    late_ns: u64,
}

/// A served control queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedControl {
    /// Index of its virtqueue.
    pub(crate) index: u16,
    /// Number of rings before it.
    pub(crate) rings: u16,
    pub(crate) outcome: ControlOutcome,
}

impl Default for ControlQueues {
    fn default() -> Self {
        Self { queues: HashMap::new(), late_ns: u64::MAX }
    }
}

impl ControlQueues {
    /// Whether virtqueue `index` of a port is its control queue.
    pub(crate) fn is_control(&self, port: PortId, index: u16) -> bool {
        self.queues.get(&port).is_some_and(|control| control.index == index)
    }

    pub(crate) fn insert(&mut self, port: PortId, control: ControlQueue) {
        self.queues.insert(port, control);
    }

    pub(crate) fn remove(&mut self, port: PortId) -> Option<ControlQueue> {
        self.queues.remove(&port)
    }

    /// The guest's fault that stopped its control queue.
    pub(crate) fn error(&self, port: PortId) -> Option<RingError> {
        self.queues.get(&port).and_then(|control| control.error)
    }

    /// The ring's position, if there is a ring.
    pub(crate) fn position(&self, port: PortId) -> Option<u16> {
        self.queues.get(&port).map(|control| control.ring.base())
    }

    /// Serves a port's control queue, or defers it if it was served recently.
    pub(crate) fn serve(&mut self, port: PortId, now_ns: u64) -> Option<ServedControl> {
        let control = self.queues.get_mut(&port)?;
        if let Some(due_ns) = control.defer(now_ns) {
            self.late_ns = self.late_ns.min(due_ns);
            return None;
        }
        let outcome = control.serve();
        self.late_ns = self.late_ns.min(control.look_again().unwrap_or(u64::MAX));
        Some(ServedControl { index: control.index, rings: 2 * control.queue_pairs_max, outcome })
    }

    /// The time at which the first deferred or polled queue is served; `u64::MAX` if there is none.
    #[inline]
    pub(crate) fn late_ns(&self) -> u64 {
        self.late_ns
    }

    /// The ports with deferred or polled queues, if the first one is due.
    pub(crate) fn take_late(&mut self) -> Vec<PortId> {
        self.late_ns = u64::MAX;
        let late = self.queues.iter().filter(|(_, control)| control.is_late()).map(|(port, _)| *port);
        late.collect()
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
        (
            ControlQueue {
                ring,
                map,
                index: 4,
                queue_pairs_max: 2,
                granted: None,
                is_polled: false,
                error: None,
                pace: ControlPace::default(),
            },
            driver,
        )
    }

    fn ask(queue: &mut ControlQueue, driver: &mut DriverRing, command: &[u8]) -> (Option<u16>, u8) {
        let at = |addr, len| queue.map.translate(addr, len, &mut 0).unwrap();
        queue.map.write(at(COMMAND, 4), 0, command).unwrap();
        queue.map.write(at(ACK, 1), 0, &[0xee]).unwrap();
        // The layout that Linux uses: class and command, then data, then the ack.
        driver.add(&[(COMMAND, 2), (COMMAND + 2, command.len() as u32 - 2)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        let ControlOutcome { commands, granted, signal } = queue.serve();
        assert_eq!((commands, signal), (1, true));
        assert_eq!(driver.take_used().unwrap().unwrap().len, 1);
        let mut ack = [0];
        queue.map.read(queue.map.translate(ACK, 1, &mut 0).unwrap(), 0, &mut ack).unwrap();
        (granted, ack[0])
    }

    #[test]
    fn queue_pairs_are_granted_within_range_and_all_else_is_answered_with_an_error() {
        let (mut queue, mut driver) = queue();
        assert_eq!(ask(&mut queue, &mut driver, &[4, 0, 2, 0]), (Some(2), ACK_OK));
        for refused in [[4, 0, 0, 0], [4, 0, 3, 0], [4, 1, 1, 0], [0, 0, 1, 0]] {
            assert_eq!(ask(&mut queue, &mut driver, &refused), (None, ACK_ERR), "{refused:?}");
        }
        assert_eq!(ask(&mut queue, &mut driver, &[4, 0, 1]), (None, ACK_ERR), "cut short");
    }

    #[test]
    fn of_several_commands_the_last_one_counts_and_the_next_ones_have_to_wait() {
        let (mut queue, mut driver) = queue();
        queue
            .map
            .write(queue.map.translate(COMMAND, 8, &mut 0).unwrap(), 0, &[4, 0, 2, 0, 4, 0, 1, 0])
            .unwrap();
        for at in [COMMAND, COMMAND + 4, COMMAND + 8] {
            driver.add(&[(at, 4)], &[(ACK, 1)], 0).unwrap();
        }
        driver.publish();
        assert_eq!(queue.defer(5), None);
        assert_eq!(queue.serve(), ControlOutcome { commands: 3, granted: Some(1), signal: true });
        assert_eq!((queue.defer(6), queue.is_late()), (Some(5 + PAUSE_NS), true));
        assert_eq!((queue.defer(5 + PAUSE_NS), queue.is_late()), (None, false));
    }

    #[test]
    fn a_queue_without_kicks_is_served_after_each_pause_until_it_breaks() {
        let (queue, mut driver) = queue();
        let (port, mut queues) = (PortId(1), ControlQueues::default());
        queue.map.write(queue.map.translate(COMMAND, 4, &mut 0).unwrap(), 0, &[4, 0, 2, 0]).unwrap();
        queues.insert(port, ControlQueue { is_polled: true, ..queue });
        assert_eq!(queues.serve(port, 5).unwrap().outcome.commands, 0);
        assert_eq!(queues.late_ns(), 5 + PAUSE_NS);
        driver.add(&[(COMMAND, 4)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        assert_eq!(queues.take_late(), [port]);
        assert_eq!(queues.serve(port, 5 + PAUSE_NS).unwrap().outcome.granted, Some(2));
        driver.add(&[(1 << 40, 2)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        assert_eq!(queues.take_late(), [port]);
        queues.serve(port, 5 + 2 * PAUSE_NS);
        assert!(queues.error(port).is_some());
        assert_eq!((queues.late_ns(), queues.take_late()), (u64::MAX, vec![]));
    }

    #[test]
    fn a_broken_control_ring_is_stopped() {
        let (mut queue, mut driver) = queue();
        driver.add(&[(1 << 40, 2)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        assert_eq!(queue.serve().commands, 0);
        assert!(matches!(queue.error, Some(RingError::BufferOutside(..))));
    }
}
