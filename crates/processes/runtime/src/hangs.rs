//! A watch that logs hanging turns: those of a process's main thread or a session's thread that take longer than a
//! second.
//!
//! ```text
//!   a turn      begins: notes time and work ... ends                 wakes the watch if it sleeps
//!   the watch   sleeps ──woken──> every TICK: logs threads with long turns ──no turn since the last TICK──> sleeps
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use log::info;

/// How often turns are checked while there are any.
const TICK: Duration = Duration::from_millis(500);
/// A turn that takes longer is logged; usual turns take some milliseconds.
const LONG: Duration = Duration::from_secs(1);

/// All threads of a process that are watched.
#[derive(Debug)]
pub struct HangWatch {
    /// The name of the main thread.
    main: &'static str,
    born: Instant,
    turns: Mutex<Vec<Weak<Turns>>>,
    /// Number of turns begun.
    begun: AtomicU64,
    is_awake: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The turns of one thread.
#[derive(Debug)]
pub struct Turns {
    watch: Arc<HangWatch>,
    /// The vnic of a session; `None` for the main thread.
    vnic: Option<String>,
    /// Start of the present turn, in nanoseconds since the watch started; 0 if there is none.
    since_ns: AtomicU64,
    work: Mutex<&'static str>,
    is_named: AtomicBool,
}

/// A turn, until this is dropped.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turns);

impl HangWatch {
    /// Starts the watch of a process whose main thread is called `main`. Its thread sleeps until the first turn. If it
    /// cannot be started, nothing is logged.
    pub fn start(main: &'static str) -> Arc<Self> {
        let watch = Arc::new(Self::new(main));
        let watching = Arc::clone(&watch);
        let thread = std::thread::Builder::new().name("hangs".to_owned()).spawn(move || watching.run());
        let _ = thread.map(|thread| watch.thread.set(thread.thread().clone()));
        watch
    }

    fn new(main: &'static str) -> Self {
        let (turns, begun, is_awake, thread) = Default::default();
        Self { main, born: Instant::now(), turns, begun, is_awake, thread }
    }

    /// Watches a thread while the returned value lives: that of a vnic's session, or the main thread.
    pub fn watch(self: &Arc<Self>, vnic: Option<String>) -> Arc<Turns> {
        let watch = Arc::clone(self);
        let (since_ns, work, is_named) = Default::default();
        let turns = Arc::new(Turns { watch, vnic, since_ns, work, is_named });
        let mut all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|turns| turns.strong_count() > 0);
        all.push(Arc::downgrade(&turns));
        turns
    }

    fn now_ns(&self) -> u64 {
        (self.born.elapsed().as_nanos() as u64).max(1)
    }

    fn run(&self) {
        let mut seen = 0;
        loop {
            if self.is_awake.load(Ordering::SeqCst) {
                std::thread::park_timeout(TICK);
                self.look(&mut seen, self.now_ns());
            } else {
                std::thread::park();
            }
        }
    }

    /// Logs long turns, and goes to sleep if there was no turn since the last time, when `seen` were counted.
    fn look(&self, seen: &mut u64, now_ns: u64) {
        let turns: Vec<Arc<Turns>> = {
            let all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        turns.iter().for_each(|turns| turns.name_if_long(now_ns));
        let is_idle = || turns.iter().all(|turns| turns.since_ns.load(Ordering::SeqCst) == 0);
        let begun = self.begun.load(Ordering::SeqCst);
        if std::mem::replace(seen, begun) == begun && is_idle() {
            self.is_awake.store(false, Ordering::SeqCst);
            // A turn that began meanwhile has seen that the watch is awake.
            if self.begun.load(Ordering::SeqCst) != begun {
                self.is_awake.store(true, Ordering::SeqCst);
            }
        }
    }

    #[cold]
    fn wake(&self) {
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            self.thread.get().into_iter().for_each(Thread::unpark);
        }
    }
}

impl Turns {
    /// Begins a turn with `work`, which ends when the returned value is dropped.
    pub fn begin(&self, work: &'static str) -> Turn<'_> {
        let turn = self.begin_quietly(work);
        self.watch.begun.fetch_add(1, Ordering::SeqCst);
        if !self.watch.is_awake.load(Ordering::SeqCst) {
            self.watch.wake();
        }
        turn
    }

    /// Same, without waking a sleeping watch, which logs the turn only after another one wakes it: for checks while the
    /// process is idle, which must cost nothing.
    pub fn begin_quietly(&self, work: &'static str) -> Turn<'_> {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) = work;
        self.since_ns.store(self.watch.now_ns(), Ordering::SeqCst);
        Turn(self)
    }

    fn name_if_long(&self, now_ns: u64) {
        let since_ns = self.since_ns.load(Ordering::SeqCst);
        let is_long = since_ns != 0 && now_ns.saturating_sub(since_ns) >= LONG.as_nanos() as u64;
        if is_long && !self.is_named.swap(true, Ordering::SeqCst) {
            self.say("has been busy", "for more than a second");
        }
    }

    fn say(&self, did: &str, how_long: &str) {
        let work = *self.work.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.vnic {
            Some(vnic) => {
                info!(limited = true, port:% = vnic; "port {vnic}: its session {did} with {work} {how_long}")
            }
            None => info!("{} {did} with {work} {how_long}", self.watch.main),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Self(turns) = self;
        if turns.is_named.swap(false, Ordering::SeqCst) {
            let ns = turns.watch.now_ns().saturating_sub(turns.since_ns.load(Ordering::SeqCst));
            turns.say("was busy", &format!("for {:.1} s", ns as f64 / 1e9));
        }
        turns.since_ns.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_NS: u64 = LONG.as_nanos() as u64;

    #[test]
    fn a_long_turn_is_named_once_and_short_ones_are_not() {
        let watch = Arc::new(HangWatch::new("the main thread"));
        let (main, session) = (watch.watch(None), watch.watch(Some("vm1".to_owned())));
        let _long = session.begin("session");
        let _short = main.begin("order");
        let now_ns = session.since_ns.load(Ordering::SeqCst) + LONG_NS;
        main.since_ns.store(now_ns, Ordering::SeqCst);
        watch.look(&mut 0, now_ns);
        assert!(session.is_named.load(Ordering::SeqCst) && !main.is_named.load(Ordering::SeqCst));
    }

    #[test]
    fn it_sleeps_when_there_was_no_turn_for_a_while_and_not_before() {
        let watch = Arc::new(HangWatch::new("the main thread"));
        let main = watch.watch(None);
        let mut seen = 0;
        let turn = main.begin("clients");
        for _ in 0..3 {
            watch.look(&mut seen, 1);
            assert!(watch.is_awake.load(Ordering::SeqCst), "one is under way");
        }
        drop(turn);
        drop(main.begin("upcalls"));
        watch.look(&mut seen, 1);
        assert!(watch.is_awake.load(Ordering::SeqCst), "there was one");
        watch.look(&mut seen, 1);
        assert!(!watch.is_awake.load(Ordering::SeqCst));
        drop(main.begin_quietly("what is due"));
        assert!(!watch.is_awake.load(Ordering::SeqCst), "it was left asleep");
        drop(main.begin("upcalls"));
        assert!(watch.is_awake.load(Ordering::SeqCst), "it was woken");
    }
}
