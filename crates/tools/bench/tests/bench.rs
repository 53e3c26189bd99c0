//! `lasthop-bench`: every kind of workload on every back end that needs no installation, and its answers to mistakes.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Each run needs two CPUs for itself.
static CPUS: Mutex<()> = Mutex::new(());

/// The output of a run and how it ended.
#[derive(Debug)]
struct Answer {
    out: String,
    err: String,
    code: Option<i32>,
}

impl Answer {
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    fn refused(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.out, self.err);
        self.err
    }
}

/// Runs the program to its end.
fn run(words: &[&str]) -> Answer {
    let program = env!("CARGO_BIN_EXE_lasthop-bench");
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Answer { out: text(output.stdout), err: text(output.stderr), code: output.status.code() }
}

/// The program `lasthop`, which is beside the bench.
fn lasthop() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_lasthop-bench")).with_file_name("lasthop");
    assert!(path.is_file(), "{} is not there; build it with: cargo build -p lasthop", path.display());
    path
}

/// A short run, whose speed does not matter.
fn bench(words: &[&str]) -> Answer {
    bench_rounds("2", words)
}

fn bench_rounds(rounds: &str, words: &[&str]) -> Answer {
    let _alone = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    bench_beside(rounds, words)
}

/// A run that may share the CPUs with others.
fn bench_beside(rounds: &str, words: &[&str]) -> Answer {
    lasthop();
    run(&[&["--rounds", rounds, "--seconds", "0.1"], words].concat())
}

/// `lasthop run` with two vnics, a and b; ended when dropped.
struct Switch {
    child: Child,
    directory: tempfile::TempDir,
}

impl Switch {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(lasthop());
        command.arg("--dir").arg(directory.path()).args(["run", "--vnic", "a", "--vnic", "b"]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("lasthop runs");
        let switch = Self { child, directory };
        let end = Instant::now() + Duration::from_secs(120);
        while !(switch.socket("a").exists() && switch.socket("b").exists()) {
            assert!(Instant::now() < end, "the switch makes no sockets");
            std::thread::sleep(Duration::from_millis(10));
        }
        switch
    }

