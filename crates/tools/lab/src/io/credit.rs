//! The credit scheduler of Xen as the paper describes it (4.1), its cache-aware variant (4.2), and credit stealing (4.3).

use lasthop_sched::{CpuDistance, CpuPlace, distance};

/// Credits of a CPU for an accounting period, which is three ticks of 10 ms (Xen).
const CREDITS_PER_CPU: i64 = 300;
const CREDITS_PER_TICK: i64 = 100;
pub(super) const TICK_NS: u64 = 10_000_000;
const TICKS_PER_PERIOD: u64 = 3;
/// Wake-ups in a time slice from which on a pair of vCPUs counts as I/O (4.2, "default 150").
const IO_TRIGGERS_MIN: u32 = 150;

/// The paper's optimizations of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CreditOptions {
    pub(crate) cache_aware: bool,
    pub(crate) steals: bool,
}

/// The credit that each I/O vCPU steals (4.3): `Credit(idle) / (2 * Num(io))`.
pub(crate) fn stolen(idle_credit: i64, io_vcpus: i64) -> i64 {
    if io_vcpus > 0 { idle_credit / (2 * io_vcpus) } else { 0 }
}

/// A virtual CPU.
#[derive(Clone, Debug)]
pub(crate) struct Vcpu {
    pub(crate) domain: usize,
    pub(crate) cpu: usize,
    pub(crate) is_runnable: bool,
    credit: i64,
    is_boosted: bool,
    /// Wake-ups in this time slice, given or received, and whether there were many in the last one.
    triggers: u32,
    is_io: bool,
    /// The vCPU whose event came last.
    partner: Option<usize>,
    ran_ticks: u32,
    /// When it last had a CPU: the one that waits longest goes first.
    ran_at: u64,
}

impl Vcpu {
    fn rank(&self) -> (u8, u64) {
        let class = match (self.is_boosted, self.credit > 0) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (class, self.ran_at)
    }
}

/// vCPUs on CPUs, in turns of a quantum.
#[derive(Clone, Debug)]
pub(crate) struct CreditScheduler {
    places: Vec<CpuPlace>,
    pub(crate) vcpus: Vec<Vcpu>,
    /// The vCPU of each CPU in this quantum.
    pub(crate) running: Vec<Option<usize>>,
    options: CreditOptions,
    ticks: u64,
    quanta: u64,
}

impl CreditScheduler {
    /// A scheduler without vCPUs.
    pub(crate) fn new(places: Vec<CpuPlace>, options: CreditOptions) -> Self {
        let running = vec![None; places.len()];
        Self { places, vcpus: Vec::new(), running, options, ticks: 0, quanta: 0 }
    }

    /// Adds a vCPU of a domain that sleeps.
    pub(crate) fn add(&mut self, domain: usize, cpu: usize) -> usize {
        self.vcpus.push(Vcpu {
            domain,
            cpu,
            is_runnable: false,
            credit: 0,
            is_boosted: false,
            triggers: 0,
            is_io: false,
            partner: None,
            ran_ticks: 0,
            ran_at: 0,
        });
        self.vcpus.len() - 1
    }

    /// Whether two vCPUs share a last-level cache now.
    pub(crate) fn share_cache(&self, one: usize, other: usize) -> bool {
        distance(&self.places, self.vcpus[one].cpu, self.vcpus[other].cpu) <= CpuDistance::Llc
    }

    /// Wakes a vCPU; `by` is the one that sent the event.
    pub(crate) fn wake(&mut self, vcpu: usize, by: Option<usize>) {
        for one in [Some(vcpu), by].into_iter().flatten() {
            self.vcpus[one].triggers += u32::from(by.is_some());
        }
        self.vcpus[vcpu].partner = by;
        if self.vcpus[vcpu].is_runnable {
            return;
        }
        let entry = &mut self.vcpus[vcpu];
        entry.is_runnable = true;
        entry.is_boosted = entry.credit > 0;
        if let Some(by) = by.filter(|by| self.is_pair(vcpu, *by)) {
            self.join(vcpu, by);
        }
    }

    fn is_pair(&self, vcpu: usize, by: usize) -> bool {
        self.options.cache_aware && self.vcpus[vcpu].is_io && self.vcpus[by].is_io
    }

