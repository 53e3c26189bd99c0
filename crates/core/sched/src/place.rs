//! Which idle CPU takes work for a receiver: cache-aware choice (Hyper-Switch, 3.4 "CPU Cache Awareness", 5.2.3).
//!
//! ```text
//!   receiver's CPU ── same group (L2) ── same LLC ── same node ── anywhere
//!        never         never wholly idle     1st         2nd         3rd      with `whole_group`
//! ```

/// The caches and the memory of a CPU, as numbers: CPUs with an equal number share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPlace {
    /// The second-level cache: a module of AMD's Bulldozer, a core with its sibling threads elsewhere.
    pub group: u16,
    /// The last-level cache.
    pub llc: u16,
    /// The memory node.
    pub node: u16,
}

impl CpuPlace {
    /// From the numbers of group, last-level cache and node, as messages have them.
    #[must_use]
    pub const fn of_numbers((group, llc, node): (u16, u16, u16)) -> Self {
        Self { group, llc, node }
    }

    /// The numbers of group, last-level cache and node.
    #[must_use]
    pub const fn numbers(self) -> (u16, u16, u16) {
        (self.group, self.llc, self.node)
    }
}

/// How far apart two CPUs are, by the nearest thing that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuDistance {
    /// They are one CPU.
    Same,
    /// They share the second-level cache.
    Group,
    /// They share the last-level cache.
    Llc,
    /// They share a memory node.
    Node,
    /// They share nothing.
    Far,
}

/// The distance between CPUs number `one` and `other`; far if one of them is not in the list.
#[must_use]
pub fn distance(cpus: &[CpuPlace], one: usize, other: usize) -> CpuDistance {
    match (cpus.get(one), cpus.get(other)) {
        (Some(_), Some(_)) if one == other => CpuDistance::Same,
        (Some(a), Some(b)) if a.group == b.group => CpuDistance::Group,
        (Some(a), Some(b)) if a.llc == b.llc => CpuDistance::Llc,
        (Some(a), Some(b)) if a.node == b.node => CpuDistance::Node,
        _ => CpuDistance::Far,
    }
}

/// The criteria of the choice. The paper found that they depend on the machine (5.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceCriteria {
    /// Only a CPU whose group is idle as a whole, so that its work does not disturb a neighbour (5.2.1). Such a group
    /// takes one helper.
    pub whole_group: bool,
    /// The farthest CPU that is chosen.
    pub farthest: CpuDistance,
}

impl Default for PlaceCriteria {
    /// Those of the paper: idle modules only, the receiver's node first, then all others.
    fn default() -> Self {
        Self { whole_group: true, farthest: CpuDistance::Far }
    }
}

