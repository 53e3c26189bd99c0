//! A small back end that sends every frame back to its queue pair.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use lasthop_guestmem::{Cursor, MemoryMap, Segment};
use lasthop_ring::{BufferAccess, DeviceRing, walk};
use lasthop_vhost::{Device, ForeignFd, Offer, RingStart, Session, features};
use rustix::event::{PollFd, PollFlags, poll};

pub(crate) const MAC: [u8; 6] = [0x52, 0x54, 0, 0x11, 0x22, 0x33];
const SIGNAL: [u8; 8] = 1_u64.to_ne_bytes();

struct Running {
    ring: DeviceRing,
    kick: ForeignFd,
    call: Option<ForeignFd>,
}

impl Running {
    fn publish(&mut self) {
        self.ring.publish();
        if let Some(call) = self.call.as_ref().filter(|_| self.ring.needs_signal()) {
            let _ = rustix::io::write(call, &SIGNAL);
        }
    }
}

/// The back end's counts, which it reports when the guest has gone.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) frames: u64,
    /// Buffer descriptors of transmitted frames.
    pub(crate) descriptors: u64,
    pub(crate) regions: usize,
    pub(crate) enabled: Vec<u16>,
}

pub(crate) struct Echo {
    offer: Offer,
    features: u64,
    map: Arc<MemoryMap>,
    rings: Vec<Option<Running>>,
    seen: Seen,
}

impl Device for Echo {
    fn offer(&self) -> Offer {
        self.offer
    }

    fn set_features(&mut self, features: u64) {
        self.features = features;
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.seen.regions = map.regions().len();
        self.map = map;
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        let kick = start.kick.ok_or("this back end does not poll")?;
        self.rings[usize::from(index)] = Some(Running { ring: start.ring, kick, call: start.call });
        Ok(())
    }

    fn stop_ring(&mut self, index: u16) -> Option<u16> {
        self.rings[usize::from(index)].take().map(|running| running.ring.base())
    }

    fn set_ring_enabled(&mut self, index: u16, enabled: bool) {
        if enabled {
            self.seen.enabled.push(index);
        }
    }

    fn set_ring_call(&mut self, index: u16, call: Option<ForeignFd>) {
        if let Some(running) = &mut self.rings[usize::from(index)] {
            running.call = call;
        }
    }

    fn set_mtu(&mut self, _mtu: u16) {}
}

impl Echo {
    fn header_bytes(&self) -> usize {
        if self.features & (features::VERSION_1 | features::MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Serves all queue pairs; returns whether to poll again before sleeping.
    fn serve(&mut self) -> bool {
        let mut again = false;
        for pair in 0..self.rings.len() / 2 {
            // Read before the buffers are polled, so that later ones are noticed.
            let seen = self.rings[2 * pair].as_ref().map_or(0, |rx| rx.ring.available_index());
            while self.echo_one(pair) {}
            self.rings[2 * pair..2 * pair + 2].iter_mut().flatten().for_each(Running::publish);
            if let [Some(rx), Some(tx)] = &mut self.rings[2 * pair..2 * pair + 2] {
                // Waits for buffers, or for frames.
                let stuck = tx.ring.pending().unwrap() > 0;
                again |= if stuck { rx.ring.arm_kicks_past(seen) } else { tx.ring.arm_kicks().unwrap() };
            }
        }
        again
    }

    fn echo_one(&mut self, pair: usize) -> bool {
        let (mergeable, header_bytes) = (self.features & features::MRG_RXBUF != 0, self.header_bytes());
        let [Some(rx), Some(tx)] = &mut self.rings[2 * pair..2 * pair + 2] else { return false };
        if tx.ring.pending().unwrap() == 0 {
            return false;
        }
        let head = tx.ring.head(0).unwrap();
        let (frame, descriptors) = read_chain(&tx.ring, &self.map, head);
        if !deliver(&mut rx.ring, &self.map, frame, header_bytes, mergeable) {
            return false;
        }
        tx.ring.take(1);
        tx.ring.complete(head, 0);
        self.seen.frames += 1;
        self.seen.descriptors += descriptors as u64;
        true
    }
}

fn segments(ring: &DeviceRing, map: &MemoryMap, head: u16, direction: BufferAccess) -> Vec<Segment> {
    let mut segments = Vec::new();
    walk(ring, map, head, direction, &mut 0, |segment, _| {
        segments.push(segment);
        true
    })
    .unwrap();
    segments
}

fn read_chain(ring: &DeviceRing, map: &MemoryMap, head: u16) -> (Vec<u8>, usize) {
    let segments = segments(ring, map, head, BufferAccess::Readable);
    let mut cursor = Cursor::new(map, &segments);
    let mut bytes = vec![0; cursor.remaining_bytes() as usize];
    assert_eq!(cursor.read(&mut bytes).unwrap(), bytes.len());
    (bytes, segments.len())
}

/// Delivers into as many buffers as it takes; returns false if there are too few.
fn deliver(
    ring: &mut DeviceRing,
    map: &MemoryMap,
    mut frame: Vec<u8>,
    header: usize,
    mergeable: bool,
) -> bool {
    let (mut chains, mut room) = (Vec::new(), 0);
    for ahead in 0..ring.pending().unwrap() {
        let head = ring.head(ahead).unwrap();
        let segments = segments(ring, map, head, BufferAccess::Writable);
        room += Cursor::new(map, &segments).remaining_bytes();
        chains.push((head, segments));
        if room >= frame.len() as u64 {
            break;
        }
    }
    if room < frame.len() as u64 {
        return false;
    }
    assert!(mergeable || chains.len() == 1, "{} bytes in {} buffers", frame.len(), chains.len());
    if header == 12 {
        frame[10..12].copy_from_slice(&(chains.len() as u16).to_le_bytes());
    }
    let mut rest = &frame[..];
    for (head, segments) in &chains {
        let written = Cursor::new(map, segments).write(rest).unwrap();
        rest = &rest[written..];
        ring.complete(*head, written as u32);
    }
    ring.take(chains.len() as u16);
    true
}

/// Serves one guest in a thread until it hangs up.
pub(crate) fn spawn(stream: UnixStream, offered: u64, queue_pairs: u16) -> JoinHandle<Seen> {
    std::thread::spawn(move || {
        let mut rings = Vec::new();
        rings.resize_with(usize::from(2 * queue_pairs), || None);
        let offer = Offer { features: offered, queue_pairs, mac: Some(MAC), mtu: Some(1400), private: 0 };
        let (features, map, seen) = Default::default();
        let mut session = Session::new(stream.into(), Echo { offer, features, map, rings, seen }).unwrap();
        while session.ready().is_ok() {
            if !session.device().serve() {
                sleep(&mut session);
            }
        }
        std::mem::take(&mut session.device().seen)
    })
}

fn sleep(session: &mut Session<Echo>) {
    let kicks: Vec<_> =
        session.device().rings.iter().flatten().map(|ring| ring.kick.try_clone().unwrap()).collect();
    let fds = kicks.iter().map(AsFd::as_fd).chain([session.fd()]);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    poll(&mut fds, None).unwrap();
    for kick in &kicks {
        let _ = rustix::io::read(kick, &mut [0; 8]);
    }
}
