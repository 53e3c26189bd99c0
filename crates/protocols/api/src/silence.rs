//! A switch that does not answer: how long clients wait, and the message that names the process and the remedy.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::procfs;

use crate::SWITCH_ROLE;
use crate::rundir::owner;

/// Longest wait for an answer: longer than the supervisor's wait for the switch process, which has the better message. That of clients of the
/// datapath socket is as long (`dpif`).
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a socket. A switch that accepts no connections lets them wait in a queue; when that is full, connect blocks, too.
pub fn connect_within(patience: Duration, path: &Path) -> std::io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// Whether an error means that time is over.
pub fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Whether the datapath socket at `path` gives no answer since a process of its switch is stopped: it is vain to wait.
pub fn is_vain(path: &Path) -> bool {
    path.parent().is_some_and(|dir| stopped(dir).is_some())
}

/// The stopped process of the switch in `dir`: its name and number. Only the supervisor accepts connections, and only the switch process
/// answers clients of the datapath socket.
fn stopped(dir: &Path) -> Option<(&'static str, u32)> {
    let supervisor = owner(dir)?;
    if procfs::is_stopped(supervisor) {
        return Some(("switch", supervisor));
    }
    let is_it = |pid: &u32| procfs::is_stopped(pid) && procfs::words(pid).any(|word| word == SWITCH_ROLE);
    procfs::children(supervisor).find(is_it).map(|pid| ("switch process", pid))
}

/// The fault of the switch in `dir`, which did not answer within `patience`, or is stopped.
pub fn no_answer(dir: &Path, patience: Duration) -> Fault {
    let seconds = patience.as_secs();
    let message = match (stopped(dir), owner(dir)) {
        (Some((name, pid)), _) => {
            format!(
                "the {name} (process {pid}) does not answer: {}{}",
                procfs::state_text(pid),
                procfs::remedy(pid)
            )
        }
        (None, Some(pid)) => {
            let state = procfs::state_text(pid);
            format!("the switch (process {pid}) did not answer within {seconds} s: {state}; see its log")
        }
        (None, None) => {
            format!("the switch in {} did not answer within {seconds} s; see its log", dir.display())
        }
    };
    Fault::new(Kind::SwitchDown, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_stopped_owner_is_named_with_the_remedy_and_a_running_one_with_its_state() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("datapath.sock");
        let nameless = no_answer(dir.path(), PATIENCE).message;
        assert!(nameless.ends_with("did not answer within 10 s; see its log"), "{nameless}");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat runs");
        let pid = child.id();
        std::fs::write(dir.path().join("lock"), format!("{pid}\n")).expect("written");
        let running = no_answer(dir.path(), PATIENCE).message;
        assert!(
            running.starts_with(&format!("the switch (process {pid}) did not answer within 10 s: it ")),
            "{running}"
        );
        assert!(!is_vain(&path));
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(number, Signal::STOP).expect("signalled");
        while !procfs::is_stopped(pid) {
            std::thread::yield_now();
        }
        let told = no_answer(dir.path(), PATIENCE).message;
        let wanted = "does not answer: it is stopped (T); continue it: kill -CONT";
        assert_eq!(told, format!("the switch (process {pid}) {wanted} {pid}"));
        assert!(is_vain(&path));
        kill_process(number, Signal::CONT).expect("signalled");
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    #[test]
    fn a_full_queue_of_connections_makes_nobody_wait_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        let _listener = UnixListener::bind(&path).expect("bound");
        let short = Duration::from_millis(10);
        let mut waiting = Vec::new();
        let error = loop {
            match connect_within(short, &path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert!(is_late(&error) && !waiting.is_empty(), "{error}");
    }
}
