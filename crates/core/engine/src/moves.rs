//! Moves of queue pairs between workers while their guests run.
//!
//! ```text
//!   control side ──task──> old home: release ──task──> new home: adopt ──> control side
//!                          between two visits          registers the kick descriptors, then visits both rings
//! ```
//!
//! The old home passes the pair on by itself, so a control side that no longer waits loses nothing. A task that has not
//! begun by then does nothing. Tasks of the new home that are posted later find the pair there.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use lasthop_fabric::{MovingRing, Release, RingId};
use lasthop_module_api::PortId;
use lasthop_vhost::ForeignFd;

use crate::clock::now_ns;
use crate::empty_kicks::KickRecord;
use crate::events::Event;
use crate::hand_over::{FirstStep, await_release, pass_on};
use crate::kicks::RETRY_NS;
use crate::port_control::PortControl;
use crate::worker::Worker;
use crate::{EngineError, REPLY_TIMEOUT};

/// A queue pair on its way to another home.
#[derive(Debug)]
pub(crate) struct MovingPair {
    port: PortId,
    /// `None` if only the receive ring runs.
    transmit: Option<MovingRing>,
    kicks: Vec<MovingKick>,
}

/// The kicks of a virtqueue.
#[derive(Debug)]
struct MovingKick {
    index: u16,
    kick: Option<ForeignFd>,
    kicks: u64,
    record: KickRecord,
    is_unheard: bool,
}

/// Why a worker does not release a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// None of its rings runs here.
    NotRunning,
    /// Its rings are being stopped, or another process is about to continue them.
    Stopping,
    /// Packets that an earlier home took wait for receivers.
    Unsettled,
    /// The control plane has packets of the port.
    Unanswered,
}

impl Refusal {
    fn error(self, port: PortId, pair: u16) -> EngineError {
        match self {
            Self::NotRunning => EngineError::NotRunning(port, pair),
            Self::Stopping => EngineError::PairStops(port, pair),
            Self::Unsettled => EngineError::StillMoving(port, pair),
            Self::Unanswered => EngineError::AwaitsAnswers(port, pair),
        }
    }
}

impl Worker {
    /// Releases a queue pair whose home is here, for worker `to`.
    pub(crate) fn release_pair(&mut self, port: PortId, pair: u16, to: usize) -> Result<MovingPair, Refusal> {
        let ring = RingId { port, queue: pair };
        let is_rings = |index: &u16| self.is_home(port, *index) && !self.controls.is_control(port, *index);
        let indices: Vec<u16> = [2 * pair, 2 * pair + 1].into_iter().filter(is_rings).collect();
        if indices.is_empty() {
            return Err(Refusal::NotRunning);
        }
        if self.is_still() || self.has_failed(port) {
            return Err(Refusal::Stopping);
        }
        let transmit = match self.fabric.release_ring(ring, to, now_ns(self.started)) {
            Release::Moving(moving) => Some(moving),
            Release::NotHere => None,
            Release::Stopping => return Err(Refusal::Stopping),
            Release::Unsettled => return Err(Refusal::Unsettled),
            Release::Unanswered => return Err(Refusal::Unanswered),
        };
        self.flush_signals();
        self.send_signals();
        self.forget_active(ring);
        let kicks = indices.into_iter().filter_map(|index| self.release_kick(port, index)).collect();
        Ok(MovingPair { port, transmit, kicks })
    }

    fn release_kick(&mut self, port: PortId, index: u16) -> Option<MovingKick> {
        self.signals.forget_ring(port, index);
        let is_unheard = self.unheard.contains((port, index));
        self.unheard.remove((port, index));
        let fds = self.fds.get_mut(&(port, index))?;
        fds.is_home = false;
        let (kick, kicks) = (fds.kick.take(), std::mem::take(&mut fds.kicks));
        let record = std::mem::take(&mut fds.record);
        if let Some(kick) = &kick {
            self.events.forget(kick.as_fd());
        }
        Some(MovingKick { index, kick, kicks, record, is_unheard })
    }

    /// Makes this worker the home of a pair. Kicks that came meanwhile are heard: their descriptors are readable.
    pub(crate) fn adopt_pair(&mut self, pair: MovingPair) {
        let MovingPair { port, transmit, kicks } = pair;
        let now = now_ns(self.started);
        if let Some(moving) = transmit {
            self.fabric.adopt_ring(moving);
        }
        let indices: Vec<u16> = kicks.iter().map(|kick| kick.index).collect();
        kicks.into_iter().for_each(|kick| self.adopt_kick(port, kick, now));
        self.send_signals();
        if !self.is_quiesced {
            indices.into_iter().for_each(|index| self.handle_kick(port, index, now));
        }
        // If workers were told to stop the port's rings while these were on the way, this one has noted it.
        self.continue_stopping(port);
    }

    fn adopt_kick(&mut self, port: PortId, moving: MovingKick, now: u64) {
        let MovingKick { index, kick, kicks, record, is_unheard } = moving;
        let Some(fds) = self.fds.get_mut(&(port, index)) else { return };
        (fds.is_home, fds.kicks, fds.record) = (true, kicks, record);
        let listens = |kick: &ForeignFd| self.events.listen(kick.as_fd(), Event::Kick(port, index)).is_ok();
        let is_heard = kick.as_ref().is_none_or(|kick| !is_unheard && listens(kick));
        fds.kick = kick;
        if !is_heard {
            self.unheard.add((port, index), now + RETRY_NS);
        }
    }

    /// Settles packets that other workers have returned.
    pub(crate) fn settle_returns(&mut self) {
        self.fabric.take_returns();
        self.send_signals();
    }
}

type Answer = SyncSender<Result<(), Refusal>>;

impl PortControl {
    /// Moves a queue pair to worker `to`. Waits until that one serves it.
    pub(crate) fn move_pair(&self, port: PortId, pair: u16, to: usize) -> Result<(), EngineError> {
        let home = self.home(port, 2 * pair).ok_or(EngineError::NotRunning(port, pair))?;
        if home == to {
            return Ok(());
        }
        let first = Arc::new(FirstStep::new());
        let (release, released) = sync_channel(1);
        let (arrive, arrived) = sync_channel(1);
        let task = self.release_task((port, pair, to), Arc::clone(&first), release, arrive);
        self.pool.mailbox(home).give(Box::new(task));
        let answer = await_release(&first, || released.recv_timeout(REPLY_TIMEOUT).ok());
        let answer = answer.ok_or(EngineError::NoAnswer(home))?;
        answer.map_err(|refusal| refusal.error(port, pair))?;
        self.set_home(port, pair, to);
        arrived.recv_timeout(REPLY_TIMEOUT).map_err(|_| EngineError::NoAnswer(to))
    }

    fn release_task(
        &self,
        (port, pair, to): (PortId, u16, usize),
        first: Arc<FirstStep>,
        release: Answer,
        arrive: SyncSender<()>,
    ) -> impl FnOnce(&mut Worker) + use<> {
        let pool = Arc::clone(&self.pool);
        move |worker| {
            let give = |moving| {
                pool.mailbox(to).give(Box::new(move |worker: &mut Worker| {
                    worker.adopt_pair(moving);
                    let _ = arrive.send(());
                }));
            };
            let answer = |answer| _ = release.send(answer);
            pass_on(&first, || worker.release_pair(port, pair, to), give, answer);
        }
    }
}
