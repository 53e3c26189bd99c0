//! A recorded trace: the answer of `lasthop sched trace --json`, checked and in virtual time.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lasthop_api::sched::{
    DecisionInputsLine, DecisionLine, GuestThreadCounts, POLICIES, RepetitionsLine, SchedTrace,
};
use lasthop_sched::{GuestView, Policy};

/// Bytes of a file: more than an answer of a switch can have.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Lines of a trace: 256 for each of 64 workers.
const LINES_MAX: usize = 64 * 256;
/// Threads of a guest in the view.
const GUEST_THREADS_MAX: u32 = 256;
/// Characters of a vnic's name.
const NAME_CHARS_MAX: usize = 64;
/// Longest age, in ns: 30 years. Virtual time begins there, so the age of anything is later than 0.
const AGE_NS_MAX: u64 = 30 * 365 * 86_400 * 1_000_000_000;
/// How a trace is made.
const REMEDY: &str = "record one with: lasthop sched trace --json > FILE";

/// A decision in a word, by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Word {
    Poll,
    Yield,
    Sleep,
    Unseen,
    Offer,
    Signal,
    NoSignal,
    Later,
    Drained,
    Timer,
    Packets,
    Empty,
    GivenUp,
    Held,
    Apart,
    Early,
    Late,
}

/// All words, and how traces write them.
const WORDS: [(Word, Policy, &str); 17] = [
    (Word::Poll, Policy::Look, "poll"),
    (Word::Yield, Policy::Look, "yield"),
    (Word::Sleep, Policy::Look, "sleep"),
    (Word::Unseen, Policy::Look, "unseen"),
    (Word::Offer, Policy::Yield, "offer"),
    (Word::Signal, Policy::SecondSignal, "signal"),
    (Word::NoSignal, Policy::SecondSignal, "none"),
    (Word::Later, Policy::Notify, "later"),
    (Word::Drained, Policy::Notify, "drained"),
    (Word::Timer, Policy::TransmitTimer, "timer"),
    (Word::Packets, Policy::TransmitTimer, "packets"),
    (Word::Empty, Policy::TransmitTimer, "empty"),
    (Word::GivenUp, Policy::Offload, "given up"),
    (Word::Held, Policy::Gathering, "held"),
    (Word::Apart, Policy::Gathering, "apart"),
    (Word::Early, Policy::Gathering, "early"),
    (Word::Late, Policy::Gathering, "late"),
];

impl Word {
    /// The policy, and the word as traces write it.
    pub(crate) fn names(self) -> (Policy, &'static str) {
        let (_, policy, word) = WORDS[self as usize];
        (policy, word)
    }
}

/// A line of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) worker: usize,
    /// Virtual time of the first decision, in ns.
    pub(crate) at_ns: u64,
    /// Time from the first to the last repetition, in ns.
    pub(crate) for_ns: u64,
    /// Number of repetitions, at least 1.
    pub(crate) times: u64,
    pub(crate) word: Word,
    pub(crate) vnic: Option<String>,
    /// The guest's threads at the first decision, if they were known and recorded.
    pub(crate) guest: Option<GuestView>,
    /// Whether the guest's threads are recorded with halt-polling.
    pub(crate) tells_halt_poll: bool,
    /// Whether the time is recorded for which threads slept.
    pub(crate) tells_sleep: bool,
    /// All else, if the switch recorded it.
    pub(crate) inputs: Option<DecisionInputsLine>,
    pub(crate) repetitions: Option<RepetitionsLine>,
}

impl Recorded {
    /// Virtual time of the last repetition, in ns.
    pub(crate) fn end_ns(&self) -> u64 {
        self.at_ns.saturating_add(self.for_ns)
    }
}

/// Reads a trace; its lines have the order of their times.
///
/// # Errors
/// One sentence that names the file, the line and the remedy.
pub(crate) fn read(path: &Path) -> Result<Vec<Recorded>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}; {REMEDY}"))?;
    let mut text = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
    read.with_context(|| format!("cannot read {shown}; {REMEDY}"))?;
    parse(&text).with_context(|| format!("{shown} is not a trace that can be replayed"))
}

/// Like [`read`], of a file's content.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Recorded>> {
    ensure!(
        text.len() as u64 <= FILE_BYTES_MAX,
        "it has more than {} MiB, as no trace does; {REMEDY}",
        FILE_BYTES_MAX >> 20
    );
    let trace: SchedTrace = serde_json::from_slice(text).with_context(|| REMEDY)?;
    let lines = trace.decisions;
    ensure!(lines.len() <= LINES_MAX, "it has more than {LINES_MAX} decisions, as no trace does; {REMEDY}");
    ensure!(
        !lines.is_empty(),
        "it has no decisions; turn on scheduler-view and a policy, as in lasthop sched set look=on, and record again"
    );
    let oldest_us = lines.iter().map(|line| line.ago_us).max().unwrap_or(0);
    let checked = |(index, line): (usize, DecisionLine)| {
        recorded(line, oldest_us).with_context(|| format!("decision {} of the file", index + 1))
    };
    let mut recorded: Vec<_> = lines.into_iter().enumerate().map(checked).collect::<Result<_>>()?;
    recorded.sort_by_key(|line: &Recorded| line.at_ns);
    Ok(recorded)
}

