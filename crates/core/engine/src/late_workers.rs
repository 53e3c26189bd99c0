//! Reports for workers that answer late: their last saved counters.
//!
//! A worker that a slow system call blocks answers after it. An operator who looks for the reason should not have to
//! wait.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lasthop_fabric::PortCounters;
use lasthop_guestmem::Mapping;
use lasthop_module_api::PortId;

use crate::clock::now_ns;
use crate::persistent_counters::row_of;
use crate::reports::PortShare;
use crate::stats::WorkerStats;
use crate::worker::Worker;
use crate::worker_pool::{WorkerPool, wait_for};
use crate::{EngineError, PORT_COUNTERS_BYTES};

/// How long a report waits for a worker: several visits, and half of the time that a command may take.
const SOON: Duration = Duration::from_millis(50);
/// CPU time in ns after which an unanswering worker counts as blocked. A worker with less CPU time is waiting for a CPU
/// of a busy machine.
const HELD_CPU_NS: u64 = 25_000_000;
/// The longest wait for a worker that has no CPU, or sleeps.
const PATIENCE: Duration = Duration::from_millis(500);
/// Pause between two reads of its CPU time.
const LOOK: Duration = Duration::from_millis(10);
/// Reads of saved counters that change meanwhile. A blocked worker does not change them.
const LOOKS_MAX: usize = 3;

/// A worker's part of a report.
pub(crate) type WorkerShare = (WorkerStats, Vec<PortShare>);

/// Ports of a report, with their numbers of queue pairs.
pub(crate) type ReportedPorts = Arc<[(PortId, u16)]>;

/// The saved counters, and the workers' last answers for the rest.
#[derive(Debug, Default)]
pub(crate) struct LateWorkers {
    /// Memory of the counters, by port.
    memories: Mutex<HashMap<PortId, Arc<Mapping>>>,
    /// The last answer, by worker.
    last: Mutex<HashMap<usize, LastAnswer>>,
}

#[derive(Debug, Default)]
struct LastAnswer {
    stats: WorkerStats,
    ports: HashMap<PortId, PortShare>,
    /// The pending answer to an earlier question. The worker gets no other question meanwhile, so that none pile up.
    owed: Option<Receiver<WorkerShare>>,
}

/// A question to a worker.
enum Question {
    New(Receiver<WorkerShare>),
    /// A question of an earlier report, not answered yet.
    Owed(Receiver<WorkerShare>),
}

impl LateWorkers {
    /// Notes that the counters of a port are saved in `memory`. Returns memory for those of the switch's own port, the
    /// first time.
    pub(crate) fn keep(&self, port: PortId, memory: &Arc<Mapping>) -> Option<Arc<Mapping>> {
        let mut memories = lock(&self.memories);
        memories.insert(port, Arc::clone(memory));
        if memories.contains_key(&PortId::INTERNAL) {
            return None;
        }
        let internal = Arc::new(Mapping::anonymous(PORT_COUNTERS_BYTES).ok()?);
        memories.insert(PortId::INTERNAL, Arc::clone(&internal));
        Some(internal)
    }

    /// Removes a port.
    pub(crate) fn forget(&self, port: PortId) {
        lock(&self.memories).remove(&port);
        lock(&self.last).values_mut().for_each(|last| _ = last.ports.remove(&port));
    }

    /// Each worker's part of a report about `ports`. A worker that does not answer soon is represented by the counters
    /// that it saved last, and the states of its last answer. Waits for the worker if a port's counters are not saved.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub(crate) fn shares(
        &self,
        pool: &WorkerPool<Worker>,
        started: Instant,
        ports: &ReportedPorts,
    ) -> Result<Vec<WorkerShare>, EngineError> {
        let asked = Instant::now();
        let questions: Vec<Question> =
            (0..pool.mailboxes().len()).map(|worker| self.question(pool, worker, ports)).collect();
        let mut shares = Vec::with_capacity(questions.len());
        for (worker, question) in questions.into_iter().enumerate() {
            let answer = match &question {
                Question::New(answer) => await_answer(pool, worker, answer, asked),
                Question::Owed(_) => Err(RecvTimeoutError::Timeout),
            };
            if let Ok(share) = answer {
                self.remember(worker, &share, ports);
                shares.push(share);
            } else if let Some(saved) = self.saved(pool, worker, now_ns(started), ports) {
                let (Question::New(owed) | Question::Owed(owed)) = question;
                lock(&self.last).entry(worker).or_default().owed = Some(owed);
                shares.push(saved);
            } else {
                let answer = match question {
                    Question::New(answer) => answer,
                    Question::Owed(_) => ask(pool, worker, ports),
                };
                shares.push(wait_for(worker, &answer, asked)?);
            }
        }
        Ok(shares)
    }

    fn question(&self, pool: &WorkerPool<Worker>, worker: usize, ports: &ReportedPorts) -> Question {
        let owed = lock(&self.last).get_mut(&worker).and_then(|last| last.owed.take());
        match owed.map(|owed| (owed.try_recv(), owed)) {
            Some((Err(TryRecvError::Empty), owed)) => Question::Owed(owed),
            _ => Question::New(ask(pool, worker, ports)),
        }
    }

    fn remember(&self, worker: usize, share: &WorkerShare, ports: &ReportedPorts) {
        let numbered = ports.iter().map(|(port, _)| *port).zip(share.1.iter().cloned());
        let last = LastAnswer { stats: share.0, ports: numbered.collect(), owed: None };
        lock(&self.last).insert(worker, last);
    }

    /// A worker's saved part; `None` if a port's counters are not saved, or keep changing.
    fn saved(
        &self,
        pool: &WorkerPool<Worker>,
        worker: usize,
        now: u64,
        ports: &ReportedPorts,
    ) -> Option<WorkerShare> {
        let rows = {
            let memories = lock(&self.memories);
            let rows = ports.iter().map(|(port, _)| row_of(memories.get(port)?, worker));
            rows.collect::<Option<Vec<_>>>()?
        };
        let read_all = || {
            let words = rows.iter().map(|row| {
                let words: Vec<u64> = (0..PortCounters::WORDS).map(|index| row.read(index)).collect();
                PortCounters::from_words(&words)
            });
            words.collect::<Vec<_>>()
        };
        let (counters, written_ns) = (0..LOOKS_MAX).find_map(|_| pool.copy_clock(worker).read(read_all))?;
        let last = lock(&self.last);
        let known = last.get(&worker);
        let age_ms = now.saturating_sub(written_ns) / 1_000_000;
        let stats = known.map(|last| last.stats).unwrap_or_default();
        let share = |((port, _), counters): (&(PortId, u16), PortCounters)| {
            PortShare::saved(counters, known.and_then(|last| last.ports.get(port)))
        };
        let shares = ports.iter().zip(counters).map(share).collect();
        Some((WorkerStats { index: worker, age_ms: Some(age_ms), ..stats }, shares))
    }
}

