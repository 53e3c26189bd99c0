//! `lasthop ovs relay`: makes vnics of the interfaces that OpenStack and libvirt add for OVS-DPDK.
//!
//! It stands between ovs-vswitchd and its database. Other clients of the database see it as it is: interfaces of type `dpdkvhostuser`
//! and `dpdkvhostuserclient`, bridges with `datapath_type=netdev`. To ovs-vswitchd these interfaces are the vnics' devices, on the
//! system's datapath.
//!
//! ```text
//!   ovs-vsctl, os-vif, Neutron, ovn-controller ──> ovsdb-server <── relay <── ovs-vswitchd
//!                                                                     │ port.add, port.del
//!                                                                   switch
//! ```

mod connection;
mod frames;
mod interfaces;
mod translation;
mod value;
mod vnics;
mod wanted_interface;

use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use log::{error, info, warn};

use connection::End;
use lasthop_api::rundir::control_socket;
use lasthop_api::silence::connect_within;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::{Interest, Poller};
use lasthop_runtime::signals::Signals;
use translation::Translation;
pub use vnics::Ask;
use vnics::{Guests, Settings};
use wanted_interface::Directories;

/// Pause between two tries to reach the switch, and the longest one: ovs-vswitchd waits meanwhile.
const LOOK: Duration = Duration::from_secs(1);
/// Keeps the names of vnics over restarts, in the switch's directory: they live no longer than that.
const RECORD: &str = "ovs-vnics.json";

const SIGNALS: u64 = 0;
const LISTENER: u64 = 1;
const SWITCH: u64 = 2;
const DAEMON: u64 = 3;
const SERVER: u64 = 4;

/// How vnics are made for interfaces.
#[derive(Clone, Debug)]
pub struct VhostUser {
    /// Where sockets may be, beside the directory of Open vSwitch's own.
    pub directories: Vec<PathBuf>,
    /// Queue pairs that a guest may use.
    pub queues: u16,
    /// The group of sockets that the switch makes.
    pub socket_group: Option<String>,
}

/// A relay of one database for one ovs-vswitchd.
struct Relay<'a> {
    poller: Poller,
    dir: &'a Path,
    database: &'a Path,
    guests: Guests<'a>,
    /// A connection to the switch that says nothing, to see its end.
    switch: Option<UnixStream>,
    look_at: Option<Instant>,
    connection: Option<Connection>,
}

/// ovs-vswitchd and its server.
struct Connection {
    daemon: End,
    server: End,
    translation: Translation,
}

/// Serves ovs-vswitchd at the socket `listen` until a signal comes. Vnics stay.
///
/// # Errors
/// If it cannot listen.
pub fn serve(
    dir: &Path,
    ask: &Ask<'_>,
    database: &Path,
    listen: &Path,
    vhost_user: &VhostUser,
) -> Result<(), Fault> {
    let mut signals = Signals::take()?;
    let run = database.parent().unwrap_or(Path::new("/")).to_owned();
    let settings = Settings {
        directories: Directories { run, others: vhost_user.directories.clone() },
        queues: vhost_user.queues,
        socket_group: vhost_user.socket_group.clone(),
    };
    let listener = bind(listen)?;
    let poller = Poller::new()?;
    poller.add(&signals, SIGNALS, Interest::READ)?;
    poller.add(&listener, LISTENER, Interest::READ)?;
    let guests = Guests::new(ask, settings, dir.join(RECORD));
    let mut relay = Relay { poller, dir, database, guests, switch: None, look_at: None, connection: None };
    relay.look();
    info!("relays {} to ovs-vswitchd at {}", database.display(), listen.display());
    while !signals.came() {
        let deadline = relay.guests.due().into_iter().chain(relay.look_at).min();
        for event in relay.poller.wait(deadline)? {
            match event.source {
                LISTENER => relay.accept(&listener),
                SWITCH => relay.hear(),
                DAEMON | SERVER => relay.carry(),
                _ => {}
            }
        }
        relay.act(Instant::now());
    }
    let _ = std::fs::remove_file(listen);
    Ok(())
}

/// A socket for root, or the user, alone.
fn bind(path: &Path) -> Result<UnixListener, Fault> {
    let cannot = |error| Fault::socket(format!("cannot listen at {}: {error}", path.display()));
    if UnixStream::connect(path).is_ok() {
        return Err(cannot(ErrorKind::AddrInUse.into()));
    }
    // Left by a killed relay.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(cannot)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    Ok(listener)
}

impl Relay<'_> {
    /// Takes a connection of ovs-vswitchd. There is one of them; a new one takes the place of a killed one.
    fn accept(&mut self, listener: &UnixListener) {
        let Ok((daemon, _)) = listener.accept() else { return };
        let server = match UnixStream::connect(self.database) {
            Ok(server) => server,
            // ovs-vswitchd tries again.
            Err(error) => return warn!("no database at {}: {error}", self.database.display()),
        };
        self.connection = None;
        let ends = End::new(daemon, DAEMON, &self.poller)
            .and_then(|daemon| Ok((daemon, End::new(server, SERVER, &self.poller)?)));
        match ends {
            Ok((daemon, server)) => {
                self.connection = Some(Connection { daemon, server, translation: Translation::default() });
            }
            Err(fault) => error!("{fault}"),
        }
    }

    /// Carries messages both ways. Without one side, the other is hung up on, and connects again.
    fn carry(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        match connection.carry(&mut self.guests, &self.poller) {
            Ok(true) => {}
            Ok(false) => self.connection = None,
            Err(fault) => {
                error!("hung up on ovs-vswitchd: {fault}");
                self.connection = None;
            }
        }
    }

    /// Notices the end of the switch. It says nothing else on this connection.
    fn hear(&mut self) {
        let Some(switch) = &mut self.switch else { return };
        if !matches!(switch.read(&mut [0; 4096]), Err(error) if error.kind() == ErrorKind::WouldBlock) {
            self.switch = None;
            self.look_at = Some(Instant::now() + LOOK);
        }
    }

    /// Connects to the switch, if it is there.
    fn look(&mut self) {
        let stream = connect_within(LOOK, &control_socket(self.dir)).ok();
        self.switch = stream.filter(|stream| {
            stream.set_nonblocking(true).is_ok() && self.poller.add(stream, SWITCH, Interest::READ).is_ok()
        });
        self.look_at = self.switch.is_none().then(|| Instant::now() + LOOK);
    }

    fn act(&mut self, now: Instant) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.look();
            if self.switch.is_some() {
                self.guests.renew();
            }
        }
        self.guests.act(now);
    }
}

impl Connection {
    /// Whether both sides are still there.
    fn carry(&mut self, guests: &mut Guests<'_>, poller: &Poller) -> Result<bool, Fault> {
        if !self.server.is_full() && !self.daemon.receive()
            || !self.daemon.is_full() && !self.server.receive()
        {
            return Ok(false);
        }
        while let Some(message) = self.daemon.message()? {
            let changed = self.translation.of_daemon(&message);
            self.server.send(&changed.unwrap_or(message));
        }
        while let Some(message) = self.server.message()? {
            let changed = self.translation.of_server(&message, guests);
            self.daemon.send(&changed.unwrap_or(message));
        }
        let is_there = self.daemon.flush() && self.server.flush();
        self.daemon.watch(!self.server.is_full(), poller)?;
        self.server.watch(!self.daemon.is_full(), poller)?;
        Ok(is_there)
    }
}
