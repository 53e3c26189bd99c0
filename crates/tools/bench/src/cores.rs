//! The two cores of a measurement, and the distance between them.

use lasthop_calibrate::{line_ns, median, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::BenchError;

/// Wake-ups of a probe, and the pause before each.
const WAKE_UPS: usize = 21;
const SILENCE: Duration = Duration::from_millis(1);

/// Where the switch and the generator run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The CPU of the back end's data path.
    pub switch: usize,
    /// The CPU of the guests.
    pub generator: usize,
}

impl Cores {
    /// Chooses the two nearest CPUs that this process may use, unless given.
    ///
    /// # Errors
    /// Fewer than two CPUs are available, or the requested ones cannot be used.
    pub fn choose(switch: Option<usize>, generator: Option<usize>) -> Result<Self, BenchError> {
        let set = sched_getaffinity(None)?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        let fits = |asked: Option<usize>, cpu: usize| asked.is_none_or(|asked| asked == cpu);
        let looked_at = |asked: Option<usize>| {
            let count = if asked.is_some() { usize::MAX } else { CANDIDATES_MAX };
            allowed.iter().copied().filter(move |cpu| fits(asked, *cpu)).take(count)
        };
        let mut best: Option<(f64, Self)> = None;
        for (generator, switch) in
            looked_at(generator).flat_map(|one| looked_at(switch).map(move |other| (one, other)))
        {
            let cores = Self { switch, generator };
            let is_same_pair =
                best.is_some_and(|(_, best)| (best.generator, best.switch) == (switch, generator));
            if switch == generator || is_same_pair {
                continue;
            }
            let distance_ns = cores.distance_ns()?;
            if best.is_none_or(|(least_ns, _)| distance_ns < 0.9 * least_ns) {
                best = Some((distance_ns, cores));
            }
        }
        let refused = "two different CPUs that this process may use are needed, one for the switch and one for the \
                       generator; see --switch-cpu and --generator-cpu";
        best.map(|(_, cores)| cores).ok_or_else(|| BenchError::Request(refused.to_owned()))
    }

    /// A CPU other than these two, or the generator's if there is no other.
    ///
    /// # Errors
    /// The system does not tell the allowed CPUs.
    pub(crate) fn spare(&self) -> Result<usize, BenchError> {
        let set = sched_getaffinity(None)?;
        let is_spare = |cpu: &usize| set.is_set(*cpu) && *cpu != self.switch && *cpu != self.generator;
        Ok((0..CpuSet::MAX_CPU).find(is_spare).unwrap_or(self.generator))
    }

    /// The time in ns to move a cache line from one core to the other: the median of many. Takes a few milliseconds,
    /// and needs both cores for itself.
    ///
    /// # Errors
    /// The threads cannot be created or pinned.
    pub fn distance_ns(&self) -> Result<f64, BenchError> {
        Ok(line_ns(self.switch, self.generator)?)
    }
}

impl Cores {
    /// The time in ns from a write to an eventfd on the generator's core until the generator sees the effect of a
    /// thread that slept on the switch's core: a median, each after a millisecond of silence. No switch that sleeps can
    /// answer faster. Takes some 25 ms.
    ///
    /// # Errors
    /// The threads or the eventfd cannot be created.
    pub fn wake_up_ns(&self) -> Result<f64, BenchError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let woken = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let away = scope.spawn(|| -> Result<(), BenchError> {
                pin(self.switch)?;
                for count in 1..=WAKE_UPS as u32 {
                    poll(&mut [PollFd::new(&bell, PollFlags::IN)], None).map_err(std::io::Error::from)?;
                    rustix::io::read(&bell, &mut [0; 8]).map_err(std::io::Error::from)?;
                    woken.store(count, Ordering::Release);
                }
                Ok(())
            });
            let home = scope.spawn(|| -> Result<Vec<f64>, BenchError> {
                pin(self.generator)?;
                (1..=WAKE_UPS as u32).map(|count| wake(&bell, &woken, count)).collect()
            });
            let (away, home) = (away.join(), home.join());
            away.map_err(|_| std::io::Error::other("the probe's thread died"))??;
            let times = home.map_err(|_| std::io::Error::other("the probe's thread died"))??;
            Ok(median(times))
        })
    }
}

/// Wakes the other side for the `count`th time, after a pause; returns the time that it took, in ns.
fn wake(bell: &std::os::fd::OwnedFd, woken: &AtomicU32, count: u32) -> Result<f64, BenchError> {
    let silent = Instant::now();
    while silent.elapsed() < SILENCE {
        std::hint::spin_loop();
    }
    let start = Instant::now();
    rustix::io::write(bell, &1_u64.to_ne_bytes()).map_err(std::io::Error::from)?;
    while woken.load(Ordering::Acquire) != count {
        std::hint::spin_loop();
    }
    Ok(start.elapsed().as_nanos() as f64)
}

/// CPUs among which the nearest two are searched.
const CANDIDATES_MAX: usize = 8;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_different_and_usable_or_refused() {
        if let Ok(cores) = Cores::choose(None, None) {
            assert_ne!(cores.switch, cores.generator);
            let swapped = Cores { switch: cores.generator, generator: cores.switch };
            assert_eq!(Cores::choose(Some(swapped.switch), Some(swapped.generator)).ok(), Some(swapped));
            assert!(cores.distance_ns().expect("a distance") > 0.0);
            let wake_up_ns = cores.wake_up_ns().expect("a wake-up");
            assert!(wake_up_ns > cores.distance_ns().expect("a distance"), "{wake_up_ns}");
        }
        assert!(matches!(Cores::choose(Some(0), Some(0)), Err(BenchError::Request(_))));
        assert!(matches!(Cores::choose(Some(1023), None), Err(BenchError::Request(_))));
    }
}
