//! Checks a vnic's socket, and the process at the other end.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::finding::Verdict;
use crate::processes::{Process, Role};
use crate::remedy::quote;
use lasthop_api::port::VnicMode;
use lasthop_api::port::change::command_text;
use lasthop_api::readable::time;
use lasthop_api::report::HUNG_UP;
use lasthop_api::rundir::control_socket;

use super::Case;

/// A second guest that was refused this recently still tries.
const STILL_TRIES_MS: u64 = 10_000;

/// Checks the file of the socket.
pub(super) fn socket(case: &Case<'_>) -> Verdict {
    let socket = case.now.socket();
    let path = socket.display();
    if connects(case) {
        let listens = if case.now.connection.attached_ms.is_some() { "listens" } else { "has to listen" };
        return Verdict::ok(format!("{path}, where the VMM {listens}"));
    }
    match socket.symlink_metadata() {
        Ok(meta) if meta.file_type().is_socket() => Verdict::ok(format!("{path}, where the switch listens")),
        Ok(_) => Verdict::broken(
            format!("\"{path}\" is no socket: another file replaced it"),
            format!("remove it, then: {}", add_anew(case)),
        ),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Verdict::unknown(format!("{path}: {error}; look as the user who started the switch"))
        }
        Err(error) if case.now.connection.attached_ms.is_some() => Verdict::warning(
            format!(
                "the socket file \"{path}\" is gone ({error}): its guest stays attached, but the next one cannot attach"
            ),
            format!("its guest has to attach again then: {}", add_anew(case)),
        ),
        Err(error) => Verdict::broken(
            format!("the socket file \"{path}\" is gone ({error}): another program removed it"),
            add_anew(case),
        ),
    }
}

fn connects(case: &Case<'_>) -> bool {
    case.now.port.attachment().is_some_and(|attachment| attachment.mode == VnicMode::Connect)
}

/// The commands that make the same vnic again.
fn add_anew(case: &Case<'_>) -> String {
    let spec = &case.now.port.settings;
    format!("lasthop port del {} && lasthop port add {}", spec.name(), quote(&command_text(spec)))
}

/// Checks the connected process.
pub(super) fn peer(case: &Case<'_>) -> Verdict {
    let connection = &case.now.connection;
    if let Some(attached_ms) = connection.attached_ms {
        return connected(case, attached_ms);
    }
    if let Some(end) = connection.last_end.as_ref().filter(|end| end.why != HUNG_UP) {
        return Verdict::broken(
            format!("the connection was ended {} ago: {}", time(end.ago_ms), end.why),
            "remedy the cause, then start the guest again",
        );
    }
    if connects(case) { nobody_listens(case) } else { nobody_came(case) }
}

fn connected(case: &Case<'_>, attached_ms: u64) -> Verdict {
    let connection = &case.now.connection;
    let peer = case.peer().map(Process::title);
    let pid = connection.peer_pid.map(|pid| format!("process {pid}"));
    let who = peer.or(pid).unwrap_or_else(|| "a front end".to_owned());
    let text = format!("{who}, connected for {}", time(attached_ms));
    let Some(ago_ms) = connection.refused_ago_ms else { return Verdict::ok(text) };
    let second = format!(
        "{text}; a second guest was refused {} ago ({} in all): a vnic has one guest",
        time(ago_ms),
        connection.refused_guests
    );
    let remedy = "give each guest a port of its own: lasthop port add NAME,backend=vhost-user";
    if ago_ms < STILL_TRIES_MS { Verdict::warning(second, remedy) } else { Verdict::ok(second) }
}

/// The finding that the VMM has not made the socket.
fn nobody_listens(case: &Case<'_>) -> Verdict {
    let (name, socket) = (case.now.name(), case.now.socket());
    let path = socket.display();
    let other =
        elsewhere(case).map(|(process, other)| format!("; {} uses {}", process.title(), other.display()));
    let other = other.unwrap_or_default();
    match case.now.connection.waits_errno.map(std::io::Error::from_raw_os_error).map(|error| error.kind()) {
        Some(std::io::ErrorKind::ConnectionRefused) => Verdict::broken(
            format!(
                "no program listens at {path}: the socket file is left over from a VMM that has ended{other}"
            ),
            "start the VMM (QEMU: -chardev socket,path=...,server=on), or use mode=listen",
        ),
        Some(std::io::ErrorKind::PermissionDenied) => Verdict::broken(
            format!("the switch may not connect to {path}: permission denied"),
            "give the switch's user write permission to the socket and its directory",
        ),
        _ => {
            let text = format!(
                "no program listens at {path}: there is no such socket, the VMM is not running or uses another path{other}"
            );
            let remedy =
                format!("lasthop port show {name} --qemu prints the VMM's options; or use mode=listen");
            if other.is_empty() { Verdict::absent(text, remedy) } else { Verdict::broken(text, remedy) }
        }
    }
}