/// The worker's answer; `None` if the worker is blocked. The question was sent at `asked`.
fn await_answer(
    pool: &WorkerPool<Worker>,
    worker: usize,
    answer: &Receiver<WorkerShare>,
    asked: Instant,
) -> Result<WorkerShare, RecvTimeoutError> {
    let cpu_ns = || pool.watchdog().cpu_ns(worker).unwrap_or_default();
    let before_ns = cpu_ns();
    let mut pause = SOON.saturating_sub(asked.elapsed());
    loop {
        match answer.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = LOOK,
            over => return over,
        }
        if cpu_ns().saturating_sub(before_ns) >= HELD_CPU_NS || asked.elapsed() >= PATIENCE {
            return Err(RecvTimeoutError::Timeout);
        }
    }
}

fn ask(pool: &WorkerPool<Worker>, worker: usize, ports: &ReportedPorts) -> Receiver<WorkerShare> {
    let ports = Arc::clone(ports);
    pool.mailbox(worker).ask(move |worker: &mut Worker| {
        let shares = ports.iter().map(|(port, pairs)| PortShare::of(worker, *port, *pairs)).collect();
        worker.persist_counters();
        (worker.stats(), shares)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use lasthop_modules::{BridgeSettings, by_name};

    use super::*;
    use crate::{Engine, EngineSettings, Gathering, PortConfig};

    fn engine() -> Engine {
        let settings =
            EngineSettings { workers: 2, gathering: Gathering::Never, ..EngineSettings::default() };
        Engine::start(by_name("dummy", &BridgeSettings::default()).unwrap().into(), &settings).unwrap()
    }

    /// Blocks worker 1 until the answer is dropped.
    fn hold(engine: &Engine) -> std::sync::mpsc::SyncSender<()> {
        let (tell, is_there) = sync_channel(1);
        let (end, is_over) = sync_channel::<()>(1);
        engine.pool.mailbox(1).post(Box::new(move |_| {
            tell.send(()).unwrap();
            let _ = is_over.recv();
        }));
        is_there.recv().unwrap();
        end
    }

    #[test]
    fn a_worker_that_is_held_is_reported_by_what_it_saved() {
        let engine = engine();
        let port = engine.add_port(PortConfig { name: "a".into(), ..PortConfig::default() }).unwrap();
        let memory = Arc::new(Mapping::anonymous(PORT_COUNTERS_BYTES).unwrap());
        engine.keep_counters(port, &memory).unwrap();
        let answered = engine.stats().unwrap();
        assert!(answered.workers.iter().all(|worker| worker.age_ms.is_none()));
        let saved = PortCounters { rx_packets: 5, forwarded: 5, ..PortCounters::default() };
        row_of(&memory, 1).unwrap().write(&saved.words());
        let end = hold(&engine);
        let waiting = engine.pool.mailbox(1).len();
        for _ in 0..3 {
            let stats = engine.stats().unwrap();
            let ages: Vec<bool> = stats.workers.iter().map(|worker| worker.age_ms.is_some()).collect();
            assert_eq!(ages, [false, true], "the other one answers");
            assert_eq!(stats.workers[1].index, 1);
            assert_eq!((stats.ports[1].name.as_str(), stats.ports[1].counters), ("a", saved));
        }
        assert_eq!(engine.pool.mailbox(1).len(), waiting + 1, "it is asked once");
        drop(end);
        engine.pool.call(1, |_| ()).unwrap();
        let stats = engine.stats().unwrap();
        assert!(stats.workers.iter().all(|worker| worker.age_ms.is_none()), "it answers again");
        assert_eq!(stats.ports[1].counters, PortCounters::default(), "and tells its own");
    }

    #[test]
    fn a_workers_cpu_time_is_that_of_its_thread() {
        let engine = engine();
        let own = || engine.pool.call(1, |_| crate::sys::thread_cpu_ns()).unwrap();
        let before_ns = own();
        let seen_ns = engine.pool.watchdog().cpu_ns(1).unwrap();
        assert!((before_ns..=own()).contains(&seen_ns));
    }

    #[test]
    fn without_saved_counters_a_worker_is_waited_for() {
        let engine = engine();
        engine.add_port(PortConfig { name: "a".into(), ..PortConfig::default() }).unwrap();
        let _end = hold(&engine);
        assert!(matches!(engine.stats(), Err(EngineError::NoAnswer(1))));
    }
}
