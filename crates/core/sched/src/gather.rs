//! Which threads share a last-level cache: those between which many batches pass (Liao and Bhuyan, 4.2).
//!
//! ```text
//!   batches per slice            clusters, the busiest first             domain: a last-level cache for each cluster
//!   worker0 ── vm1   900         { worker0, vm1 }                        where its fixed threads are, else where it is,
//!   worker0 ── vm2    20    ──>  (vm2: below the threshold, free)  ──>   with a CPU for each of its threads
//! ```
//!
//! The paper counts the events that wake VCPUs in a time slice. A guest that polls causes none, so here each signal counts
//! as a batch, and so do 32 packets.

use crate::place::CpuPlace;

/// A thread that moves packets, or a guest's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatheredThread {
    /// The CPU that it uses, or used last.
    pub cpu: usize,
    /// It stays where it is: it is not ours, or cannot be moved.
    pub is_fixed: bool,
    /// It uses more than half of a CPU. If it is fixed as well, it takes the one where it is.
    pub is_busy: bool,
    /// The last-level cache that it was given before. After the decision: the one that it is given, `None` if it may run on each
    /// CPU of its process.
    pub domain: Option<u16>,
}

/// Batches of packets between two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFlow {
    /// The threads, by their index.
    pub ends: (usize, usize),
    /// Batches in a slice of [`SLICE_NS`].
    pub batches: u64,
}

/// The time slice of the paper's scheduler: Xen's credit scheduler gives 30 ms.
pub const SLICE_NS: u64 = 30_000_000;
/// The paper's threshold: more batches than this in a slice make both ends threads of I/O.
pub const BATCHES_PER_SLICE: u64 = 150;

/// Decides the domain of each thread that is not fixed. `may_run` tells whether a thread may run on a CPU.
///
/// - Threads with no more than the threshold between them are free: [`BATCHES_PER_SLICE`] or the user's. Half of it suffices for
///   two that are together already.
/// - Each thread that is given a domain has a CPU of it to itself, on which it may run: no two of these threads are forced onto one
///   CPU, or onto that of a fixed thread that is busy. Threads that do not fit are free.
/// - The domain is the one in which most batches come from fixed threads; then the one of before; then the one in which most
///   of its threads are. A cluster leaves its domain for another one with a third more batches.
/// - A machine with one last-level cache has nothing to decide: all threads are free.
///
/// The same arguments give the same decision. Takes time in proportion to flows times threads, and to threads times CPUs.
pub fn gather(
    cpus: &[CpuPlace],
    threads: &mut [GatheredThread],
    flows: &[BatchFlow],
    threshold: u64,
    may_run: impl Fn(usize, usize) -> bool,
) {
    let before: Vec<GatheredThread> = threads.to_vec();
    threads.iter_mut().for_each(|thread| thread.domain = None);
    let domains = CacheDomain::all(cpus);
    if domains.len() < 2 {
        return;
    }
    let largest = domains.iter().map(|domain| domain.cpus.len()).max().unwrap_or(0);
    let mut taken = vec![false; cpus.len()];
    for fixed in before.iter().filter(|thread| thread.is_fixed && thread.is_busy) {
        taken.get_mut(fixed.cpu).into_iter().for_each(|taken| *taken = true);
    }
    for cluster in clusters(&before, flows, threshold, largest) {
        let room = |at: usize| domains[at].seats(&cluster, &taken, &may_run);
        let score = |at: usize| domains[at].score(&cluster, &before);
        let fitting = (0..domains.len()).filter_map(|at| Some((at, room(at)?)));
        let best = fitting.max_by_key(|(at, _)| (score(*at), usize::MAX - at));
        let Some((best, seats)) = best else { continue };
        seats.into_iter().for_each(|cpu| taken[cpu] = true);
        cluster.threads.iter().for_each(|thread| threads[*thread].domain = Some(domains[best].number));
    }
}

/// CPUs that share a last-level cache.
struct CacheDomain {
    number: u16,
    cpus: Vec<usize>,
}

impl CacheDomain {
    /// In the order of their numbers.
    fn all(cpus: &[CpuPlace]) -> Vec<Self> {
        let mut numbers: Vec<u16> = cpus.iter().map(|place| place.llc).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let domain = |number| {
            let cpus = (0..cpus.len()).filter(|cpu| cpus[*cpu].llc == number).collect();
            Self { number, cpus }
        };
        numbers.into_iter().map(domain).collect()
    }