    /// Moves a vCPU next to the one that wakes it. The vCPU there takes its place.
    fn join(&mut self, vcpu: usize, by: usize) {
        if self.share_cache(vcpu, by) && self.vcpus[vcpu].cpu != self.vcpus[by].cpu {
            return;
        }
        let beside = (0..self.places.len()).find(|cpu| {
            *cpu != self.vcpus[by].cpu && distance(&self.places, *cpu, self.vcpus[by].cpu) <= CpuDistance::Llc
        });
        if let Some(cpu) = beside {
            let from = std::mem::replace(&mut self.vcpus[vcpu].cpu, cpu);
            if let Some(other) = self.running[cpu].filter(|other| *other != vcpu) {
                self.vcpus[other].cpu = from;
            }
        }
    }

    /// Chooses the vCPU of each CPU for the next quantum. No CPU is idle while a vCPU waits.
    pub(crate) fn choose(&mut self) {
        self.quanta += 1;
        let best = |vcpus: &[Vcpu], taken: &[Option<usize>], at: Option<usize>| {
            (0..vcpus.len())
                .filter(|number| vcpus[*number].is_runnable && !taken.contains(&Some(*number)))
                .filter(|number| at.is_none_or(|cpu| vcpus[*number].cpu == cpu))
                .min_by_key(|number| vcpus[*number].rank())
        };
        let mut running = vec![None; self.places.len()];
        for cpu in 0..running.len() {
            running[cpu] = best(&self.vcpus, &running, Some(cpu));
        }
        for cpu in 0..running.len() {
            // An idle CPU takes a vCPU that waits; one without credit gives way to one with credit elsewhere.
            let Some(other) = best(&self.vcpus, &running, None) else { break };
            let own = running[cpu].map(|own| self.vcpus[own].rank().0);
            if own.is_none_or(|class| class > self.vcpus[other].rank().0) {
                running[cpu] = Some(other);
                self.vcpus[other].cpu = cpu;
            }
        }
        for vcpu in running.iter().flatten() {
            self.vcpus[*vcpu].ran_at = self.quanta;
        }
        self.running = running;
    }

    /// A vCPU has no work.
    pub(crate) fn sleep(&mut self, vcpu: usize) {
        self.vcpus[vcpu].is_runnable = false;
    }

    /// The timer interrupt of each CPU: debits credits, moves vCPUs apart, and accounts at each third one.
    pub(crate) fn tick(&mut self) {
        for cpu in 0..self.running.len() {
            let Some(vcpu) = self.running[cpu] else { continue };
            self.vcpus[vcpu].credit -= CREDITS_PER_TICK;
            self.vcpus[vcpu].is_boosted = false;
            self.vcpus[vcpu].ran_ticks += 1;
            if !(self.options.cache_aware && self.vcpus[vcpu].is_io) {
                self.move_apart(vcpu);
            } else if let Some(by) = self.vcpus[vcpu].partner.filter(|by| self.is_pair(vcpu, *by)) {
                self.join(vcpu, by); // instead (4.2)
            }
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(TICKS_PER_PERIOD) {
            self.account();
        }
    }

    /// "Migrated to the PCPU with the most idling neighbors" (4.1): sockets first, then caches.
    fn move_apart(&mut self, vcpu: usize) {
        let idle_near = |cpu: usize| {
            let count = |same: &dyn Fn(&CpuPlace) -> bool| {
                let others =
                    (0..self.places.len()).filter(|other| *other != cpu && same(&self.places[*other]));
                others.filter(|other| self.running[*other].is_none_or(|running| running == vcpu)).count()
            };
            let place = self.places[cpu];
            (count(&|other| other.node == place.node), count(&|other| other.llc == place.llc))
        };
        let from = self.vcpus[vcpu].cpu;
        let idle = (0..self.places.len()).filter(|cpu| self.running[*cpu].is_none());
        // Of equal ones the first.
        let best = idle.max_by_key(|cpu| (idle_near(*cpu), std::cmp::Reverse(*cpu)));
        if let Some(cpu) = best.filter(|cpu| idle_near(*cpu) > idle_near(from)) {
            self.running[from] = None;
            self.running[cpu] = Some(vcpu);
            self.vcpus[vcpu].cpu = cpu;
        }
    }

    /// Each domain with runnable vCPUs gets an equal part of all credits, and each of its vCPUs an equal part of that, idle or not (4.3).
    fn account(&mut self) {
        let domains = self.vcpus.iter().map(|vcpu| vcpu.domain + 1).max().unwrap_or(0);
        let is_active = |domain: usize| {
            self.vcpus.iter().any(|vcpu| vcpu.domain == domain && (vcpu.is_runnable || vcpu.ran_ticks > 0))
        };
        let active: Vec<usize> = (0..domains).filter(|domain| is_active(*domain)).collect();
        let all = CREDITS_PER_CPU * self.places.len() as i64;
        for domain in &active {
            let count = self.vcpus.iter().filter(|vcpu| vcpu.domain == *domain).count() as i64;
            let share = all / active.len() as i64 / count;
            for vcpu in self.vcpus.iter_mut().filter(|vcpu| vcpu.domain == *domain) {
                vcpu.credit = (vcpu.credit + share).clamp(-CREDITS_PER_CPU, CREDITS_PER_CPU);
            }
        }
        for vcpu in &mut self.vcpus {
            vcpu.is_io = std::mem::take(&mut vcpu.triggers) >= IO_TRIGGERS_MIN;
        }
        if self.options.steals {
            self.steal();
        }
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.ran_ticks = 0);
    }

