//! Packets from a card to a guest, with the costs that the paper's text has.

use lasthop_sched::CpuPlace;

use super::credit::{CreditOptions, CreditScheduler, TICK_NS};

/// vCPUs run for this time before anything else happens.
const QUANTUM_NS: u64 = 10_000;
/// Bytes of a packet on average (3).
const PACKET_BYTES: u64 = 1500;
/// A 10 Gbit/s card delivers one in this time.
const PACKET_NS: u64 = 1200;
/// Packets that TCP has under way: eight connections (3) with 64 KiB each.
const WINDOW_PACKETS: u64 = 8 * (64 << 10) / PACKET_BYTES;
const WARM_UP_NS: u64 = 300_000_000;

/// A machine of the paper and the cycles of a packet on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoMachine {
    pub(crate) cpus: u16,
    pub(crate) cpus_per_llc: u16,
    pub(crate) cpus_per_node: u16,
    pub(crate) cycles_per_us: u64,
    /// The driver domain without bridge and misses of the copy.
    pub(crate) driver: u64,
    pub(crate) bridge: u64,
    pub(crate) simple_bridge: u64,
    /// Misses of the copy between domains, and of the copy to the user.
    pub(crate) domain_misses: u64,
    pub(crate) user_misses: u64,
    /// The guest without those.
    pub(crate) guest: u64,
}

/// Where a card puts packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In memory.
    #[default]
    Memory,
    /// In the cache of the driver domain's CPU: DCA.
    Driver,
    /// In caches where both copies find them: the paper's engine, as claimed.
    Both,
}

/// A set of optimizations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IoArm {
    pub(crate) scheduler: CreditOptions,
    pub(crate) simple_bridge: bool,
    pub(crate) placement: Placement,
    /// vCPUs of a third domain that always run.
    pub(crate) others: usize,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct IoResult {
    pub(crate) gbit_per_s: f64,
    /// CPUs for each Gbit/s, in percent.
    pub(crate) percent_per_gbit: f64,
    /// Work of the driver domain and of the guest, in percent of a CPU.
    pub(crate) driver_percent: f64,
    pub(crate) guest_percent: f64,
}

/// One of the two stages of a packet.
#[derive(Debug, Default)]
struct Stage {
    queued: u64,
    /// Cycles that the last quantum took too many of.
    debt: u64,
    done: u64,
    worked: u64,
}

impl Stage {
    /// Works for a quantum. Returns packets.
    fn work(&mut self, cycles: u64, each: u64) -> u64 {
        let (mut left, before) = (cycles.saturating_sub(self.debt), self.done);
        self.worked += cycles.min(self.debt);
        self.debt = self.debt.saturating_sub(cycles);
        while left > 0 && self.queued > 0 {
            self.queued -= 1;
            self.done += 1;
            self.worked += each.min(left);
            self.debt += each.saturating_sub(left);
            left = left.saturating_sub(each);
        }
        self.done - before
    }
}

/// Runs for `measured_ns`. No random numbers: each run is the same.
pub(crate) fn run(machine: &IoMachine, arm: IoArm, measured_ns: u64) -> IoResult {
    let place =
        |cpu| CpuPlace { group: cpu, llc: cpu / machine.cpus_per_llc, node: cpu / machine.cpus_per_node };
    let mut scheduler = CreditScheduler::new((0..machine.cpus).map(place).collect(), arm.scheduler);
    // The driver domain has a vCPU for each CPU, and the card interrupts the first (4.3).
    let drivers: Vec<usize> = (0..machine.cpus).map(|cpu| scheduler.add(0, usize::from(cpu))).collect();
    let guest = scheduler.add(1, 1);
    for other in 0..arm.others {
        let vcpu = scheduler.add(2, other % usize::from(machine.cpus));
        scheduler.wake(vcpu, None);
    }
    let (mut card, mut stack, mut counted) = (Stage::default(), Stage::default(), (0, 0, 0));
    let (mut arrived_ns, cycles) = (0, machine.cycles_per_us * QUANTUM_NS / 1000);
    for quantum in 1..=(WARM_UP_NS + measured_ns) / QUANTUM_NS {
        let now_ns = quantum * QUANTUM_NS;
        while arrived_ns + PACKET_NS <= now_ns && card.queued + stack.queued < WINDOW_PACKETS {
            (card.queued, arrived_ns) = (card.queued + 1, arrived_ns + PACKET_NS);
        }
        arrived_ns = arrived_ns.max(now_ns - QUANTUM_NS);
        if card.queued > 0 {
            scheduler.wake(drivers[0], None);
        }
        if stack.queued > 0 {
            scheduler.wake(guest, Some(drivers[0]));
        }
        scheduler.choose();
        let has_cpu = |vcpu: usize| scheduler.running.contains(&Some(vcpu));
        let (driver_runs, guest_runs) = (has_cpu(drivers[0]), has_cpu(guest));
        let (driver_cost, guest_cost) = costs(machine, arm, scheduler.share_cache(drivers[0], guest));
        if guest_runs {
            stack.work(cycles, guest_cost);
        }
        // Packets of this quantum reach the guest at its end, and wake it.
        if stack.queued == 0 && stack.debt == 0 {
            scheduler.sleep(guest);
        }
        if driver_runs {
            stack.queued += card.work(cycles, driver_cost);
        }
        if card.queued == 0 && card.debt == 0 {
            scheduler.sleep(drivers[0]);
        }
        if now_ns.is_multiple_of(TICK_NS) {
            scheduler.tick();
        }
        if now_ns == WARM_UP_NS {
            counted = (stack.done, card.worked, stack.worked);
        }
    }
    let gbit_per_s = ((stack.done - counted.0) * PACKET_BYTES * 8) as f64 / measured_ns as f64;
    let percent = |worked: u64| 100_000.0 * worked as f64 / (machine.cycles_per_us * measured_ns) as f64;
    let (driver_percent, guest_percent) =
        (percent(card.worked - counted.1), percent(stack.worked - counted.2));
    let percent_per_gbit = (driver_percent + guest_percent) / gbit_per_s;
    IoResult { gbit_per_s, percent_per_gbit, driver_percent, guest_percent }
}

/// Cycles of a packet in the driver domain and in the guest.
fn costs(machine: &IoMachine, arm: IoArm, shares_cache: bool) -> (u64, u64) {
    let bridge = if arm.simple_bridge { machine.simple_bridge } else { machine.bridge };
    let domain_misses = if arm.placement == Placement::Memory { machine.domain_misses } else { 0 };
    let user_hits = shares_cache || arm.placement == Placement::Both;
    let user_misses = if user_hits { 0 } else { machine.user_misses };
    (machine.driver + bridge + domain_misses, machine.guest + user_misses)
}
