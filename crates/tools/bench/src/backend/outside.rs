//! Sockets of back ends that were started by others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lasthop_frontend::{BurstGuest, GuestError, GuestListener, GuestOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::{Backend, BackendSpec, Running, Setup, SocketRole, door};
use crate::BenchError;
use crate::process::ProcessTree;

/// How long a back end may take to connect.
const CONNECTS_WITHIN: Duration = Duration::from_secs(60);

pub(super) fn find(
    spec: &BackendSpec,
    sockets: &[PathBuf],
    role: SocketRole,
    pid: Option<u32>,
    setup: &Setup,
) -> Result<Backend, BenchError> {
    if sockets.len() < usize::from(setup.ports) {
        return Err(BenchError::Request(format!(
            "{} sockets are given, the workload has {} guests",
            sockets.len(),
            setup.ports
        )));
    }
    let doors = sockets[..usize::from(setup.ports)].iter().map(|path| door(path, role));
    let tree = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).map(ProcessTree);
    let settings = vec![format!("{spec}: runs outside, is never stopped")];
    Ok(Backend { name: spec.to_string(), settings, kind: Running::Outside(tree), doors: doors.collect() })
}

pub(super) fn listen(path: &Path) -> Result<GuestListener, BenchError> {
    GuestListener::bind(path).map_err(|error| match error {
        GuestError::System(error) => BenchError::Socket(path.to_owned(), error),
        other => BenchError::Request(other.to_string()),
    })
}

/// Accepts the back end's connection and starts a guest on it.
pub(super) fn accept(listener: &GuestListener, options: GuestOptions) -> Result<BurstGuest, GuestError> {
    let mut fds = [PollFd::new(listener.socket(), PollFlags::IN)];
    let timeout = Timespec::try_from(CONNECTS_WITHIN).ok();
    if poll(&mut fds, timeout.as_ref())? == 0 {
        let text = format!("the back end did not connect within {} s", CONNECTS_WITHIN.as_secs());
        return Err(GuestError::System(std::io::Error::other(text)));
    }
    let (stream, _) = listener.socket().accept()?;
    BurstGuest::over(stream, options)
}