    fn socket(&self, vnic: &str) -> PathBuf {
        self.directory.path().join(format!("{vnic}.sock"))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn samples(words: &[&str]) -> Vec<Value> {
    samples_of(bench(&[words, &["--json"]].concat()))
}

fn samples_of(answer: Answer) -> Vec<Value> {
    let answer: Value = serde_json::from_str(&answer.ok()).expect("JSON");
    assert_eq!(answer["settings"]["failures"], serde_json::json!([]));
    answer["samples"].as_array().expect("samples").clone()
}

fn count(sample: &Value, key: &str) -> u64 {
    sample[key].as_u64().unwrap_or_else(|| panic!("{key} in {sample}"))
}

/// The frames received in some samples. Each run has checked before that frames pass; on a busy machine a sample may
/// have none.
fn frames_of(samples: &[Value], which: impl Fn(&Value) -> bool) -> u64 {
    samples.iter().filter(|sample| which(sample)).map(|sample| count(sample, "received_frames")).sum()
}

#[test]
fn back_ends_take_turns_and_frames_arrive() {
    let backends = ["lasthop", "lasthop-dummy", "lasthop-flow", "limit", "null"];
    let flags = backends.iter().flat_map(|name| ["--backend", name]);
    let work = ["stream,size=64,flows=100,macs=50", "both,size=1500,touched", "rtt,sleep"];
    let words: Vec<&str> = flags.chain(work.iter().flat_map(|work| ["--workload", work])).collect();
    let samples = samples(&words);
    assert_eq!(samples.len(), 2 * backends.len() * work.len());
    for backend in backends {
        assert!(frames_of(&samples, |sample| sample["backend"] == backend) > 0, "{backend}: {samples:?}");
    }
    for (at, sample) in samples.iter().enumerate() {
        // Each round begins with another one.
        let round = at / backends.len() % 2;
        assert_eq!(sample["backend"], backends[(at + round) % backends.len()], "{sample}");
        assert!(sample["core_to_core_ns"].as_f64().expect("a number") > 0.0, "{sample}");
        let is_trip = sample["workload"].as_str().expect("text").starts_with("rtt");
        assert_eq!(sample["round_trip"]["p50_ns"].as_u64().is_some(), is_trip, "{sample}");
        let is_ours = sample["backend"].as_str().expect("text").starts_with("lasthop");
        assert_eq!(sample["memory"]["rss_anon_kb"].as_u64().is_some(), is_ours, "{sample}");
    }
}

#[test]
fn many_guests_large_frames_and_a_set_rate() {
    let work = [
        "pairs=3,size=64,ring=64",
        "all-to-all=3",
        "stream,idle-ports=40",
        "fan-in=3,size=9000",
        "stream,size=65536",
        "offered=2000",
    ];
    let words: Vec<&str> = ["--backend", "lasthop"]
        .into_iter()
        .chain(work.iter().flat_map(|work| ["--workload", work]))
        .collect();
    // In one round: `back_ends_take_turns_and_frames_arrive` is about rounds.
    let samples = samples_of(bench_rounds("1", &[&words[..], &["--json"]].concat()));
    assert_eq!(samples.len(), work.len());
    assert!(frames_of(&samples, |_| true) > 0, "{samples:?}");
    for sample in samples.iter().filter(|sample| sample["workload"] == "offered=2000,size=64,ring=256") {
        // A process that gets no CPU for a third of a second loses frames.
        assert!(count(sample, "received_frames") <= count(sample, "sent_frames"), "{sample}");
    }
}

#[test]
fn an_idle_switch_is_seen_to_sleep() {
    let idle = ["--backend", "lasthop", "--workload", "idle=4", "--json"];
    let samples = samples_of(bench_beside("1", &idle));
    assert_eq!(samples.len(), 1);
    for sample in samples {
        assert_eq!((count(&sample, "sleeps"), sample["cpu_seconds"].as_f64()), (0, Some(0.0)), "{sample}");
    }
}

#[test]
fn results_are_written_where_they_are_wanted() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    let names = ["tsv", "json-file", "markdown", "svg", "svg-round-trips"];
    let flags: Vec<(String, String)> = names.iter().map(|name| (format!("--{name}"), path(name))).collect();
    let mut words = vec!["--backend", "lasthop", "--backend", "null", "--workload", "rtt"];
    words.extend(flags.iter().flat_map(|(flag, path)| [flag.as_str(), path]));
    let table = bench(&words).ok();
    assert!(table.contains("rtt,size=64,ring=256") && table.contains("reference"), "{table}");
    let read = |name: &str| std::fs::read_to_string(path(name)).expect(name);
    assert_eq!(read("tsv").lines().count(), 1 + 4);
    assert!(read("json-file").starts_with('{'));
    assert!(read("markdown").contains("rtt,size=64,ring=256"));
    assert!(read("svg").starts_with("<svg") && read("svg-round-trips").starts_with("<svg"));
}

#[test]
fn a_switch_that_runs_already_is_measured_over_its_sockets() {
    let switch = Switch::start();
    let sockets = format!("{},{}", switch.socket("a").display(), switch.socket("b").display());
    let samples = samples(&["--sockets", &sockets, "--workload", "stream"]);
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|sample| sample["backend"] == "sockets"), "{samples:?}");
    assert!(frames_of(&samples, |_| true) > 0, "{samples:?}");
    let answer = bench(&["--sockets", &sockets, "--workload", "fan-in=3"]).refused();
    assert!(answer.contains("2 sockets are given, the workload has 4 guests"), "{answer}");
}

