//! The control plane's interface to an engine: upcalls, and packets that it sends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lasthop_fabric::{UpcallLimits, UpcallLine, UpcallReader, UpcallRecord, UpcallWriter, upcalls};
use lasthop_module_api::{DropReason, PortId};
use lasthop_wire::Offload;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::now_ns;
use crate::worker::Worker;
use crate::worker_pool::WorkerPool;
use crate::{Engine, EngineError, sys};

/// The queue of upcalls. Once it is dropped, packets without a flow are dropped for a named reason. Belongs to one
/// thread.
#[derive(Debug)]
pub struct Upcalls {
    reader: UpcallReader,
    wake_fd: Arc<OwnedFd>,
    pool: Arc<WorkerPool<Worker>>,
}

/// The control plane's part in a frame that it sends.
pub trait InjectedPacket: Send + 'static {
    /// Tells the module the frame's actions, right before the frame is sent.
    ///
    /// # Errors
    /// Why they must not be executed.
    fn announce(&mut self) -> Result<(), DropReason>;

    /// Called in any case, once the frame is sent or dropped.
    fn done(self);
}

/// A frame of the control plane, without its bytes.
#[derive(Debug)]
struct Injected<P> {
    origin: PortId,
    len_bytes: usize,
    offload: Offload,
    packet: P,
}

/// Frames of the control plane in their order. They share their memory: a worker frees it, and memory of another
/// thread's is slow to free.
#[derive(Debug)]
pub struct Injections<P> {
    /// The frames, one behind the other.
    bytes: Vec<u8>,
    frames: Vec<Injected<P>>,
}

impl<P> Default for Injections<P> {
    fn default() -> Self {
        Self { bytes: Vec::new(), frames: Vec::new() }
    }
}

impl<P> Injections<P> {
    /// Adds a frame from its Ethernet header on, that came from the port `origin`; `packet` is the control plane's part.
    pub fn push(&mut self, origin: PortId, frame: &[u8], offload: Offload, packet: P) {
        self.bytes.extend_from_slice(frame);
        self.frames.push(Injected { origin, len_bytes: frame.len(), offload, packet });
    }

    /// Whether there is no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes all frames, and leaves room for as many.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let (bytes, frames) = (Vec::with_capacity(self.bytes.len()), Vec::with_capacity(self.frames.len()));
        std::mem::replace(self, Self { bytes, frames })
    }
}

impl Engine {
    /// Sends upcalls to the returned queue from now on, and to no earlier one.
    ///
    /// # Errors
    /// [`EngineError::System`] if memory or descriptors are short, [`EngineError::NoAnswer`].
    pub fn upcalls(&self, limits: UpcallLimits) -> Result<Upcalls, EngineError> {
        let refused = |error: std::io::Error| EngineError::System("hand packets to the control plane", error);
        let wake_fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| refused(errno.into()))?;
        let wake_fd = Arc::new(wake_fd);
        let no_memory = |_| refused(std::io::ErrorKind::OutOfMemory.into());
        let (writers, reader) = upcalls(self.pool.helpers().workers(), limits).map_err(no_memory)?;
        let upcalls = Upcalls { reader, wake_fd, pool: Arc::clone(&self.pool) };
        for (worker, writer) in writers.into_iter().enumerate() {
            let wake_fd = Arc::clone(&upcalls.wake_fd);
            self.pool.call(worker, move |worker| worker.answer_to(Some((writer, wake_fd))))?;
        }
        Ok(upcalls)
    }

    /// Sends frames from the port `internal`, soon and in their order, also among calls. A frame is refused if
    /// [`lasthop_fabric::bounds::INTERNAL_FRAMES_MAX`] frames are pending, if the share of its origin in them is used
    /// up, or while workers are quiesced ([`Engine::quiesce`]). Its result is counted at its origin.
    pub fn inject(&self, injections: Injections<impl InjectedPacket>) {
        if injections.is_empty() {
            return;
        }
        self.pool.mailbox(0).post(Box::new(move |worker| {
            let mut bytes = injections.bytes.as_slice();
            for Injected { origin, len_bytes, offload, mut packet } in injections.frames {
                let (frame, rest) = bytes.split_at_checked(len_bytes).unwrap_or_default();
                bytes = rest;
                match worker.can_inject(origin, len_bytes).and_then(|()| packet.announce()) {
                    Ok(()) => worker.inject(origin, frame, offload),
                    Err(reason) => worker.fabric.drop_injected(origin, reason),
                }
                packet.done();
            }
            worker.send_signals();
        }));
    }

    /// Counts upcalls from `origin` that never reached the control plane.
    pub fn upcalls_lost(&self, origin: PortId, packets: u64) {
        self.lost(origin, packets, DropReason::NoFlow);
    }

    /// Counts upcalls from `origin` that are dropped for `reason`.
    pub fn lost(&self, origin: PortId, packets: u64, reason: DropReason) {
        self.pool.mailbox(0).post(Box::new(move |worker| {
            (0..packets).for_each(|_| worker.fabric.drop_injected(origin, reason));
        }));
    }

    /// CLOCK_MONOTONIC, in nanoseconds, at the start of the clock that modules get.
    #[must_use]
    pub fn clock_origin_ns(&self) -> u64 {
        sys::monotonic_ns().saturating_sub(now_ns(self.started))
    }
}

