//! The switch process's answer to "doctor": its sessions, and the progress of their rings.

use lasthop_engine::RingInspection;
use lasthop_guestmem::MemoryMap;
use lasthop_vhost::features::protocol;
use lasthop_vhost::{RingView, SessionView};

use lasthop_api::facts::{FileFacts, Inspection, MemoryFacts, ProgressFacts, RingFacts, SessionFacts};
use lasthop_api::port::describe_features;
use lasthop_api::report::WorkerReport;
use lasthop_runtime::fault::Fault;

use super::datapath::Datapath;
use super::sessions::Sessions;

/// The facts about all guests, or about that of port `name`; and `callers`, the connections of external clients that
/// receive misses.
pub(super) fn inspect(
    datapath: &Datapath,
    sessions: &Sessions,
    name: Option<&str>,
    callers: Vec<u64>,
) -> Result<Inspection, Fault> {
    let views = sessions.look(|port, session| {
        let is_wanted = name.is_none_or(|name| name == port);
        is_wanted.then(|| (port.to_owned(), Seen::of(session.view())))
    });
    let mut views: Vec<(String, Seen)> = views.into_iter().flatten().collect();
    views.sort_by(|(one, _), (other, _)| one.cmp(other));
    let names: Vec<&str> = views.iter().map(|(port, _)| port.as_str()).collect();
    let rings = datapath.rings(&names)?;
    let facts = views.into_iter().zip(rings);
    let stats = datapath.stats()?;
    Ok(Inspection {
        sessions: facts.map(|((port, seen), rings)| (port, session(seen, &rings))).collect(),
        scarce_workers: scarce(&stats.workers),
        ports: stats.ports,
        fdb: datapath.fdb(None).entries,
        moves: datapath.moves(),
        is_asked: !callers.is_empty(),
        callers,
    })
}

/// The workers whose threads' cores are scarce. One that did not answer in time tells of an earlier state.
fn scarce(workers: &[WorkerReport]) -> Vec<usize> {
    let is_scarce = |worker: &&WorkerReport| {
        workers.get(worker.thread).is_some_and(|first| first.is_scarce && first.age_ms.is_none())
    };
    workers.iter().filter(is_scarce).map(|worker| worker.index).collect()
}

/// A snapshot of a session. It has no reference to the guest's memory, since dropping the last one unmaps the memory.
struct Seen {
    view: SessionView,
    memory: MemoryFacts,
}

impl Seen {
    fn of(mut view: SessionView) -> Self {
        let memory = view.memory.take().as_deref().map(memory).unwrap_or_default();
        Self { view, memory }
    }
}

fn session(Seen { view, memory }: Seen, running: &[RingInspection]) -> SessionFacts {
    let words = |text: String| text.split_whitespace().map(str::to_owned).collect();
    let ring = |(index, told): (usize, &RingView)| {
        ring(index as u16, told, running.iter().find(|ring| usize::from(ring.index) == index))
    };
    SessionFacts {
        messages: view.messages,
        offered: describe_features(view.offered),
        features: describe_features(view.features),
        protocol_features: words(protocol::names(view.protocol_features)),
        status: view.status,
        refused: view.refused,
        ignored: view.ignored,
        memory,
        rings: view.rings.iter().enumerate().map(ring).collect(),
    }
}

fn ring(index: u16, told: &RingView, running: Option<&RingInspection>) -> RingFacts {
    let progress = running.and_then(|ring| ring.progress).map(|progress| ProgressFacts {
        available: progress.available,
        taken: progress.taken,
        used: progress.used,
        waiting: progress.waiting,
        stalled: progress.is_stalled,
    });
    RingFacts {
        index,
        entries: told.entries,
        placed: told.is_placed,
        started: told.is_kicked,
        polled: told.is_polled,
        has_call: told.has_call,
        // A guest without a VMM sets its number of pairs by its control queue.
        enabled: running.map_or(told.enabled, |ring| ring.enabled),
        running: told.running,
        error: running.and_then(|ring| ring.error.clone()),
        worker: running.map(|ring| ring.worker),
        kicks: running.map_or(0, |ring| ring.kicks),
        progress,
    }
}

fn memory(map: &MemoryMap) -> MemoryFacts {
    let backings = || {
        map.regions().iter().filter_map(|region| Some((region.mapping.range()?, region.mapping.backing()?)))
    };
    let mut kinds: Vec<String> = backings().map(|(_, backing)| backing.kind.name().to_owned()).collect();
    kinds.sort();
    kinds.dedup();
    // A file counts once, with any number of regions.
    let mut files: Vec<_> =
        backings().map(|(range, backing)| ((range.device, range.inode), backing.filled_bytes)).collect();
    files.sort_unstable();
    files.dedup_by_key(|(file, _)| *file);
    MemoryFacts {
        regions: map.regions().len(),
        bytes: map.regions().iter().map(|region| region.mapping.len() as u64).sum(),
        kinds,
        filled_bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        is_dead: map.is_dead(),
        files: files
            .iter()
            .map(|((device, inode), _)| FileFacts { device: *device, inode: *inode })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_one_thread_have_its_core() {
        let worker = |index, thread| WorkerReport { index, thread, ..WorkerReport::default() };
        let mut workers = [worker(0, 0), worker(1, 0), worker(2, 2)];
        assert!(scarce(&workers).is_empty());
        workers[0].is_scarce = true;
        assert_eq!(scarce(&workers), [0, 1]);
        workers[0].age_ms = Some(70);
        assert!(scarce(&workers).is_empty());
    }
}