fn nobody_came(case: &Case<'_>) -> Verdict {
    let (name, path) = (case.now.name(), case.now.socket());
    let shown = path.display();
    let start = format!("lasthop port show {name} --qemu (or --libvirt) prints the VMM's options");
    if let Some((process, _)) = case.sockets.all.iter().find(|(_, named)| named == path) {
        return not_connected(case, process);
    }
    if let Some((process, other)) = elsewhere(case) {
        let text = format!(
            "no guest is connected to {shown}; {} uses the wrong socket path {}, which is no vnic's",
            process.title(),
            other.display()
        );
        return Verdict::broken(
            text,
            format!("give it {shown}, or make a vnic with socket={}", other.display()),
        );
    }
    let left = case.now.connection.last_end.as_ref();
    let left = left.map(|end| format!("; the last one left {} ago", time(end.ago_ms))).unwrap_or_default();
    Verdict::absent(format!("no guest is connected to {shown}{left}"), start)
}

/// The finding that a process names this socket, and is not connected.
fn not_connected(case: &Case<'_>, process: &Process) -> Verdict {
    let path = case.now.socket();
    if let Some(closed) = process.user.closed_at(path) {
        let remedy = if closed == path {
            let group = process.user.group().unwrap_or_else(|| "kvm".to_owned());
            format!("lasthop port set {} socket-group={group}", case.now.name())
        } else {
            format!(
                "give it access to {}: chgrp, chmod g+x; or give the vnic a socket=PATH elsewhere",
                closed.display()
            )
        };
        return Verdict::broken(
            format!(
                "{} has no permission to connect: {} is closed to its user (uid {})",
                process.title(),
                closed.display(),
                process.user.uid
            ),
            remedy,
        );
    }
    let text = format!("{} was started for this socket, but is not connected to it", process.title());
    if process.is_user_mode_linux() {
        return Verdict::broken(text, "User Mode Linux does not connect again: end it, and start it again");
    }
    match (process.role_at(path), process.confinement()) {
        (Role::Once, _) => Verdict::broken(
            text,
            "QEMU reconnects after a restart only with reconnect=1 at its -chardev (since 9.2: reconnect-ms=1000); start it again",
        ),
        (Role::Listens, _) => Verdict::broken(
            format!("{text}: both listen"),
            "leave server=on out at its -chardev, or make the vnic anew with mode=connect",
        ),
        (Role::Again, Some(label)) => Verdict::broken(
            format!("{text}; it is confined as {label}"),
            "see if SELinux (ausearch -m avc -ts recent) or AppArmor (journalctl -k | grep DENIED) refuses it; docs/user/ports.md, \"Who may attach\"",
        ),
        (Role::Again, None) => Verdict::broken(
            text,
            "it tries again by itself: see why it is refused in its log or standard error; docs/user/ports.md, \"Who may attach\"",
        ),
    }
}

/// A front end whose socket belongs to no vnic and is not served by another process: it was probably meant for this
/// vnic.
fn elsewhere<'a>(case: &Case<'a>) -> Option<(&'a Process, &'a PathBuf)> {
    let own = case.now.socket();
    // Excludes guests of another switch, running or not.
    let is_others = |path: &Path| path.parent().is_some_and(|dir| control_socket(dir).exists());
    let is_near = |path: &Path| {
        path.parent() == own.parent() || (path.file_name() == own.file_name() && !is_others(path))
    };
    let near = case.sockets.strays.iter().filter(|(_, path)| is_near(path));
    let nearest = near.min_by_key(|(_, path)| path.file_name() != own.file_name());
    nearest.map(|(process, path)| (*process, path))
}
