//! `lasthop run` under a service manager: its messages to `NOTIFY_SOCKET`, and access to its control socket.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use lasthop_rig::{Switch, copy_of_lasthop, eventually, lasthop, module, signal, stop};
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use tempfile::TempDir;

/// The receiving end of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn at(address: &SocketAddr) -> Self {
        let socket = UnixDatagram::bind_addr(address).expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
        Self(socket)
    }

    /// Waits for the next message.
    fn heard(&self) -> String {
        eventually("a datagram", || {
            let mut bytes = [0; 4096];
            let length = self.0.recv(&mut bytes).ok()?;
            Some(String::from_utf8(bytes[..length].to_vec()).expect("text"))
        })
    }

    /// Waits for a message that contains `words`.
    fn heard_of(&self, words: &str) -> String {
        eventually(words, || Some(self.heard()).filter(|text| text.contains(words)))
    }
}

/// A switch that gets a manager's socket by `name`.
fn start(name: &OsStr, base: TempDir, words: &[&str]) -> Switch {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.env("NOTIFY_SOCKET", name);
    Switch::spawn_by(command, base, words)
}

fn path_in(base: &TempDir) -> (Manager, std::path::PathBuf) {
    let path = base.path().join("notify");
    (Manager::at(&SocketAddr::from_pathname(&path).expect("an address")), path)
}

#[test]
fn a_life_is_told_from_its_start_to_its_end() {
    let base = tempfile::tempdir().expect("a directory");
    let (manager, path) = path_in(&base);
    let mut switch = start(path.as_os_str(), base, &["--vnic", "a", "--vnic", "b"]);
    let module = module();
    assert_eq!(manager.heard(), format!("READY=1\nSTATUS=2 vnics, module {module}; 0 attached"));
    switch.ask(&["vnic", "list"]).ok();
    let _guest = switch.connect("a.sock");
    assert_eq!(manager.heard(), format!("STATUS=2 vnics, module {module}; 1 attached"));
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    let text = manager.heard_of("was started again");
    assert!(text.ends_with("started again 1 time, the last one was killed by signal 9"), "{text}");
    assert!(!text.contains("READY"), "{text}");
    assert_eq!(switch.end().code(), Some(0));
    assert!(manager.heard_of("STOPPING=1").contains("STATUS="));
}

#[test]
fn abstract_sockets_will_do() {
    let name = format!("lasthop-test-{}", std::process::id());
    let manager = Manager::at(&SocketAddr::from_abstract_name(&name).expect("a name"));
    let base = tempfile::tempdir().expect("a directory");
    let mut switch = start(OsStr::new(&format!("@{name}")), base, &[]);
    assert!(manager.heard().starts_with("READY=1\n"));
    switch.end();
    manager.heard_of("STOPPING=1");
}

#[test]
fn a_start_that_fails_says_why_and_is_never_ready() {
    for (words, status) in
        [(["--vnic", "a,socket-group=nobodys"], 1), (["--config", "/nonexistent/file"], 78)]
    {
        let base = tempfile::tempdir().expect("a directory");
        let (manager, path) = path_in(&base);
        let mut switch = start(path.as_os_str(), base, &words);
        assert_eq!(switch.wait().code(), Some(status));
        let told = manager.heard();
        let why = told.strip_prefix("STATUS=").expect("a status, and nothing before it");
        assert!(switch.log().contains(why), "{told} / {}", switch.log());
    }
}

#[test]
fn a_manager_that_cannot_be_told_is_done_without() {
    let base = tempfile::tempdir().expect("a directory");
    let mut switch = start(OsStr::new("vsock:2:1"), base, &[]);
    eventually("the switch", || switch.log().contains("switch is running").then_some(()));
    assert!(switch.log().contains("NOTIFY_SOCKET=vsock:2:1: neither a path"), "{}", switch.log());
    switch.end();
    let base = tempfile::tempdir().expect("a directory");
    let nobody = base.path().join("nobody");
    let mut switch = start(nobody.as_os_str(), base, &[]);
    eventually("the switch", || switch.log().contains("switch is running").then_some(()));
    assert_eq!(switch.end().code(), Some(0));
}

#[test]
fn the_inner_processes_are_not_told_of_the_manager() {
    let base = tempfile::tempdir().expect("a directory");
    let (manager, path) = path_in(&base);
    let switch = start(path.as_os_str(), base, &[]);
    manager.heard();
    let inner = switch.switch_pid().expect("a switch process");
    let environment = std::fs::read(format!("/proc/{inner}/environ")).expect("ours");
    assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"));
}

