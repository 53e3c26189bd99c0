//! The view of the host's scheduler.

use lasthop_api::sched::{GuestReport, SchedReport, ThreadReport};

use super::table::Table;

/// Threads of one guest that are shown; user-mode Linux has one for each program.
const THREADS_SHOWN_MAX: usize = 8;

/// The view, the policies, each guest, and the decisions of each worker.
pub(crate) fn sched(report: &SchedReport) -> String {
    let view = match &report.why {
        None => "view of the scheduler: open".to_owned(),
        Some(why) => format!("view of the scheduler: none: {why}"),
    };
    let mut policies = Table::new(&["POLICY", "MODE", "USED"]);
    for policy in &report.policies {
        let used = if policy.is_used { "yes" } else { "no" };
        policies.row([policy.name.clone(), policy.mode.clone(), used.to_owned()]);
    }
    let mut parts = vec![format!("{view}\n"), policies.text()];
    if !report.guests.is_empty() {
        let mut guests = Table::new(&["VNIC", "PROCESS", "KIND", "THREADS"]);
        report.guests.iter().for_each(|guest| guests.row(guest_row(guest)));
        parts.push(guests.text());
    }
    if !report.workers.is_empty() {
        let mut workers = Table::new(&[
            ">WORKER", ">POLLS", ">YIELDS", ">SLEEPS", ">UNSEEN", ">SPARED", ">OFFERS", ">TAKEN",
        ]);
        for worker in &report.workers {
            let counts = &worker.counts;
            let numbers = [
                worker.index as u64,
                counts.look_polls,
                counts.look_yields,
                counts.look_sleeps,
                counts.look_unseen,
                counts.offers_spared,
                counts.offers,
                counts.offers_taken,
            ];
            workers.row(numbers.map(|number| number.to_string()));
        }
        parts.push(workers.text());
    }
    parts.join("\n")
}

fn guest_row(guest: &GuestReport) -> [String; 4] {
    let threads = match &guest.why {
        Some(why) => why.clone(),
        None => threads_text(&guest.threads),
    };
    let pid = guest.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    [guest.vnic.clone(), pid, guest.kind.clone().unwrap_or_else(|| "-".to_owned()), threads]
}

fn threads_text(threads: &[ThreadReport]) -> String {
    let one = |thread: &ThreadReport| match thread.cpu {
        Some(cpu) => format!("{} {} on {cpu}", thread.tid, thread.activity),
        None => format!("{} {}", thread.tid, thread.activity),
    };
    let shown: Vec<String> = threads.iter().take(THREADS_SHOWN_MAX).map(one).collect();
    match threads.len().saturating_sub(THREADS_SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::sched::{PolicyCounts, WorkerPolicies};
    use lasthop_sched::Modes;

    #[test]
    fn a_view_that_is_open_has_guests_and_decisions() {
        let thread = |tid| ThreadReport { tid, activity: "running".to_owned(), cpu: Some(1) };
        let guest = |vnic: &str, why: Option<&str>, count| GuestReport {
            vnic: vnic.to_owned(),
            pid: Some(7),
            kind: why.is_none().then(|| "vmm".to_owned()),
            why: why.map(str::to_owned),
            threads: (0..count).map(thread).collect(),
        };
        let counts = PolicyCounts { look_polls: 3, offers_spared: 5, ..PolicyCounts::default() };
        let report = SchedReport {
            is_open: true,
            policies: SchedReport::policies(&Modes::default(), true),
            guests: vec![guest("vm1", None, 2), guest("vm2", Some("no names"), 0)],
            workers: vec![WorkerPolicies { index: 0, counts }],
            ..SchedReport::default()
        };
        let expected = "view of the scheduler: open\n\n\
                        POLICY  MODE  USED\nlook    auto  yes\nyield   auto  no\n\n\
                        VNIC  PROCESS  KIND  THREADS\n\
                        vm1   7        vmm   0 running on 1, 1 running on 1\n\
                        vm2   7        -     no names\n\n\
                        WORKER  POLLS  YIELDS  SLEEPS  UNSEEN  SPARED  OFFERS  TAKEN\n     \
                        0      3       0       0       0       5       0      0\n";
        assert_eq!(sched(&report), expected);
        assert!(threads_text(&(0..11).map(thread).collect::<Vec<_>>()).ends_with("and 3 more"));
    }

    #[test]
    fn without_a_view_it_says_why() {
        let report = SchedReport { why: Some("no guest is attached".to_owned()), ..SchedReport::default() };
        assert!(sched(&report).starts_with("view of the scheduler: none: no guest is attached\n"));
    }
}
