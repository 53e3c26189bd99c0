use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lasthop_ceiling::{End, Lane, Limit, Null, poll};
use lasthop_vhost::ForeignFd;

use super::ResidentKind;
use super::bed::Bed;

/// Polls of all lanes between two checks for needed signals and for threads that want the lock. These checks cost a
/// fence for each ring, which waits for cache lines of the other core, so they are not made for each batch. The number
/// is small enough that a sleeping guest is woken within tens of microseconds, and that fewer than 65536 entries pass
/// meanwhile.
const ROUNDS: u32 = 1024;
/// The same for one that sleeps, which looks at the clock and signals after each frame.
const AWAKE_ROUNDS: u32 = 16;
/// How long it polls in vain before it sleeps: as long as the switch by default, where answers come within that.
const LOOK: Duration = Duration::from_micros(50);

/// How the data thread moves frames.
pub(super) enum Exchange {
    Null(Null),
    Limit(Limit),
}

impl Exchange {
    pub(super) fn new(kind: ResidentKind) -> Self {
        match kind {
            ResidentKind::Null => Self::Null(Null::default()),
            ResidentKind::Limit | ResidentKind::SleepingLimit => Self::Limit(Limit::default()),
        }
    }

    /// Returns the number of moved frames.
    fn poll(&mut self, lanes: &mut [Lane], rounds: u32) -> u64 {
        match self {
            Self::Null(null) => poll(null, lanes, rounds),
            Self::Limit(limit) => poll(limit, lanes, rounds),
        }
    }
}

/// A ring of a guest, by the numbers of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RingId {
    pub(super) port: u16,
    pub(super) transmits: bool,
}

impl RingId {
    /// The lane that the ring is one end of: a lane has the number of the sending port.
    fn lane(self) -> usize {
        usize::from(if self.transmits { self.port } else { self.port ^ 1 })
    }
}

/// The rings of all guests.
#[derive(Debug, Default)]
pub(super) struct Rings {
    lanes: Vec<Lane>,
    calls: HashMap<RingId, ForeignFd>,
    /// Where the data thread sleeps, and the kicks that wake it, if it does.
    bed: Option<Arc<Bed>>,
    kicks: HashMap<RingId, ForeignFd>,
    refusals: HashMap<u16, String>,
    running: bool,
    ending: bool,
}

impl Rings {
    fn lane(&mut self, ring: RingId) -> &mut Lane {
        let count = self.lanes.len().max((ring.lane() | 1) + 1);
        self.lanes.resize_with(count, Lane::default);
        &mut self.lanes[ring.lane()]
    }

    fn end(&mut self, ring: RingId) -> &mut Option<End> {
        let lane = self.lane(ring);
        if ring.transmits { &mut lane.from } else { &mut lane.to }
    }

    /// # Errors
    /// The kick cannot be waited for.
    pub(super) fn start(
        &mut self,
        ring: RingId,
        end: End,
        kick: Option<ForeignFd>,
        call: Option<ForeignFd>,
    ) -> Result<(), String> {
        self.forget_kick(ring);
        if let (Some(bed), Some(kick)) = (&self.bed, kick) {
            bed.watch(&kick).map_err(|error| format!("the ring's kick cannot be waited for: {error}"))?;
            self.kicks.insert(ring, kick);
        }
        self.lane(ring).fault = None;
        self.refusals.remove(&ring.port);
        *self.end(ring) = Some(end);
        self.set_call(ring, call);
        Ok(())
    }

    fn forget_kick(&mut self, ring: RingId) {
        if let (Some(bed), Some(kick)) = (&self.bed, self.kicks.remove(&ring)) {
            bed.forget(&kick);
        }
    }

    /// Removes a ring; returns the index at which it would continue.
    pub(super) fn stop(&mut self, ring: RingId) -> Option<u16> {
        self.calls.remove(&ring);
        self.forget_kick(ring);
        self.end(ring).take().map(|end| end.base())
    }

    pub(super) fn set_enabled(&mut self, ring: RingId, enabled: bool) {
        if let Some(end) = self.end(ring) {
            end.set_enabled(enabled);
        }
    }

    pub(super) fn set_call(&mut self, ring: RingId, call: Option<ForeignFd>) {
        match call {
            Some(call) => self.calls.insert(ring, call),
            None => self.calls.remove(&ring),
        };
    }

    /// Records why a guest's ring was not started.
    pub(super) fn refuse(&mut self, port: u16, why: String) {
        self.refusals.insert(port, why);
    }

    fn fault(&self, port: u16) -> Option<String> {
        let broken = |lane: usize| self.lanes.get(lane)?.fault.map(|error| (lane, error));
        let broken = broken(port.into()).or_else(|| broken(usize::from(port ^ 1)));
        let broken =
            broken.map(|(lane, error)| format!("on the way from port {lane} to {}: {error}", lane ^ 1));
        self.refusals.get(&port).cloned().or(broken)
    }

