//! A connection to the control socket of a running switch.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use lasthop_api::rpc;
use lasthop_api::rundir::{control_socket, option, owner};
use lasthop_api::silence::{PATIENCE, connect_within, is_late, no_answer};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::procfs;

/// Longest wait for an answer of a stopped switch.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Sends a request to the switch in `dir`.
pub(super) fn ask<T: DeserializeOwned>(
    dir: &Path,
    method: &str,
    params: &impl Serialize,
) -> Result<T, Fault> {
    ask_within(PATIENCE, dir, method, params)
}

/// Like [`ask`], with another limit for the wait.
pub(super) fn ask_within<T: DeserializeOwned>(
    patience: Duration,
    dir: &Path,
    method: &str,
    params: &impl Serialize,
) -> Result<T, Fault> {
    begin_within(patience, dir, method, params).map(|(_, answer)| answer)
}

/// Like [`ask`], for an answer that is followed by other data.
pub(super) fn begin<T: DeserializeOwned>(
    dir: &Path,
    method: &str,
    params: &impl Serialize,
) -> Result<(BufReader<UnixStream>, T), Fault> {
    begin_within(PATIENCE, dir, method, params)
}

fn begin_within<T: DeserializeOwned>(
    patience: Duration,
    dir: &Path,
    method: &str,
    params: &impl Serialize,
) -> Result<(BufReader<UnixStream>, T), Fault> {
    let mut stream = BufReader::new(connect(dir)?);
    let line = exchange(dir, &mut stream, &rpc::write_call(method, params), patience)
        .map_err(|error| unanswered(dir, method, &error, patience))?;
    if line.is_empty() {
        return Err(Fault::new(
            Kind::SwitchDown,
            "the switch closed the connection without an answer; see its log",
        ));
    }
    let answer = rpc::read_answer(&line)?;
    let patient = stream.get_ref().set_read_timeout(None);
    patient.map_err(|error| Fault::internal("wait for the switch", error))?;
    Ok((stream, answer))
}

fn connect(dir: &Path) -> Result<UnixStream, Fault> {
    let path = control_socket(dir);
    connect_within(PATIENCE, &path).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => no_answer(dir, PATIENCE),
        _ => unreachable(dir, &path, &error),
    })
}

/// Why `path`, a socket of the switch in `dir`, gives no answer.
pub(super) fn unreachable(dir: &Path, path: &Path, error: &std::io::Error) -> Fault {
    let removed = (error.kind() == ErrorKind::NotFound).then(|| running(dir)).flatten();
    let (shown, option, dir) = (path.display(), option(dir), dir.display());
    if let Some(pid) = removed {
        return Fault::socket(format!(
            "the switch in {dir} (process {pid}) cannot be asked: its socket {shown} was removed; lasthop doctor{option} has the remedy"
        ));
    }
    let message = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => format!(
            "no switch is running in {dir}: no program listens at {shown}; start one with: lasthop run{option}; lasthop doctor{option} looks for others"
        ),
        ErrorKind::PermissionDenied => {
            format!(
                "permission denied at {shown}; do this as the user who started the switch, or in the socket's group if it has one (control-group)"
            )
        }
        _ => format!("cannot connect to {shown}: {error}"),
    };
    Fault::socket(message)
}

/// Whether no switch runs in `dir`, rather than one that cannot be asked.
pub(super) fn has_none(dir: &Path) -> bool {
    let refused = connect_within(PATIENCE, &control_socket(dir)).err().map(|error| error.kind());
    matches!(refused, Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused)) && running(dir).is_none()
}

/// The supervisor that holds a run directory. A killed one leaves its id behind, which another program may have now.
fn running(dir: &Path) -> Option<u32> {
    owner(dir).filter(|pid| procfs::text(pid, "comm").is_some_and(|name| name.trim_end() == "lasthop"))
}

fn exchange(
    dir: &Path,
    stream: &mut BufReader<UnixStream>,
    request: &str,
    patience: Duration,
) -> std::io::Result<String> {
    stream.get_ref().set_read_timeout(Some(LOOK_PAUSE.min(patience)))?;
    stream.get_ref().set_write_timeout(Some(patience))?;
    let written = stream.get_mut().write_all(request.as_bytes());
    let mut line = String::new();
    let mut read = stream.read_line(&mut line);
    if read.as_ref().is_err_and(is_late)
        && patience > LOOK_PAUSE
        && !owner(dir).is_some_and(procfs::is_stopped)
    {
        stream.get_ref().set_read_timeout(Some(patience - LOOK_PAUSE))?;
        read = stream.read_line(&mut line);
    }
    // A switch that refuses a client says so before it reads anything, and hangs up.
    match read {
        Ok(_) if !line.is_empty() => Ok(line),
        read => written.and(read).map(|_| line),
    }
}

/// Why a request that was sent has no answer. The switch executes it once it goes on, though the client has gone.
fn unanswered(dir: &Path, method: &str, error: &std::io::Error, patience: Duration) -> Fault {
    if !is_late(error) {
        return Fault::new(
            Kind::SwitchDown,
            format!("the switch in {} gave no answer: {error}", dir.display()),
        );
    }
    let mut fault = no_answer(dir, patience);
    let is_stopped = owner(dir).is_some_and(procfs::is_stopped);
    fault.message += match (is_question(method), is_stopped) {
        (true, _) => "",
        // It refuses requests beyond its places for clients.
        (false, true) => "; the change may be made then",
        (false, false) => "; the change may still be made",
    };
    fault
}

/// Whether a request changes nothing.
fn is_question(method: &str) -> bool {
    let verb = method.rsplit('.').next().unwrap_or_default();
    ["list", "show", "stats", "trace", "table", "version", "doctor", "explain", "capture", "profile"]
        .contains(&verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_no_question() {
        assert!(["stats", "port.list", "vnic.show", "sched.table"].into_iter().all(is_question));
        assert!(!["port.add", "sched.set", "upgrade", "fdb.flush"].into_iter().any(is_question));
    }
}