    /// I/O vCPUs of the driver domain, domain 0, take half of the credits of its idle ones.
    fn steal(&mut self) {
        let is_idle = |vcpu: &Vcpu| vcpu.domain == 0 && vcpu.ran_ticks == 0 && !vcpu.is_runnable;
        let is_io = |vcpu: &Vcpu| vcpu.domain == 0 && vcpu.is_io && !is_idle(vcpu);
        let idle_credit = self.vcpus.iter().filter(|vcpu| is_idle(vcpu)).map(|vcpu| vcpu.credit.max(0)).sum();
        let each = stolen(idle_credit, self.vcpus.iter().filter(|vcpu| is_io(vcpu)).count() as i64);
        for vcpu in &mut self.vcpus {
            if is_io(vcpu) {
                vcpu.credit += each;
            } else if is_idle(vcpu) && each > 0 {
                vcpu.credit -= vcpu.credit.max(0) / 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's Xeon 5335: two CPUs share a cache, four a socket.
    fn xeon() -> Vec<CpuPlace> {
        (0..8).map(|cpu| CpuPlace { group: cpu, llc: cpu / 2, node: cpu / 4 }).collect()
    }

    #[test]
    fn stealing_follows_the_paper() {
        assert_eq!([stolen(1050, 1), stolen(1050, 3), stolen(1050, 0)], [525, 175, 0]);
    }

    #[test]
    fn busy_vcpus_go_to_different_sockets_unless_the_scheduler_knows_caches() {
        for cache_aware in [false, true] {
            let options = CreditOptions { cache_aware, steals: false };
            let mut scheduler = CreditScheduler::new(xeon(), options);
            let [driver, guest] = [scheduler.add(0, 0), scheduler.add(1, 1)];
            for tick in 0..20 {
                scheduler.wake(driver, None);
                for _ in 0..200 {
                    scheduler.sleep(guest);
                    scheduler.wake(guest, Some(driver));
                    scheduler.choose();
                }
                scheduler.tick();
                assert!(tick < 10 || scheduler.share_cache(driver, guest) == cache_aware);
            }
        }
    }

    #[test]
    fn no_cpu_is_idle_while_a_vcpu_waits() {
        let mut scheduler = CreditScheduler::new(xeon(), CreditOptions::default());
        let vcpus: Vec<usize> = (0..10).map(|_| scheduler.add(0, 3)).collect();
        vcpus.iter().for_each(|vcpu| scheduler.wake(*vcpu, None));
        let mut ran = [0; 10];
        for _ in 0..1000 {
            scheduler.choose();
            assert!(scheduler.running.iter().all(Option::is_some));
            scheduler.running.iter().flatten().for_each(|vcpu| ran[*vcpu] += 1);
        }
        assert!(ran.iter().all(|quanta| *quanta > 300), "{ran:?}");
    }
}
