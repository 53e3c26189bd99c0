//! A run directory on a file system without a byte left.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::service::{MANAGER, Service};
use lasthop_rig::guests::{ONE, TWO, frame, receive, send};
use lasthop_rig::{Switch, eventually, lasthop, namespaces};

use lasthop_frontend::{Guest, GuestOptions};

/// Mounts a small file system at `$1` with the options `$2`, in a separate mount namespace, and executes the remaining
/// words.
const WITH_DISK: &str = "mount -t tmpfs -o \"$2,mode=755\" lasthop-test \"$1\" && shift 2 && exec \"$@\"";

fn disk_with(run: &Path, options: &str) -> Command {
    std::fs::create_dir(run).expect("a directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", WITH_DISK, "sh"]).arg(run).arg(options);
    command
}

/// Fills the file system that a process has at `run`.
fn fill(pid: u32, run: &Path) -> PathBuf {
    let inside = PathBuf::from(format!("/proc/{pid}/root{}", run.display()));
    let error = std::fs::write(inside.join("filler"), vec![0; 1 << 20]).expect_err("it is small");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    inside
}

#[test]
fn a_disk_that_is_full_by_now_keeps_no_supervisor_from_going_on() {
    if !namespaces::may() {
        return;
    }
    let base = tempfile::tempdir().expect("a directory");
    let (run, socket) = (base.path().join("run"), |name: &str| base.path().join(name));
    let mut command = disk_with(&run, "size=64k");
    command.arg(MANAGER).arg(socket("notify")).arg(socket("state")).arg(env!("CARGO_BIN_EXE_lasthop"));
    command.env("FDSTORE", "512");
    let paths = [socket("one.sock"), socket("two.sock")];
    let vnics = [format!("one,socket={}", paths[0].display()), format!("two,socket={}", paths[1].display())];
    let service =
        Service { switch: Switch::spawn_by(command, base, &["--vnic", &vnics[0], "--vnic", &vnics[1]]) };
    service.started(1);
    let attach = |path: &Path, mac| Guest::connect(path, GuestOptions { mac, ..GuestOptions::default() });
    let mut one = attach(&paths[0], ONE).expect("attached");
    let mut two = attach(&paths[1], TWO).expect("attached");
    fill(service.pid(), &run);
    for (number, end) in (1..).zip([Service::kill, Service::restart, Service::kill]) {
        service.settle();
        end(&service);
        let inside = format!("/proc/{}/root{}", service.pid(), run.display());
        eventually("the guest", || {
            let shown = lasthop(&["--dir", &inside, "vnic", "show", "two"]);
            shown.out.contains("running").then_some(())
        });
        send(&mut one, &frame(TWO, ONE, number, 60));
        assert_eq!(receive(&mut two), frame(TWO, ONE, number, 60));
    }
    service.nobody_was_let_go();
}

/// A start on a file system with `options`, which `fill` has filled; returns its only log line.
fn start_on(options: &str, fill: &str) -> String {
    let base = tempfile::tempdir().expect("a directory");
    let run = base.path().join("run");
    let mut command = disk_with(&run, options);
    command.args(["sh", "-c", &format!("{fill}; shift; exec \"$@\""), "sh"]);
    command.arg(&run).arg(env!("CARGO_BIN_EXE_lasthop"));
    let mut switch = Switch::spawn_by(command, base, &["--vnic", "one"]);
    assert_eq!(switch.wait().code(), Some(1));
    let log = switch.log();
    assert!(log.lines().count() == 1 && log.contains("No space left on device"), "{log}");
    log
}

#[test]
fn a_start_on_a_full_disk_is_one_clear_error_with_the_remedy() {
    if !namespaces::may() {
        return;
    }
    let bytes = start_on("size=64k", "head -c 1M /dev/zero >\"$1/filler\" 2>/dev/null");
    // The root takes an inode, too, so there is none for the lock or for a socket.
    let lock = start_on("nr_inodes=2", "touch \"$1/filler\"");
    let socket = start_on("nr_inodes=3", "touch \"$1/filler\"");
    for (said, words) in [(bytes, "cannot lock"), (lock, "cannot lock"), (socket, "cannot listen at")] {
        assert!(
            said.contains(words) && said.contains("free some room there (df, df -i), or use another"),
            "{said}"
        );
    }
}
