//! Caches and memory of the host's CPUs, from /sys/devices/system.

use std::fs;
use std::path::{Path, PathBuf};

use lasthop_sched::CpuPlace;

/// CPUs that are looked at: those of the view.
const CPUS_MAX: usize = crate::layout::CPUS_MAX as usize;
/// Levels of caches that are looked at: Linux numbers a CPU's caches from 0.
const CACHES_MAX: usize = 8;
const SYSTEM: &str = "/sys/devices/system";

/// The place of each CPU, by number. A CPU without such files (offline, or a machine that does not tell) has a second-level
/// cache of its own, and shares the rest with all others.
#[must_use]
pub fn cpu_places() -> Vec<CpuPlace> {
    places_in(Path::new(SYSTEM))
}

fn places_in(system: &Path) -> Vec<CpuPlace> {
    let directory = |cpu: usize| system.join(format!("cpu/cpu{cpu}"));
    let numbers = numbered(&system.join("cpu"), "cpu").map(|(cpu, _)| usize::from(cpu) + 1);
    let count = numbers.filter(|count| *count <= CPUS_MAX).max().unwrap_or(0);
    let node_of = nodes(system);
    let place = |cpu: usize| {
        let caches = caches(&directory(cpu));
        let second = caches.iter().find(|(level, _)| *level == 2);
        let last = caches.iter().filter(|(level, _)| *level > 2).max();
        CpuPlace {
            group: second.map_or(cpu as u16, |(_, first)| *first),
            llc: last.map_or(0, |(_, first)| *first),
            node: node_of(cpu),
        }
    };
    (0..count).map(place).collect()
}

/// Level of each data cache of a CPU, and the first CPU that shares it.
fn caches(directory: &Path) -> Vec<(u8, u16)> {
    let cache = |index: usize| {
        let directory = directory.join(format!("cache/index{index}"));
        let text = |name: &str| fs::read_to_string(directory.join(name)).ok();
        let is_for_data = text("type").is_none_or(|kind| kind.trim() != "Instruction");
        let level = text("level")?.trim().parse().ok().filter(|_| is_for_data)?;
        Some((level, first_of(&text("shared_cpu_list")?)?))
    };
    (0..CACHES_MAX).filter_map(cache).collect()
}

/// The entries of a directory that are named by a word and a number.
fn numbered<'a>(directory: &Path, word: &'a str) -> impl Iterator<Item = (u16, PathBuf)> + use<'a> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        Some((entry.file_name().to_str()?.strip_prefix(word)?.parse().ok()?, entry.path()))
    })
}

/// The memory node of a CPU; 0 if that is not known.
fn nodes(system: &Path) -> impl Fn(usize) -> u16 {
    let list =
        |(number, path): (u16, PathBuf)| Some((number, fs::read_to_string(path.join("cpulist")).ok()?));
    let nodes: Vec<(u16, String)> = numbered(&system.join("node"), "node").filter_map(list).collect();
    move |cpu| nodes.iter().find(|(_, list)| holds(list, cpu)).map_or(0, |(number, _)| *number)
}

/// The first CPU of a list like `0-3,6`.
fn first_of(list: &str) -> Option<u16> {
    list.trim().split([',', '-']).next()?.parse().ok()
}

/// Whether a list like `0-3,6` holds a CPU.
fn holds(list: &str, cpu: usize) -> bool {
    list.trim().split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bound = |text: &str| text.parse::<usize>().ok();
        bound(first).zip(bound(last)).is_some_and(|(first, last)| (first..=last).contains(&cpu))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files of a machine: by CPU its L2's and L3's list.
    fn machine(name: &str, cpus: &[(&str, &str)], nodes: &[&str]) -> std::path::PathBuf {
        let system = std::env::temp_dir().join(format!("lasthop-topology-{name}-{}", std::process::id()));
        for (cpu, (second, last)) in cpus.iter().enumerate() {
            let all = [("1", "Instruction", "9"), ("2", "Unified", *second), ("3", "Unified", *last)];
            for (index, (level, kind, list)) in all.iter().enumerate() {
                let directory = system.join(format!("cpu/cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&directory).unwrap();
                for (file, text) in [("level", level), ("type", kind), ("shared_cpu_list", list)] {
                    fs::write(directory.join(file), format!("{text}\n")).unwrap();
                }
            }
        }
        for (node, list) in nodes.iter().enumerate() {
            let directory = system.join(format!("node/node{node}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cpulist"), format!("{list}\n")).unwrap();
        }
        system
    }

    #[test]
    fn caches_and_nodes_are_read() {
        let cpus = [("0,2", "0-3"), ("1,3", "0-3"), ("0,2", "0-3"), ("1,3", "0-3"), ("4", "4"), ("5", "5")];
        let system = machine("two", &cpus, &["0-3", "4,5"]);
        let places = places_in(&system);
        fs::remove_dir_all(&system).unwrap();
        let place = |group, llc, node| CpuPlace { group, llc, node };
        let near = [place(0, 0, 0), place(1, 0, 0), place(0, 0, 0), place(1, 0, 0)];
        assert_eq!(places[..4], near);
        assert_eq!(places[4..], [place(4, 4, 1), place(5, 5, 1)]);
    }

    #[test]
    fn a_machine_that_does_not_tell_has_one_cpu_a_group() {
        let system = machine("silent", &[], &[]);
        fs::create_dir_all(system.join("cpu/cpu1")).unwrap();
        let places = places_in(&system);
        fs::remove_dir_all(&system).unwrap();
        assert_eq!(places, [0, 1].map(|group| CpuPlace { group, llc: 0, node: 0 }));
        assert!(!cpu_places().is_empty(), "this machine has a CPU");
    }

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!((first_of("2-3,6\n"), first_of("7"), first_of("")), (Some(2), Some(7), None));
        let held: Vec<usize> = (0..9).filter(|cpu| holds("0-2,5,7-8\n", *cpu)).collect();
        assert_eq!(held, [0, 1, 2, 5, 7, 8]);
    }
}
