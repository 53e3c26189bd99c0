//! Replay: a trace of a real switch in virtual time, against the production decisions.
//!
//! ```text
//!   trace (JSON) ──> lines in virtual time ──┬─> timelines: what each guest did
//!                                            ├─> verdicts:  does the function give this decision?
//!                                            └─> other settings: decisions, polling, signals
//! ```
//!
//! It replays decisions, not packets: another decision would have changed what the guest did next, and a trace does not
//! tell how. So effects of other settings end with the pause, or the signal, that they are about.

mod inputs;
mod polling;
mod range;
mod settings;
mod timeline;
mod trace_file;
mod verdict;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use lasthop_api::sched::{PolicyChange, ResolvedChange};
use lasthop_sched::Policy;

use crate::console::print;
use range::Range;
use settings::{OtherSettings, signal_sums};
use trace_file::{Recorded, Word};
use verdict::{Verdict, judge};

/// Decisions that are named one by one if they cannot be explained.
const NAMED_MAX: usize = 20;
/// The policies whose decisions are replayed.
const REPLAYED: [Policy; 6] = [
    Policy::Look,
    Policy::Yield,
    Policy::SecondSignal,
    Policy::Notify,
    Policy::TransmitTimer,
    Policy::Gathering,
];

/// Options of `replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayOptions {
    /// The trace: the output of lasthop sched trace --json
    file: PathBuf,
    /// Also: with another longest polling time, in us
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    hysteresis_us: Option<u64>,
    /// Also: with another mode of a policy, as look=off; may be repeated
    #[arg(long = "policy", value_name = "POLICY=MODE")]
    policies: Vec<String>,
}

impl ReplayOptions {
    /// Prints the tables.
    ///
    /// # Errors
    /// If the file is no trace, or a decision in it cannot be explained.
    pub(crate) fn execute(&self) -> Result<()> {
        let settings = self.settings()?;
        let trace = trace_file::read(&self.file)?;
        let (text, unexplained) = tables(&trace, &settings, &self.words());
        print(&text)?;
        ensure!(
            unexplained == 0,
            "the functions do not explain {unexplained} of {} recorded decisions of {}; use the lasthop-lab of the switch's version",
            trace.len(),
            self.file.display()
        );
        Ok(())
    }

    fn settings(&self) -> Result<OtherSettings> {
        let mut settings =
            OtherSettings { max_ns: self.hysteresis_us.map(|us| 1000 * us), ..Default::default() };
        for text in &self.policies {
            let change: PolicyChange = text.parse().map_err(anyhow::Error::new)?;
            match change.resolve().map_err(anyhow::Error::new)? {
                ResolvedChange::Policy(policy, mode) if REPLAYED.contains(&policy) => {
                    settings.modes.set(policy, mode);
                    settings.changed.push(policy);
                }
                _ => bail!(
                    "{} is not replayed; the policies of a replay are {}",
                    change.policy,
                    REPLAYED.map(Policy::name).join(", ")
                ),
            }
        }
        Ok(settings)
    }

    /// The other settings, as the user wrote them.
    fn words(&self) -> String {
        let hysteresis = self.hysteresis_us.map(|us| format!("hysteresis {us} us"));
        let words: Vec<String> = hysteresis.into_iter().chain(self.policies.iter().cloned()).collect();
        if words.is_empty() { "the recorded settings".to_owned() } else { words.join(", ") }
    }
}

/// All tables, and the number of lines that are not explained.
fn tables(trace: &[Recorded], settings: &OtherSettings, words: &str) -> (String, usize) {
    let verdicts: Vec<Verdict> = trace.iter().map(judge).collect();
    let unexplained = verdicts.iter().filter(|verdict| **verdict == Verdict::Unexplained).count();
    let text = format!(
        "What the guests did, in lines of the trace:\n\n{}\nRecorded decisions:\n\n{}\nWith {words}:\n\n{}",
        timeline::table(&timeline::timelines(trace)),
        verdict_table(trace, &verdicts),
        settings_table(trace, settings),
    );
    (text + &unexplained_lines(trace, &verdicts), unexplained)
}

