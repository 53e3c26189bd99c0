//! A lane: one queue of a device and one queue pair of the vNIC.

use std::os::fd::OwnedFd;

use lasthop_frontend::VnicPair;

use crate::bounds::UNWATCHED_VISITS;
use crate::watch::{Interest, Source, Watch};
use crate::{DevicePortId, Next, Queue, QueueError};
use lasthop_device::{DeviceDropReason, DriverCounters};

/// The state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// Frames pass.
    Open,
    /// There is no device: frames from the switch are dropped.
    NoDevice,
    /// There is no switch, or it broke the protocol: no frame moves.
    NoSwitch,
}

/// Frames that a visit moved or dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) to_device: usize,
    pub(crate) to_switch: usize,
}

/// One queue of a device and one queue pair of its port's vNIC, with everything that one thread needs to serve them.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) port: DevicePortId,
    pub(crate) generation: u64,
    pub(crate) pair: VnicPair,
    pub(crate) queue: Box<dyn Queue>,
    /// A descriptor of the lane's own for the connection to the switch.
    pub(crate) session: OwnedFd,
    pub(crate) counters: DriverCounters,
    pub(crate) state: LaneState,
    /// Whether it is polled; otherwise its thread waits for its events.
    pub(crate) is_active: bool,
    /// Time of its last frames or events.
    pub(crate) worked_ns: u64,
    received: Next,
    sent: Next,
    /// Whether the device has signalled, and no frame was found since.
    is_woken: bool,
    /// Whether it has reported an error since the last visit.
    is_faulty: bool,
    /// The device events to wait for, if any.
    interest: Option<Interest>,
    /// Visits with frames since it became active.
    busy_visits: u32,
}

impl Lane {
    /// A lane whose queue was started, or found its device gone.
    pub(crate) fn new(
        (port, generation): (DevicePortId, u64),
        pair: VnicPair,
        queue: Box<dyn Queue>,
        session: OwnedFd,
        state: LaneState,
    ) -> Self {
        Self {
            port,
            generation,
            pair,
            queue,
            session,
            counters: DriverCounters::default(),
            state,
            is_active: false,
            worked_ns: 0,
            received: Next::Idle,
            sent: Next::Idle,
            is_woken: false,
            is_faulty: false,
            interest: None,
            busy_visits: 0,
        }
    }

    /// Registers its descriptors at a thread that will serve it as number `lane`.
    pub(crate) fn enter(&mut self, watch: &Watch, lane: u32) -> std::io::Result<()> {
        watch.listen(self.pair.rx.call_fd(), Source::Call(lane))?;
        watch.listen(self.pair.tx.call_fd(), Source::Call(lane))?;
        watch.listen_for_end(&self.session, Source::Session(lane))?;
        if self.state == LaneState::Open {
            let interest = Interest { input: true, output: false };
            watch.listen_to_device(self.queue.fd(), lane, interest)?;
            self.interest = Some(interest);
        }
        Ok(())
    }

    /// Unregisters its descriptors.
    pub(crate) fn leave(&mut self, watch: &Watch) {
        watch.forget(self.pair.rx.call_fd());
        watch.forget(self.pair.tx.call_fd());
        watch.forget(rustix::fd::AsFd::as_fd(&self.session));
        self.forget_device(watch);
    }

    fn forget_device(&mut self, watch: &Watch) {
        if self.interest.take().is_some() {
            watch.forget(self.queue.fd());
        }
    }

    /// Closes one or both sides of it.
    pub(crate) fn close(&mut self, state: LaneState, watch: &Watch) {
        self.state = state;
        self.forget_device(watch);
        if state == LaneState::NoSwitch {
            self.is_active = false;
        }
    }

    /// Notes frames of the device. Their event does not come again, so a visit has to follow, also if it is active. `is_fault`: whether the
    /// device also has an error to report.
    pub(crate) fn wake(&mut self, now: u64, is_fault: bool) {
        (self.worked_ns, self.is_woken) = (now, true);
        self.is_faulty |= is_fault;
        self.activate(now);
    }

    /// Makes it active: from now on the switch need not signal.
    pub(crate) fn activate(&mut self, now: u64) {
        if self.state == LaneState::NoSwitch || self.is_active {
            return;
        }
        (self.is_active, self.worked_ns, self.busy_visits) = (true, now, 0);
        self.pair.rx.suppress_calls();
        self.pair.tx.suppress_calls();
    }

    /// Moves a batch in each direction.
    ///
    /// # Errors
    /// [`QueueError`]; frames that moved before are published.
    #[inline]
    pub(crate) fn visit(&mut self) -> Result<Moved, QueueError> {
        let moved = match self.state {
            LaneState::Open => self.pump(),
            LaneState::NoDevice => self.discard(),
            LaneState::NoSwitch => return Ok(Moved::default()),
        };
        self.pair.rx.flush()?;
        self.pair.tx.flush()?;
        moved
    }

    /// Notes a visit with frames. A device that need not be heard while its lane is busy is not watched any more, until the lane
    /// rests: the kernel calls whatever watches a socket for each frame.
    #[inline]
    pub(crate) fn note_busy(&mut self, watch: &Watch) {
        self.busy_visits = self.busy_visits.saturating_add(1);
        if self.busy_visits == UNWATCHED_VISITS && !self.queue.is_heard_while_busy() {
            self.forget_device(watch);
        }
    }

