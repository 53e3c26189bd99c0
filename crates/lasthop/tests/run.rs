//! `lasthop run`: start, end, and failures of both.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use lasthop_rig::{Switch, eventually, is_alive, lasthop, signal};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;

/// A `run` that ends by itself, in `base`; returns its messages.
fn failed(base: tempfile::TempDir, words: &[&str]) -> String {
    let mut switch = Switch::spawn(base, words);
    let status = switch.wait();
    assert_eq!(status.code(), Some(1), "{}", switch.log());
    assert!(!switch.path("control.sock").exists());
    switch.log()
}

fn base() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn sigterm_leaves_nothing_behind() {
    let mut switch = Switch::start(&["--vnic", "a", "--vnic", "b"]);
    assert!(
        switch.log().contains(&format!("port a: connect its guest to {}", switch.path("a.sock").display()))
    );
    let inner = switch.switch_pid().expect("a switch process");
    let _guest = switch.connect("a.sock");
    eventually("the guest", || switch.log().contains("port a: a guest is connected").then_some(()));
    assert_eq!(switch.end().code(), Some(0), "{}", switch.log());
    assert!(!switch.dir().exists(), "the run directory is still there");
    assert!(!is_alive(inner));
}

/// The thread that starts processes has no descriptor to which a handler writes: a signal that came to it would be lost.
#[test]
fn each_process_handles_signals_but_in_the_thread_that_starts_processes() {
    let switch = Switch::start(&["--vnic", "a"]);
    let mut blocking = Vec::new();
    for process in switch.children().into_iter().chain([switch.pid()]) {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("threads").flatten();
        for thread in threads {
            let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
            let field = |name: &str| {
                status.lines().find_map(|line| line.strip_prefix(name)).expect("a field").trim().to_owned()
            };
            if u64::from_str_radix(&field("SigBlk:"), 16).expect("a mask") != 0 {
                blocking.push((process, field("Name:")));
            }
        }
    }
    assert_eq!(blocking, [(switch.pid(), "spawner".to_owned())]);
}

/// The objects of a log in JSON.
fn objects(log: &str) -> Vec<serde_json::Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"))).collect()
}

#[test]
fn the_log_can_be_objects_also_after_a_new_switch_process() {
    let mut switch = Switch::start(&["--log-format", "json", "--log-level", "debug", "--vnic", "a"]);
    let has = |process: &str, words: &str| {
        let log = switch.log();
        // The last line may be incomplete.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        let all = objects(whole);
        all.iter()
            .find(|one| {
                one["process"] == process && one["message"].as_str().is_some_and(|text| text.contains(words))
            })
            .cloned()
    };
    let invited = has("supervisor", "port a: connect its guest to").expect("an object");
    assert_eq!((&invited["port"], &invited["level"]), (&"a".into(), &"info".into()), "{invited}");
    assert!(
        invited["target"].as_str().is_some_and(|target| target.starts_with("lasthop_supervisor")),
        "{invited}"
    );
    switch.ask(&["port", "list"]).ok();
    eventually("the request", || {
        has("supervisor", "request port.list").filter(|one| one["level"] == "debug")
    });
    // The inner processes use the supervisor's format, including those of an upgrade.
    let wrong = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        connect(&socket, &SocketAddrUnix::new(switch.path("datapath.sock")).expect("short"))
            .expect("it listens");
        rustix::io::write(&socket, &[0xff; 64]).expect("written");
        // Its end is the switch process's answer.
        eventually("the end", || {
            rustix::io::read(&socket, &mut [0; 64]).is_ok_and(|bytes| bytes == 0).then_some(())
        });
    };
    wrong();
    let closed = eventually("the refusal", || has("switch process", "closed a control connection"));
    assert!(
        closed["target"].as_str().is_some_and(|target| target.starts_with("lasthop_dataplane")),
        "{closed}"
    );
    switch.ask(&["upgrade"]).ok();
    let before = switch.log().matches("closed a control connection").count();
    wrong();
    eventually("another refusal", || {
        (switch.log().matches("closed a control connection").count() > before).then_some(())
    });
    assert_eq!(switch.end().code(), Some(0), "{}", switch.log());
    assert!(
        objects(&switch.log()).iter().all(|one| one["time"].as_str().is_some_and(|time| time.ends_with('Z')))
    );
}