    /// Signals sleeping guests.
    fn signal(&mut self) {
        for (lane, port) in self.lanes.iter_mut().zip(0..) {
            let from = (lane.from.as_mut(), RingId { port, transmits: true });
            let to = (lane.to.as_mut(), RingId { port: port ^ 1, transmits: false });
            for (end, ring) in [from, to] {
                if end.is_some_and(End::needs_signal)
                    && let Some(call) = self.calls.get(&ring)
                {
                    // A full counter is as good as a write: the guest has not read the earlier signal.
                    let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
                }
            }
        }
    }

    /// Asks for kicks of all transmit rings; returns whether the data thread may sleep, as none has frames.
    fn arm_kicks(&mut self) -> bool {
        let mut ends = self.lanes.iter_mut().filter_map(|lane| lane.from.as_mut());
        // A broken ring has a fault at the next poll, and no frames.
        ends.all(|end| !end.arm_kicks().unwrap_or(false))
    }

    fn suppress_kicks(&mut self) {
        self.lanes.iter_mut().filter_map(|lane| lane.from.as_mut()).for_each(End::suppress_kicks);
    }
}

/// Owns the rings: the data thread holds the lock while it polls, and yields to others that ask for it.
#[derive(Debug, Default)]
pub(super) struct LaneTable {
    rings: Mutex<Rings>,
    /// Where the data thread sleeps while no frame comes; `None`: it polls.
    bed: Option<Arc<Bed>>,
    /// Number of threads that want the lock; the data thread waits for them, as it would win every race for it.
    asking: AtomicU32,
    /// Signalled when a thread has released the lock.
    left: Condvar,
    polling: AtomicBool,
}

impl LaneTable {
    /// A table without rings.
    ///
    /// # Errors
    /// The system refuses the descriptors for sleeping.
    pub(super) fn new(kind: ResidentKind) -> io::Result<Self> {
        let bed = (kind == ResidentKind::SleepingLimit).then(Bed::new).transpose()?.map(Arc::new);
        let rings = Mutex::new(Rings { bed: bed.clone(), ..Rings::default() });
        Ok(Self { rings, bed, ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` while the data thread moves nothing.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Rings) -> R) -> R {
        self.asking.fetch_add(1, Ordering::Relaxed);
        self.bed.iter().for_each(|bed| bed.ring());
        let mut rings = self.lock();
        self.asking.fetch_sub(1, Ordering::Relaxed);
        let result = change(&mut rings);
        drop(rings);
        self.left.notify_all();
        result
    }

    pub(super) fn set_running(&self, running: bool) {
        self.with(|rings| {
            rings.running = running;
            if !running {
                self.polling.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Whether the data thread has begun to poll since it was set running.
    pub(super) fn is_polling(&self) -> bool {
        self.polling.load(Ordering::Relaxed)
    }

    /// How often the data thread has slept.
    #[cfg(test)]
    pub(super) fn sleeps(&self) -> u64 {
        self.bed.as_ref().map_or(0, |bed| bed.sleeps())
    }

    pub(super) fn fault(&self, port: u16) -> Option<String> {
        self.with(|rings| rings.fault(port))
    }

    pub(super) fn end(&self) {
        self.with(|rings| rings.ending = true);
    }

    /// Polls while it is running and no other thread wants the lock, until the end.
    pub(super) fn work(&self, exchange: &mut Exchange) {
        let mut rings = self.lock();
        loop {
            let resting = |rings: &mut Rings| {
                let asked = self.asking.load(Ordering::Relaxed) > 0;
                !rings.ending && (asked || !rings.running)
            };
            rings = self.left.wait_while(rings, resting).unwrap_or_else(PoisonError::into_inner);
            if rings.ending {
                return;
            }
            self.polling.store(true, Ordering::Relaxed);
            let Some(bed) = &self.bed else {
                exchange.poll(&mut rings.lanes, ROUNDS);
                rings.signal();
                continue;
            };
            if self.is_idle(&mut rings, exchange) {
                drop(rings);
                bed.sleep();
                rings = self.lock();
            }
        }
    }

    /// Moves frames until none has come for [`LOOK`], or a thread wants the lock. Returns whether the data thread may sleep then: frames
    /// without a receive buffer keep it awake.
    fn is_idle(&self, rings: &mut Rings, exchange: &mut Exchange) -> bool {
        let mut since = Instant::now();
        while self.asking.load(Ordering::Relaxed) == 0 {
            if exchange.poll(&mut rings.lanes, AWAKE_ROUNDS) > 0 {
                rings.signal();
                rings.suppress_kicks();
                since = Instant::now();
            } else if since.elapsed() >= LOOK {
                return rings.arm_kicks();
            }
        }
        false
    }
}