#[test]
fn a_command_that_fails_is_named_and_the_others_go_on() {
    let words = ["--backend", "lasthop", "--backend", "gone=sh -c 'echo not here >&2; exit 77'"];
    let answer = bench(
        &[&words[..], &["--backend", "bad=sh -c 'echo broken >&2; exit 1'", "--workload", "stream"]].concat(),
    );
    assert_eq!(answer.code, Some(0), "{}", answer.err);
    assert!(answer.err.contains("skip: gone: not here"), "{}", answer.err);
    assert!(answer.err.contains("failed: bad: bad failed: broken"), "{}", answer.err);
    let refused = bench(&["--backend", "bad=false", "--workload", "stream"]).refused();
    assert!(refused.contains("failed: bad"), "{refused}");
}

#[test]
fn a_command_is_told_what_to_be_ready_for() {
    let program = lasthop();
    let program = program.display();
    let script = format!(
        "own=sh -c 'trap \"kill \\$!; wait; exit\" TERM; d=$LASTHOP_BENCH_DIR; {program} --dir $d/run run \
         --vnic port0,socket=$d/port0.sock,mode=connect --vnic port1,socket=$d/port1.sock,mode=connect & \
         echo setting: $LASTHOP_BENCH_PORTS ports on $LASTHOP_BENCH_CPU; echo ready connect; wait'"
    );
    let allowed = rustix::thread::sched_getaffinity(None).expect("our CPUs");
    let mut cpus =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| cpu.to_string());
    let (generator, switch) = (cpus.next().expect("a CPU"), cpus.next().expect("another CPU"));
    let cpus = ["--switch-cpu", &switch, "--generator-cpu", &generator];
    let answer = bench(&[&["--backend", &script, "--workload", "stream"], &cpus[..]].concat());
    let told = format!("setting: own: 2 ports on {switch}");
    assert!(answer.err.contains(&told), "{}", answer.err);
    assert!(answer.ok().contains("stream,size=64,ring=256"));
}

#[test]
fn mistakes_have_a_remedy() {
    for (words, expected) in [
        (["--workload", "stream,size=1"], "size is 60 to 65549"),
        (["--workload", "sream"], "no part of a workload"),
        (["--backend", "ovs"], "NAME=COMMAND starts another one"),
        (["--suite", "all"], "there are quick, standard, full"),
        (["--seconds", "0"], "0.01 to 3600"),
    ] {
        let answer = run(&[words[0], words[1]]);
        assert_eq!(answer.code, Some(2));
        assert!(answer.err.contains(expected), "{}", answer.err);
    }
    for (words, expected) in [
        (["--backend", "null", "--backend", "null"], "two back ends \"null\""),
        (["--reference", "x", "--backend", "null"], "--reference x is none of the back ends; there are null"),
        (["--switch-cpu", "0", "--generator-cpu", "0"], "two different CPUs"),
        (["--backend", "lasthop", "--lasthop", "/nowhere"], "there is no program \"/nowhere\" to measure"),
    ] {
        let answer = run(&words);
        assert!(answer.refused().contains(expected));
    }
}

/// Samples of stock guests on Lasthop, one of each workload and back end, since these guests start slowly and poll.
/// `None` if there is no testpmd.
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
fn stock_samples(backends: &[&str], work: &[&str]) -> Option<Vec<Value>> {
    let is_there = |directory: PathBuf| directory.join("dpdk-testpmd").is_file();
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(is_there) {
        println!("skipped: dpdk-testpmd is not installed (tools/deps bench)");
        return None;
    }
    let backends = backends.iter().flat_map(|backend| ["--backend", backend]);
    let words: Vec<&str> = backends.chain(work.iter().flat_map(|work| ["--workload", work])).collect();
    Some(samples_of(bench_rounds("1", &[&words[..], &["--json"]].concat())))
}