#[test]
fn lines_below_the_level_are_left_out() {
    let mut switch = Switch::spawn(base(), &["--log-level", "warn", "--vnic", "a"]);
    eventually("the switch", || (switch.ask(&["port", "list"]).code == Some(0)).then_some(()));
    assert_eq!(switch.end().code(), Some(0), "{}", switch.log());
    assert!(
        !switch.log().contains("switch is running") && !switch.log().contains("ending"),
        "{}",
        switch.log()
    );
    for (option, word, remedy) in
        [("--log-level", "loud", "error, warn, info or debug"), ("--log-format", "xml", "text or json")]
    {
        let answer = lasthop(&["run", option, word]);
        assert!(answer.code == Some(2) && answer.err.contains(remedy), "{}", answer.err);
    }
}

#[test]
fn sigterm_amid_the_start_ends_at_once_and_leaves_nothing() {
    let names: Vec<String> = (0..200).map(|number| format!("v{number}")).collect();
    let words: Vec<&str> = names.iter().flat_map(|name| ["--vnic", name]).collect();
    let mut switch = Switch::spawn(base(), &words);
    eventually("a first line", || (!switch.log().is_empty()).then_some(()));
    // As an operator might do who removes files.
    std::fs::remove_dir_all(switch.dir()).expect("removed");
    signal(switch.pid(), Signal::TERM);
    assert_eq!(switch.wait().code(), Some(0), "{}", switch.log());
    let log = switch.log();
    assert_eq!(log.lines().last(), Some("lasthop: ending"), "{log}");
    for words in ["running again", "deleted while", "killed", "No such file"] {
        assert!(!log.contains(words), "{words}: {log}");
    }
    assert!(!switch.dir().exists());
}

#[test]
fn sigint_ends_in_order_too() {
    let mut switch = Switch::start(&[]);
    let hint = format!("lasthop port add NAME,backend=vhost-user --dir {}", switch.dir().display());
    eventually("the hint", || switch.log().contains(&hint).then_some(()));
    signal(switch.pid(), Signal::INT);
    assert_eq!(switch.wait().code(), Some(0));
    assert!(!switch.dir().exists() && !switch.log().contains("killed"), "{}", switch.log());
}

#[test]
fn many_vnics_are_all_announced() {
    let names: Vec<String> = (0..100).map(|number| format!("v{number}")).collect();
    let words: Vec<&str> = names.iter().flat_map(|name| ["--vnic", name]).collect();
    let mut switch = Switch::start(&words);
    assert_eq!(switch.log().matches("connect its guest to").count(), 100);
    switch.end();
    assert!(!switch.dir().exists());
}

#[test]
fn sockets_are_for_their_owner() {
    let switch = Switch::start(&["--vnic", "a"]);
    let mode = |name| switch.path(name).metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!((mode("control.sock"), mode("a.sock")), (0o600, 0o660));
}

#[test]
fn a_second_switch_in_the_same_directory_is_refused() {
    let first = Switch::start(&["--vnic", "a"]);
    let dir = first.dir();
    let message = lasthop(&["run", "--dir", dir.to_str().expect("text")]).refused();
    assert!(message.contains(&format!("process {}", first.pid())) && message.contains("--dir"), "{message}");
    first.ask(&["stats"]).ok();
}

#[test]
fn a_left_over_socket_is_replaced() {
    let base = base();
    let path = base.path().join("a.sock");
    drop(UnixListener::bind(&path).expect("bound"));
    let vnic = format!("a,socket={}", path.display());
    let mut switch = Switch::spawn(base, &["--vnic", &vnic]);
    eventually("the port", || std::os::unix::net::UnixStream::connect(&path).ok());
    eventually("the switch", || switch.log().contains("switch is running").then_some(()));
    switch.end();
    assert!(!path.exists());
}

#[test]
fn a_socket_in_use_is_left_alone() {
    let base = base();
    let path = base.path().join("a.sock");
    let _owner = UnixListener::bind(&path).expect("bound");
    let vnic = format!("a,socket={}", path.display());
    let log = failed(base, &["--vnic", &vnic]);
    assert!(log.contains(&format!("in use by another process, {}", std::process::id())), "{log}");
}

#[test]
fn a_file_in_the_way_is_left_alone() {
    let base = base();
    let path = base.path().join("a.sock");
    std::fs::write(&path, "precious").expect("written");
    let log = failed(base, &["--vnic", &format!("a,socket={}", path.display())]);
    assert!(log.contains("is no socket"), "{log}");
}

#[test]
fn a_vnic_that_the_switch_refuses_ends_the_start() {
    let mac = "mac=02:00:00:00:00:01";
    let log = failed(base(), &["--vnic", &format!("a,{mac}"), "--vnic", &format!("b,{mac}")]);
    assert!(log.contains("02:00:00:00:00:01") && log.contains("\"a\""), "{log}");
}