#[test]
fn the_control_socket_may_be_a_groups() {
    let own = rustix::process::getegid().as_raw().to_string();
    let mut switch = Switch::start(&["--control-group", &own]);
    let meta = switch.path("control.sock").metadata().expect("there");
    assert_eq!((meta.permissions().mode() & 0o777, meta.gid().to_string()), (0o660, own.clone()));
    let shown = switch.ask(&["config", "show"]).ok();
    assert!(shown.contains(&format!("control-group = \"{own}\"")), "{shown}");
    switch.end();

    let base = tempfile::tempdir().expect("a directory");
    let file = base.path().join("lasthop.toml");
    std::fs::write(&file, "control-group = \"nobodys\"\n").expect("written");
    let file = file.to_str().expect("text");
    let words = "control-group=nobodys: there is no group \"nobodys\"";
    let checked = lasthop(&["check", "-c", file]);
    assert!(checked.out.contains(words) && checked.code == Some(1), "{}", checked.out);
    let dir = base.path().join("run");
    let run = lasthop(&["run", "--dir", dir.to_str().expect("text"), "-c", file]).refused();
    assert!(run.contains(words), "{run}");
    assert!(!dir.exists());
}

/// The user and the group that own no files.
const NOBODY: u32 = 65534;

#[test]
fn a_control_group_may_not_choose_the_program() {
    if !rustix::process::geteuid().is_root() {
        return; // only root can be another user
    }
    let switch = Switch::start(&["--control-group", &NOBODY.to_string()]);
    // A directory in which others may list files and run the program.
    std::fs::set_permissions(switch.base.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let program = copy_of_lasthop(switch.base.path(), "lasthop");
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).arg("--dir").arg(switch.dir()).args(words);
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(as_nobody(&["vnic", "add", "a"]), (Some(0), String::new()));
    let (code, said) = as_nobody(&["upgrade"]);
    assert!(code == Some(1) && said.contains("is for root"), "{said}");
    switch.ask(&["vnic", "show", "a"]).ok();
    switch.ask(&["upgrade"]).ok();
    // It has no guest, so the doctor reports an error.
    let told = switch.ask(&["doctor"]).refused_with_output();
    assert!(told.contains("was replaced by that of /"), "{told}");
}

#[test]
fn lines_for_the_journal_carry_their_severity() {
    let base = tempfile::tempdir().expect("a directory");
    // The log exists before the process, so the environment can name it as the journal.
    std::fs::write(base.path().join("log"), "").expect("written");
    let meta = base.path().join("log").metadata().expect("a log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
    let switch = Switch::spawn_by(command, base, &["--vnic", "a"]);
    eventually("the start", || switch.log().contains("<6>lasthop: switch is running").then_some(()));
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || {
        switch.log().contains("<6>lasthop: the switch process is running").then_some(())
    });
    let log = switch.log();
    let died = log.lines().find(|line| line.contains("was killed by signal 9")).unwrap_or_default();
    assert!(died.starts_with("<3>lasthop: the switch process "), "{log}");
    drop((switch.connect("a.sock"), switch.connect("a.sock")));
    assert!(log.lines().all(|line| line.starts_with('<')), "{log}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.env("JOURNAL_STREAM", "8:1"); // another file is the journal
    let other = Switch::spawn_by(command, tempfile::tempdir().expect("a directory"), &[]);
    eventually("the start", || other.log().starts_with("lasthop: ").then_some(()));
}

/// Connections of another user than the switch's.
fn connect_as_nobody(switch: &Switch, count: usize) -> Vec<UnixStream> {
    let connect = || {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        // Only of this thread.
        set_thread_groups(&[]).expect("allowed");
        set_thread_gid(group).expect("allowed");
        set_thread_uid(user).expect("allowed");
        (0..count).map(|_| switch.connect("control.sock")).collect()
    };
    std::thread::scope(|scope| scope.spawn(connect).join().expect("connected"))
}

#[test]
fn clients_of_a_control_group_do_not_keep_root_out() {
    if !rustix::process::geteuid().is_root() {
        return; // only root can be another user
    }
    let switch = Switch::start(&["--control-group", &NOBODY.to_string()]);
    std::fs::set_permissions(switch.base.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let process = switch.switch_pid().expect("a switch process");
    let mut idle = connect_as_nobody(&switch, 20);
    switch.ask(&["version"]).ok();
    assert_eq!(idle[0].read(&mut [0]).expect("closed"), 0, "four made room for others, and one for root");
    // Clients that wait for an answer are not evicted.
    stop(process);
    let mut busy = connect_as_nobody(&switch, 16);
    for client in &mut busy {
        client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n").expect("written");
    }
    eventually("all to be served", || {
        let mut late = connect_as_nobody(&switch, 1).remove(0);
        late.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        late.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0).then_some(())
    });
    switch.ask(&["version"]).ok();
    signal(process, Signal::CONT);
}
