//! The control interface, by command line and by socket.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, WAIT, frame, guest};
use lasthop_rig::{Switch, eventually, lasthop, module, signal, stop};
use lasthop_wire::Offload;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};

#[test]
fn vnics_are_added_listed_shown_and_deleted() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let said = switch.ask(&["vnic", "add", "vm2,mac=02:00:00:00:00:02,queues=2,mtu=1400"]).ok();
    assert_eq!(said, format!("added vm2: connect its guest to {}\n", switch.path("vm2.sock").display()));
    let list = switch.json(&["vnic", "list"]);
    assert_eq!(list["vnics"][0]["name"], "vm1");
    let vm2 = &list["vnics"][1];
    assert_eq!(vm2["socket"], switch.path("vm2.sock").to_str().expect("text"));
    assert_eq!(
        (&vm2["mac"], &vm2["queues"], &vm2["mtu"]),
        (&json!("02:00:00:00:00:02"), &json!(2), &json!(1400))
    );
    let shown = switch.ask(&["vnic", "list"]).ok();
    let row = shown.lines().find(|line| line.starts_with("vm2 ")).expect("a row");
    assert!(row.split_whitespace().eq([
        "vm2",
        "no",
        "guest",
        "listen",
        "02:00:00:00:00:02",
        "2",
        "1400",
        vm2["socket"].as_str().expect("text")
    ]));
    assert!(switch.ask(&["vnic", "show", "vm2"]).ok().contains("02:00:00:00:00:02 (static)"));
    let qemu = switch.ask(&["vnic", "show", "vm2", "--qemu"]);
    assert!(qemu.err.contains("reconnect-ms"), "{}", qemu.err);
    let qemu = qemu.ok();
    assert!(qemu.starts_with("-name vm2,debug-threads=on \\\n") && !qemu.contains('#'), "{qemu}");
    assert!(qemu.contains("queues=2") && qemu.contains("mac=02:00:00:00:00:02,mq=on"), "{qemu}");
    for (version, option) in [("7.2", ",reconnect=1 "), ("10.2", ",reconnect-ms=1000 ")] {
        let qemu = switch.ask(&["port", "show", "vm2", "--qemu", "--qemu-version", version]).ok();
        assert!(qemu.contains(option), "{qemu}");
    }
    let refused = switch.ask(&["port", "show", "vm2", "--qemu", "--qemu-version", "new"]).err;
    assert!(refused.contains("write two numbers, as in 9.2"), "{refused}");
    assert!(switch.ask(&["vnic", "show", "vm2", "--libvirt"]).ok().contains("<mtu size='1400'/>"));
    switch.connect("vm2.sock");
    assert_eq!(switch.ask(&["vnic", "del", "vm2"]).ok(), "deleted vm2\n");
    assert!(!switch.path("vm2.sock").exists());
    assert_eq!(switch.json(&["vnic", "list"])["vnics"].as_array().map(Vec::len), Some(1));
    switch.ask(&["vnic", "add", "vm2"]).ok();
}

