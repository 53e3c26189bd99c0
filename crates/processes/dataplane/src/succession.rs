//! Takes over the sessions of a switch process that died, and gives up this process's own to a successor.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_engine::PortDevice;
use lasthop_foreign::ForeignFd;
use lasthop_vhost::{Device, PreviousSession, SavedSession, SessionMemory, Successor};
use log::info;
use serde_json::Value;

use lasthop_api::orders::{Answer, STATE_VERSION};
use lasthop_runtime::fault::{Fault, Kind};

use super::captures::Captures;
use super::sessions::{self, Arrival};
use super::{Stage, Switch, no_descriptor};

/// How long packets that can neither be postponed nor fetched again may take to finish when the switch comes to rest.
/// Later those that wait for a slow receiver are lost, and counted.
const REST_PATIENCE: Duration = Duration::from_millis(10);

/// How long sessions in the middle of a message may take to come to rest. A session that takes longer is not taken
/// over, as after a death of this process: its guest has to reconnect. Packets pass meanwhile. A front end that is
/// merely slow, as on a machine without idle CPUs, should not lose its session.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a session's turn that has begun before may take to end. Packets pass meanwhile.
const TURN_PATIENCE: Duration = Duration::from_millis(500);
/// Pause between two checks.
const QUIESCE_PAUSE: Duration = Duration::from_millis(2);

/// The switch is to rest, and waits for sessions in the middle of a message. It serves everything else meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiescing {
    /// The number of the order.
    id: u64,
    until: Instant,
}

impl Quiescing {
    pub(super) fn due() -> Instant {
        Instant::now() + QUIESCE_PAUSE
    }
}

impl Switch {
    /// Begins to rest, so that another process can continue: at once, or when sessions are at rest.
    pub(super) fn begin_to_rest(&mut self, id: u64) {
        if self.stage == Stage::Resting {
            // Another process may be running already: no session is served any more, not even in the middle of a
            // message.
            let result = self.come_to_rest();
            return self.reports.reply_last(id, result.map(|()| Answer::Done));
        }
        self.sessions.set_stage(sessions::Stage::Quiescing);
        self.quiescing = Some(Quiescing { id, until: Instant::now() + QUIESCE_TIMEOUT });
        self.rest_if_quiet();
    }

    /// Comes to rest if it is to and sessions are at rest, or their time is over.
    pub(super) fn rest_if_quiet(&mut self) {
        let is_over = |quiescing: &mut Quiescing| {
            let now = Instant::now();
            self.sessions.restless(now).next().is_none() || now >= quiescing.until
        };
        if let Some(Quiescing { id, .. }) = self.quiescing.take_if(is_over) {
            let result = self.come_to_rest();
            self.reports.reply_last(id, result.map(|()| Answer::Done));
        }
    }

    fn come_to_rest(&mut self) -> Result<(), Fault> {
        self.sessions.set_stage(sessions::Stage::AtRest);
        for port in self.sessions.restless(Instant::now() + TURN_PATIENCE) {
            info!(limited = true, port:% = port; "port {port}: its front end stays in the middle of a message, so its session cannot be taken over: its guest will have to connect again");
        }
        self.refuse_moves();
        self.stage = Stage::Resting;
        self.datapath.quiesce()?;
        self.datapath.rest(REST_PATIENCE)
    }

    /// Ends without a supervisor. Packets in flight are finished, and connections are left open: another process may
    /// continue with copies of them; without copies they end with this process.
    pub(super) fn leave(&mut self) -> ! {
        let turns = Arc::clone(&self.turns);
        let _turn = turns.begin("coming to rest");
        self.captures = Captures::default();
        // A resting process was told to rest, and another process may be running.
        if self.stage != Stage::Resting {
            self.sessions.set_stage(sessions::Stage::Quiescing);
            let until = Instant::now() + QUIESCE_TIMEOUT;
            while self.sessions.restless(Instant::now()).next().is_some() && Instant::now() < until {
                std::thread::sleep(QUIESCE_PAUSE);
            }
            let _ = self.come_to_rest();
        }
        // Sessions are not dropped, since that would hang up.
        std::process::exit(0)
    }

    /// Starts, or continues after a rest.
    pub(super) fn wake(&mut self) -> Result<(), Fault> {
        self.stage = Stage::Serving;
        self.quiescing = None;
        self.pending_successors.clear();
        let woken = self.datapath.wake();
        self.sessions.set_stage(sessions::Stage::Serving);
        woken?;
        self.begin_work();
        Ok(())
    }

    /// Takes descriptors of a session that will be taken over; it needs all of them.
    pub(super) fn bring(&mut self, attachment: u64, numbers: Vec<u32>, fds: Option<Vec<ForeignFd>>) {
        let numbered = numbers.into_iter().zip(fds.unwrap_or_default());
        self.brought.entry(attachment).or_default().extend(numbered);
    }

