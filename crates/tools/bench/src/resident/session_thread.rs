use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use lasthop_ceiling::End;
use lasthop_guestmem::MemoryMap;
use lasthop_ring::DeviceRing;
use lasthop_vhost::features::{CSUM, EVENT_IDX, GUEST_CSUM, GUEST_TSO4, HOST_TSO4, MRG_RXBUF, VERSION_1};
use lasthop_vhost::{Device, ForeignFd, Offer, RingStart, Session};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::lane_table::{LaneTable, RingId};

/// The features that a guest may use. Offload metadata is passed on unchanged; a frame takes one buffer; no indirect
/// descriptors.
const FEATURES: u64 = VERSION_1 | MRG_RXBUF | EVENT_IDX | CSUM | GUEST_CSUM | HOST_TSO4 | GUEST_TSO4;

/// A front end's session and its thread. Dropping it ends both.
#[derive(Debug)]
pub(super) struct SessionThread {
    /// Another handle of the session's socket, to end the session.
    socket: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl SessionThread {
    pub(super) fn start(port: u16, socket: UnixStream, lane_table: Arc<LaneTable>) -> io::Result<Self> {
        let own = socket.try_clone()?;
        let device = Port { port, lane_table, features: 0, map: Arc::default() };
        let session = Session::new(socket.into(), device)?;
        let name = format!("ceiling-port{port}");
        let thread = std::thread::Builder::new().name(name).spawn(move || serve(session))?;
        Ok(Self { socket: own, thread: Some(thread) })
    }
}

impl Drop for SessionThread {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both); // may be shut down already
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported already
        }
    }
}

/// Serves the session until the front end hangs up or the session ends.
fn serve(mut session: Session<Port>) {
    while session.ready().is_ok() {
        let writes = if session.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::from_borrowed_fd(session.fd(), PollFlags::IN | writes)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The rings that a session drives.
struct Port {
    port: u16,
    lane_table: Arc<LaneTable>,
    features: u64,
    map: Arc<MemoryMap>,
}

impl Port {
    /// Ring 0 receives, ring 1 transmits.
    fn ring(&self, index: u16) -> RingId {
        RingId { port: self.port, transmits: index % 2 == 1 }
    }

    fn end(&self, ring: DeviceRing, enabled: bool) -> Result<End, String> {
        if self.features & VERSION_1 == 0 {
            return Err("a ceiling serves headers of 12 bytes only; negotiate VERSION_1".to_owned());
        }
        End::new(ring, &self.map, enabled).map_err(|error| error.to_string())
    }
}

impl Device for Port {
    fn offer(&self) -> Offer {
        Offer { features: FEATURES, queue_pairs: 1, mac: None, mtu: None, private: 0 }
    }

    fn set_features(&mut self, features: u64) {
        self.features = features;
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.map = map;
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        let ring = self.ring(index);
        let RingStart { ring: device_ring, kick, call, enabled, .. } = start;
        let kick = kick.filter(|_| ring.transmits);
        match self.end(device_ring, enabled) {
            Ok(end) => self.lane_table.with(|rings| rings.start(ring, end, kick, call))?,
            Err(why) => {
                self.lane_table.with(|rings| rings.refuse(ring.port, why.clone()));
                return Err(why);
            }
        }
        Ok(())
    }

    fn stop_ring(&mut self, index: u16) -> Option<u16> {
        let ring = self.ring(index);
        self.lane_table.with(|rings| rings.stop(ring))
    }

    fn set_ring_enabled(&mut self, index: u16, enabled: bool) {
        let ring = self.ring(index);
        self.lane_table.with(|rings| rings.set_enabled(ring, enabled));
    }

    fn set_ring_call(&mut self, index: u16, call: Option<ForeignFd>) {
        let ring = self.ring(index);
        self.lane_table.with(|rings| rings.set_call(ring, call));
    }

    fn set_mtu(&mut self, _mtu: u16) {}
}
