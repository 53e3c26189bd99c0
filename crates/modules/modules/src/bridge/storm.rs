//! Storm control: limits the flooded frames per second that the bridge accepts from each port.
//!
//! The cost of a flooded frame grows with the number of ports. So floods from one port can be limited by kind:
//! broadcast, multicast, unknown unicast. Frames to one known port are never counted and cost nothing here.
//!
//! **Token bucket in one word.** A full bucket holds a tenth of a second's frames, at least [`BURST_FRAMES_MIN`].
//! Instead of tokens, the word holds the time at which the bucket will be full again (the "virtual scheduling" form of
//! ITU-T I.371's GCRA). Each frame advances it by the time of one token, and is excess if the time would then be more
//! than a whole bucket from now. All workers share the word by compare-and-swap, so no frame is counted twice or lost.
//!
//! **Error.** In any time `t`, at most `rate * t + burst` frames pass. The token's time is rounded up, which reduces a
//! rate by at most 0.07 % (at [`RATE_MAX`]; less below). Workers read the clock once a visit: a worker with an older
//! time sees the bucket emptier by one visit's tokens, never fuller.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_bridge_policy::FloodKind;
use lasthop_module_api::{DropReason, PORTS_MAX, PortId, StormLimits};

/// Smallest burst: one batch, since a ring's frames arrive in batches.
pub(crate) const BURST_FRAMES_MIN: u64 = lasthop_module_api::BATCH_PACKETS_MAX as u64;
/// A burst is 1/N of a second's frames.
const BURST_DIVISOR: u64 = 10;
/// Largest limit in frames per second: more than a worker can flood.
const RATE_MAX: u64 = StormLimits::RATE_MAX as u64;
/// Ticks are 1/16 ns, so that the time of one token is exact enough at any rate; 64 bits last 36 years.
const TICKS_SHIFT: u32 = 4;
const SECOND_TICKS: u64 = 1_000_000_000 << TICKS_SHIFT;

/// Time of one token in ticks, 0 without a limit.
fn token(rate: u32) -> u64 {
    let rate = u64::from(rate).min(RATE_MAX);
    if rate == 0 { 0 } else { SECOND_TICKS.div_ceil(rate) }
}

/// One kind of flood from one port.
#[derive(Debug, Default)]
struct Bucket {
    /// Time of one token, in ticks; 0 is no limit.
    token: AtomicU64,
    /// Time of a full bucket, in ticks.
    burst: AtomicU64,
    /// Time at which the bucket is full again, in ticks.
    full_at: AtomicU64,
}

impl Bucket {
    fn set(&self, rate: u32) {
        let (token, rate) = (token(rate), u64::from(rate).min(RATE_MAX));
        self.burst.store(token * (rate / BURST_DIVISOR).max(BURST_FRAMES_MIN), Ordering::Relaxed);
        self.full_at.store(0, Ordering::Relaxed);
        self.token.store(token, Ordering::Relaxed);
    }

    /// Whether there is a token now.
    fn has_token(&self, now_ns: u64) -> bool {
        let now = now_ns << TICKS_SHIFT;
        let from = self.full_at.load(Ordering::Relaxed).max(now);
        from + self.token.load(Ordering::Relaxed) <= now + self.burst.load(Ordering::Relaxed)
    }

    fn is_limited(&self) -> bool {
        self.token.load(Ordering::Relaxed) != 0
    }

