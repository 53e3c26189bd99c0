//! Checks the virtqueues: started, enabled, without errors, with buffers, and moving.

use crate::finding::Verdict;
use lasthop_api::facts::{ProgressFacts, RingFacts, SessionFacts};
use lasthop_api::readable::count;

use super::Case;

pub(super) fn rings(case: &Case<'_>) -> Verdict {
    let Some(session) = &case.now.session else { return Verdict::not_reached() };
    let running: Vec<&RingFacts> = session.rings.iter().filter(|ring| ring.running).collect();
    stopped(case, session)
        .or_else(|| not_started(case, session, &running))
        .or_else(|| not_taken(case, &running))
        .or_else(|| no_buffers(case, &running))
        .or_else(|| fewer_pairs(case, session))
        .unwrap_or_else(|| Verdict::ok(moving(case, &running)))
}

fn stopped(case: &Case<'_>, session: &SessionFacts) -> Option<Verdict> {
    let broken = session.rings.iter().find_map(|ring| Some((ring, ring.error.as_ref()?)));
    if let Some((ring, error)) = broken {
        return Some(Verdict::broken(
            format!("ring {} ({}) was stopped, its driver broke it: {error}", ring.index, direction(ring)),
            "restart the guest or its driver; if it happens again, the driver has a bug, or its memory is not shared",
        ));
    }
    let why = case.now.port.state.strip_prefix("stopped: ")?;
    Some(Verdict::broken(
        format!("all rings were stopped: {why}"),
        "restart the guest; its front end or driver has a bug",
    ))
}

fn direction(ring: &RingFacts) -> &'static str {
    if ring.is_to_guest() { "to the guest" } else { "from the guest" }
}

fn not_started(case: &Case<'_>, session: &SessionFacts, running: &[&RingFacts]) -> Option<Verdict> {
    if let Some(ring) = session.rings.iter().find(|ring| ring.started && !ring.running) {
        let refusal = case.refusal(&["ring", "eventfd", "open files"]);
        let why = refusal.unwrap_or("its size, its addresses or their memory is missing");
        return Some(Verdict::broken(
            format!("ring {} ({}) cannot be started: {why}", ring.index, direction(ring)),
            "restart the guest; if this happens again, see the switch's log",
        ));
    }
    if running.is_empty() {
        return Some(Verdict::broken(
            "no ring was started: the guest's driver has agreed to features, but is not ready (DRIVER_OK is missing)",
            "the guest is still booting, or its driver hangs: see the guest's log (dmesg | grep virtio)",
        ));
    }
    if !running.iter().any(|ring| ring.enabled) {
        return Some(Verdict::broken(
            "all rings are disabled by the front end: no packet passes",
            "at QEMU's monitor: set_link NET on; else restart the guest",
        ));
    }
    None
}

/// The guest does not use its receive ring, while packets wait.
fn not_taken(case: &Case<'_>, running: &[&RingFacts]) -> Option<Verdict> {
    let stuck = running.iter().filter(|ring| ring.is_to_guest() && ring.enabled);
    let stuck = stuck.filter_map(|ring| Some((ring, ring.progress?)));
    let mut stuck = stuck.filter(|(ring, at)| {
        let is_still = before(case, ring.index).is_none_or(|before| before.available == at.available);
        (at.stalled || at.waiting > 0) && is_still
    });
    let (ring, at) = stuck.next()?;
    Some(Verdict::broken(
        format!(
            "the guest does not take packets: its receive ring {} does not advance with {} posted, {} wait{}",
            ring.index,
            count(usize::from(posted(at)), "buffer"),
            at.waiting,
            if at.stalled { ", later ones are dropped" } else { "" }
        ),
        "the guest hangs, is paused or overloaded: see its console and its vCPUs' load; QEMU's monitor: info status",
    ))
}

fn before(case: &Case<'_>, index: u16) -> Option<ProgressFacts> {
    let session = case.before.session.as_ref()?;
    session.rings.iter().find(|ring| ring.index == index)?.progress
}

/// Available heads that the switch has not used.
fn posted(at: ProgressFacts) -> u16 {
    at.available.wrapping_sub(at.taken)
}

/// The guest never posted a receive buffer: its interface is down.
fn no_buffers(case: &Case<'_>, running: &[&RingFacts]) -> Option<Verdict> {
    let received = case.now.counters.as_ref().map_or(0, |port| port.tx_packets);
    let mut receive = running.iter().filter(|ring| ring.is_to_guest()).peekable();
    receive.peek()?;
    let is_bare = |ring: &&RingFacts| ring.progress.is_some_and(|at| at.available == 0 && at.used == 0);
    (received == 0 && receive.all(is_bare)).then(|| {
        Verdict::broken(
            "the guest has posted no receive buffers: its interface is down",
            "in the guest: ip link set eth0 up",
        )
    })
}

fn fewer_pairs(case: &Case<'_>, session: &SessionFacts) -> Option<Verdict> {
    let pairs = case.now.common().queues;
    let is_used = |pair: &u16| {
        let rings = session.rings.iter().filter(|ring| ring.index / 2 == *pair);
        rings.filter(|ring| ring.running && ring.enabled).count() == 2
    };
    let used = (0..pairs).filter(is_used).count();
    (used < usize::from(pairs)).then(|| {
        Verdict::warning(
            format!("queue count mismatch: the guest uses {used} of {} ", count(usize::from(pairs), "queue pair")).trim_end(),
            format!(
                "give QEMU queues={pairs} at -netdev and mq=on,vectors={} at -device; in the guest: ethtool -L eth0 combined {pairs}",
                2 * pairs + 2
            ),
        )
    })
}

fn moving(case: &Case<'_>, running: &[&RingFacts]) -> String {
    let is_moving = |ring: &&&RingFacts| match (ring.progress, before(case, ring.index)) {
        (Some(now), Some(before)) => now.available != before.available || now.used != before.used,
        // A worker was using it during the read.
        _ => true,
    };
    let moving = running.iter().filter(is_moving).count();
    let posted: usize = running
        .iter()
        .filter(|ring| ring.is_to_guest())
        .filter_map(|ring| ring.progress)
        .map(|at| usize::from(posted(at)))
        .sum();
    let mut sizes: Vec<u16> = running.iter().map(|ring| ring.entries).collect();
    sizes.dedup();
    let sizes: Vec<String> = sizes.iter().map(u16::to_string).collect();
    let kicks: u64 = running.iter().map(|ring| ring.kicks).sum();
    let motion = if moving > 0 { format!("{moving} moving") } else { "idle".to_owned() };
    format!(
        "{} of {} entries run, {motion}, {} posted, {}",
        count(running.len(), "ring"),
        sizes.join("/"),
        count(posted, "receive buffer"),
        count(kicks as usize, "kick")
    )
}
