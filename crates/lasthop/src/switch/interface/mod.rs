//! The control interface: clients who make datapaths, give ports numbers and install flows, and who are asked about packets
//! of no flow.
//!
//! ```text
//!   client ── SEQPACKET, handed over by the supervisor ──> Connections ── Server ──> Adapter ──> switches, flow tables, engine
//!     ^                                                        ^
//!     └── packets of no flow <── Connections::upcall <─────────┴── Upcalls <── workers
//! ```
//!
//! A datapath is a switch of module flow: the one of its name, or one that is made for it. All of this is done on the main
//! thread, some of it a turn.

mod adapter;
mod flows;
mod meters;
mod packets;
mod places;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lasthop_control::server::{Server, Upcalled};
use lasthop_control::socket::{Access, Closed, Connections};
use lasthop_engine::{UpcallLimits, Upcalls};

use crate::fault::Fault;
use crate::log::say_of_others;
use crate::orders::Report;
use crate::poller::{Interest, Poller};

use super::datapath::Datapath;
use super::wishes::Wishes;
use adapter::Adapter;
use places::Places;

/// What one port may have on the way to the control plane: as much as a control plane does in some milliseconds, so that what a
/// guest makes up is dropped early and packets of a flow that begins are not.
const LIMITS: UpcallLimits = UpcallLimits { packets: 256, bytes: 256 << 10, rate: 20_000 };
/// Packets that are handed to the control plane in a row; then guests and clients are looked after.
const UPCALLS_PER_TURN: usize = 256;
/// How soon it is looked whether workers are done with flows that were taken out.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// What the poller knows it by: its clients, and packets for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) clients: u64,
    pub(super) packets: u64,
}

pub(super) struct Interface {
    connections: Connections,
    places: Places,
    wishes: Wishes,
    /// Once there is a datapath.
    upcalls: Option<Upcalls>,
    numbers: Numbers,
    frame: Vec<u8>,
    /// Packets may be left that nobody was told of.
    is_behind: bool,
    /// Clients wait for flows that were taken out.
    is_settling: bool,
}

impl Interface {
    pub(super) fn new(poller: &Poller, numbers: Numbers) -> Result<Self, Fault> {
        let connections = Connections::new(Server::new(), Access::Asked)
            .map_err(|error| Fault::internal("begin the control interface", error))?;
        poller.add(connections.fd(), numbers.clients, Interest::READ)?;
        Ok(Self {
            connections,
            places: Places::default(),
            wishes: Wishes::default(),
            upcalls: None,
            numbers,
            frame: Vec::new(),
            is_behind: false,
            is_settling: false,
        })
    }

    /// A client, whom the supervisor let in.
    pub(super) fn add(&mut self, socket: OwnedFd) {
        if let Err(why) = self.connections.add(socket) {
            say_of_others!("refused a control connection: {why}");
        }
    }

    /// Serves clients.
    pub(super) fn serve(&mut self, inside: &mut Datapath) {
        let mut adapter = Adapter::new(inside, &mut self.places, &mut self.wishes);
        match self.connections.turn(&mut adapter) {
            Ok(closed) => closed.into_iter().for_each(|(_, why)| complain(&why)),
            Err(error) => say_of_others!("cannot wait for control clients: {error}"),
        }
    }

    /// Hands packets to the control plane.
    pub(super) fn ask(&mut self, inside: &mut Datapath) {
        let Some(upcalls) = &mut self.upcalls else { return };
        upcalls.hear();
        for _ in 0..UPCALLS_PER_TURN {
            let Some(record) = upcalls.pop(&mut self.frame) else {
                self.is_behind = false;
                return;
            };
            let Some((upcall, module)) = self.places.upcall(&record, &mut self.frame) else { continue };
            let mut adapter = Adapter::new(inside, &mut self.places, &mut self.wishes);
            if self.connections.upcall(upcall, &mut adapter) == Upcalled::Lost {
                module.settle(record.ticket);
            }
        }
        self.is_behind = true;
    }

    /// The end of a turn: what waits for workers, and who is asked from now on.
    pub(super) fn finish(&mut self, poller: &Poller, inside: &mut Datapath) {
        self.places.forget_stats();
        if self.is_behind {
            self.ask(inside);
        }
        if self.is_settling || self.connections.server().is_settling() {
            self.is_settling =
                self.connections.settle(&mut Adapter::new(inside, &mut self.places, &mut self.wishes));
        }
        self.listen(poller, inside);
        for (id, module) in self.places.modules() {
            module.set_asked(self.upcalls.is_some() && self.connections.server().takes_misses(id));
        }
    }

    /// Has workers hand packets over, once there is anything that they could be about.
    fn listen(&mut self, poller: &Poller, inside: &Datapath) {
        if self.upcalls.is_some() || self.places.modules().next().is_none() {
            return;
        }
        let made = inside.engine().upcalls(LIMITS).map_err(|error| Fault::refused(error.to_string()));
        let watched = made.and_then(|upcalls| {
            poller.add(&upcalls, self.numbers.packets, Interest::READ)?;
            Ok(upcalls)
        });
        match watched {
            Ok(upcalls) => self.upcalls = Some(upcalls),
            Err(fault) => say_of_others!("the control plane cannot be asked about packets: {fault}"),
        }
    }

    /// When there is something to do even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.is_behind {
            return Some(Instant::now());
        }
        self.is_settling.then(|| Instant::now() + SETTLE_PAUSE)
    }

    /// A port goes away, and out of its datapath.
    pub(super) fn port_lost(&mut self, name: &str, inside: &mut Datapath) {
        self.connections.port_lost(name, &mut Adapter::new(inside, &mut self.places, &mut self.wishes));
        self.wishes.left(name);
    }

    /// A port that was asked for is there.
    pub(super) fn port_arrived(&mut self, name: &str) {
        self.wishes.arrived(name);
    }

    /// A port that was asked for is not to be had.
    pub(super) fn port_denied(&mut self, name: &str, errno: i32) {
        self.wishes.denied(name, errno);
    }

    /// What the supervisor is to be told.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        self.wishes.take_reports()
    }
}

/// Who just hangs up is none of the log's business.
fn complain(why: &Closed) {
    if !matches!(why, Closed::HungUp) {
        say_of_others!("closed a control connection: {why}");
    }
}