fn verdict_table(trace: &[Recorded], verdicts: &[Verdict]) -> String {
    #[derive(Default)]
    struct Row {
        times: u64,
        lines: usize,
        by_verdict: [usize; 4],
    }
    let mut rows = BTreeMap::<Word, Row>::new();
    for (line, verdict) in trace.iter().zip(verdicts) {
        let row = rows.entry(line.word).or_default();
        row.times = row.times.saturating_add(line.times);
        row.lines += 1;
        row.by_verdict[*verdict as usize] += 1;
    }
    let mut text =
        "| policy | decision | times | lines | the same | possible | not explained | not replayed |\n\
                    |---|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for (word, Row { times, lines, by_verdict }) in rows {
        let (policy, word) = word.names();
        text += &format!("| {} | {word} | {times} | {lines} |", policy.name());
        text.extend(by_verdict.map(|count| format!(" {count} |")));
        text.push('\n');
    }
    text
}

fn settings_table(trace: &[Recorded], settings: &OtherSettings) -> String {
    let mut text = "| | recorded | with other settings |\n|---|---:|---:|\n".to_owned();
    for policy in REPLAYED {
        let (mut all, mut differing, mut without) = (0_u64, Range::default(), 0);
        for line in trace.iter().filter(|line| line.word.names().0 == policy) {
            all = all.saturating_add(line.times);
            match settings.differing(line) {
                Some(count) => differing = differing.plus(count),
                None => without += 1,
            }
        }
        if all > 0 {
            text += &format!("| {}: decisions, those that differ | {all} | {differing} |\n", policy.name());
        }
        if without > 0 {
            text += &format!("| {}: lines without inputs, left out | {without} | |\n", policy.name());
        }
    }
    let (workers, without) = polling::polled(trace, settings);
    for (worker, polled) in &workers {
        let (recorded, other) = (polled.recorded.thousands(), polled.other.thousands());
        text += &format!("| worker {worker}: awake without packets, us | {recorded} | {other} |\n");
    }
    if without > 0 {
        text += &format!("| lines of look without inputs, left out of the polling time | {without} | |\n");
    }
    let sums = signal_sums(trace, settings);
    let rows = [
        ("second signals", sums.second),
        ("signals of receivers that notify decided later about", sums.receive),
        ("kicks in place of timed visits", sums.kicks),
        ("timed visits", sums.visits),
    ];
    for (name, counted) in rows {
        if counted != settings::Counted::default() {
            text += &format!("| {name} | {} | {} |\n", counted.recorded, counted.other);
        }
    }
    text
}

fn unexplained_lines(trace: &[Recorded], verdicts: &[Verdict]) -> String {
    let is_wrong = |(_, verdict): &(&Recorded, &Verdict)| **verdict == Verdict::Unexplained;
    let wrong: Vec<&Recorded> = trace.iter().zip(verdicts).filter(is_wrong).map(|(line, _)| line).collect();
    let Some(first) = trace.first().filter(|_| !wrong.is_empty()) else { return String::new() };
    let mut text = "\nNot explained:\n\n".to_owned();
    for line in wrong.iter().take(NAMED_MAX) {
        let (policy, word) = line.word.names();
        let at_us = (line.at_ns - first.at_ns) / 1000;
        let vnic = line.vnic.as_deref().unwrap_or("-");
        let (policy, worker) = (policy.name(), line.worker);
        text += &format!("- at {at_us} us, worker {worker}: {policy} {word}, vnic {vnic}");
        if let Some(guest) = &line.guest {
            text += &format!(
                ", threads: {} running, {} waiting here, {} waiting elsewhere, {} sleeping",
                guest.running, guest.waiting_here, guest.waiting_elsewhere, guest.blocked
            );
        }
        let inputs = line.inputs.and_then(|inputs| serde_json::to_string(&inputs).ok());
        text += &inputs.map_or_else(String::new, |inputs| format!(", inputs {inputs}"));
        text.push('\n');
    }
    if wrong.len() > NAMED_MAX {
        text += &format!("- and {} more\n", wrong.len() - NAMED_MAX);
    }
    text
}
