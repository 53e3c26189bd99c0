//! Threads that pass packets are brought into one last-level cache, and get their CPUs back.
//!
//! The machine of the test may have one cache alone. So a measurement is made up in which each CPU has one of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

/// Few batches suffice, so that a slow machine decides alike.
const START: [&str; 8] = [
    "--workers",
    "1",
    "--placement-batches",
    "1",
    "--vnic",
    "one,vcpus=name:pinned",
    "--vnic",
    "two,vcpus=name:pinned",
];

/// Runs traffic on a thread with the name of the guests' vCPUs until this is dropped.
fn with_traffic<R>(switch: &Switch, work: impl FnOnce(i32) -> R + Send) -> R
where
    R: Send,
{
    let is_over = AtomicBool::new(false);
    let (tell, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let traffic = thread::Builder::new().name("pinned0".to_owned());
        let traffic = traffic.spawn_scoped(scope, || {
            let (mut one, mut two) = (guest(switch, "one", ONE), guest(switch, "two", TWO));
            let last = *cpus(0).last().expect("a CPU");
            set_cpus(0, &[last]);
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                send(&mut one, &frame(TWO, ONE, number, 60));
                assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
                send(&mut two, &frame(ONE, TWO, number, 60));
                assert_eq!(receive(&mut one), frame(ONE, TWO, number, 60));
                number += 1;
                // Less than half of a CPU: a busy guest would take the CPU of its cache.
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(100) {}
                thread::sleep(Duration::from_micros(300));
            }
        });
        let traffic = traffic.expect("a thread");
        let tid = told.recv().expect("its number");
        let result = work(tid);
        is_over.store(true, Ordering::Relaxed);
        traffic.join().expect("all frames arrived");
        result
    })
}

/// Sets the CPUs of a thread; 0: of this one.
fn set_cpus(tid: i32, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(Pid::from_raw(tid), &set).expect("set");
}

/// CPUs of a thread; 0: of this one.
fn cpus(tid: i32) -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(tid)).expect("its CPUs");
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// By the socket: a process for each look would take the CPU time that the threads need.
fn report(switch: &Switch) -> Value {
    call(switch, "sched.show", &json!({}))["result"].clone()
}

/// One request to the control socket.
fn call(switch: &Switch, method: &str, params: &Value) -> Value {
    let mut socket = UnixStream::connect(switch.path("control.sock")).expect("a connection");
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    writeln!(socket, "{request}").expect("sent");
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).expect("an answer");
    serde_json::from_str(&answer).expect("JSON")
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs()
}

/// Says that each CPU has caches of its own.
fn give_each_cpu_a_cache(switch: &Switch) {
    let count = report(switch)["caches"]["cpus"].as_u64().expect("CPUs");
    let places: Vec<_> = (0..count).map(|cpu| (cpu, cpu, 0)).collect();
    let measured = json!({"places": places, "measured_s": now_s(), "expires_s": now_s() + 3600});
    let answer = call(switch, "sched.calibrate", &json!({"measured": measured}));
    assert_eq!(answer["result"], true, "{answer}");
    assert_eq!(report(switch)["caches"]["llcs"], count);
}

/// The threads that the switch has placed.
fn placed(switch: &Switch) -> Vec<(String, i32)> {
    let report = report(switch);
    let threads = report["placement"]["threads"].as_array().expect("threads").iter();
    let thread = |thread: &Value| {
        let name = thread["name"].as_str().expect("a name").to_owned();
        (name, i32::try_from(thread["tid"].as_i64().expect("a number")).expect("a thread"))
    };
    threads.map(thread).collect()
}

#[test]
fn a_worker_comes_to_its_guests_and_is_free_again_without_packets() {
    let switch = Switch::start(&[&["--placement", "own"], &START[..]].concat());
    give_each_cpu_a_cache(&switch);
    let before = cpus(0);
    let worker = with_traffic(&switch, |guest| {
        let own = cpus(guest);
        let worker = eventually("a place for the worker", || {
            let placed = placed(&switch);
            assert!(placed.iter().all(|(name, _)| name.starts_with("worker")), "only our own: {placed:?}");
            placed.first().map(|(_, tid)| *tid)
        });
        assert_eq!(cpus(worker), own, "the cache of the guest has one CPU");
        assert_eq!(cpus(guest), own, "the guest stays");
        worker
    });
    eventually("the worker without packets is free", || placed(&switch).is_empty().then_some(()));
    assert_eq!(cpus(worker), before);
}

#[test]
fn guests_of_a_killed_supervisor_get_their_cpus_back_from_the_next_one() {
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().join("run");
    std::fs::create_dir(&dir).expect("made");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let guest = thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
        let _ = ended.recv();
    });
    let tid = told.recv().expect("its number");
    let own = cpus(tid);
    let given = &own[..1];
    set_cpus(tid, given);
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).expect("its state");
    let start = stat.rsplit_once(") ").expect("a name").1.split(' ').nth(22 - 3).expect("a start");
    let list = |cpus: &[usize]| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let start: u64 = start.parse().expect("a number");
    let left = json!([{"tid": tid, "start_ticks": start, "own": list(&own), "given": list(given)}]);
    std::fs::write(dir.join("placement"), left.to_string()).expect("written");
    let switch = Switch::spawn(base, &START[..2]);
    eventually("all CPUs", || (cpus(tid) == own).then_some(()));
    assert!(!switch.dir().join("placement").exists());
    drop((switch, end));
    guest.join().expect("ended");
}

#[test]
fn wrong_modes_thresholds_and_measurements_are_refused() {
    let switch = Switch::start(&START[2..]);
    let answer = call(&switch, "sched.set", &json!({"policy": "placement", "mode": "on"}));
    let message = answer["error"]["message"].as_str().expect("a fault");
    assert!(message.contains("\"off\", \"own\" or \"guests\""), "{message}");
    assert!(switch.ask(&["sched", "set", "placement=own"]).ok().contains("placement is own"));
    let measured = json!({"places": [], "measured_s": now_s(), "expires_s": now_s() + 3600});
    let answer = call(&switch, "sched.calibrate", &json!({"measured": measured}));
    let message = answer["error"]["message"].as_str().expect("a fault");
    assert!(message.contains("lasthop sched calibrate"), "{message}");
    assert!(
        switch
            .ask(&["sched", "calibrate", "--repeats", "1", "--dry-run"])
            .ok()
            .contains("nothing was changed")
    );
    assert!(switch.ask(&["sched", "calibrate", "--repeats", "1"]).ok().contains("used for 24 hours"));
    assert!(report(&switch)["caches"]["measured"].is_object());
    assert!(switch.ask(&["sched", "show"]).ok().contains("measured, for 24 h more"));
    assert!(switch.ask(&["sched", "calibrate", "--reset"]).ok().contains("sysfs"));
    assert!(report(&switch)["caches"]["measured"].is_null());
}
