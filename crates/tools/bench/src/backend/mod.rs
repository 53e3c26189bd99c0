//! The measured back ends: started for a measurement, or found running.

mod outside;
mod process;
mod spec;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lasthop_frontend::{BurstGuest, GuestError, GuestListener, GuestOptions};
use rustix::process::Signal;

use crate::process::{ProcessTree, Usage};
use crate::resident::{Resident, ResidentKind};
use crate::work::Tally;
use crate::{BenchError, Cores, MemoryUse};

pub use spec::BackendSpec;

/// The requirements of a run for its back ends.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) ports: u16,
    /// The longest frame.
    pub(crate) frame_bytes: u32,
    /// MAC addresses behind each port.
    pub(crate) macs: u32,
    pub(crate) cores: Cores,
    /// Whether back ends may use huge pages.
    pub(crate) huge_pages: bool,
    /// The program `lasthop`.
    pub(crate) program: PathBuf,
    /// Set to end the run early.
    pub(crate) stop: Arc<AtomicBool>,
    /// The directory for sockets and logs; each back end gets an empty one in it.
    pub(crate) dir: PathBuf,
}

/// Which side listens at the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketRole {
    /// The back end listens; guests connect.
    Listen,
    /// The guests listen; the back end connects.
    Connect,
}

/// A running or frozen back end.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) name: String,
    /// How it is configured, as it states it.
    pub(crate) settings: Vec<String>,
    kind: Running,
    doors: Vec<AttachMode>,
}

#[derive(Debug)]
enum Running {
    Process(process::Started),
    Resident(Resident),
    /// Runs independently of the bench; its CPU time is known if its process is given.
    Outside(Option<ProcessTree>),
}

/// How a guest attaches to a port.
#[derive(Debug)]
enum AttachMode {
    /// The guest connects to this socket of the back end.
    Connect(PathBuf),
    /// The guest listens at this socket, and the back end connects.
    Wait(PathBuf),
    /// The back end is in this process.
    Inside,
}

/// The guest's side of a port, ready to attach; if the back end is to connect, the socket already listens.
#[derive(Debug)]
enum GuestSocket<'a> {
    Connect(&'a Path),
    Accept(GuestListener),
    Inside,
}

impl Backend {
    /// Starts a back end, and freezes it.
    pub(crate) fn start(spec: &BackendSpec, setup: &Setup) -> Result<Self, BenchError> {
        match spec {
            BackendSpec::Null => Self::resident(spec, ResidentKind::Null, setup),
            BackendSpec::Limit => Self::resident(spec, ResidentKind::Limit, setup),
            BackendSpec::SleepingLimit => Self::resident(spec, ResidentKind::SleepingLimit, setup),
            BackendSpec::Outside { sockets, role, pid } => outside::find(spec, sockets, *role, *pid, setup),
            BackendSpec::Lasthop { .. } | BackendSpec::Command { .. } => {
                let (started, role) = process::start(spec, setup)?;
                let doors =
                    (0..setup.ports).map(|port| door(&process::socket(&setup.dir, port), role)).collect();
                let settings = started.settings();
                Ok(Self { name: spec.to_string(), settings, kind: Running::Process(started), doors })
            }
        }
    }

    fn resident(spec: &BackendSpec, kind: ResidentKind, setup: &Setup) -> Result<Self, BenchError> {
        let resident = Resident::start(kind, Some(setup.cores.switch))?;
        let doors = (0..setup.ports).map(|_| AttachMode::Inside).collect();
        let way = if kind == ResidentKind::SleepingLimit { "sleeping when idle" } else { "polling" };
        let settings = vec![format!("{spec}: a thread of the bench, {way}")];
        Ok(Self { name: spec.to_string(), settings, kind: Running::Resident(resident), doors })
    }

