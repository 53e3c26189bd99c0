//! Moves of queues to other workers that the supervisor has asked for. A move that has to wait is tried again, and
//! answered when it is over: the main thread, which waits here, is the one that the port's first packets wait for.

use std::time::{Duration, Instant};

use lasthop_api::orders::Answer;
use lasthop_api::sched::QueueMove;
use lasthop_engine::EngineError;
use lasthop_runtime::fault::Fault;

use super::Switch;

/// Moves that wait at once.
const MOVES_WAITING_MAX: usize = 256;
/// Time between two tries. The port's first packets take less, and its other packets wait meanwhile.
const RETRY: Duration = Duration::from_millis(1);
/// How long a move is tried: longer than packets wait for slow receivers, or for the control plane.
const PATIENCE: Duration = Duration::from_secs(1);

/// The moves that wait, the oldest first.
#[derive(Debug, Default)]
pub(super) struct WaitingMoves(Vec<WaitingMove>);

#[derive(Debug)]
struct WaitingMove {
    /// The number of the order.
    id: u64,
    wanted: QueueMove,
    until: Instant,
}

impl WaitingMoves {
    /// When to try again.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.0.is_empty()).then(|| Instant::now() + RETRY)
    }
}

impl Switch {
    pub(super) fn move_queue(&mut self, id: u64, wanted: QueueMove) {
        self.try_to_move(WaitingMove { id, wanted, until: Instant::now() + PATIENCE });
    }

    /// Tries all waiting moves once more.
    pub(super) fn try_moves(&mut self) {
        std::mem::take(&mut self.moves.0).into_iter().for_each(|waiting| self.try_to_move(waiting));
    }

    /// Ends the waiting moves, since another process is about to continue.
    pub(super) fn refuse_moves(&mut self) {
        for WaitingMove { id, wanted: QueueMove { port, queue, .. }, .. } in std::mem::take(&mut self.moves.0)
        {
            let why = format!(
                "queue {queue} of \"{port}\" does not move: the switch process is replaced; try again"
            );
            self.reports.reply(id, Err(Fault::refused(why)));
        }
    }

    fn try_to_move(&mut self, waiting: WaitingMove) {
        let result = self.datapath.move_queue(&waiting.wanted);
        let has_to_wait = matches!(
            result,
            Err(Obstacle::Engine(EngineError::AwaitsAnswers(..) | EngineError::StillMoving(..)))
        );
        if has_to_wait && Instant::now() < waiting.until && self.moves.0.len() < MOVES_WAITING_MAX {
            return self.moves.0.push(waiting);
        }
        let answer = result.map(|()| Answer::Done).map_err(|obstacle| obstacle.fault(&waiting.wanted));
        self.reports.reply(waiting.id, answer);
    }
}

/// Why a queue does not move now.
#[derive(Debug)]
pub(super) enum Obstacle {
    NoPort(Fault),
    Engine(EngineError),
}

impl Obstacle {
    fn fault(self, QueueMove { port, queue, worker }: &QueueMove) -> Fault {
        let error = match self {
            Self::NoPort(fault) => return fault,
            Self::Engine(error) => error,
        };
        let why = match error {
            EngineError::NoSuchPair(_, _, 1) => "it has one queue, 0".to_owned(),
            EngineError::NoSuchPair(_, _, queues) => format!("its queues are 0 to {}", queues - 1),
            EngineError::NoSuchWorker(_, workers) => {
                format!("the workers are 0 to {}; `lasthop run --workers` sets their number", workers - 1)
            }
            EngineError::NotRunning(..) => {
                "the guest has not started it; start the guest's driver, or choose a queue of lasthop sched show"
                    .to_owned()
            }
            EngineError::PairStops(..) => "it is being stopped; try again once it runs".to_owned(),
            EngineError::StillMoving(..) => {
                "packets from before its last move still wait for slow receivers; try again in a second".to_owned()
            }
            EngineError::AwaitsAnswers(..) => {
                "the control plane does not answer its first packets; see lasthop doctor".to_owned()
            }
            error => return Fault::refused(error.to_string()),
        };
        Fault::refused(format!("queue {queue} of \"{port}\" cannot move to worker {worker}: {why}"))
    }
}
