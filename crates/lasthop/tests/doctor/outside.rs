//! Sockets: wrong, stale, gone, taken, or silent.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::{ONE, blames, diagnosed, first_lines, guest, has_all, warns};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, lasthop, signal};

/// A process with the command line of a VMM.
struct Vmm(Child);

impl Vmm {
    fn start(words: &[&str]) -> Self {
        Self::start_with(words, |_| {})
    }

    fn start_with(words: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("sh");
        change(&mut command);
        Self::run(command.args(["-c", "echo; read word"]), words)
    }

    /// A process that sees an empty directory in place of `hidden`.
    fn start_without(hidden: &Path, words: &[&str]) -> Self {
        let script = format!("mount -t tmpfs none {} && echo && read word", hidden.display());
        Self::run(Command::new("unshare").args(["--mount", "sh", "-c", &script]), words)
    }

    fn run(command: &mut Command, words: &[&str]) -> Self {
        let command = command.arg("qemu-system-x86_64").args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut said = [0];
        child.stdout.take().expect("a pipe").read_exact(&mut said).expect("it runs");
        Self(child)
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_vnic_without_a_guest_is_told_how_to_get_one() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let show = format!("lasthop --dir {} port show vm1 --qemu", switch.dir().display());
    blames(&switch, &["vm1 peer", "no guest is connected", &show]);
}

#[test]
fn a_vmm_with_another_socket_path_is_named() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let wrong = switch.path("vm1.sok");
    let chardev = format!("socket,id=c,path={},reconnect=1", wrong.display());
    let vmm = Vmm::start(&["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"]);
    let process = format!("process {}", vmm.0.id());
    blames(&switch, &["vm1 peer", "wrong socket path", "vm1.sok", &process]);
}

/// The doctor ignores VMMs that do not use the switch.
fn leaves_alone(switch: &Switch, vmm: &Vmm) {
    let answer = diagnosed(switch, &["vm1 peer", "no guest is connected"]);
    assert!(!answer.out.contains(&format!("process {}", vmm.0.id())), "{}", answer.out);
}

#[test]
fn a_guest_of_a_switch_in_another_network_namespace_is_none_of_ours() {
    if !may() {
        return;
    }
    let namespace = Namespace::new();
    let other = Switch::start_in(namespace.name(), &["--vnic", "vm1"]);
    let chardev = format!("socket,id=c,path={},reconnect=1", other.path("vm1.sock").display());
    let vmm = Vmm::start(&["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"]);
    leaves_alone(&Switch::start(&["--vnic", "vm1"]), &vmm);
}

#[test]
fn a_guest_that_a_killed_switch_left_behind_is_none_of_ours() {
    let mut other = Switch::start(&["--vnic", "vm1"]);
    let chardev = format!("socket,id=c,path={},reconnect=1", other.path("vm1.sock").display());
    let vmm = Vmm::start(&["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"]);
    signal(other.pid(), Signal::KILL);
    other.wait();
    leaves_alone(&Switch::start(&["--vnic", "vm1"]), &vmm);
}

#[test]
fn a_guest_of_another_file_system_is_none_of_ours() {
    if !may() {
        return;
    }
    let switch = Switch::start(&["--vnic", "vm1"]);
    let chardev = format!("socket,id=c,path={},reconnect=1", switch.path("vm1.sock").display());
    let words = ["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"];
    let vmm = Vmm::start_without(&switch.dir(), &words);
    leaves_alone(&switch, &vmm);
}

#[test]
fn other_users_processes_do_not_steer_the_terminal() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let chardev = format!("socket,id=c,path={}/\x1b[2Jvm1.sok,reconnect=1", switch.dir().display());
    let _vmm = Vmm::start(&["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"]);
    let said = switch.ask(&["doctor", "vm1"]).out;
    assert!(said.contains("wrong socket path") && said.contains("[2Jvm1.sok"), "{said}");
    assert!(!said.contains('\x1b'), "{said:?}");
}

#[test]
fn a_vmm_without_permission_is_named() {
    if !rustix::process::geteuid().is_root() {
        return; // there is no other user
    }
    let switch = Switch::start(&["--vnic", "vm1"]);
    let chardev = format!("socket,id=c,path={},reconnect=1", switch.path("vm1.sock").display());
    let words = ["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"];
    let _vmm = Vmm::start_with(&words, |command| {
        command.uid(65534).gid(65534);
    });
    blames(&switch, &["vm1 peer", "no permission", "uid 65534", "socket-group=nogroup"]);
}

#[test]
fn a_libvirt_guest_without_permission_is_named() {
    if !rustix::process::geteuid().is_root() {
        return; // there is no other user
    }
    let switch = Switch::start(&["--vnic", "vm1"]);
    let chardev = format!("socket,id=charnet0,path={},reconnect=1", switch.path("vm1.sock").display());
    let netdev = r#"{"type":"vhost-user","chardev":"charnet0","id":"hostnet0"}"#;
    let _vmm = Vmm::start_with(&["-chardev", &chardev, "-netdev", netdev], |command| {
        command.uid(65534).gid(65534);
    });
    blames(&switch, &["vm1 peer", "no permission", "uid 65534", "socket-group=nogroup"]);
    std::fs::set_permissions(switch.base.path(), std::fs::Permissions::from_mode(0o711)).expect("opened");
    diagnosed(&switch, &["vm1 peer", "was started for this socket"]);
}

