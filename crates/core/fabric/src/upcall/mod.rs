//! Upcalls: whole, finished packets for the control plane, in bounded queues with fair turns of ports.
//!
//! ```text
//!   verdicts: upcall ─ port has room and tokens? ── frame out of its sender's memory ── cut, summed ──> records of worker 0 ─┐
//!                        └ no: dropped as no_flow                                                       records of worker 1 ─┤
//!                                                                                                                            v
//!     UpcallReader::pop  <── sparse first   <── one line for each port, but paused ones <── taken out as they come ───────────┘
//! ```
//!
//! A worker never waits for the control plane. A port's upcalls under way are bounded in packets and bytes over all
//! workers, and in packets per second at each worker. So packets of other ports always find room in the rings, and get
//! their turn. Packets of the port `internal`, which control planes sent, have one line per deciding module.
//!
//! The control plane gets no virtio-net header: partial checksums are completed and GSO frames are segmented before an
//! upcall. Each segment counts as a packet. An upcall counts as delivered to the port `internal`, so that sums are
//! conserved.

use std::collections::TryReserveError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lasthop_module_api::{
    DropReason, Header, IMAGE_BYTES, PortId, SUSPENDED_WORDS_MAX, Upcall, UpcallReason,
};
use lasthop_sync::{RecordReader, RecordWriter, records};
use lasthop_turns::{UPCALL_PREFIX_BYTES, UpcallLine, UpcallRecord, UpcallTurns};
use lasthop_wire::tunnel::{OuterHeader, TUNNEL_BYTES};
use lasthop_wire::{Fragmentation, Offload, Segmentation, Sum};

use crate::Fabric;
use crate::bounds::{CHAIN_SEGMENTS_MAX, TAP_FRAME_BYTES_MAX, UPCALL_READER_BYTES, UPCALL_RING_BYTES};
use crate::counters::Drops;
use crate::frame::{Source, gather};
use crate::reference::{Attempt, Delivered, Outcome, PacketCopy};
use crate::side_table::SegmentBuffer;

/// Maximum bytes of a record.
const RECORD_BYTES_MAX: usize =
    UPCALL_PREFIX_BYTES + 8 * SUSPENDED_WORDS_MAX + TAP_FRAME_BYTES_MAX + TUNNEL_BYTES;
const SECOND_NS: u64 = 1_000_000_000;
/// A port's burst is this part of its packets per second.
const BURST_DIVISOR: u64 = 10;

/// Bounds of one port's upcalls under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpcallLimits {
    /// Packets.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u32,
    /// Packets per second and worker, of which a tenth may come at once; 0 for no limit.
    pub rate: u32,
}

/// The packets of a line that are under way.
#[derive(Debug, Default)]
struct LineInFlight {
    packets: AtomicU32,
    bytes: AtomicU32,
}

/// State that both ends share.
#[derive(Debug)]
struct Shared {
    limits: UpcallLimits,
    lines: Box<[LineInFlight]>,
}

impl Shared {
    fn has_room(&self, line: UpcallLine, bytes: usize) -> bool {
        let Some(line) = self.lines.get(line.index()) else { return false };
        let (packets, used) = (line.packets.load(Ordering::Relaxed), line.bytes.load(Ordering::Relaxed));
        packets < self.limits.packets && used as usize + bytes <= self.limits.bytes as usize
    }