#[test]
fn mistakes_on_the_command_line_and_in_the_file_are_named() {
    assert!(failed(base(), &["--vnic", "a", "--vnic", "a"]).contains("two ports \"a\""));
    assert!(failed(base(), &["--cpus", "8191"]).contains("CPU 8191 cannot be used by this process"));
    let base = base();
    let file = base.path().join("lasthop.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    let run = || lasthop(&["run", "--dir", "/nonexistent/x", "-c", file.to_str().expect("text")]).refused();
    write("module = \"bridge\"\ncpu = \"0\"\n");
    let message = run();
    assert!(message.contains("lasthop.toml:2: unknown key \"cpu\"; did you mean \"cpus\"?"), "{message}");
    write("[[vnic]]\nname = \"a\"\nmtu = 1\n");
    assert!(run().contains("lasthop.toml:3: mtu=1 is out of range"));
    write("cpus = \"0-8191\"\n");
    assert!(run().contains("cpus=0-8191: CPU "), "no machine has them all");
    write("[[vnic]]\nname = \"a\"\nqueues = \"2\"\n");
    assert!(run().contains("lasthop.toml:3: queues must be a whole number from 1 to 32"));
    write("");
    assert!(run().contains("cannot create the run directory"));
}

#[test]
fn file_and_flags_add_up() {
    let base = base();
    let file = base.path().join("lasthop.toml");
    std::fs::write(&file, "module = \"dummy\"\n[[vnic]]\nname = \"a\"\nsocket = \"x.sock\"\n")
        .expect("written");
    let switch = Switch::spawn(base, &["-c", file.to_str().expect("text"), "--vnic", "b"]);
    eventually("the switch", || {
        switch.log().contains("switch is running with 2 vnics, module dummy").then_some(())
    });
    assert!(file.with_file_name("x.sock").exists() && switch.path("b.sock").exists());
}

#[test]
fn a_killed_switch_process_comes_back_with_its_ports_and_connections() {
    let switch = Switch::start(&["--vnic", "a", "--vnic", "b"]);
    switch.ask(&["vnic", "add", "c"]).ok();
    let guest = switch.connect("a.sock");
    eventually("the guest", || switch.log().contains("port a: a guest is connected").then_some(()));
    let first = switch.switch_pid().expect("a switch process");
    signal(first, Signal::KILL);
    let next = eventually("the next one", || switch.switch_pid().filter(|pid| *pid != first));
    eventually("its ports", || switch.log().contains("running again").then_some(()));
    assert!(
        switch.log().contains(&format!("the switch process {first} was killed by signal 9")),
        "{}",
        switch.log()
    );
    let states = || {
        let list = switch.json(&["vnic", "list"])["vnics"].clone();
        list.as_array().expect("a list").iter().map(|vnic| vnic["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(states(), ["connected", "waiting for guest", "waiting for guest"]);
    drop(guest);
    eventually("its end", || (states()[0] == "waiting for guest").then_some(()));
    let _again = switch.connect("a.sock");
    let attached = || switch.log().matches("port a: a guest is connected").count() == 2;
    eventually("the guest again", || attached().then_some(()));
    assert!(is_alive(next));
}

/// A table that grows later has the main thread wait for a grace period of RCU, and guests with it.
#[test]
fn the_tables_of_descriptors_have_room_for_many_guests_from_the_start() {
    let switch = Switch::start(&["--vnic", "a"]);
    for pid in [switch.pid(), switch.switch_pid().expect("a switch process")] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
        let entries = status.lines().find_map(|line| line.strip_prefix("FDSize:")).expect("FDSize");
        assert!(entries.trim().parse::<u32>().expect("a number") >= 4096, "{pid}: {entries}");
    }
}

#[test]
fn a_switch_without_supervisor_ends() {
    let mut switch = Switch::start(&["--vnic", "a"]);
    let inner = switch.switch_pid().expect("a switch process");
    signal(switch.pid(), Signal::KILL);
    switch.wait();
    eventually("the end of the switch process", || (!is_alive(inner)).then_some(()));
    let mut next = Switch::spawn(std::mem::replace(&mut switch.base, base()), &["--vnic", "a"]);
    eventually("the next switch", || next.log().contains("switch is running").then_some(()));
    assert_eq!(next.end().code(), Some(0));
}

#[test]
fn the_inner_command_is_not_for_people() {
    let message = lasthop(&["switch-process", "--module", "bridge"]).refused();
    assert!(message.contains("lasthop's own use"), "{message}");
    assert!(!lasthop(&["--help"]).ok().contains("switch-process"));
}
