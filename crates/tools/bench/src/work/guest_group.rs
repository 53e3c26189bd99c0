use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lasthop_frontend::{BurstGuest, GuestError, ReadDepth};
use rustix::time::{ClockId, clock_gettime};

use super::first_packets::FirstPackets;
use super::round_trip::PingPong;
use super::traffic::{Lane, Tally, Traffic};
use crate::{RoundTrip, TrafficKind, Workload};

/// The time limit for the first frame: some back ends take seconds to set up a guest.
pub(crate) const FIRST_FRAME_SECONDS_MAX: u64 = 30;

/// The time limit for learning addresses, in each direction; packets in flight are finished afterwards.
const LEARNS_WITHIN: Duration = Duration::from_secs(5);

/// The packets of a measurement, counted at the guests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) tally: Tally,
    pub(crate) seconds: f64,
    /// CPU time of this thread.
    pub(crate) cpu_seconds: f64,
    pub(crate) round_trip: Option<RoundTrip>,
}

/// The guests of one back end.
#[derive(Debug)]
pub(crate) struct GuestGroup {
    guests: Vec<BurstGuest>,
    /// The next flow that is unused.
    new_flow: u32,
}

impl GuestGroup {
    pub(crate) fn new(guests: Vec<BurstGuest>) -> Self {
        Self { guests, new_flow: 0 }
    }

    /// Waits until frames pass, both ways, between all guests that will send and receive. Returns false if they do not,
    /// or if `stop` was set.
    pub(crate) fn meet(&mut self, workload: &Workload, stop: &AtomicBool) -> Result<bool, GuestError> {
        let start = Instant::now();
        let mut lanes = lanes(workload);
        let back: Vec<_> = lanes.iter().map(|(from, to)| (*to, *from)).collect();
        lanes.extend(back);
        while let Some(&(from, to)) = lanes.last() {
            let mut one = traffic(workload, &[(from, to)], None);
            let arrived = one.send_all(&mut self.guests, 1)?;
            if arrived > 0 || one.rest(&mut self.guests, 1)? > 0 {
                lanes.pop();
            } else if start.elapsed().as_secs() > FIRST_FRAME_SECONDS_MAX || stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends from every address of both sides, repeatedly while frames are lost: control planes that decide about each
    /// first packet are slower than the sender.
    pub(crate) fn learn(&mut self, workload: &Workload) -> Result<(), GuestError> {
        let there = lanes(workload);
        let back: Vec<_> = there.iter().map(|(from, to)| (*to, *from)).collect();
        for lanes in [back, there] {
            let (start, all) = (Instant::now(), u64::from(workload.macs) * lanes.len() as u64);
            let mut arrived = 0;
            while arrived < all && start.elapsed() < LEARNS_WITHIN {
                let mut traffic = traffic(workload, &lanes, None);
                arrived = traffic.send_all(&mut self.guests, workload.macs.into())?;
                arrived += traffic.rest(&mut self.guests, all.saturating_sub(arrived))?;
            }
        }
        Ok(())
    }

    /// Runs the workload for a while.
    pub(crate) fn work(&mut self, workload: &Workload, duration: Duration) -> Result<Done, GuestError> {
        let (start, cpu_start) = (Instant::now(), thread_cpu_seconds());
        let mut done = match workload.kind {
            TrafficKind::Idle { .. } | TrafficKind::Stock(_) => {
                std::thread::sleep(duration);
                Done::default()
            }
            TrafficKind::RoundTrip { sleeping, pause } => {
                self.ping_pong(workload, (sleeping, pause), duration)?
            }
            TrafficKind::First { rate_pps } => self.first_packets(workload, rate_pps, duration)?,
            TrafficKind::Offered { rate_pps } => self.stream(workload, Some(rate_pps), duration)?,
            TrafficKind::Stream { .. } | TrafficKind::FanIn { .. } | TrafficKind::AllToAll { .. } => {
                self.stream(workload, None, duration)?
            }
        };
        done.seconds = start.elapsed().as_secs_f64();
        done.cpu_seconds = thread_cpu_seconds() - cpu_start;
        Ok(done)
    }

    fn stream(
        &mut self,
        workload: &Workload,
        rate_pps: Option<u64>,
        duration: Duration,
    ) -> Result<Done, GuestError> {
        let mut traffic = traffic(workload, &lanes(workload), rate_pps);
        let tally = traffic.run(&mut self.guests, duration)?;
        Ok(Done { tally, ..Done::default() })
    }

    fn first_packets(
        &mut self,
        workload: &Workload,
        rate_pps: u64,
        duration: Duration,
    ) -> Result<Done, GuestError> {
        let mut packets = FirstPackets::new(workload, rate_pps);
        self.new_flow = packets.run(&mut self.guests, duration, self.new_flow)?;
        Ok(Done { tally: packets.tally(), round_trip: Some(packets.result()), ..Done::default() })
    }

    fn ping_pong(
        &mut self,
        workload: &Workload,
        (sleeping, pause): (bool, Duration),
        duration: Duration,
    ) -> Result<Done, GuestError> {
        let (there, back) = (Lane::new(workload, 0, 1), Lane::new(workload, 1, 0));
        let mut game = PingPong::new(there, back, sleeping, pause);
        game.run(&mut self.guests, duration)?;
        let tally = Tally { sent: game.sent, received: game.received };
        Ok(Done { tally, round_trip: Some(game.result()), ..Done::default() })
    }
}

fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The sender and the receiver of each lane.
fn lanes(workload: &Workload) -> Vec<(usize, usize)> {
    match workload.kind {
        TrafficKind::Stream { pairs, both_ways } => {
            let there = (0..usize::from(pairs)).map(|pair| (2 * pair, 2 * pair + 1));
            let back = there.clone().map(|(from, to)| (to, from)).filter(|_| both_ways);
            there.chain(back).collect()
        }
        TrafficKind::FanIn { senders } => (1..=usize::from(senders)).map(|from| (from, 0)).collect(),
        TrafficKind::Offered { .. } | TrafficKind::First { .. } | TrafficKind::RoundTrip { .. } => {
            vec![(0, 1)]
        }
        TrafficKind::AllToAll { guests } => {
            let all = 0..usize::from(guests);
            all.clone()
                .flat_map(|from| all.clone().map(move |to| (from, to)))
                .filter(|(from, to)| from != to)
                .collect()
        }
        // Stock guests send by themselves.
        TrafficKind::Stock(_) => Vec::new(),
        TrafficKind::Idle { guests } => {
            (0..usize::from(guests) / 2).map(|pair| (2 * pair, 2 * pair + 1)).collect()
        }
    }
}

fn traffic(workload: &Workload, lanes: &[(usize, usize)], rate_pps: Option<u64>) -> Traffic {
    let mut receivers: Vec<usize> = lanes.iter().map(|(_, to)| *to).collect();
    receivers.sort_unstable();
    receivers.dedup();
    Traffic {
        lanes: lanes.iter().map(|(from, to)| Lane::new(workload, *from, *to)).collect(),
        receivers,
        rate_pps,
        depth: if workload.touched { ReadDepth::All } else { ReadDepth::Start },
        entries: usize::from(workload.ring_entries),
        cut_bytes: (!workload.tso).then_some(u64::from(workload.frame_bytes)),
        nap: workload.nap,
        signalled: workload.signalled,
    }
}
