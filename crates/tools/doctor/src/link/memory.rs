//! Checks the guest's memory: present, shared, and the memory that the guest uses.

use crate::finding::Verdict;
use crate::processes::Sharing;
use crate::processes::{self, Mapped};
use lasthop_api::facts::{RingFacts, SessionFacts};
use lasthop_api::readable::{bytes, count};

use super::Case;

const SHARE: &str = "start the VM with shared memory: QEMU -object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem; libvirt <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>; Cloud Hypervisor --memory shared=on";
/// A booted guest has filled more of its memory than this.
const BOOTED_BYTES: u64 = 4 << 20;
/// Smaller memories do not belong to booted guests, but to tests and tools.
const GUEST_BYTES_MIN: u64 = 64 << 20;

pub(super) fn memory(case: &Case<'_>) -> Verdict {
    let Some(session) = &case.now.session else { return Verdict::not_reached() };
    let memory = &session.memory;
    let peer = case.peer();
    let private = peer.map(|peer| (peer.title(), peer.sharing()));
    if memory.regions == 0 {
        return nothing(case, private);
    }
    if memory.is_dead {
        return Verdict::broken(
            "the guest's memory file was truncated: memory behind its end is lost",
            "restart the guest; no process may truncate its memory file",
        );
    }
    // Its mapping tells more than a command line, and more than the guest's progress so far: it may boot, or hang.
    let mapped = peer.and_then(|peer| processes::of_process(peer.pid, &memory.files));
    let what = match (mapped, &private) {
        (Some(Mapped::Shared), _) | (None, Some((_, Sharing::Shared | Sharing::Unknown)) | None) => None,
        (_, Some((_, Sharing::Private(what)))) => Some(*what),
        (Some(Mapped::Private), _) => Some("mapped it privately"),
    };
    if let (Some(what), Some((title, _))) = (what, &private) {
        return Verdict::broken(
            format!(
                "the guest's memory is not shared: {title} has {what}, so the switch sees a private copy"
            ),
            SHARE,
        );
    }
    let is_shared = mapped == Some(Mapped::Shared) || matches!(private, Some((_, Sharing::Shared)));
    let has_traffic = case.now.counters.as_ref().is_some_and(|port| port.rx_packets + port.tx_packets > 0);
    // In both reads: a starting driver may kick before it posts the first buffer. The filled part of the file tells
    // nothing, since a private mapping fills it as well.
    let was_silent =
        [case.before, case.now].iter().all(|facts| facts.session.as_ref().is_some_and(is_silent));
    if !is_shared && !has_traffic && was_silent {
        return silent(session);
    }
    let kinds = memory.kinds.join(", ");
    Verdict::ok(format!("{} in {}, {kinds}, shared", bytes(memory.bytes), count(memory.regions, "region")))
}

fn nothing(case: &Case<'_>, private: Option<(String, Sharing)>) -> Verdict {
    if let Some((title, Sharing::Private(what))) = private {
        return Verdict::broken(
            format!("the guest's memory is not shared: {title} has {what}, and hands over none"),
            SHARE,
        );
    }
    match case.refusal(&["memory", "region"]) {
        Some(refusal) => Verdict::broken(format!("the guest's memory cannot be used: {refusal}"), SHARE),
        None => Verdict::broken(
            "the front end has sent no memory: it is not shared, or the guest is still booting",
            SHARE,
        ),
    }
}

/// Rings run and were kicked, but never had an entry.
fn is_silent(session: &SessionFacts) -> bool {
    let running: Vec<&RingFacts> = session.rings.iter().filter(|ring| ring.running).collect();
    let is_empty = |ring: &&RingFacts| {
        ring.progress.is_some_and(|at| at.available == 0 && at.taken == 0 && at.used == 0)
    };
    !running.is_empty() && running.iter().all(is_empty) && running.iter().any(|ring| ring.kicks > 0)
}

fn silent(session: &SessionFacts) -> Verdict {
    let kicks: u64 = session.rings.iter().map(|ring| ring.kicks).sum();
    let memory = &session.memory;
    let is_unused = memory.bytes >= GUEST_BYTES_MIN && memory.filled_bytes < BOOTED_BYTES;
    let empty = if is_unused {
        format!(", and of {} only {} are in use", bytes(memory.bytes), bytes(memory.filled_bytes))
    } else {
        String::new()
    };
    Verdict::broken(
        format!(
            "the guest's memory is most likely not shared (share=on is missing): it kicked {}, but its rings stay empty{empty}",
            count(kicks as usize, "time")
        ),
        SHARE,
    )
}