    /// Connects a guest to each port, in order.
    pub(crate) fn guests(&self, options: &GuestOptions) -> Result<Vec<BurstGuest>, BenchError> {
        // All sockets listen before the first wait: a back end retries each of them only at intervals.
        let sockets = self.doors.iter().map(|door| match door {
            AttachMode::Connect(path) => Ok(GuestSocket::Connect(path)),
            AttachMode::Wait(path) => outside::listen(path).map(GuestSocket::Accept),
            AttachMode::Inside => Ok(GuestSocket::Inside),
        });
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        (0..).zip(sockets).map(|(port, socket)| self.enter(port, &socket, options.clone())).collect()
    }

    /// The sockets at which guests of other programs attach, and the side that listens.
    pub(crate) fn sockets(&self) -> Result<Vec<(PathBuf, SocketRole)>, BenchError> {
        let socket = |door: &AttachMode| match door {
            AttachMode::Connect(path) => Ok((path.clone(), SocketRole::Listen)),
            AttachMode::Wait(path) => Ok((path.clone(), SocketRole::Connect)),
            AttachMode::Inside => {
                let why = "is a part of the bench and trusts its guests, so others cannot attach".to_owned();
                Err(BenchError::Missing { name: self.name.clone(), why })
            }
        };
        self.doors.iter().map(socket).collect()
    }

    fn enter(
        &self,
        port: u16,
        socket: &GuestSocket<'_>,
        options: GuestOptions,
    ) -> Result<BurstGuest, BenchError> {
        let guest = |error: GuestError| BenchError::Guest { backend: self.name.clone(), error };
        match socket {
            GuestSocket::Connect(path) => {
                let stream = UnixStream::connect(path)
                    .map_err(|error| BenchError::Socket(path.to_path_buf(), error))?;
                BurstGuest::over(stream, options).map_err(guest)
            }
            GuestSocket::Accept(listener) => outside::accept(listener, options).map_err(guest),
            GuestSocket::Inside => {
                let Running::Resident(resident) = &self.kind else { return Err(guest(GuestError::HungUp)) };
                let (ours, theirs) = UnixStream::pair()?;
                resident.attach(port, theirs)?;
                BurstGuest::over(ours, options).map_err(|error| match resident.fault(port) {
                    Some(why) => BenchError::Backend { name: self.name.clone(), why },
                    None => guest(error),
                })
            }
        }
    }

    /// Lets the back end run.
    pub(crate) fn thaw(&self) {
        match &self.kind {
            Running::Process(started) => started.tree().signal(Signal::CONT),
            Running::Resident(resident) => resident.set_running(true),
            Running::Outside(_) => {}
        }
    }

    /// Stops the back end, so that it takes no CPU time from others. One that was found running continues.
    pub(crate) fn freeze(&self) {
        match &self.kind {
            Running::Process(started) => started.tree().signal(Signal::STOP),
            Running::Resident(resident) => resident.set_running(false),
            Running::Outside(_) => {}
        }
    }

    fn tree(&self) -> Option<ProcessTree> {
        match &self.kind {
            Running::Process(started) => Some(started.tree()),
            Running::Resident(_) => None,
            Running::Outside(tree) => *tree,
        }
    }

    /// The back end's CPU time so far; `None` inside this process and for an unknown process.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.tree().map(ProcessTree::usage)
    }

    pub(crate) fn memory(&self) -> Option<MemoryUse> {
        self.tree().map(ProcessTree::memory)
    }

    /// The frames that the back end received from its guests and delivered to them; `None` if it does not count them.
    pub(crate) fn counted(&self) -> Result<Option<Tally>, BenchError> {
        match &self.kind {
            Running::Process(started) => started.counted(),
            Running::Resident(_) | Running::Outside(_) => Ok(None),
        }
    }

    /// Ends the back end; for a Lasthop, first checks that every packet is accounted for.
    pub(crate) fn end(self) -> Result<(), BenchError> {
        self.thaw();
        match &self.kind {
            Running::Process(started) => started.check_accounts(&self.name),
            Running::Resident(_) | Running::Outside(_) => Ok(()),
        }
    }
}

fn door(path: &Path, role: SocketRole) -> AttachMode {
    match role {
        SocketRole::Listen => AttachMode::Connect(path.to_owned()),
        SocketRole::Connect => AttachMode::Wait(path.to_owned()),
    }
}