    fn enter(&self, line: UpcallLine, bytes: u32) {
        if let Some(line) = self.lines.get(line.index()) {
            line.packets.fetch_add(1, Ordering::Relaxed);
            line.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn leave(&self, line: UpcallLine, bytes: u32) {
        if let Some(line) = self.lines.get(line.index()) {
            line.packets.fetch_sub(1, Ordering::Relaxed);
            line.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// One worker's end of the upcalls.
pub struct UpcallWriter {
    records: RecordWriter,
    shared: Arc<Shared>,
    /// By line: the time at which its token bucket is full again.
    full_at_ns: Box<[u64]>,
    /// Buffers for a frame and its record.
    frame: Box<[u8]>,
    record: Vec<u8>,
    segments: Box<SegmentBuffer>,
}

/// The control plane's end of the upcalls. It belongs to one thread.
#[derive(Debug)]
pub struct UpcallReader {
    records: Vec<RecordReader>,
    shared: Arc<Shared>,
    turns: UpcallTurns<(UpcallRecord, Vec<u8>)>,
    bytes: usize,
    buffer: Vec<u8>,
}

/// Makes an end for each of `workers` workers, and the reader of all.
///
/// # Errors
/// If the memory for the records cannot be allocated.
pub fn upcalls(
    workers: usize,
    limits: UpcallLimits,
) -> Result<(Vec<UpcallWriter>, UpcallReader), TryReserveError> {
    let lines = UpcallLine::all().map(|_| LineInFlight::default()).collect();
    let shared = Arc::new(Shared { limits, lines });
    let (mut writers, mut readers) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let (writer, reader) = records(UPCALL_RING_BYTES)?;
        readers.push(reader);
        writers.push(UpcallWriter {
            records: writer,
            shared: Arc::clone(&shared),
            full_at_ns: UpcallLine::all().map(|_| 0).collect(),
            frame: vec![0; TAP_FRAME_BYTES_MAX].into_boxed_slice(),
            record: Vec::with_capacity(RECORD_BYTES_MAX),
            segments: Box::new([Default::default(); CHAIN_SEGMENTS_MAX]),
        });
    }
    let (turns, buffer) = (UpcallTurns::default(), Vec::new());
    Ok((writers, UpcallReader { records: readers, shared, turns, bytes: 0, buffer }))
}

impl fmt::Debug for UpcallWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpcallWriter").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl UpcallReader {
    /// Takes the next packet, from the line whose turn it is: sparse lines first. Its bytes replace those in `frame`.
    pub fn pop(&mut self, frame: &mut Vec<u8>) -> Option<UpcallRecord> {
        self.take_all();
        let ((record, bytes), is_sparse) = self.turns.pop()?;
        self.bytes -= bytes.len();
        self.shared.leave(record.line(), bytes.len() as u32);
        *frame = bytes;
        Some(UpcallRecord { is_sparse, ..record })
    }

    /// Skips a line from now on, since the reader of its packets is behind.
    pub fn pause(&mut self, paused: UpcallLine) {
        self.turns.pause(paused);
    }

    /// Ends the pause of a line.
    pub fn resume(&mut self, paused: UpcallLine) {
        self.turns.resume(paused);
    }

    /// Whether the lines hold enough bytes that packets should wait in their rings.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes >= UPCALL_READER_BYTES
    }

    /// Moves the records of all workers to their lines.
    fn take_all(&mut self) {
        for reader in &mut self.records {
            while self.bytes < UPCALL_READER_BYTES {
                let Some(head) = reader.pop(&mut self.buffer) else { break };
                let (prefix, frame) = self.buffer.split_at(UPCALL_PREFIX_BYTES.min(self.buffer.len()));
                let (mut record, has_tunnel) = UpcallRecord::of(head, prefix);
                let mut frame = frame;
                if has_tunnel && let Some((front, tunnel)) = frame.split_last_chunk::<TUNNEL_BYTES>() {
                    (frame, record.tunnel) = (front, OuterHeader::parse(tunnel));
                }
                self.bytes += frame.len();
                self.turns.push(record.line(), (record, frame.to_vec()));
            }
        }
    }
}

impl UpcallWriter {
    /// Sends a copy to the control plane, cut into packets if needed. `split` is called for each further packet.
    fn take(
        &mut self,
        (source, copy): (&Source<'_>, &PacketCopy<'_>),
        record: UpcallRecord,
        now_ns: u64,
        (suspended, split): (&[u64], impl Fn()),
    ) -> Result<Delivered, DropReason> {
        let (header, line) = (copy.header, record.line());
        let len = header.frame_len_bytes() as usize;
        if !self.shared.has_room(line, len.min(copy.truncate_len_bytes as usize) + 8 * suspended.len())
            || !self.has_token(line, now_ns)
        {
            return Err(no_room_for(&record));
        }
        let frame = self.frame.get_mut(..len).ok_or(DropReason::TooLong)?;
        if gather(Some(source), copy, frame, &mut self.segments) < len {
            return Err(DropReason::Recalled);
        }
        let tunnel = header.has_tunnel().then(|| OuterHeader::parse(header.tunnel())).flatten();
        let record = UpcallRecord { mtu_bytes: mtu_bytes(header), tunnel, ..record };
        if header.offload.is_gso() && record.mtu_bytes == 0 {
            return self.segment(len, copy, record, split);
        }
        if header.offload.needs_csum() {
            complete(frame, &header.offload);
        }
        self.record.clear();
        self.record.extend_from_slice(&record.prefix());
        suspended.iter().for_each(|word| self.record.extend_from_slice(&word.to_ne_bytes()));
        self.record.extend_from_slice(&frame[..len.min(copy.truncate_len_bytes as usize)]);
        let csum_completed = u64::from(header.offload.needs_csum());
        let mut delivered = Delivered { csum_completed, ..Delivered::default() };
        self.push(UpcallRecord { len_bytes: len as u32, ..record }, &mut delivered)?;
        Ok(delivered)
    }

    /// Sends one packet for each segment, or none. All have the same ticket, which is settled with the last of them.
    fn segment(
        &mut self,
        len: usize,
        copy: &PacketCopy<'_>,
        record: UpcallRecord,
        split: impl Fn(),
    ) -> Result<Delivered, DropReason> {
        let head = copy.header.bytes();
        let plan =
            Segmentation::plan(head, &copy.header.offload, len as u32).map_err(|_| DropReason::BadGso)?;
        let header_len = plan.header_len() as usize;
        let bytes = len + plan.count() as usize * (header_len + UPCALL_PREFIX_BYTES + TUNNEL_BYTES + 32);
        if !self.shared.has_room(record.line(), bytes) || !self.records.has_room_for(bytes) {
            return Err(DropReason::NoFlow);
        }
        let mut delivered = Delivered::default();
        for index in 0..plan.count() {
            let (mut out, payload) = ([0; IMAGE_BYTES], plan.payload(index));
            let offload = plan.write_header(index, head, &mut out);
            let payload = self.frame.get(payload.start as usize..payload.end as usize).unwrap_or_default();
            self.record.clear();
            self.record.extend_from_slice(&record.prefix());
            self.record.extend_from_slice(&out[..header_len]);
            self.record.extend_from_slice(payload);
            complete(&mut self.record[UPCALL_PREFIX_BYTES..], &offload);
            let len_bytes = (header_len + payload.len()) as u32;
            self.record.truncate(UPCALL_PREFIX_BYTES.saturating_add(copy.truncate_len_bytes as usize));
            delivered.csum_completed += 1;
            if index > 0 {
                split(); // before any segment can be settled
            }
            self.push(UpcallRecord { len_bytes, ..record }, &mut delivered)?;
        }
        Ok(delivered)
    }

    /// Writes `self.record`.
    fn push(&mut self, record: UpcallRecord, delivered: &mut Delivered) -> Result<(), DropReason> {
        let bytes = (self.record.len() - UPCALL_PREFIX_BYTES) as u32;
        let line = record.line();
        if let Some(tunnel) = &record.tunnel {
            let mut place = [0; TUNNEL_BYTES];
            let _ = tunnel.emit(&mut place); // it contains its length
            self.record.extend_from_slice(&place);
        }
        // Before the reader can take it out.
        self.shared.enter(line, bytes);
        if !self.records.push(record.words(), &self.record) {
            self.shared.leave(line, bytes);
            return Err(no_room_for(&record));
        }
        delivered.packets += 1;
        delivered.bytes += u64::from(bytes);
        Ok(())
    }

    /// Takes a token from the line's bucket (GCRA).
    fn has_token(&mut self, line: UpcallLine, now_ns: u64) -> bool {
        let rate = u64::from(self.shared.limits.rate);
        let Some(full_at_ns) = self.full_at_ns.get_mut(line.index()).filter(|_| rate > 0) else {
            return true;
        };
        let next = (*full_at_ns).max(now_ns) + SECOND_NS / rate;
        let passes = next <= now_ns + SECOND_NS / BURST_DIVISOR.min(rate);
        if passes {
            *full_at_ns = next;
        }
        passes
    }
}

/// The reason to drop a packet for which there is no room.
fn no_room_for(record: &UpcallRecord) -> DropReason {
    match record.reason {
        UpcallReason::Suspended { .. } => DropReason::FragShare,
        UpcallReason::Miss | UpcallReason::Action { .. } => DropReason::NoFlow,
    }
}

/// Bytes of the largest packet that a packet is to be fragmented into; 0 if it was not reassembled from fragments.
fn mtu_bytes(header: &Header) -> u16 {
    if !header.offload.is_fragmented() {
        return 0;
    }
    let plan = Fragmentation::plan(header.bytes(), &header.offload, header.frame_len_bytes());
    plan.map_or(0, |plan| plan.mtu_bytes())
}

/// Completes a partial checksum.
fn complete(frame: &mut [u8], offload: &Offload) {
    let mut sum = Sum::default();
    sum.add(frame.get(usize::from(offload.csum_start)..).unwrap_or_default());
    let at = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&sum.complete(offload).to_be_bytes());
    }
}

