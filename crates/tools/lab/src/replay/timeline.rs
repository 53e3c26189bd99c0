//! The states of the guests, as far as the trace shows it.
//!
//! ```text
//!   line of a decision      |first ... last|             |first .. last|
//!   the guest               state of the first  unseen    state          time ──>
//! ```

use std::collections::BTreeMap;

use lasthop_sched::GuestView;

use super::trace_file::Recorded;

/// A state of a guest in the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestState {
    /// A thread waits for the worker's CPU.
    WaitsHere,
    /// A thread runs on another CPU.
    Runs,
    /// A thread waits for another CPU, and none runs.
    WaitsElsewhere,
    /// All threads sleep.
    Sleeps,
    /// The decision was made without the guest's threads.
    Unseen,
}

impl GuestState {
    fn new(guest: Option<&GuestView>) -> Self {
        match guest.filter(|guest| guest.is_known()) {
            None => Self::Unseen,
            Some(guest) if guest.waiting_here > 0 => Self::WaitsHere,
            Some(guest) if guest.running > 0 => Self::Runs,
            Some(guest) if guest.is_blocked() => Self::Sleeps,
            Some(_) => Self::WaitsElsewhere,
        }
    }
}

/// A time for which a guest had a state: as long as the decision about it was repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) state: GuestState,
    /// Virtual time, in ns.
    pub(crate) begin_ns: u64,
    /// Not before the beginning, and not behind the next span's beginning.
    pub(crate) end_ns: u64,
}

/// The timeline of each worker and vnic.
pub(crate) type Timelines = BTreeMap<(usize, String), Vec<Span>>;

/// The timelines of a trace, whose lines have the order of their times.
pub(crate) fn timelines(trace: &[Recorded]) -> Timelines {
    let mut timelines = Timelines::new();
    for line in trace {
        let Some(vnic) = &line.vnic else { continue };
        let spans = timelines.entry((line.worker, vnic.clone())).or_default();
        if let Some(last) = spans.last_mut() {
            last.end_ns = last.end_ns.min(line.at_ns);
        }
        let state = GuestState::new(line.guest.as_ref());
        spans.push(Span { state, begin_ns: line.at_ns, end_ns: line.end_ns() });
    }
    timelines
}

/// The timelines as a table in Markdown.
pub(crate) fn table(timelines: &Timelines) -> String {
    let mut text = "| worker | vnic | lines | from, us | to, us | a thread runs | waits for the worker's CPU | waits for another | all sleep | not known |\n\
                    |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let origin_ns = timelines.values().filter_map(|spans| spans.first()).map(|span| span.begin_ns).min();
    let origin_ns = origin_ns.unwrap_or(0);
    let us = |ns: u64| ns.saturating_sub(origin_ns) / 1000;
    for ((worker, vnic), spans) in timelines {
        let (begin_ns, end_ns) =
            spans.first().zip(spans.last()).map_or((0, 0), |(first, last)| (first.begin_ns, last.end_ns));
        let of = |state: GuestState| {
            let those = spans.iter().filter(|span| span.state == state);
            let (count, ns) = those.fold((0, 0_u64), |(count, ns), span| {
                (count + 1, ns.saturating_add(span.end_ns - span.begin_ns))
            });
            if count == 0 { " - |".to_owned() } else { format!(" {count} ({} us) |", ns / 1000) }
        };
        text += &format!("| {worker} | {vnic} | {} | {} | {} |", spans.len(), us(begin_ns), us(end_ns));
        let states = [
            GuestState::Runs,
            GuestState::WaitsHere,
            GuestState::WaitsElsewhere,
            GuestState::Sleeps,
            GuestState::Unseen,
        ];
        text.extend(states.map(of));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::trace_file::parse;
    use super::*;

    #[test]
    fn a_state_holds_while_its_decision_is_repeated_and_ends_with_the_next_one() {
        let line = |ago_us: u64, for_us: u64, running: u16| {
            format!(
                r#"{{"worker":0,"ago_us":{ago_us},"for_us":{for_us},"times":2,"policy":"look","decision":"poll","vnic":"vm1",
                "guest":{{"running":{running},"waiting_here":0,"waiting_elsewhere":0,"sleeping":1}}}}"#
            )
        };
        let text = format!("{{\"decisions\":[{},{},{}]}}", line(100, 10, 1), line(80, 30, 0), line(60, 0, 1));
        let timelines = timelines(&parse(text.as_bytes()).expect("a trace"));
        let spans = &timelines[&(0, "vm1".to_owned())];
        let us: Vec<_> = spans
            .iter()
            .map(|span| {
                let begin_ns = span.begin_ns - spans[0].begin_ns;
                (span.state, begin_ns / 1000, (span.end_ns - span.begin_ns) / 1000)
            })
            .collect();
        assert_eq!(us, [(GuestState::Runs, 0, 10), (GuestState::Sleeps, 20, 20), (GuestState::Runs, 40, 0)]);
        let row = table(&timelines).lines().nth(2).map(str::to_owned).expect("a row");
        assert_eq!(row, "| 0 | vm1 | 3 | 0 | 40 | 2 (10 us) | - | - | 1 (20 us) | - |");
    }
}