    /// Takes a token if there is one.
    fn take(&self, now_ns: u64) -> bool {
        let token = self.token.load(Ordering::Relaxed);
        if token == 0 {
            return true;
        }
        let now = now_ns << TICKS_SHIFT;
        let empty_until = now + self.burst.load(Ordering::Relaxed);
        let next = |full_at: u64| Some(full_at.max(now) + token).filter(|next| *next <= empty_until);
        self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// The limits of all ports.
#[derive(Debug)]
pub(crate) struct Storms(Box<[[Bucket; FloodKind::ALL.len()]]>);

impl Default for Storms {
    fn default() -> Self {
        Self((0..PORTS_MAX).map(|_| Default::default()).collect())
    }
}

impl Storms {
    /// Sets the limits of a new port, with full buckets.
    pub(crate) fn open(&self, port: PortId, limits: StormLimits) {
        self.limited(port, limits).for_each(|(bucket, rate)| bucket.set(rate));
    }

    /// Changes a port's limits. A bucket whose limit does not change keeps its level.
    pub(crate) fn change(&self, port: PortId, limits: StormLimits) {
        let changed = |(bucket, rate): &(&Bucket, u32)| bucket.token.load(Ordering::Relaxed) != token(*rate);
        self.limited(port, limits).filter(changed).for_each(|(bucket, rate)| bucket.set(rate));
    }

    fn limited(&self, port: PortId, limits: StormLimits) -> impl Iterator<Item = (&Bucket, u32)> {
        let rates = FloodKind::ALL.map(|kind| kind.limit(&limits));
        self.0.get(port.index()).into_iter().flatten().zip(rates)
    }

    /// Whether floods of a kind from a port are limited, and the result of [`Self::admit`] for one more now. Nothing is
    /// counted.
    pub(crate) fn would_admit(
        &self,
        port: PortId,
        kind: FloodKind,
        is_heard: bool,
        now_ns: u64,
    ) -> (bool, Result<(), DropReason>) {
        let bucket = self.0.get(port.index()).map(|buckets| &buckets[kind as usize]);
        match bucket.filter(|bucket| bucket.is_limited()) {
            None => (false, Ok(())),
            Some(_) if !is_heard => (true, Err(DropReason::NoDestination)),
            Some(bucket) if !bucket.has_token(now_ns) => (true, Err(kind.excess())),
            Some(_) => (true, Ok(())),
        }
    }

    /// Counts a frame before flooding; an error if it exceeds the limit. A flood that no port gets takes no token
    /// and has no destination. `is_heard` is not called for unlimited ports.
    #[inline]
    pub(crate) fn admit(
        &self,
        port: PortId,
        kind: FloodKind,
        is_heard: impl FnOnce() -> bool,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let bucket = self.0.get(port.index()).map(|buckets| &buckets[kind as usize]);
        match bucket.filter(|bucket| bucket.is_limited()) {
            Some(_) if !is_heard() => Err(DropReason::NoDestination),
            Some(bucket) if !bucket.take(now_ns) => Err(kind.excess()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn bucket(rate: u32) -> Bucket {
        let bucket = Bucket::default();
        bucket.set(rate);
        bucket
    }

    /// Sends one frame every `gap_ns` for `seconds`. Returns how many pass.
    fn passed(bucket: &Bucket, gap_ns: u64, seconds: u64) -> u64 {
        let times = (0..seconds * SECOND_NS / gap_ns).map(|n| 7 * SECOND_NS + n * gap_ns);
        times.filter(|now_ns| bucket.take(*now_ns)).count() as u64
    }

    #[test]
    fn a_storm_passes_at_its_rate_and_one_burst() {
        for (rate, burst) in [(1, 32), (100, 32), (1000, 100), (30_000, 3000), (333_333, 33_333)] {
            let passed = passed(&bucket(rate), 1000, 2);
            let expected = 2 * u64::from(rate) + burst;
            assert!((expected * 999 / 1000 - 1..=expected + 1).contains(&passed), "{rate}/s: {passed}");
        }
    }

    #[test]
    fn floods_below_the_limit_pass() {
        assert_eq!(passed(&bucket(1000), SECOND_NS / 1000 + 1, 3), 2999);
        assert_eq!(passed(&bucket(0), 1000, 1), 1_000_000, "no limit");
    }

    #[test]
    fn silence_fills_the_bucket_once() {
        let bucket = bucket(10);
        let burst = |now_ns| (0..1000).filter(|_| bucket.take(now_ns)).count();
        assert_eq!((burst(0), burst(SECOND_NS), burst(SECOND_NS)), (32, 10, 0));
        assert_eq!(burst(3600 * SECOND_NS), 32, "not an hour's worth");
    }

    #[test]
    fn a_clock_that_was_read_earlier_lets_nothing_more_pass() {
        let bucket = bucket(10);
        assert_eq!((0..99).filter(|_| bucket.take(10 * SECOND_NS)).count(), 32);
        assert!(!bucket.take(10 * SECOND_NS - 100_000) && !bucket.take(0));
    }

    #[test]
    fn the_largest_rate_is_met() {
        let bucket = bucket(u32::MAX);
        let passed = (0..=1000).map(|ms| ms * 1_000_000);
        let passed =
            passed.map(|now_ns| (0..20_000).filter(|_| bucket.take(now_ns)).count() as u64).sum::<u64>();
        let expected = RATE_MAX + RATE_MAX / BURST_DIVISOR;
        assert!((expected * 9993 / 10_000..=expected + 20_000).contains(&passed), "{passed}");
    }

    #[test]
    fn workers_share_one_bucket() {
        let bucket = bucket(10_000);
        let passed = std::thread::scope(|scope| {
            let take = || (0..2000).filter(|_| bucket.take(SECOND_NS)).count();
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum::<usize>()
        });
        assert_eq!(passed, 1000);
    }
}