impl Upcalls {
    /// Clears the eventfd. It becomes readable when a packet comes after [`Self::pop`] has found none.
    pub fn hear(&self) {
        // Non-blocking: if there is nothing to read, there is no new packet.
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }

    /// Takes the next packet, of the line whose turn it is; its bytes replace those in `frame`.
    pub fn pop(&mut self, frame: &mut Vec<u8>) -> Option<UpcallRecord> {
        self.reader.pop(frame)
    }

    /// Skips a line from now on, or no longer.
    pub fn set_paused(&mut self, line: UpcallLine, is_paused: bool) {
        match is_paused {
            true => self.reader.pause(line),
            false => self.reader.resume(line),
        }
    }

    /// Whether the queue is full, so that it takes no more packets from workers.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.reader.is_full()
    }
}

impl AsFd for Upcalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }
}

impl Drop for Upcalls {
    fn drop(&mut self) {
        for mailbox in self.pool.mailboxes() {
            let wake_fd = Arc::clone(&self.wake_fd);
            mailbox.post(Box::new(move |worker| worker.answer_no_more(&wake_fd)));
        }
    }
}

impl Worker {
    /// Sends upcalls to `plane` from now on.
    pub(crate) fn answer_to(&mut self, plane: Option<(UpcallWriter, Arc<OwnedFd>)>) {
        let (writer, wake_fd) = plane.unzip();
        self.fabric.set_upcalls(writer);
        self.signals.set_upcall_wake_fd(wake_fd);
    }

    /// Removes the control plane with this eventfd; another one may have replaced it already.
    pub(crate) fn answer_no_more(&mut self, wake_fd: &Arc<OwnedFd>) {
        if self.signals.upcall_wake_fd().is_some_and(|own| Arc::ptr_eq(own, wake_fd)) {
            self.answer_to(None);
        }
    }

    /// Whether a frame of the control plane may be sent: not while the worker is quiesced, since another process may
    /// have the rings.
    fn can_inject(&mut self, origin: PortId, len_bytes: usize) -> Result<(), DropReason> {
        if self.is_quiesced() {
            return Err(DropReason::Recalled);
        }
        self.fabric.can_inject(origin, len_bytes).map_err(|_| DropReason::RxShare)
    }

    /// Sends a frame of the control plane, without its signals.
    fn inject(&mut self, origin: PortId, frame: &[u8], offload: Offload) {
        let now_ns = now_ns(self.started);
        let sent = self.fabric.inject_for(origin, frame, offload, now_ns);
        debug_assert!(sent.is_ok(), "it was asked whether it could be: {sent:?}");
    }
}