#[test]
fn ports_of_guests_have_the_words_of_all_ports_and_those_of_before() {
    let switch =
        Switch::start(&["--port", "vm1,backend=vhost-user,mac=02:00:00:00:00:01", "--vnic", "vm2,queues=2"]);
    let added = switch.ask(&["port", "add", "vm3,backend=vhost-user,mtu=1400"]).ok();
    assert!(added.starts_with("added vm3: connect its guest to /"), "{added}");
    let list = switch.json(&["port", "list"]);
    let names = |list: &Value, key: &str| -> Vec<String> {
        let ports = list[key].as_array().expect("a list").iter();
        ports.map(|port| port["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&list, "ports"), ["vm1", "vm2", "vm3"]);
    assert!(list["ports"].as_array().expect("a list").iter().all(|port| {
        port["settings"]["backend"] == "vhost-user"
            && port["state"] == "waiting for guest"
            && port["rings"].is_null()
    }));
    assert_eq!(names(&switch.json(&["port", "list", "--backend", "vhost-user"]), "ports").len(), 3);
    assert_eq!(switch.json(&["port", "list", "--backend", "device"])["ports"], json!([]));
    switch.ask(&["port", "set", "vm3", "vlan=5"]).ok();
    let (now, before) = (switch.json(&["port", "show", "vm3"]), switch.json(&["vnic", "show", "vm3"]));
    assert_eq!((&now["settings"]["vlan"], &now["settings"]["mtu"]), (&json!(5), &json!(1400)));
    let old = json!({"name": "vm3", "switch": "default", "state": "waiting for guest", "mode": "listen", "mac": null,
        "queues": 1, "mtu": 1400, "memory_max": null, "features_off": [], "storm_broadcast": 0, "storm_multicast": 0,
        "storm_unknown": 0, "vlan": 5, "trunk": null, "native": null, "isolated": false, "link": "up",
        "uplinks_down": false, "socket_mode": null, "socket_owner": null, "socket_group": null, "last_refusal": null,
        "socket": switch.path("vm3.sock")});
    for (key, value) in old.as_object().expect("an object") {
        assert_eq!(before.get(key), Some(value), "{key}");
    }
    for options in [&[][..], &["--qemu"], &["--libvirt"]] {
        let shown = |tree: &str| switch.ask(&[&[tree, "show", "vm3"], options].concat()).ok();
        assert_eq!(shown("port"), shown("vnic"));
    }
    assert_eq!(names(&switch.json(&["vnic", "list"]), "vnics"), ["vm1", "vm2", "vm3"]);
    let config = switch.json(&["config", "show"]);
    assert_eq!(
        (names(&config, "ports"), config["vnics"][1]["queues"].as_u64()),
        (names(&list, "ports"), Some(2))
    );
    assert_eq!(switch.ask(&["port", "del", "vm*"]).ok(), "deleted vm1\ndeleted vm2\ndeleted vm3\n");
}

#[test]
fn what_cannot_be_added_changes_nothing() {
    let switch = Switch::start(&["--vnic", "vm1,mac=02:00:00:00:00:01"]);
    let add = |vnic: &str| switch.ask(&["vnic", "add", vnic]).refused();
    assert!(add("vm1").contains("there is a port \"vm1\" already"));
    assert!(add("vm2,mac=02:00:00:00:00:01").contains("\"vm1\""), "refused by the switch");
    assert!(!switch.path("vm2.sock").exists(), "the socket was undone");
    let taken = switch.path("vm1.sock");
    assert!(add(&format!("vm2,socket={}", taken.display())).contains("is that of port \"vm1\""));
    let foreign = switch.base.path().join("foreign.sock");
    let _owner = UnixListener::bind(&foreign).expect("bound");
    assert!(add(&format!("vm2,socket={}", foreign.display())).contains("in use by another process"));
    assert_eq!(switch.json(&["vnic", "list"])["vnics"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_wrong_name_gets_the_close_ones() {
    let switch = Switch::start(&["--vnic", "web1", "--vnic", "db"]);
    for words in [["vnic", "del", "web2"], ["vnic", "show", "web2"]] {
        let message = switch.ask(&words).refused();
        assert!(message.contains("there is no port \"web2\"; did you mean \"web1\"?"), "{message}");
    }
    let unknown = switch.ask(&["stats", "nothing-like-it"]).refused();
    assert!(unknown.contains(&switch.addressed("lasthop port list")), "{unknown}");
}

#[test]
fn without_a_switch_the_way_to_start_one_is_named() {
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().to_str().expect("text");
    for words in [&["stats"][..], &["vnic", "list"], &["fdb", "show"]] {
        let message = lasthop(&[&["--dir", dir], words].concat()).refused();
        assert!(message.contains(&format!("lasthop run --dir {dir}")), "{message}");
        assert!(message.contains("control.sock"), "{message}");
    }
    let version = lasthop(&["--dir", dir, "version"]).ok();
    assert_eq!(version, format!("lasthop {}\nrunning: none\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_quiet_switch_has_sound_counters() {
    let switch = Switch::start(&["--vnic", "a"]);
    let port = switch.port("a");
    for key in [
        "rx_packets",
        "rx_bytes",
        "rx_gso_packets",
        "tx_packets",
        "tx_bytes",
        "tx_gso_packets",
        "injected",
        "copies_added",
        "segments_added",
        "forwarded",
        "flooded_to_none",
        "waiting",
    ] {
        assert_eq!(port[key], 0, "{key}");
    }
    assert_eq!(
        (&port["conserved"], &port["rx_drops"], &port["tx_drops"]),
        (&json!(true), &json!({}), &json!({}))
    );
    assert_eq!(
        switch.ask(&["stats", "--check"]).ok(),
        "conserved: 0 packets in, 0 delivered, 0 dropped, 0 flooded to none, 0 waiting\n"
    );
    assert!(switch.json(&["stats"])["workers"][0]["sleeps"].is_u64());
    assert!(switch.ask(&["fdb", "show"]).ok().contains("no addresses"));
    assert_eq!(switch.json(&["fdb", "show"]), json!({"entries": []}));
    let version = switch.json(&["version"]);
    assert_eq!(
        (&version["running"]["pid"], &version["running"]["module"]),
        (&json!(switch.pid()), &json!(module()))
    );
}

#[test]
fn a_second_guest_is_refused_and_the_first_keeps_its_port() {
    let switch = Switch::start(&["--vnic", "a"]);
    let first = switch.connect("a.sock");
    eventually("the guest", || switch.log().contains("port a: a guest is connected").then_some(()));
    let mut second = switch.connect("a.sock");
    assert_eq!(second.read(&mut [0]).expect("closed"), 0);
    eventually("the reason", || switch.log().contains("port a: refused a second guest").then_some(()));
    drop(first);
    eventually("the hang-up", || switch.log().contains("port a: its guest is gone").then_some(()));
    let _third = switch.connect("a.sock");
    eventually("the next", || (switch.log().matches("a guest is connected").count() == 2).then_some(()));
}

#[test]
fn a_connecting_vnic_finds_its_guest_whenever_it_comes() {
    let switch = Switch::start(&["--vnic", "a,mode=connect"]);
    eventually("the wait", || switch.log().contains("port a: waits until a guest listens").then_some(()));
    for round in 1..3 {
        let guest = UnixListener::bind(switch.path("a.sock")).expect("bound");
        let (stream, _) = guest.accept().expect("it connects");
        eventually("the guest", || {
            (switch.log().matches("a guest is connected").count() == round).then_some(())
        });
        std::fs::remove_file(switch.path("a.sock")).expect("removed");
        drop((guest, stream));
        eventually("the end", || (switch.log().matches("its guest is gone").count() == round).then_some(()));
    }
}

/// A vhost-user message without descriptors: request, flags, body.
fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
    [header, body.to_vec()].concat()
}

#[test]
fn what_a_guest_is_refused_is_said_with_the_remedy() {
    const SET_MEM_TABLE: u32 = 5;
    const SET_PROTOCOL_FEATURES: u32 = 16;
    const REPLY_ACK: u64 = 1 << 3;
    let switch = Switch::start(&["--vnic", "a"]);
    let mut front = switch.connect("a.sock");
    front.write_all(&message(SET_PROTOCOL_FEATURES, 1, &REPLY_ACK.to_ne_bytes())).expect("written");
    let table = [1u64, 0, 0x1000, 0, 0].map(u64::to_ne_bytes).concat();
    front.write_all(&message(SET_MEM_TABLE, 1 | 8, &table)).expect("written");
    front.read_exact(&mut [0; 20]).expect("an acknowledgement");
    eventually("the sentence", || {
        switch.log().contains("port a: front end sent no file descriptor").then_some(())
    });
    assert!(switch.log().contains("share=on"), "{}", switch.log());
    let why = switch.json(&["vnic", "show", "a"])["last_refusal"].clone();
    assert!(why.as_str().is_some_and(|why| why.starts_with("front end sent no file descriptor")), "{why}");
    let shown = switch.ask(&["vnic", "show", "a"]).ok();
    assert!(shown.contains("last refusal  front end sent no file descriptor"), "{shown}");
    front.write_all(&message(1, 7, &[])).expect("written");
    eventually("the end", || {
        switch.log().contains("port a: its guest is gone: the front end broke").then_some(())
    });
    assert_eq!(switch.json(&["vnic", "show", "a"])["last_refusal"], why, "kept for who comes to look");
    let _next = switch.connect("a.sock");
    eventually("the next guest", || {
        switch.json(&["vnic", "show", "a"])["last_refusal"].is_null().then_some(())
    });
}

/// One line to the control socket and one back.
fn exchange(stream: &mut UnixStream, line: &str) -> Value {
    writeln!(stream, "{line}").expect("written");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("an answer");
    serde_json::from_str(&answer).expect("JSON")
}

#[test]
fn the_socket_speaks_json_rpc() {
    let switch = Switch::start(&["--vnic", "a"]);
    let mut stream = switch.connect("control.sock");
    let good = exchange(&mut stream, r#"{"jsonrpc":"2.0","id":"x","method":"stats","params":{"name":"a"}}"#);
    assert_eq!((&good["jsonrpc"], &good["id"]), (&json!("2.0"), &json!("x")));
    assert_eq!(good["result"]["ports"][0]["name"], "a");
    for (line, code) in [
        ("nonsense", -32700),
        ("[]", -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"vnic.lst"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"vnic.del","params":{"nam":"a"}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"vnic.add","params":{"name":"b","socket":"rel"}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"vnic.del","params":{"name":"b"}}"#, -32001),
        (r#"{"jsonrpc":"2.0","id":1,"method":"vnic.add","params":{"name":"a"}}"#, -32002),
    ] {
        assert_eq!(exchange(&mut stream, line)["error"]["code"], code, "{line}");
    }
    let notification = r#"{"jsonrpc":"2.0","method":"vnic.add","params":{"name":"b"}}"#;
    let answer = exchange(
        &mut stream,
        &format!("{notification}\n{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"vnic.list\"}}"),
    );
    assert_eq!(answer["id"], 2);
    assert_eq!(answer["result"]["vnics"].as_array().map(Vec::len), Some(2));
}

#[test]
fn requests_sent_at_once_are_answered_in_order() {
    let switch = Switch::start(&[]);
    let mut stream = switch.connect("control.sock");
    let methods = ["stats", "version", "fdb.show", "vnic.list"];
    let requests: String = (0..20)
        .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\"}}\n", methods[id % 4]))
        .collect();
    stream.write_all(requests.as_bytes()).expect("written");
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    let ids: Vec<Value> = BufReader::new(stream)
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.expect("a line")).expect("JSON")["id"].clone())
        .collect();
    assert_eq!(ids, (0..20).map(Value::from).collect::<Vec<_>>());
}

/// Addresses behind one vnic. Each sends a frame to an unknown address.
fn be_many(guest: &mut Guest, first: u16, count: u16) {
    for number in first..first + count {
        let [high, low] = number.to_be_bytes();
        let frame = frame([2, 0, 0, 0, 0, 9], [2, 1, 0, 0, high, low], number.into(), 60);
        while !guest.send(0, &frame, Offload::default()).expect("connected") {
            guest.flush(0).expect("connected");
            guest.wait_sent(0, Some(WAIT)).expect("connected");
            guest.reclaim(0).expect("a sound ring");
        }
    }
    guest.flush(0).expect("connected");
}

/// More than fits into a message between processes, or a socket.
#[test]
fn many_addresses_are_all_shown_and_others_are_answered_meanwhile() {
    const EACH: u16 = 10_000;
    let switch =
        Switch::start(&["--module", "bridge", "--fdb-entries", "65536", "--vnic", "one", "--vnic", "two"]);
    for (name, first) in [("one", 0), ("two", EACH)] {
        let mut guest = guest(&switch, name, ONE);
        be_many(&mut guest, first, EACH);
        let taken = || switch.port(name)["rx_packets"] == EACH;
        eventually("all that was sent", || taken().then_some(()));
    }
    let mut slow = switch.connect("control.sock");
    writeln!(slow, r#"{{"jsonrpc":"2.0","id":1,"method":"fdb.show"}}"#).expect("written");
    // A client that does not read its answer delays no other, and gets all of it later.
    switch.ask(&["stats"]).ok();
    let mut answer = String::new();
    BufReader::new(slow).read_line(&mut answer).expect("an answer");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let entries = answer["result"]["entries"].as_array().expect("entries").iter();
    let told: HashSet<(String, String)> =
        entries.map(|entry| (text(&entry["mac"]), text(&entry["port"]))).collect();
    // Addresses whose bucket is full are not learned: a few of them.
    assert!(told.len() > 2 * usize::from(EACH) - 200, "only {} are told", told.len());
    for number in 0..2 * EACH {
        let [high, low] = number.to_be_bytes();
        let wrong = if number < EACH { "two" } else { "one" };
        assert!(!told.contains(&(format!("02:01:00:00:{high:02x}:{low:02x}"), wrong.to_owned())), "{number}");
    }
    let shown = switch.ask(&["fdb", "show"]).ok();
    let lines = shown.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words[0].to_owned(), words[2].to_owned())
    });
    assert_eq!(lines.collect::<HashSet<_>>(), told);
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

#[test]
fn a_client_need_not_wait_for_the_answer() {
    let switch = Switch::start(&[]);
    let request = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"vnic.add\",\"params\":{\"name\":\"a\"}}\n";
    switch.connect("control.sock").write_all(request.as_bytes()).expect("written");
    eventually("the vnic", || (switch.ask(&["vnic", "show", "a"]).code == Some(0)).then_some(()));
}

#[test]
fn requests_of_a_client_that_hung_up_are_executed_in_order() {
    let switch = Switch::start(&[]);
    let ask = |method: &str, name: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{{\"name\":\"{name}\"}}}}\n"
        )
    };
    // More than are served in a turn; each needs the one before, which the switch process answers.
    let rounds = (0..50).map(|_| ask("vnic.add", "a") + &ask("vnic.del", "a"));
    let requests: String = rounds.chain([ask("vnic.add", "a"), ask("vnic.add", "last")]).collect();
    switch.connect("control.sock").write_all(requests.as_bytes()).expect("written");
    eventually("the last one", || (switch.ask(&["vnic", "show", "last"]).code == Some(0)).then_some(()));
    switch.ask(&["vnic", "show", "a"]).ok();
}

#[test]
fn an_address_is_not_kept_for_a_vnic_that_came_after_the_one_it_was_for() {
    let switch = Switch::start(&["--vnic", "a"]);
    let process = switch.switch_pid().expect("a switch process");
    let ask = |method: &str, params: &str| {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{params}}}")
    };
    let version = ask("version", "{}");
    let mut clients: Vec<_> = (0..4).map(|_| switch.connect("control.sock")).collect();
    for client in &mut clients {
        exchange(client, &version);
    }
    // All three reach the supervisor before the switch process answers one of them.
    stop(process);
    let entry = r#"{"mac":"02:00:00:00:00:07","vnic":"a"}"#;
    let calls = [("fdb.add", entry), ("vnic.del", r#"{"name":"a"}"#), ("vnic.add", r#"{"name":"a"}"#)];
    for (at, (method, params)) in calls.into_iter().enumerate() {
        writeln!(clients[at], "{}", ask(method, params)).expect("written");
        exchange(&mut clients[3], &version);
    }
    signal(process, Signal::CONT);
    for client in &mut clients[..3] {
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).expect("an answer");
    }
    assert_eq!(switch.json(&["fdb", "show"])["entries"], json!([]));
    assert_eq!(switch.json(&["config", "show"])["fdb"], json!([]));
}

#[test]
fn a_removal_is_done_though_the_switch_process_dies_before_it_answers() {
    let switch = Switch::start(&["--vnic", "a", "--switch", "red"]);
    let process = switch.switch_pid().expect("a switch process");
    let version = r#"{"jsonrpc":"2.0","id":1,"method":"version"}"#;
    let mut clients: Vec<_> = (0..3).map(|_| switch.connect("control.sock")).collect();
    for client in &mut clients {
        exchange(client, version);
    }
    stop(process);
    for (at, (method, name)) in [("vnic.del", "a"), ("switch.del", "red")].into_iter().enumerate() {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": name}});
        writeln!(clients[at], "{call}").expect("written");
        exchange(&mut clients[2], version); // the supervisor has read it
    }
    signal(process, Signal::KILL);
    for client in &mut clients[..2] {
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).expect("an answer");
        assert!(answer.contains("\"result\":true"), "{answer}");
    }
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let left = switch.json(&["config", "show"]);
    assert_eq!((&left["vnics"], &left["switches"]), (&json!([]), &json!([])));
}

/// Limits a process to its current number of descriptors, until this is dropped.
struct Full(Option<Pid>, Rlimit);

impl Full {
    fn new(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.try_into().expect("a process"));
        // Its hard limit equals ours.
        let few = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
        Self(pid, prlimit(pid, Resource::Nofile, few).expect("limited"))
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = prlimit(self.0, Resource::Nofile, self.1);
    }
}

#[test]
fn without_descriptors_guests_and_clients_wait_and_nothing_ends() {
    let switch = Switch::start(&["--vnic", "a"]);
    let process = switch.switch_pid().expect("a switch process");
    let full = Full::new(process);
    let _guest = switch.connect("a.sock");
    eventually("the refusal", || switch.log().contains("no file descriptor left").then_some(()));
    drop(full);
    let full = Full::new(switch.pid());
    let mut client = switch.connect("control.sock");
    eventually("the pause", || switch.log().contains("cannot take a control client").then_some(()));
    drop(full);
    assert_eq!(exchange(&mut client, r#"{"jsonrpc":"2.0","id":7,"method":"version"}"#)["id"], 7);
    assert_eq!(switch.switch_pid(), Some(process), "the switch process went on");
}

#[test]
fn an_endless_line_ends_a_client_and_one_too_many_the_one_that_was_idle_for_longest() {
    let switch = Switch::start(&[]);
    let mut stream = switch.connect("control.sock");
    let _ = stream.write_all(&vec![b'x'; 100 << 10]);
    let mut answer = String::new();
    let _ = BufReader::new(&stream).read_line(&mut answer);
    assert!(answer.is_empty() || answer.contains("-32600"), "{answer}");
    drop(stream);
    let mut idle: Vec<_> = (0..16).map(|_| switch.connect("control.sock")).collect();
    let version = r#"{"jsonrpc":"2.0","id":1,"method":"version"}"#;
    assert_eq!(exchange(&mut idle[0], version)["id"], 1, "it is the one that was served last from now on");
    let mut late = switch.connect("control.sock");
    assert_eq!(exchange(&mut late, version)["id"], 1);
    assert_eq!(idle[1].read(&mut [0]).expect("closed"), 0);
    assert_eq!(exchange(&mut idle[0], version)["id"], 1);
    assert_eq!(exchange(&mut idle[15], version)["id"], 1);
    eventually("a line in the log", || switch.log().contains("makes room for another one").then_some(()));
}