fn recorded(line: DecisionLine, oldest_us: u64) -> Result<Recorded> {
    let word = WORDS.iter().find(|(_, policy, word)| policy.name() == line.policy && *word == line.decision);
    let Some(&(word, ..)) = word else {
        let policies = POLICIES.map(Policy::name).join(", ");
        bail!(
            "\"{}\" is not a known decision of policy \"{}\" (policies: {policies}); use the lasthop-lab of the switch's version",
            printable(&line.decision),
            printable(&line.policy)
        );
    };
    ensure!(line.times > 0, "it was made 0 times; {REMEDY}");
    ensure!(
        oldest_us <= AGE_NS_MAX / 1000 && line.for_us <= AGE_NS_MAX / 1000,
        "its times are longer than 30 years; {REMEDY}"
    );
    if let Some(name) = &line.vnic {
        let is_name = |char: char| char.is_ascii_graphic() && !"|`<>".contains(char);
        ensure!(
            name.chars().count() <= NAME_CHARS_MAX && name.chars().all(is_name),
            "\"{}\" is not the name of a vnic; {REMEDY}",
            printable(name)
        );
    }
    Ok(Recorded {
        worker: line.worker,
        at_ns: AGE_NS_MAX + 1000 * (oldest_us - line.ago_us),
        for_ns: 1000 * line.for_us,
        times: line.times,
        word,
        vnic: line.vnic,
        guest: line.guest.as_ref().map(guest_view).transpose()?,
        tells_halt_poll: line.guest.is_some_and(|guest| guest.may_halt_poll.is_some()),
        tells_sleep: line.guest.is_some_and(|guest| guest.slept_ns.is_some()),
        inputs: line.inputs.map(bounded),
        repetitions: line.repetitions,
    })
}

fn guest_view(counts: &GuestThreadCounts) -> Result<GuestView> {
    let all = [counts.running, counts.waiting_here, counts.waiting_elsewhere, counts.sleeping, counts.unseen];
    let threads: u32 = all.into_iter().map(u32::from).sum();
    ensure!(
        threads <= GUEST_THREADS_MAX,
        "its guest has {threads} threads, of at most {GUEST_THREADS_MAX}; {REMEDY}"
    );
    Ok(GuestView {
        running: counts.running,
        waiting_here: counts.waiting_here,
        waiting_elsewhere: counts.waiting_elsewhere,
        blocked: counts.sleeping,
        unknown: counts.unseen,
        blocked_for_ns: counts.slept_ns.unwrap_or(0).min(AGE_NS_MAX),
        may_halt_poll: counts.may_halt_poll.unwrap_or(false),
    })
}

/// Ages of more than 30 years count as 30 years.
fn bounded(inputs: DecisionInputsLine) -> DecisionInputsLine {
    let age = |age_ns: Option<u64>| age_ns.map(|ns| ns.min(AGE_NS_MAX));
    DecisionInputsLine {
        idle_ns: age(inputs.idle_ns),
        learned_ns: age(inputs.learned_ns),
        max_ns: age(inputs.max_ns),
        offered_ago_ns: age(inputs.offered_ago_ns),
        signalled_ago_ns: age(inputs.signalled_ago_ns),
        first_ago_ns: age(inputs.first_ago_ns),
        visited_ago_ns: age(inputs.visited_ago_ns),
        worked_ago_ns: age(inputs.worked_ago_ns),
        saturated_ns: age(inputs.saturated_ns),
        ..inputs
    }
}

/// The beginning of a text of a file, for messages.
fn printable(text: &str) -> String {
    text.chars().take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All policies and decisions, as traces write them.
    pub(crate) fn words() -> Vec<(String, String)> {
        WORDS.map(|(_, policy, word)| (policy.name().to_owned(), word.to_owned())).into()
    }

    const LINE: &str = r#"{"worker":0,"ago_us":30,"for_us":5,"times":2,"policy":"look","decision":"poll","vnic":"vm1","guest":null}"#;

    fn parsed(line: &str) -> Result<Vec<Recorded>> {
        parse(format!("{{\"decisions\":[{line}]}}").as_bytes())
    }

    #[test]
    fn lines_are_in_virtual_time_and_in_order() {
        let later = LINE.replace("30", "10").replace("poll", "sleep");
        let lines = parsed(&format!("{later},{LINE}")).expect("a trace");
        assert_eq!(lines.iter().map(|line| line.word).collect::<Vec<_>>(), [Word::Poll, Word::Sleep]);
        assert_eq!((lines[1].at_ns - lines[0].at_ns, lines[0].for_ns), (20_000, 5000));
    }

    #[test]
    fn words_have_the_place_of_their_number() {
        for (index, (word, policy, name)) in WORDS.into_iter().enumerate() {
            assert_eq!((word as usize, word.names()), (index, (policy, name)));
        }
    }

    #[test]
    fn wrong_files_are_named_with_a_remedy() {
        let guest = r#""guest":{"running":200,"waiting_here":0,"waiting_elsewhere":0,"sleeping":57}"#;
        for (line, said) in [
            (String::new(), "lasthop sched set look=on"),
            (LINE.replace("poll", "dance"), "lasthop-lab of the switch's version"),
            (LINE.replace("\"times\":2", "\"times\":0"), "0 times"),
            (LINE.replace("30", "18446744073709551615"), "30 years"),
            (LINE.replace("vm1", "a|b"), "not the name of a vnic"),
            (LINE.replace("\"guest\":null", guest), "257 threads"),
            (LINE.replace("worker", "server"), "missing field `worker`"),
        ] {
            let said_in_fact = format!("{:#}", parsed(&line).expect_err(&line));
            assert!(said_in_fact.contains(said), "{line}: {said_in_fact}");
        }
        let error = read(Path::new("/nonexistent/trace.json")).expect_err("no file");
        let said = format!("{error:#}");
        assert!(said.contains("/nonexistent/trace.json") && said.contains(REMEDY), "{said}");
        assert!(parse(&vec![b' '; FILE_BYTES_MAX as usize + 1]).is_err());
    }
}
