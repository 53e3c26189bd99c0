//! The vhost-user sessions, each with the guest of one port.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use lasthop_engine::PortDevice;
use lasthop_vhost::{Device, Kept, News, Session, SessionView};

use crate::fault::Fault;
use crate::poller::{Interest, Poller};

/// Sessions by the number of their attachment, which is also their number in the poller.
#[derive(Default)]
pub(super) struct Sessions {
    guests: BTreeMap<u64, Guest>,
    /// Those that were served since they rested.
    served: Vec<u64>,
}

/// What a connection comes with.
pub(super) struct Arrival {
    /// Of the port.
    pub(super) name: String,
    pub(super) attachment: u64,
    pub(super) socket: OwnedFd,
    /// Memory from which a successor may go on.
    pub(super) memory: Option<OwnedFd>,
}

struct Guest {
    port: String,
    session: Session<PortDevice>,
    is_link_up: bool,
    /// Watched for room as well.
    is_full: bool,
    /// What was refused last, as reported.
    refused: Option<String>,
}

/// What came of serving a session.
pub(super) enum Served {
    /// It goes on.
    On,
    /// It goes on, though something was refused for the first time.
    Refused { port: String, why: String },
    /// It is over.
    Over { port: String, why: String },
}

impl Sessions {
    /// Begins to serve a connection.
    pub(super) fn begin(
        &mut self,
        poller: &Poller,
        arrival: Arrival,
        device: PortDevice,
    ) -> Result<(), Fault> {
        let Arrival { name, attachment, socket, memory } = arrival;
        let is_link_up = device.is_link_up();
        let rings = device.offer().rings();
        // Without it the guest has to connect again if this process dies, and nothing else.
        let kept = memory.and_then(|memory| Kept::map(memory.as_fd(), rings).ok());
        let session = match kept {
            Some(kept) => Session::with_kept(socket, device, kept),
            None => Session::new(socket, device),
        };
        let session = session.map_err(|error| Fault::internal("serve the connection", error))?;
        self.enter(poller, name, attachment, session, is_link_up)
    }

    /// Serves a session from now on.
    pub(super) fn enter(
        &mut self,
        poller: &Poller,
        port: String,
        attachment: u64,
        session: Session<PortDevice>,
        is_link_up: bool,
    ) -> Result<(), Fault> {
        poller.add(session.fd(), attachment, Interest::READ)?;
        self.guests.insert(attachment, Guest { port, session, is_link_up, is_full: false, refused: None });
        Ok(())
    }

    /// What a successor has to know of a session and was not told.
    pub(super) fn news(&mut self, attachment: u64) -> Option<News> {
        self.served.push(attachment);
        self.guests.get_mut(&attachment)?.session.news()
    }

    /// The port of a session that a successor could not go on with now.
    pub(super) fn restless(&self) -> Option<&str> {
        self.guests.values().find(|guest| !guest.session.is_resting()).map(|guest| guest.port.as_str())
    }

    /// A successor would know all news.
    pub(super) fn rest(&mut self) {
        for attachment in self.served.drain(..) {
            if let Some(guest) = self.guests.get(&attachment) {
                guest.session.rest();
            }
        }
    }

    /// Handles what the guest's VMM sent.
    pub(super) fn serve(&mut self, poller: &Poller, attachment: u64) -> Served {
        // An event may be of a session that ended a moment ago.
        let Some(guest) = self.guests.get_mut(&attachment) else { return Served::On };
        let ended = match guest.session.ready() {
            Ok(()) => guest.watch(poller, attachment).err().map(|fault| fault.message),
            Err(end) => Some(end.to_string()),
        };
        let port = guest.port.clone();
        match ended {
            Some(why) => {
                poller.remove(guest.session.fd());
                self.guests.remove(&attachment);
                Served::Over { port, why }
            }
            None => guest.new_refusal().map_or(Served::On, |why| Served::Refused { port, why }),
        }
    }

    /// How far each port's guest has come.
    pub(super) fn views(&self) -> impl Iterator<Item = (&str, SessionView)> {
        self.guests.values().map(|guest| (guest.port.as_str(), guest.session.view()))
    }

    /// Tells the guest of a port that its link is up or down now; whether it learns of it. None if that is no news, or there
    /// is no guest.
    pub(super) fn set_link(&mut self, port: &str, up: bool) -> Option<bool> {
        let guest = self.guests.values_mut().find(|guest| guest.port == port && guest.is_link_up != up)?;
        guest.is_link_up = up;
        Some(guest.session.set_link(up))
    }

    /// Hangs up on the guest of a port that goes away.
    pub(super) fn end_of_port(&mut self, poller: &Poller, port: &str) {
        self.guests
            .values()
            .filter(|guest| guest.port == port)
            .for_each(|guest| poller.remove(guest.session.fd()));
        self.guests.retain(|_, guest| guest.port != port);
    }
}

impl Guest {
    /// What was refused last, unless it is what was refused before.
    fn new_refusal(&mut self) -> Option<String> {
        let last = self.session.refusals().last.as_ref().map(ToString::to_string);
        if last == self.refused {
            return None;
        }
        self.refused.clone_from(&last);
        last
    }

    fn watch(&mut self, poller: &Poller, attachment: u64) -> Result<(), Fault> {
        let write = self.session.wants_write();
        if write != self.is_full {
            poller.modify(self.session.fd(), attachment, Interest { read: true, write })?;
            self.is_full = write;
        }
        Ok(())
    }
}
