//! Sessions of a switch process that died, and what the next one has to know should this one die.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use lasthop_vhost::{Device, Kept, KeptSession, Legacy, News, Session, TakeOverError};
use serde_json::Value;

use crate::fault::{Fault, Kind};
use crate::ipc::FRAME_FDS_MAX;
use crate::orders::{Report, STATE_VERSION};

use super::captures::Captures;
use super::sessions::Arrival;
use super::{Stage, Switch, no_descriptor};

/// How long packets that can neither be postponed nor taken once more may take to come to their end when the switch is to rest; what
/// waits for a slow receiver then is lost, and counted.
const REST_PATIENCE: Duration = Duration::from_millis(10);

impl Switch {
    /// Tells the supervisor what changed in a session.
    pub(super) fn tell(&mut self, attachment: u64) {
        let Some(News { session, fds }) = self.sessions.news(attachment) else { return };
        let all: Vec<u32> = session.fds().collect();
        let mut fds = fds.into_iter().peekable();
        while fds.peek().is_some() {
            let (numbers, fds): (Vec<u32>, Vec<OwnedFd>) = fds.by_ref().take(FRAME_FDS_MAX).unzip();
            let _ = self.channel.send(&Report::Keep { attachment, numbers }, fds);
        }
        let session = serde_json::json!({"version": STATE_VERSION, "session": session});
        self.report(&Report::Kept { attachment, session, numbers: all });
    }

    /// Sessions whose news have left can be gone on with from now on.
    pub(super) fn rest(&mut self) {
        if !self.channel.wants_write() {
            self.sessions.rest();
        }
    }

    /// Comes to rest, so that another process can go on where this one stands.
    pub(super) fn come_to_rest(&mut self) -> Result<(), Fault> {
        self.rest();
        if let Some(port) = self.sessions.restless() {
            let why =
                format!("vnic {port}: its front end is in the middle of a message; try again in a moment");
            return Err(Fault::refused(why));
        }
        self.stage = Stage::Resting;
        self.datapath.rest(REST_PATIENCE)
    }

    /// The supervisor is gone. What is under way is finished, and connections are left as they are: whoever was given copies may
    /// have another process go on with them, and without copies they end with this one.
    pub(super) fn leave(&mut self) -> ! {
        self.captures = Captures::default();
        // Who rests already has been told to, and another process may be at work.
        if self.stage != Stage::Resting {
            let _ = self.come_to_rest();
        }
        // Nothing is dropped: a session that is dropped hangs up.
        std::process::exit(0)
    }

    /// Goes on, or begins.
    pub(super) fn wake(&mut self) -> Result<(), Fault> {
        self.stage = Stage::Serving;
        self.datapath.wake()?;
        self.begin_work();
        Ok(())
    }

    /// Descriptors of a session that will be taken over arrived; without all of them it will not be.
    pub(super) fn bring(&mut self, attachment: u64, numbers: Vec<u32>, fds: Option<Vec<OwnedFd>>) {
        let numbered = numbers.into_iter().zip(fds.unwrap_or_default());
        self.brought.entry(attachment).or_default().extend(numbered);
    }

    /// Goes on with a session.
    pub(super) fn take_over(
        &mut self,
        name: String,
        attachment: u64,
        session: Value,
        fds: Option<Vec<OwnedFd>>,
    ) -> Result<(), Fault> {
        let mut fds = fds.unwrap_or_default().into_iter();
        let (Some(socket), memory) = (fds.next(), fds.next()) else { return Err(no_descriptor()) };
        let fds = self.brought.remove(&attachment).unwrap_or_default();
        let device = self.datapath.device(&name)?;
        let is_link_up = device.is_link_up();
        let memory = memory.ok_or_else(no_descriptor)?;
        let failed = |error: TakeOverError| Fault::new(Kind::Internal, error.to_string());
        let kept = Kept::map(memory.as_fd(), device.offer().rings())
            .map_err(|error| Fault::new(Kind::Internal, error.to_string()))?;
        if session.is_null() {
            if !kept.is_resting() {
                return Err(failed(TakeOverError::AmidMessage));
            }
            if kept.told() != 0 {
                return Err(failed(TakeOverError::NewsLost));
            }
            let arrival = Arrival { name, attachment, socket, memory: Some(memory) };
            return self.sessions.begin(&self.poller, arrival, device);
        }
        let legacy = Legacy { kept, session: known(session)?, fds };
        let session = Session::take_over(socket, device, legacy).map_err(failed)?;
        self.sessions.enter(&self.poller, name, attachment, session, is_link_up)
    }
}

/// What was told of a session, if it was by a process of this version.
fn known(mut told: Value) -> Result<KeptSession, Fault> {
    let version = told.get("version").and_then(Value::as_u64);
    if version != Some(STATE_VERSION) {
        let why =
            format!("it was told in another version, {}, than {STATE_VERSION}", version.unwrap_or_default());
        return Err(Fault::new(Kind::Internal, why));
    }
    let session = told.get_mut("session").map(Value::take).unwrap_or_default();
    serde_json::from_value(session).map_err(|error| Fault::internal("read what is known of it", error))
}

/// Descriptors that arrived for sessions which are to be taken over.
pub(super) type Brought = BTreeMap<u64, BTreeMap<u32, OwnedFd>>;