/// `samples` asserts that no back end failed. The end of one is a failure unless its counters agree with those of the
/// guests: it took each frame that they sent, delivered each that they received, and has a reason for each other one.
#[test]
fn frames_of_stock_guests_are_conserved_in_each_mode() {
    let work = [
        "testpmd=flowgen,size=64,ring=256",
        "testpmd=5tswap,size=64,ring=256",
        "testpmd=macswap,size=1500,ring=256",
        "testpmd=rtt,size=64,ring=256",
    ];
    let Some(samples) = stock_samples(&["lasthop"], &work) else { return };
    assert_eq!(samples.len(), work.len());
    for (name, in_flight) in [("flowgen", u64::MAX), ("5tswap", 2 * 256), ("macswap", 2 * 256), ("rtt", 8)] {
        let is_of = |sample: &Value| sample["workload"].as_str().expect("text").contains(name);
        assert!(frames_of(&samples, is_of) > 0, "{name}: {samples:?}");
        for sample in samples.iter().filter(|sample| is_of(sample)) {
            let (sent, received) = (count(sample, "sent_frames"), count(sample, "received_frames"));
            // Frames that only circulate are never lost: all of them fit in every ring.
            assert!(name == "flowgen" || sent.abs_diff(received) <= in_flight, "{sample}");
            assert!(sample["driver"]["tx_path"].is_string() && sample["guest_cpus"].is_string(), "{sample}");
        }
    }
}

#[test]
fn stock_guests_take_other_buffers_rings_and_places() {
    let work = [
        "testpmd=txonly,size=64,ring=256",
        "testpmd=5tswap,size=64,ring=1024,mrg=off",
        "testpmd=flowgen,size=9000,ring=1024,flows=50",
    ];
    let Some(samples) = stock_samples(&["lasthop-flow"], &work) else { return };
    assert_eq!(samples.len(), work.len());
    let of =
        |name: &'static str| move |sample: &&Value| sample["workload"].as_str().expect("text").contains(name);
    for work in ["txonly", "5tswap", "flowgen"] {
        assert!(frames_of(&samples, |sample| of(work)(&sample)) > 0, "{work}: {samples:?}");
    }
    for sample in samples.iter().filter(of("txonly")) {
        assert!(sample["guest_cpus"].as_str().expect("text").contains('+'), "two processes: {sample}");
    }
    for sample in samples.iter().filter(of("mrg=off")) {
        let features = sample["driver"]["features"].as_u64().expect("bits");
        assert_eq!(features >> 15 & 1, 0, "no MRG_RXBUF: {sample}");
    }
}

#[test]
fn stock_guests_keep_away_from_the_bare_algorithm() {
    let answer = bench(&["--backend", "limit", "--workload", "testpmd=rtt"]).refused();
    assert!(
        answer.contains("skip: limit: is a part of the bench") || answer.contains("not installed"),
        "{answer}"
    );
}

#[test]
fn packages_get_a_manual_page_and_completions() {
    let directory = tempfile::tempdir().expect("a directory");
    run(&["--man", directory.path().to_str().expect("text")]).ok();
    let page = std::fs::read_to_string(directory.path().join("lasthop-bench.1")).expect("a page");
    assert!(page.contains("workload") && !page.contains("completions"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["--completions", shell]).ok().contains("lasthop-bench"), "{shell}");
    }
    let wide = run(&["--help"]).ok();
    assert_eq!(wide.lines().find(|line| line.chars().count() > 100), None);
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let _alone = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    lasthop();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop-bench"));
    command.args(["--rounds", "1000", "--seconds", "0.1", "--workload", "stream"]);
    command.args(["--backend", "lasthop", "--backend", "null"]);
    command.env("TMPDIR", directory.path()).stderr(Stdio::piped());
    let mut bench = command.spawn().expect("the binary runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(bench.stderr.take().expect("piped")));
    assert!(lines.any(|line| line.expect("text").contains("1/2000 lasthop")), "nothing was measured");
    kill_process(Pid::from_child(&bench), Signal::TERM).expect("it is there");
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    assert_eq!(bench.wait().expect("ended").code(), Some(1));
    assert!(rest.last().expect("a last line").contains("interrupted"), "{rest:?}");
    assert_eq!(directory.path().read_dir().expect("there").count(), 0);
    let ours = format!("TMPDIR={}", directory.path().display());
    let left = std::fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == ours.as_bytes())
    });
    assert_eq!(left.count(), 0);
}