    #[inline]
    fn pump(&mut self) -> Result<Moved, QueueError> {
        let sent = self.queue.send(&mut self.pair, &mut self.counters)?;
        self.sent = sent.next;
        let received = self.queue.receive(&mut self.pair, &mut self.counters)?;
        self.received = received.next;
        let is_in_vain = self.is_woken && received.frames == 0 && received.next != Next::Blocked;
        self.is_woken &= received.next == Next::Blocked;
        if is_in_vain || std::mem::take(&mut self.is_faulty) {
            self.queue.check(&mut self.counters)?;
        }
        Ok(Moved { to_device: sent.frames, to_switch: received.frames })
    }

    fn discard(&mut self) -> Result<Moved, QueueError> {
        let visit = self.queue.discard(&mut self.pair, &mut self.counters, DeviceDropReason::DeviceDown)?;
        (self.sent, self.received) = (visit.next, Next::Idle);
        Ok(Moved { to_device: visit.frames, to_switch: 0 })
    }

    /// Goes to sleep: requests signals and polls once more. Returns false if there was something: it stays active.
    pub(crate) fn rest(&mut self, watch: &Watch, lane: u32) -> std::io::Result<bool> {
        let has_frames = self.sent != Next::Blocked && self.pair.rx.arm_calls();
        let has_room = self.received == Next::Blocked && self.pair.tx.arm_calls();
        if has_frames || has_room {
            self.pair.rx.suppress_calls();
            self.pair.tx.suppress_calls();
            return Ok(false);
        }
        let wanted = Interest { input: self.received != Next::Blocked, output: self.sent == Next::Blocked };
        if self.state == LaneState::Open && self.interest != Some(wanted) {
            match self.interest {
                Some(_) => watch.change(self.queue.fd(), lane, wanted)?,
                // Events of the meantime are reported at once.
                None => watch.listen_to_device(self.queue.fd(), lane, wanted)?,
            }
            self.interest = Some(wanted);
        }
        self.is_active = false;
        Ok(true)
    }

    /// Its counters.
    pub(crate) fn count(&mut self) -> DriverCounters {
        if self.state == LaneState::Open {
            self.counters.missed += self.queue.missed();
        }
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::Visit;
    use crate::tests::{World, world};

    const LANE: u32 = 5;

    /// A device that is a datagram socket, and passes nothing on.
    #[derive(Debug)]
    struct Sink {
        socket: UnixDatagram,
        is_heard: bool,
    }

    impl Queue for Sink {
        fn fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }

        fn start(&mut self, _: &mut VnicPair, _: &mut DriverCounters) -> Result<(), QueueError> {
            Ok(())
        }

        fn receive(&mut self, _: &mut VnicPair, _: &mut DriverCounters) -> Result<Visit, QueueError> {
            let frames = std::iter::from_fn(|| self.socket.recv(&mut [0; 16]).ok()).count();
            Ok(Visit { frames, next: Next::Idle })
        }

        fn send(&mut self, _: &mut VnicPair, _: &mut DriverCounters) -> Result<Visit, QueueError> {
            Ok(Visit { frames: 0, next: Next::Idle })
        }

        fn discard(
            &mut self,
            _: &mut VnicPair,
            _: &mut DriverCounters,
            _: DeviceDropReason,
        ) -> Result<Visit, QueueError> {
            Ok(Visit { frames: 0, next: Next::Idle })
        }

        fn is_heard_while_busy(&self) -> bool {
            self.is_heard
        }

        fn missed(&mut self) -> u64 {
            0
        }
    }

    #[test]
    fn a_busy_device_need_not_be_watched_and_a_resting_one_is() {
        for is_heard in [true, false] {
            let (wire, socket) = UnixDatagram::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let World { pair, _vnic, .. } = world();
            let session = socket.try_clone().unwrap().into();
            let queue = Box::new(Sink { socket, is_heard });
            let mut lane = Lane::new((DevicePortId(1), 0), pair, queue, session, LaneState::Open);
            let watch = Watch::new().unwrap();
            let has_signalled = || {
                wire.send(b"frame").unwrap();
                watch.wait(false).contains(&Source::Device(LANE))
            };
            lane.enter(&watch, LANE).unwrap();
            for round in 0..3_u64 {
                assert!(has_signalled(), "round {round}");
                lane.wake(round, false);
                for visit in 1..=UNWATCHED_VISITS {
                    assert_eq!(lane.visit().unwrap().to_switch, 1);
                    lane.note_busy(&watch);
                    assert_eq!(has_signalled(), is_heard || visit < UNWATCHED_VISITS, "visit {visit}");
                }
                // The last frame is there when it rests: either its event came, or it comes now.
                assert!(lane.rest(&watch, LANE).unwrap() && !lane.is_active);
                assert_eq!(watch.wait(false).contains(&Source::Device(LANE)), !is_heard, "round {round}");
                lane.wake(round, false);
                assert_eq!(lane.visit().unwrap().to_switch, 1);
                assert!(lane.rest(&watch, LANE).unwrap());
            }
        }
    }
}