/// Chooses a CPU for work on packets of a receiver that runs, or ran last, on CPU `receiver`. `has_helper`: a helper can
/// run there. `is_idle`: no thread but a helper has the CPU or waits for it. Among equally near CPUs `spread`, a hash of
/// the receiver, decides.
///
/// The receiver's own CPU is never chosen: the work would delay its wake-up. A few passes over the list, no memory. `is_idle` may change
/// its answers meanwhile; then there may be no choice.
#[must_use]
pub fn place(
    cpus: &[CpuPlace],
    has_helper: impl Fn(usize) -> bool,
    is_idle: impl Fn(usize) -> bool,
    receiver: usize,
    spread: u32,
    criteria: PlaceCriteria,
) -> Option<usize> {
    let group_of = |cpu: usize| (0..cpus.len()).filter(move |other| cpus[*other].group == cpus[cpu].group);
    let is_candidate = |cpu: usize| {
        cpu != receiver
            && has_helper(cpu)
            && is_idle(cpu)
            && (!criteria.whole_group
                || (group_of(cpu).all(|other| other != receiver && is_idle(other))
                    && group_of(cpu).find(|cpu| has_helper(*cpu)) == Some(cpu)))
    };
    let candidates = || (0..cpus.len()).filter(|cpu| is_candidate(*cpu));
    let nearest = candidates().map(|cpu| distance(cpus, receiver, cpu)).min()?;
    if nearest > criteria.farthest {
        return None;
    }
    let is_nearest = |cpu: &usize| distance(cpus, receiver, *cpu) == nearest;
    // A CPU may have become busy since.
    let chosen = (spread as usize).checked_rem(candidates().filter(is_nearest).count())?;
    candidates().filter(is_nearest).nth(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's Opteron: two CPUs share an L2 cache, eight an L3 cache.
    fn opteron() -> Vec<CpuPlace> {
        (0..32).map(|cpu| CpuPlace { group: cpu / 2, llc: cpu / 8, node: cpu / 8 }).collect()
    }

    #[test]
    fn the_receiver_s_node_is_searched_first() {
        let cpus = opteron();
        let chosen = |busy: &[usize], spread| {
            place(&cpus, |_| true, |cpu| !busy.contains(&cpu), 0, spread, PlaceCriteria::default())
        };
        assert_eq!([0, 1, 2, 3].map(|spread| chosen(&[0], spread)), [Some(2), Some(4), Some(6), Some(2)]);
        assert_eq!(chosen(&[0, 3, 4, 7], 0), Some(8), "no whole module of the node is idle");
        assert_eq!(chosen(&(0..32).step_by(2).collect::<Vec<_>>(), 0), None);
    }

    #[test]
    fn criteria_follow_the_machine() {
        let cpus = opteron();
        let busy = |cpu: usize| cpu.is_multiple_of(2);
        let halves = PlaceCriteria { whole_group: false, ..PlaceCriteria::default() };
        assert_eq!(
            place(&cpus, |_| true, |cpu| !busy(cpu), 0, 0, halves),
            Some(1),
            "the receiver's own module"
        );
        let near = PlaceCriteria { farthest: CpuDistance::Llc, ..PlaceCriteria::default() };
        assert_eq!(place(&cpus, |_| true, |cpu| cpu >= 8, 0, 0, near), None);
        assert_eq!(place(&cpus, |_| true, |cpu| cpu >= 8, 0, 0, PlaceCriteria::default()), Some(8));
        assert_eq!(place(&[], |_| true, |_| true, 0, 0, near), None);
    }

    #[test]
    fn cpus_may_become_busy_meanwhile() {
        let cpus = opteron();
        let halves = PlaceCriteria { whole_group: false, ..PlaceCriteria::default() };
        for looks in 0..100_u32 {
            let left = std::cell::Cell::new(looks);
            let is_idle = |_: usize| left.replace(left.get().saturating_sub(1)) > 0;
            let chosen = place(&cpus, |_| true, is_idle, 0, 5, halves);
            assert!(chosen != Some(0) && (looks > 31 || chosen.is_none()), "{looks}: {chosen:?}");
        }
    }

    #[test]
    fn only_cpus_with_a_helper_are_chosen() {
        let cpus = opteron();
        let chosen = |helpers: &[usize], busy: usize| {
            place(&cpus, |cpu| helpers.contains(&cpu), |cpu| cpu != busy, 0, 0, PlaceCriteria::default())
        };
        assert_eq!(chosen(&[3, 9], 0), Some(3), "the second CPU of a module");
        assert_eq!(chosen(&[3, 9], 2), Some(9), "its neighbour is busy");
        assert_eq!(chosen(&[], 1), None);
    }

    #[test]
    fn distances_are_those_of_the_nearest_shared_thing() {
        let cpus = opteron();
        let from_0 = [0, 1, 2, 8, 40].map(|cpu| distance(&cpus, 0, cpu));
        assert_eq!(
            from_0,
            [CpuDistance::Same, CpuDistance::Group, CpuDistance::Llc, CpuDistance::Far, CpuDistance::Far]
        );
        let one_node = [CpuPlace::default(), CpuPlace { group: 1, llc: 1, node: 0 }];
        assert_eq!(distance(&one_node, 0, 1), CpuDistance::Node);
    }
}