#[test]
fn a_vmm_that_does_not_come_back_is_named() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let chardev = format!("socket,id=c,path={}", switch.path("vm1.sock").display());
    let _vmm = Vmm::start(&["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"]);
    blames(&switch, &["vm1 peer", "is not connected", "reconnect=1"]);
}

#[test]
fn a_vmm_that_tries_again_is_not_told_to() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    for (words, remedy) in [
        ("reconnect=1", "Who may attach"),
        ("reconnect-ms=1000", "Who may attach"),
        ("server=on,wait=off", "mode=connect"),
    ] {
        let chardev = format!("socket,id=c,path={},{words}", switch.path("vm1.sock").display());
        let _vmm = Vmm::start(&["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c"]);
        blames(&switch, &["vm1 peer", "is not connected", remedy]);
        let said = switch.ask(&["doctor"]).out;
        assert!(!first_lines(&said).contains("only with reconnect=1"), "{said}");
    }
}

#[test]
fn a_guest_that_cannot_come_back_is_to_be_started_again() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let device = format!("virtio_uml.device={}:1", switch.path("vm1.sock").display());
    let _guest = Vmm::start(&["mem=64M", &device]);
    blames(&switch, &["vm1 peer", "is not connected", "User Mode Linux does not connect again"]);
}

#[test]
fn a_stale_socket_file_of_a_vmm_is_told() {
    let switch = Switch::start(&["--vnic", "vm1,mode=connect"]);
    drop(UnixListener::bind(switch.path("vm1.sock")).expect("bound"));
    blames(&switch, &["vm1 peer", "no program listens", "left over"]);
}

#[test]
fn a_vmm_that_has_not_made_its_socket_is_told() {
    let switch = Switch::start(&["--vnic", "vm1,mode=connect"]);
    blames(&switch, &["vm1 peer", "no program listens", "no such socket"]);
}

#[test]
fn a_socket_file_that_was_removed_is_told() {
    let switch = Switch::start(&["--vnic", "vm1,vlan=7,mac=02:00:00:00:00:01,queues=2"]);
    let settings = || switch.json(&["port", "show", "vm1"])["settings"].clone();
    let before = settings();
    for _ in 0..2 {
        std::fs::remove_file(switch.path("vm1.sock")).expect("removed");
        blames(&switch, &["vm1 socket", "is gone", "port add"]);
        assert_eq!(settings(), before, "the same vnic again");
    }
    let _guest = guest(&switch, "vm1", ONE);
    std::fs::remove_file(switch.path("vm1.sock")).expect("removed");
    warns(&switch, &["vm1 socket", "is gone", "its guest has to attach again"]);
    assert_eq!(settings(), before, "the same vnic again");
}

#[test]
fn somebody_who_says_nothing_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let _silent = UnixStream::connect(switch.path("vm1.sock")).expect("connected");
    blames(&switch, &["vm1 negotiation", "sent nothing", "vhost-user front end"]);
}

#[test]
fn somebody_who_speaks_another_protocol_is_told() {
    use std::io::Write;
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut other = UnixStream::connect(switch.path("vm1.sock")).expect("connected");
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    blames(&switch, &["vm1 peer", "protocol", "is a vhost-user front end connected?"]);
}

#[test]
fn a_second_guest_at_one_vnic_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let _first = guest(&switch, "vm1", ONE);
    let mut others = vec![UnixStream::connect(switch.path("vm1.sock")).expect("connected")];
    others.push(UnixStream::connect(switch.path("vm1.sock")).expect("connected"));
    let answer = diagnosed(&switch, &["vm1 peer", "second guest was refused", "port of its own"]);
    assert_eq!(answer.code, Some(0), "{}", answer.out);
}

#[test]
fn a_name_that_is_taken_and_a_socket_in_use_are_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let taken = switch.ask(&["vnic", "add", "vm1"]).refused();
    assert!(has_all(&first_lines(&taken), &["there is a port \"vm1\" already", "another name"]), "{taken}");
    let foreign = switch.base.path().join("foreign.sock");
    let _owner = UnixListener::bind(&foreign).expect("bound");
    let used = switch.ask(&["vnic", "add", &format!("vm2,socket={}", foreign.display())]).refused();
    assert!(has_all(&first_lines(&used), &["in use by another process", "another path"]), "{used}");
}

#[test]
fn a_mistyped_option_is_told_with_the_right_one() {
    let mistyped = lasthop(&["run", "--vnic", "vm1,mak=02:00:00:00:00:01"]).err;
    assert!(has_all(&first_lines(&mistyped), &["no option \"mak\"", "did you mean \"mac\""]), "{mistyped}");
}
