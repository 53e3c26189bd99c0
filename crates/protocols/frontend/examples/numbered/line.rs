//! A guest at a socket of the switch, or one to which the switch connects, repeatedly.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_frontend::{Guest, GuestError, GuestListener, GuestOptions};

use crate::Orders;
use crate::tally::Tally;

/// Frames that are sent before received ones are polled for.
pub(crate) const BURST: usize = 32;

/// Where a guest attaches: a path to connect to, or with "@" before it a path to listen at.
#[derive(Clone, Debug)]
pub(crate) struct Place(pub(crate) String);

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) guest: Guest,
    listener: Option<GuestListener>,
    tally: Arc<Tally>,
}

impl Line {
    /// Attaches. Counts its connections in the tally of received frames.
    pub(crate) fn open(place: &Place, mac: [u8; 6], tally: &Arc<Tally>) -> Result<Self, GuestError> {
        let options = GuestOptions { mac, ..GuestOptions::default() };
        let (guest, listener) = match place.0.strip_prefix('@') {
            Some(path) => {
                let listener = GuestListener::bind(PathBuf::from(path))?;
                (listener.accept(options)?, Some(listener))
            }
            None => (Guest::connect(&place.0, options)?, None),
        };
        tally.connections.add(1);
        Ok(Self { guest, listener, tally: Arc::clone(tally) })
    }

    /// Sleeps until a frame came, for at most `timeout`. If the switch hung up and has to connect, waits for that.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<(), GuestError> {
        let Err(ended) = self.guest.wait(Some(timeout)) else { return Ok(()) };
        self.tally.ended.add(1);
        let Some(listener) = &self.listener else { return Err(ended) };
        // A back end that dies during the handshake is awaited like one that dies later.
        while self.guest.reconnect(listener.socket().accept()?.0).is_err() {}
        self.tally.connections.add(1);
        Ok(())
    }
}

/// The time of the next frame, at a rate per second; 0 for as many as there is room for.
#[derive(Debug)]
pub(crate) struct Pace {
    per_s: u64,
    since: Instant,
    sent: u64,
}

impl Pace {
    pub(crate) fn new(per_s: u64) -> Self {
        Self { per_s, since: Instant::now(), sent: 0 }
    }

    pub(crate) fn is_due(&mut self, orders: &Orders) -> bool {
        if orders.is_quiet() {
            *self = Self::new(self.per_s);
            return false;
        }
        self.per_s == 0 || self.sent < self.since.elapsed().as_millis() as u64 * self.per_s / 1000
    }

    pub(crate) fn count(&mut self) {
        self.sent += 1;
    }
}

/// Fills bytes that are derived from a number, so that a receiver can compare them.
pub(crate) fn fill(bytes: &mut [u8], number: u32) {
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        state = state.rotate_left(25).wrapping_mul(0x2545_f491_4f6c_dd1d);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}