/// A worker's side of upcalls.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    writer: Option<Box<UpcallWriter>>,
    pub(crate) delivered: Delivered,
    pub(crate) drops: Drops,
    /// Whether there are upcalls for which the control plane was not woken.
    is_news: bool,
}

impl Fabric {
    /// Sets the destination of upcalls; without one they are dropped as `no_flow`.
    pub fn set_upcalls(&mut self, writer: Option<UpcallWriter>) {
        self.upcalls.writer = writer.map(Box::new);
    }

    /// Whether there were upcalls since the last query.
    pub fn take_upcalled(&mut self) -> bool {
        std::mem::take(&mut self.upcalls.is_news)
    }

    /// Sends the upcalls that the module decided on.
    #[cold]
    pub(crate) fn send_upcalls(&mut self, now_ns: u64) {
        for index in 0..self.verdicts.upcalls().len() {
            let upcall = self.verdicts.upcalls()[index];
            self.hand_over_one(upcall, now_ns);
        }
    }

    fn hand_over_one(&mut self, upcall: Upcall, now_ns: u64) {
        let Self { module, fetched, senders, upcalls, verdicts, .. } = self;
        let Upcall { reason, metadata, ticket, origin, truncate_len_bytes, .. } = upcall;
        let copy = PacketCopy {
            packet: fetched.packets[usize::from(upcall.packet)],
            header: &fetched.headers[usize::from(upcall.image)],
            truncate_len_bytes,
            image: upcall.image,
        };
        let (port, worker) = (copy.packet.port(), senders.worker);
        let (len_bytes, mtu_bytes, is_sparse) = (0, 0, false);
        let tunnel = None; // the writer finds the tunnel
        let record = UpcallRecord {
            reason,
            port,
            metadata,
            worker,
            len_bytes,
            mtu_bytes,
            ticket,
            origin,
            tunnel,
            is_sparse,
        };
        let suspended = match reason {
            UpcallReason::Suspended { rest, .. } => verdicts.suspended(rest),
            UpcallReason::Miss | UpcallReason::Action { .. } => &[],
        };
        let taken = match (&mut upcalls.writer, senders.source(copy.packet)) {
            (Some(writer), Some(source)) => {
                writer.take((&source, &copy), record, now_ns, (suspended, || module.upcall_split(&upcall)))
            }
            (None, _) => Err(DropReason::NoFlow),
            (_, None) => Err(DropReason::Recalled),
        };
        let (outcome, delivered) = match taken {
            Ok(delivered) => (Outcome::Done, delivered),
            Err(reason) => {
                module.upcall_lost(&upcall);
                upcalls.drops.count(reason);
                (Outcome::Drop(reason), Delivered::default())
            }
        };
        upcalls.is_news |= delivered.packets > 0;
        upcalls.delivered.add(&delivered);
        if let Some(counters) = senders.counters_of(copy.packet) {
            counters.upcalls += delivered.packets;
        }
        if senders.is_tapped() {
            senders.tap_copy(PortId::INTERNAL, &copy, outcome);
        }
        senders.charge_upcall(copy.packet, &delivered);
        senders.settle(copy.packet, Attempt { outcome, delivered: delivered.packets as u32 });
    }
}
