//! Captures: received, sent and dropped frames are copied into rings, which the capture drains.
//!
//! ```text
//!   fetched ──in──┐
//!   delivered ─out┼──> each tap that watches the port: head + frame, at most the set length ──> records ──> TapReader
//!   dropped ──────┘                                    no room: counted as lost
//! ```
//!
//! A fabric without taps pays one branch per received batch, per sent batch and per dropped packet. With taps each
//! captured frame costs one more copy, of at most the configured length. No code here waits or allocates. The data path
//! never reads the state of a capture's reader.

use std::collections::TryReserveError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lasthop_guestmem::Segment;
use lasthop_module_api::{DropReason, PORTS_MAX, PortId};
use lasthop_sync::{RecordReader, RecordWriter, records};

use crate::bounds::{CHAIN_SEGMENTS_MAX, TAP_FRAME_BYTES_MAX};
use crate::frame::{Source, gather, shape};
use crate::reference::PacketCopy;
use crate::side_table::SegmentBuffer;

/// The interface number of ports that a tap does not watch.
const UNWATCHED: u16 = u16::MAX;

/// A clock for records: time of day in ns since 1970.
pub type TapClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The events to be captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The watched ports; interface number 0 is the first.
    pub ports: Vec<PortId>,
    /// Capture frames that the switch received from their guests.
    pub inbound: bool,
    /// Capture frames that the switch delivered to their guests.
    pub outbound: bool,
    /// Capture frames from and to these ports that were dropped.
    pub drops: bool,
    /// Bytes captured of each frame, at most.
    pub snap_len_bytes: u32,
    /// Bytes of frames that may wait for the capture's reader, for each worker; usually [`crate::bounds::TAP_BYTES`].
    pub buffer_bytes: usize,
}

/// The direction of a frame, from the switch's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    /// From the guest.
    Inbound,
    /// To the guest.
    Outbound,
}

/// Metadata of a captured frame; its bytes are returned beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Time of capture, on the tap's clock.
    pub time_ns: u64,
    /// The number of its port in [`Watch::ports`].
    pub interface: u16,
    /// The direction in which it went, or would have gone.
    pub direction: CaptureDirection,
    /// Length of the whole frame.
    pub len_bytes: u32,
    /// The drop reason, if it was dropped.
    pub dropped: Option<DropReason>,
}

impl CapturedFrame {
    /// Two words: time; and from the lowest bit length (32), interface (16), direction (1 of 8), reason + 1 (8).
    fn words(self) -> [u64; 2] {
        let outbound = u64::from(self.direction == CaptureDirection::Outbound);
        let reason = self.dropped.map_or(0, |reason| reason as u64 + 1);
        let rest =
            u64::from(self.len_bytes) | u64::from(self.interface) << 32 | outbound << 48 | reason << 56;
        [self.time_ns, rest]
    }

    fn of([time_ns, rest]: [u64; 2]) -> Self {
        let direction =
            if rest >> 48 & 1 == 1 { CaptureDirection::Outbound } else { CaptureDirection::Inbound };
        let dropped =
            (rest >> 56).checked_sub(1).and_then(|index| DropReason::ALL.get(index as usize).copied());
        Self { time_ns, interface: (rest >> 32) as u16, direction, len_bytes: rest as u32, dropped }
    }
}

/// State shared by both ends of a tap.
#[derive(Debug)]
struct Shared {
    /// Number of frames lost for lack of room, by interface.
    lost: Box<[AtomicU64]>,
    /// Number of watched ports that still exist.
    ports: AtomicUsize,
}

/// One worker's end of a capture.
pub struct Tap {
    pub(crate) id: u64,
    watch: Watch,
    /// Interface number by port.
    interfaces: Box<[u16; PORTS_MAX]>,
    clock: TapClock,
    records: RecordWriter,
    shared: Arc<Shared>,
}

/// The capture's end of a tap.
#[derive(Debug)]
pub struct TapReader {
    records: RecordReader,
    shared: Arc<Shared>,
}

/// Makes a tap for one worker, and its reader. Taps of one capture have the same `id`; other captures have other ids.
///
/// # Errors
/// When there is no memory for its records.
pub fn tap(id: u64, watch: &Watch, clock: &TapClock) -> Result<(Tap, TapReader), TryReserveError> {
    let mut interfaces = Box::new([UNWATCHED; PORTS_MAX]);
    for (number, port) in (0..).zip(&watch.ports) {
        if let Some(interface) = interfaces.get_mut(port.index()) {
            *interface = number;
        }
    }
    let (writer, reader) = records(watch.buffer_bytes)?;
    let lost = watch.ports.iter().map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared { lost, ports: AtomicUsize::new(watch.ports.len()) });
    let reader = TapReader { records: reader, shared: Arc::clone(&shared) };
    let (watch, clock) = (watch.clone(), Arc::clone(clock));
    Ok((Tap { id, watch, interfaces, clock, records: writer, shared }, reader))
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("id", &self.id).field("watch", &self.watch).finish_non_exhaustive()
    }
}