    /// Continues a session at once.
    pub(super) fn take_over(
        &mut self,
        name: String,
        attachment: u64,
        session: Value,
        fds: Option<Vec<ForeignFd>>,
    ) -> Result<(), Fault> {
        self.prepare(name, attachment, session, fds)?;
        self.go_on(attachment)
    }

    /// Prepares to continue a session.
    pub(super) fn prepare(
        &mut self,
        name: String,
        attachment: u64,
        session: Value,
        fds: Option<Vec<ForeignFd>>,
    ) -> Result<(), Fault> {
        // A port has room for one guest.
        self.pending_successors.retain(|_, pending| pending.port != name);
        let pending = self.pending(&name, attachment, session, fds)?;
        self.pending_successors.insert(attachment, pending);
        Ok(())
    }

    fn pending(
        &mut self,
        name: &str,
        attachment: u64,
        session: Value,
        fds: Option<Vec<ForeignFd>>,
    ) -> Result<PendingSuccessor, Fault> {
        let mut fds = fds.unwrap_or_default().into_iter();
        let (Some(socket), Some(memory)) = (fds.next(), fds.next()) else { return Err(no_descriptor()) };
        let origin = self.sessions.arrears(name).begin();
        let (socket, fds) = (socket.of(&origin), self.brought.remove(&attachment).unwrap_or_default());
        let fds = fds.into_iter().map(|(number, fd)| (number, fd.of(&origin))).collect();
        let device = self.datapath.device(name)?;
        let is_link_up = device.is_link_up();
        let kept = SessionMemory::map(memory.as_fd(), device.offer().rings()).map_err(internal)?;
        let awaited = if session.is_null() {
            Awaited::First { socket, memory, kept, device }
        } else {
            let previous = PreviousSession { memory: kept, session: known(session)?, fds };
            match Successor::prepare(socket, device, previous) {
                Ok(successor) => Awaited::Next(Box::new(successor)),
                Err(error) if error.is_of_the_front_end() => Awaited::Nothing(internal(error)),
                Err(error) => return Err(internal(error)),
            }
        };
        Ok(PendingSuccessor { port: name.to_owned(), is_link_up, awaited })
    }

    /// Faults the memory of prepared sessions' rings in.
    pub(super) fn touch(&self, patience: Duration) {
        let until = Instant::now() + patience;
        for pending in self.pending_successors.values() {
            if let Awaited::Next(successor) = &pending.awaited {
                successor.touch(|| Instant::now() >= until);
            }
        }
    }

    /// Continues prepared sessions; returns those that cannot continue.
    pub(super) fn go_on_with(&mut self, attachments: &[u64]) -> Vec<(u64, Fault)> {
        let results = attachments.iter().map(|attachment| (*attachment, self.go_on(*attachment)));
        results.filter_map(|(attachment, result)| Some((attachment, result.err()?))).collect()
    }

    /// Continues a prepared session.
    fn go_on(&mut self, attachment: u64) -> Result<(), Fault> {
        let pending = self
            .pending_successors
            .remove(&attachment)
            .ok_or_else(|| internal("its session is not prepared"))?;
        let PendingSuccessor { port: name, is_link_up, awaited } = pending;
        match awaited {
            Awaited::First { socket, memory, kept, device } => {
                kept.check(0).map_err(internal)?;
                let arrival = Arrival { name, attachment, socket, memory: Some(memory) };
                self.sessions.begin(arrival, device)
            }
            Awaited::Nothing(why) => Err(why),
            Awaited::Next(successor) => {
                let session = successor.take_over().map_err(internal)?;
                self.sessions.enter(name, attachment, session, is_link_up)
            }
        }
    }
}

fn internal(error: impl std::fmt::Display) -> Fault {
    Fault::new(Kind::Internal, error.to_string())
}

/// The saved session, if a process of this version saved it.
fn known(mut told: Value) -> Result<SavedSession, Fault> {
    let version = told.get("version").and_then(Value::as_u64);
    if version != Some(STATE_VERSION) {
        let why = format!("its state has version {}, not {STATE_VERSION}", version.unwrap_or_default());
        return Err(Fault::new(Kind::Internal, why));
    }
    let session = told.get_mut("session").map(Value::take).unwrap_or_default();
    serde_json::from_value(session).map_err(|error| Fault::internal("parse the session's saved state", error))
}

/// Descriptors of sessions that will be taken over.
pub(super) type SessionFds = BTreeMap<u64, BTreeMap<u32, ForeignFd>>;

/// A prepared session for a guest that another process still serves.
pub(super) struct PendingSuccessor {
    port: String,
    is_link_up: bool,
    awaited: Awaited,
}

/// The state of a prepared session.
enum Awaited {
    /// Its front end has sent nothing yet.
    First {
        socket: ForeignFd,
        memory: ForeignFd,
        kept: SessionMemory,
        device: PortDevice,
    },
    Next(Box<Successor<PortDevice>>),
    /// Its front end prevents any process from continuing it, but not the other sessions.
    Nothing(Fault),
}

/// By attachment.
pub(super) type PendingSuccessors = BTreeMap<u64, PendingSuccessor>;