    /// A CPU for each thread of a cluster, those with the fewest to choose from first; `None` if there is not one for each.
    fn seats(
        &self,
        cluster: &Cluster,
        taken: &[bool],
        may_run: &impl Fn(usize, usize) -> bool,
    ) -> Option<Vec<usize>> {
        let choices = |thread: usize| -> Vec<usize> {
            self.cpus.iter().copied().filter(|cpu| !taken[*cpu] && may_run(thread, *cpu)).collect()
        };
        let mut wanted: Vec<Vec<usize>> = cluster.threads.iter().map(|thread| choices(*thread)).collect();
        wanted.sort_by_key(Vec::len);
        let mut seats: Vec<usize> = Vec::with_capacity(wanted.len());
        for choices in wanted {
            let seat = choices.into_iter().find(|cpu| !seats.contains(cpu))?;
            seats.push(seat);
        }
        Some(seats)
    }

    /// How well it suits a cluster: by batches of fixed threads, with a third more for the domain of before; by threads that had this
    /// domain, and by threads that are here.
    fn score(&self, cluster: &Cluster, before: &[GatheredThread]) -> (u64, usize, usize) {
        let is_here = |thread: &usize| self.cpus.contains(&before[*thread].cpu);
        let votes = cluster.votes.iter().filter(|(fixed, _)| is_here(fixed));
        let votes = votes.fold(0_u64, |sum, (_, batches)| sum.saturating_add(*batches));
        let stayed =
            cluster.threads.iter().filter(|thread| before[**thread].domain == Some(self.number)).count();
        let bonus = if stayed > 0 { votes / 3 } else { 0 };
        (votes.saturating_add(bonus), stayed, cluster.threads.iter().filter(|thread| is_here(thread)).count())
    }
}

/// Threads that belong together.
#[derive(Default)]
struct Cluster {
    batches: u64,
    threads: Vec<usize>,
    /// Fixed threads, with the batches between them and the cluster.
    votes: Vec<(usize, u64)>,
}

/// Joins the ends of flows, the busiest first, to clusters of at most `largest` threads. The busiest cluster comes first.
fn clusters(before: &[GatheredThread], flows: &[BatchFlow], threshold: u64, largest: usize) -> Vec<Cluster> {
    let is_together = |flow: &BatchFlow| {
        let (one, other) = (before[flow.ends.0].domain, before[flow.ends.1].domain);
        one.is_some() && one == other
    };
    let needed = |flow: &BatchFlow| if is_together(flow) { threshold / 2 } else { threshold };
    let is_known =
        |flow: &&BatchFlow| flow.ends.0.max(flow.ends.1) < before.len() && flow.ends.0 != flow.ends.1;
    let mut busy: Vec<BatchFlow> =
        flows.iter().filter(is_known).filter(|flow| flow.batches > needed(flow)).copied().collect();
    busy.sort_by_key(|flow| (std::cmp::Reverse(flow.batches), flow.ends));
    let mut clusters: Vec<Cluster> = Vec::new();
    for BatchFlow { ends: (one, other), batches } in busy {
        match (before[one].is_fixed, before[other].is_fixed) {
            (true, true) => {}
            (false, true) => vote(&mut clusters, one, other, batches),
            (true, false) => vote(&mut clusters, other, one, batches),
            (false, false) => join(&mut clusters, (one, other), batches, largest),
        }
    }
    // A thread that found no room beside its partner is free.
    clusters.retain(|cluster| cluster.threads.len() > 1 || !cluster.votes.is_empty());
    clusters.sort_by_key(|cluster| std::cmp::Reverse(cluster.batches));
    clusters
}

/// Takes the cluster of a thread out of the list; a new one if it has none.
fn take(clusters: &mut Vec<Cluster>, thread: usize) -> Cluster {
    match clusters.iter().position(|found| found.threads.contains(&thread)) {
        Some(at) => clusters.remove(at),
        None => Cluster { threads: vec![thread], ..Cluster::default() },
    }
}

fn vote(clusters: &mut Vec<Cluster>, thread: usize, fixed: usize, batches: u64) {
    let mut cluster = take(clusters, thread);
    cluster.batches = cluster.batches.saturating_add(batches);
    cluster.votes.push((fixed, batches));
    clusters.push(cluster);
}

