use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DeviceRing, RingError};

use crate::memory::GuestMemory;
use crate::null::SeenBuffers;
use crate::{BATCH_FRAMES, NotOneRegion};

/// One ring of a guest, with the guest's memory.
#[derive(Debug)]
pub struct End {
    pub(crate) ring: DeviceRing,
    pub(crate) memory: GuestMemory,
    pub(crate) seen: SeenBuffers,
    enabled: bool,
}

impl End {
    /// A ring in the memory of `map`; its buffers are trusted to be there.
    ///
    /// # Errors
    /// [`NotOneRegion`].
    pub fn new(mut ring: DeviceRing, map: &MemoryMap, enabled: bool) -> Result<Self, NotOneRegion> {
        let memory = GuestMemory::of(map)?;
        ring.suppress_kicks();
        let seen = SeenBuffers::new(ring.entries());
        Ok(Self { ring, memory, seen, enabled })
    }

    /// Enables or disables the ring.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Position of the next available head; all earlier ones are completed.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.ring.base()
    }

    /// Asks the driver for a kick; true if frames or buffers are there already: then none may come.
    ///
    /// # Errors
    /// The driver's index is invalid.
    pub fn arm_kicks(&mut self) -> Result<bool, RingError> {
        self.ring.arm_kicks()
    }

    /// Asks the driver for no further kicks, as a ring does from its start on.
    pub fn suppress_kicks(&mut self) {
        self.ring.suppress_kicks();
    }

    /// Whether the driver wants a signal for chains completed since the last call. Must be called before 65536 more
    /// entries are completed.
    #[must_use]
    pub fn needs_signal(&mut self) -> bool {
        self.ring.needs_signal()
    }
}

/// The path from one guest's transmit ring to another's receive ring; open when both exist and are enabled.
#[derive(Debug, Default)]
pub struct Lane {
    /// The transmit ring.
    pub from: Option<End>,
    /// The receive ring.
    pub to: Option<End>,
    /// An error of a driver; it stops the lane until it is cleared.
    pub fault: Option<RingError>,
}

impl Lane {
    /// Moves one batch; returns the number of frames.
    #[inline(always)]
    fn run(&mut self, pass: &mut impl Pass) -> u16 {
        let Self { from: Some(from), to: Some(to), fault: None } = self else { return 0 };
        if !(from.enabled && to.enabled) {
            return 0;
        }
        let moved = waiting(from, to).and_then(|frames| match frames {
            0 => Ok(0),
            _ => pass.run(from, to, frames).map(|()| frames),
        });
        moved.unwrap_or_else(|error| {
            self.fault = Some(error);
            0
        })
    }
}

/// The number of frames to move now: those that have a receive buffer. Always reads both indices, so that the waits for
/// both cache lines overlap.
#[inline(always)]
fn waiting(from: &mut End, to: &mut End) -> Result<u16, RingError> {
    let (frames, buffers) = (from.ring.pending()?, to.ring.pending()?);
    Ok(BATCH_FRAMES.min(frames).min(buffers))
}

/// How a batch of frames is moved.
pub trait Pass {
    /// Moves `frames` available frames, 1 to [`BATCH_FRAMES`], into as many available receive buffers.
    ///
    /// # Errors
    /// A head is out of range; the ring has to be stopped.
    fn run(&mut self, from: &mut End, to: &mut End, frames: u16) -> Result<(), RingError>;
}

/// Polls each lane `rounds` times, in turns; returns the number of moved frames.
pub fn poll(pass: &mut impl Pass, lanes: &mut [Lane], rounds: u32) -> u64 {
    let mut moved = 0;
    for _ in 0..rounds {
        let frames: u64 = lanes.iter_mut().map(|lane| u64::from(lane.run(pass))).sum();
        if frames == 0 {
            std::hint::spin_loop();
        }
        moved += frames;
    }
    moved
}