impl TapReader {
    /// The time at which the oldest waiting frame was captured.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        self.records.head().map(|head| CapturedFrame::of(head).time_ns)
    }

    /// Takes the oldest frame; its bytes replace those in `frame`.
    pub fn pop(&mut self, frame: &mut Vec<u8>) -> Option<CapturedFrame> {
        self.records.pop(frame).map(CapturedFrame::of)
    }

    /// Number of frames of an interface lost for lack of room so far.
    #[must_use]
    pub fn lost(&self, interface: u16) -> u64 {
        self.shared.lost.get(usize::from(interface)).map_or(0, |lost| lost.load(Ordering::Relaxed))
    }

    /// Number of watched ports that still exist.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared.ports.load(Ordering::Relaxed)
    }
}

/// An event of a frame at a port.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) port: PortId,
    pub(crate) direction: CaptureDirection,
    pub(crate) dropped: Option<DropReason>,
}

impl Tap {
    /// The interface's number, if the event is captured.
    fn interface(&self, event: Event) -> Option<u16> {
        let wanted = match (event.dropped, event.direction) {
            (Some(_), _) => self.watch.drops,
            (None, CaptureDirection::Inbound) => self.watch.inbound,
            (None, CaptureDirection::Outbound) => self.watch.outbound,
        };
        let interface = *self.interfaces.get(event.port.index())?;
        (wanted && interface != UNWATCHED).then_some(interface)
    }

    fn record(&mut self, event: Event, interface: u16, len_bytes: u32, frame: &[u8]) {
        let time_ns = (self.clock)();
        let Event { direction, dropped, .. } = event;
        let captured = CapturedFrame { time_ns, interface, direction, len_bytes, dropped };
        let frame = &frame[..frame.len().min(self.watch.snap_len_bytes as usize)];
        if !self.records.push(captured.words(), frame)
            && let Some(lost) = self.shared.lost.get(usize::from(interface))
        {
            lost.store(lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed); // its only writer
        }
    }
}

/// The taps of a worker.
#[derive(Debug)]
pub(crate) struct Taps {
    pub(crate) taps: Vec<Tap>,
    /// A buffer for a frame on its way from its sender's memory into records.
    frame: Box<[u8]>,
    segments: Box<SegmentBuffer>,
}

impl Default for Taps {
    fn default() -> Self {
        Self {
            taps: Vec::new(),
            frame: vec![0; TAP_FRAME_BYTES_MAX].into_boxed_slice(),
            segments: Box::new([Segment::default(); CHAIN_SEGMENTS_MAX]),
        }
    }
}

impl Taps {
    pub(crate) fn see(&mut self, event: Event, source: Option<&Source<'_>>, copy: &PacketCopy<'_>) {
        let wanting = self.taps.iter().filter(|tap| tap.interface(event).is_some());
        let Some(snap_len_bytes) = wanting.map(|tap| tap.watch.snap_len_bytes).max() else { return };
        let (len, _) = shape(copy.header, copy.truncate_len_bytes);
        let captured = self.gather(source, copy, len.min(snap_len_bytes) as usize);
        let Self { taps, frame, .. } = self;
        for tap in taps {
            if let Some(interface) = tap.interface(event) {
                tap.record(event, interface, len, &frame[..captured]);
            }
        }
    }

    fn gather(&mut self, source: Option<&Source<'_>>, copy: &PacketCopy<'_>, len: usize) -> usize {
        let len = len.min(self.frame.len());
        gather(source, copy, &mut self.frame[..len], &mut self.segments)
    }

    pub(crate) fn forget(&mut self, port: PortId) {
        for tap in &mut self.taps {
            let Some(interface) = tap.interfaces.get_mut(port.index()) else { continue };
            if std::mem::replace(interface, UNWATCHED) != UNWATCHED {
                tap.shared.ports.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sight_survives_its_words() {
        for dropped in DropReason::ALL.iter().copied().map(Some).chain([None]) {
            for (direction, interface) in [(CaptureDirection::Inbound, 0), (CaptureDirection::Outbound, 1023)]
            {
                let captured = CapturedFrame {
                    time_ns: u64::MAX - 5,
                    interface,
                    direction,
                    len_bytes: u32::MAX,
                    dropped,
                };
                assert_eq!(CapturedFrame::of(captured.words()), captured);
            }
        }
    }
}