fn join(clusters: &mut Vec<Cluster>, ends: (usize, usize), batches: u64, largest: usize) {
    let mut joined = take(clusters, ends.0);
    if joined.threads.contains(&ends.1) {
        joined.batches = joined.batches.saturating_add(batches);
    } else {
        let other = take(clusters, ends.1);
        if joined.threads.len() + other.threads.len() > largest {
            clusters.push(other);
        } else {
            joined.batches = joined.batches.saturating_add(batches).saturating_add(other.batches);
            joined.threads.extend(other.threads);
            joined.votes.extend(other.votes);
        }
    }
    clusters.push(joined);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two last-level caches of four CPUs each.
    fn two_caches() -> Vec<CpuPlace> {
        (0..8).map(|cpu| CpuPlace { group: cpu, llc: cpu / 4 * 4, node: 0 }).collect()
    }

    fn free(cpu: usize) -> GatheredThread {
        GatheredThread { cpu, ..GatheredThread::default() }
    }

    fn fixed(cpu: usize) -> GatheredThread {
        GatheredThread { cpu, is_fixed: true, ..GatheredThread::default() }
    }

    fn flow(one: usize, other: usize, batches: u64) -> BatchFlow {
        BatchFlow { ends: (one, other), batches }
    }

    fn decided(mut threads: Vec<GatheredThread>, flows: &[BatchFlow]) -> Vec<Option<u16>> {
        gather(&two_caches(), &mut threads, flows, BATCHES_PER_SLICE, |_, _| true);
        threads.iter().map(|thread| thread.domain).collect()
    }

    #[test]
    fn a_worker_goes_to_the_cache_of_the_guest_with_which_it_works_most() {
        let threads = vec![free(0), fixed(5), fixed(1)];
        assert_eq!(decided(threads.clone(), &[flow(0, 1, 900), flow(0, 2, 20)]), [Some(4), None, None]);
        assert_eq!(decided(threads.clone(), &[flow(0, 1, 200), flow(0, 2, 900)])[0], Some(0), "by batches");
        assert_eq!(decided(threads.clone(), &[flow(0, 1, 150)])[0], None, "not more than the threshold");
        assert_eq!(decided(threads, &[flow(0, 7, 900)])[0], None, "an end that is not there");
    }

    #[test]
    fn guests_that_may_move_come_to_their_worker_and_stay() {
        let mut threads = vec![free(0), free(6), free(1)];
        let decision = decided(threads.clone(), &[flow(0, 1, 900), flow(0, 2, 800)]);
        assert_eq!(decision, [Some(0); 3], "two of three were there");
        threads.iter_mut().zip(&decision).for_each(|(thread, domain)| thread.domain = *domain);
        assert_eq!(
            decided(threads.clone(), &[flow(0, 1, 76)]),
            [Some(0), Some(0), None],
            "half suffices to stay"
        );
        threads.iter_mut().for_each(|thread| thread.cpu = 6);
        assert_eq!(
            decided(threads, &[flow(0, 1, 900)])[..2],
            [Some(0); 2],
            "a wrong CPU is no reason to move"
        );
    }

    #[test]
    fn fixed_threads_take_no_room_and_votes_outweigh_places() {
        let mut threads = vec![free(0)];
        threads.extend([1, 2, 3, 1, 2].map(fixed));
        threads.extend([5, 6].map(fixed));
        let flows: Vec<_> = (1..8).map(|guest| flow(0, guest, 300)).collect();
        assert_eq!(decided(threads.clone(), &flows)[0], Some(0), "five guests against two");
        threads[0].domain = Some(4);
        assert_eq!(decided(threads.clone(), &flows)[0], Some(0), "more than a third more");
        let near = [flow(0, 1, 300), flow(0, 6, 250)];
        assert_eq!(decided(threads, &near)[0], Some(4), "not a third more");
    }

    #[test]
    fn busy_fixed_threads_take_their_cpus() {
        let busy = |cpu| GatheredThread { is_busy: true, ..fixed(cpu) };
        let mut threads = vec![free(7)];
        threads.extend([0, 1, 2, 3].map(busy));
        let flows: Vec<_> = (1..5).map(|guest| flow(0, guest, 300)).collect();
        assert_eq!(decided(threads.clone(), &flows)[0], Some(4), "each CPU of their cache has one of them");
        threads[4].is_busy = false;
        assert_eq!(decided(threads, &flows)[0], Some(0));
    }

    #[test]
    fn threads_that_may_use_one_cpu_of_a_cache_do_not_share_it() {
        let mut threads = vec![free(0), free(8), fixed(0)];
        let flows = [flow(0, 2, 900), flow(1, 2, 800)];
        gather(&two_caches(), &mut threads, &flows, BATCHES_PER_SLICE, |_, cpu| cpu == 0 || cpu == 5);
        assert_eq!((threads[0].domain, threads[1].domain), (Some(0), Some(4)), "one for each");
        gather(&two_caches(), &mut threads, &flows, BATCHES_PER_SLICE, |_, cpu| cpu == 0);
        assert_eq!((threads[0].domain, threads[1].domain), (Some(0), None));
    }

    #[test]
    fn a_full_cache_takes_no_more() {
        let threads: Vec<_> = (0..6).map(|_| free(0)).collect();
        let flows: Vec<_> = (1..6).map(|guest| flow(0, guest, 1000 - guest as u64)).collect();
        let decision = decided(threads, &flows);
        assert_eq!(decision, [Some(0), Some(0), Some(0), Some(0), None, None]);
        let pairs: Vec<_> = (0..12).map(|_| free(0)).collect();
        let flows: Vec<_> = (0..6).map(|pair| flow(2 * pair, 2 * pair + 1, 1000 - pair as u64)).collect();
        let decision = decided(pairs, &flows);
        assert_eq!(decision[..8], [0, 0, 0, 0, 4, 4, 4, 4].map(Some));
        assert_eq!(decision[8..], [None; 4], "both caches are full");
    }

    #[test]
    fn one_cache_leaves_nothing_to_decide() {
        let one = vec![CpuPlace::default(); 8];
        let mut threads = vec![GatheredThread { domain: Some(0), ..free(0) }, free(1)];
        gather(&one, &mut threads, &[flow(0, 1, 900)], BATCHES_PER_SLICE, |_, _| true);
        assert_eq!(threads, [free(0), free(1)]);
    }

    proptest! {
        #[test]
        fn no_cache_is_overfull_and_no_thread_is_sent_where_it_may_not_run(
            caches in proptest::collection::vec(0_u16..4, 1..16),
            threads in proptest::collection::vec((0_usize..16, any::<bool>(), proptest::option::of(0_u16..4), any::<u16>()), 1..20),
            flows in proptest::collection::vec((0_usize..20, 0_usize..20, 0_u64..1000), 0..40),
        ) {
            let cpus: Vec<_> = caches.iter().map(|llc| CpuPlace { group: 0, llc: *llc, node: 0 }).collect();
            let masks: Vec<u16> = threads.iter().map(|(_, _, _, mask)| *mask).collect();
            let may_run = |thread: usize, cpu: usize| masks[thread] & (1 << cpu) != 0;
            let flows: Vec<_> = flows.iter().map(|(one, other, batches)| flow(*one, *other, *batches)).collect();
            let thread = |(cpu, is_fixed, domain, _): &(usize, bool, Option<u16>, u16)| {
                GatheredThread { cpu: *cpu, is_fixed: *is_fixed, is_busy: true, domain: *domain }
            };
            let mut decided: Vec<GatheredThread> = threads.iter().map(thread).collect();
            let mut again = decided.clone();
            gather(&cpus, &mut decided, &flows, BATCHES_PER_SLICE, may_run);
            gather(&cpus, &mut again, &flows, BATCHES_PER_SLICE, may_run);
            prop_assert_eq!(&decided, &again);
            let is_taken = |cpu: usize| threads.iter().any(|(at, is_fixed, _, _)| *is_fixed && *at == cpu);
            // Of any threads that were sent somewhere, the CPUs that they may use there are at least as many (Hall).
            for llc in 0..4 {
                let sent: Vec<usize> = (0..decided.len()).filter(|number| decided[*number].domain == Some(llc)).collect();
                for part in 1_u32..1 << sent.len().min(8) {
                    let chosen = sent.iter().enumerate().filter(|(at, _)| part & (1 << at) != 0).map(|(_, number)| *number);
                    let chosen: Vec<usize> = chosen.collect();
                    let is_there = |cpu: &usize| {
                        caches[*cpu] == llc && !is_taken(*cpu) && chosen.iter().any(|number| may_run(*number, *cpu))
                    };
                    let room = (0..caches.len()).filter(is_there).count();
                    prop_assert!(chosen.len() <= room, "{chosen:?} have {room} CPUs");
                }
            }
            for (number, thread) in decided.iter().enumerate() {
                let Some(domain) = thread.domain else { continue };
                prop_assert!(!thread.is_fixed);
                let is_there = |cpu: usize| caches[cpu] == domain && may_run(number, cpu);
                prop_assert!((0..caches.len()).any(is_there), "thread {number} may not run there");
                let works = flows.iter().any(|flow| {
                    flow.batches > BATCHES_PER_SLICE / 2 && (flow.ends.0 == number || flow.ends.1 == number)
                });
                prop_assert!(works, "thread {number} moves no packets");
            }
        }
    }
}
