//! The front end's settings of each ring, and which rings run.

use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::MemoryMap;
use lasthop_ring::{
    DeviceRing, Ledger, LedgerError, RING_ENTRIES_MAX, RingAddresses, RingError, RingFormat, RingLog,
    RingMemory, wire_position,
};

use crate::features::{EVENT_IDX, IN_ORDER, PROTOCOL_FEATURES, RING_PACKED};
use crate::inflight::Inflight;
use crate::saved::{PreviousSession, SavedKick, SavedRing, SessionMemory};
use crate::{Device, RequestError, RingStart, TakeOverError};

/// The state shared by all rings of a session.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The guest's memory, once it is set.
    pub(crate) map: Option<Arc<MemoryMap>>,
    /// Acknowledged features, including `PROTOCOL_FEATURES`.
    pub(crate) features: u64,
    /// The memory that a successor gets.
    pub(crate) kept: Option<SessionMemory>,
    /// The front end's in-flight file.
    pub(crate) inflight: Option<Inflight>,
}

impl Shared {
    /// Whether rings start enabled. The last acknowledgement counts: a front end that drops the bit sends no
    /// SET_VRING_ENABLE, even if it negotiated protocol features.
    fn rings_start_enabled(&self) -> bool {
        self.features & PROTOCOL_FEATURES == 0
    }

    fn uses_event_idx(&self) -> bool {
        self.features & EVENT_IDX != 0
    }

    /// The negotiated format of all rings.
    pub(crate) fn format(&self) -> RingFormat {
        if self.features & RING_PACKED == 0 { RingFormat::Split } else { RingFormat::Packed }
    }

    /// Makes a ring use the negotiated order. Receive rings and the control ring use their buffers in order anyway.
    fn ordered(&self, index: u16, ring: DeviceRing) -> Result<DeviceRing, RequestError> {
        if self.features & IN_ORDER == 0 || is_filled(index) {
            return Ok(ring);
        }
        ring.keep_order().map_err(|error| RequestError::Ring(index, error))
    }

    fn log(&self, index: u16, entries: u16) -> Option<RingLog> {
        self.inflight.as_ref()?.log(self.format(), index, entries)
    }

    /// A ring that begins at `base`, as messages have it. Also returns whether it has chains in flight from the front end's
    /// log.
    fn begin(&self, index: u16, memory: RingMemory, base: u16) -> (DeviceRing, bool) {
        let (entries, event_idx) = (memory.entries(), self.uses_event_idx());
        let ledger = self.ledger(index, entries);
        let base = match self.format() {
            RingFormat::Split => base,
            RingFormat::Packed => memory.packed_base(base),
        };
        match self.log(index, entries) {
            Some(log) => DeviceRing::begin_logged(memory, ledger, log, base, event_idx),
            None => (DeviceRing::begin(memory, ledger, base, event_idx), false),
        }
    }

    /// A ring that ran in another process.
    fn take_over(&self, index: u16, memory: RingMemory) -> Result<DeviceRing, LedgerError> {
        let (entries, event_idx) = (memory.entries(), self.uses_event_idx());
        let ledger = self.ledger(index, entries);
        match self.log(index, entries) {
            _ if is_filled(index) => DeviceRing::take_over_in_order(memory, ledger, event_idx),
            Some(log) => DeviceRing::take_over_logged(memory, ledger, log, event_idx),
            None => DeviceRing::take_over(memory, ledger, event_idx),
        }
    }

    fn ledger(&self, index: u16, entries: u16) -> Ledger {
        let kept = self.kept.as_ref().and_then(|kept| kept.ledger(self.format(), index, entries));
        kept.unwrap_or_else(|| Ledger::private(self.format(), entries))
    }
}

/// Whether the device fills a ring's buffers in the order in which it fetches them: true for receive rings and the
/// control ring, whose indices are even.
fn is_filled(index: u16) -> bool {
    index.is_multiple_of(2)
}

/// How a driver kicks a ring.
#[derive(Debug, Default)]
pub(crate) enum Kick {
    /// SET_VRING_KICK has not come: the ring is stopped.
    #[default]
    NotSet,
    /// The driver does not kick, so the device polls.
    Polled,
    /// By this eventfd.
    Fd(Numbered),
}

/// A descriptor with its number for a successor.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) fd: ForeignFd,
    pub(crate) number: u32,
}

/// A ring's size and addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Entries; 0 before SET_VRING_NUM.
    entries: u16,
    addresses: Option<RingAddresses>,
}

#[derive(Debug, Default)]
struct Ring {
    layout: Layout,
    /// The position at which the ring starts, as messages have it: of a packed ring, with its wrap counter.
    base: u16,
    /// The format of which `base` is: a guest that resets the device has none any more.
    base_format: RingFormat,
    /// Whether the device could not tell where it stopped, so that `base` is out of date.
    is_lost: bool,
    kick: Kick,
    call: Option<Numbered>,
    /// The value of the last SET_VRING_ENABLE.
    enable: Option<bool>,
    running: bool,
}

impl Ring {
    fn enabled(&self, shared: &Shared) -> bool {
        self.enable.unwrap_or_else(|| shared.rings_start_enabled())
    }

    /// The ring's start for the device; `None` while something is missing.
    fn start(&self, index: u16, shared: &Shared) -> Result<Option<RingStart>, RequestError> {
        let (false, Some(memory)) = (matches!(self.kick, Kick::NotSet), self.memory(index, shared)?) else {
            return Ok(None);
        };
        let (ring, is_taken_over) = shared.begin(index, memory, self.base);
        let ring = shared.ordered(index, ring)?;
        Ok(Some(RingStart { is_taken_over, ..self.start_with(ring, shared)? }))
    }

    /// The ring's memory, if its size and addresses and the guest's memory are known.
    fn memory(&self, index: u16, shared: &Shared) -> Result<Option<RingMemory>, RequestError> {
        let (Some(map), Some(addresses)) = (&shared.map, self.layout.addresses) else { return Ok(None) };
        if self.layout.entries == 0 {
            return Ok(None);
        }
        let memory = RingMemory::of(shared.format(), map, u32::from(self.layout.entries), addresses);
        memory.map(Some).map_err(|error| RequestError::Ring(index, error))
    }

    fn start_with(&self, ring: DeviceRing, shared: &Shared) -> Result<RingStart, RequestError> {
        let kick = match &self.kick {
            Kick::NotSet | Kick::Polled => None,
            Kick::Fd(kick) => Some(duplicate(kick)?),
        };
        let call = self.call.as_ref().map(duplicate).transpose()?;
        let granted = shared.kept.as_ref().map(SessionMemory::granted);
        Ok(RingStart { ring, kick, call, enabled: self.enabled(shared), is_taken_over: false, granted })
    }

    /// Like `start`, for a ring that ran in another process.
    fn take_over(&self, index: u16, shared: &Shared) -> Result<Option<RingStart>, TakeOverError> {
        let Some(memory) = self.memory(index, shared)? else { return Ok(None) };
        let ring = shared.take_over(index, memory).map_err(|error| TakeOverError::Ring(index, error))?;
        let ring = shared.ordered(index, ring)?;
        Ok(Some(RingStart { is_taken_over: true, ..self.start_with(ring, shared)? }))
    }

    fn kept(&self) -> SavedRing {
        let kick = match &self.kick {
            Kick::NotSet => SavedKick::NotSet,
            Kick::Polled => SavedKick::Polled,
            Kick::Fd(kick) => SavedKick::Fd(kick.number),
        };
        let addresses = self.layout.addresses.map(|at| [at.descriptors, at.available, at.used]);
        SavedRing {
            entries: self.layout.entries,
            addresses,
            base: self.base,
            is_base_packed: self.base_format == RingFormat::Packed,
            is_lost: self.is_lost,
            kick,
            call: self.call.as_ref().map(|call| call.number),
            enable: self.enable,
            is_running: self.running,
        }
    }

    fn of_kept(kept: &SavedRing, previous: &mut PreviousSession) -> Result<Self, TakeOverError> {
        let mut numbered =
            |number| Ok::<_, TakeOverError>(Numbered { fd: previous.take_fd(number)?, number });
        let kick = match kept.kick {
            SavedKick::NotSet => Kick::NotSet,
            SavedKick::Polled => Kick::Polled,
            SavedKick::Fd(number) => Kick::Fd(numbered(number)?),
        };
        let call = kept.call.map(&mut numbered).transpose()?;
        let addresses = kept.addresses.map(|[descriptors, available, used]| RingAddresses {
            descriptors,
            available,
            used,
        });
        let layout = Layout { entries: kept.entries, addresses };
        let SavedRing { base, is_base_packed, is_lost, enable, .. } = *kept;
        let base_format = if is_base_packed { RingFormat::Packed } else { RingFormat::Split };
        Ok(Self { layout, base, base_format, is_lost, kick, call, enable, running: false })
    }
}

/// A front end's settings of a ring, for diagnosis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingView {
    /// Entries; 0 if they are not set.
    pub entries: u16,
    /// Whether its addresses are set.
    pub is_placed: bool,
    /// Whether it is started: SET_VRING_KICK came.
    pub is_kicked: bool,
    /// Whether it has no kick descriptor, so that the device polls.
    pub is_polled: bool,
    /// Whether it has a call descriptor.
    pub has_call: bool,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether the device runs it.
    pub running: bool,
}

/// All rings of a session. A ring runs while it has memory, size, addresses and kick. Callers check indices.
#[derive(Debug)]
pub(crate) struct Rings(Vec<Ring>);

impl Rings {
    pub(crate) fn new(count: u16) -> Self {
        Self((0..count).map(|_| Ring::default()).collect())
    }

    /// The rings of a dead session; none runs yet.
    pub(crate) fn of_kept(previous: &mut PreviousSession) -> Result<Self, TakeOverError> {
        let rings = previous.session.rings.clone();
        rings.iter().map(|kept| Ring::of_kept(kept, previous)).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn kept(&self) -> Vec<SavedRing> {
        self.0.iter().map(Ring::kept).collect()
    }

    /// Faults the memory of a ring in, while another process may still run the ring.
    pub(crate) fn touch(&self, index: u16, shared: &Shared) {
        let ring = &self.0[usize::from(index)];
        // An error in its addresses is reported when the ring starts.
        if let (Some(map), Ok(Some(memory))) = (&shared.map, ring.memory(index, shared)) {
            memory.touch(map);
            shared.ledger(index, ring.layout.entries).touch();
        }
    }

    /// Starts a ring that ran in a dead session, from the state that it left.
    pub(crate) fn take_over(
        &mut self,
        index: u16,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), TakeOverError> {
        let ring = self.ring(index);
        if let Some(start) = ring.take_over(index, shared)? {
            device.start_ring(index, start).map_err(|error| RequestError::Device(index, error))?;
            ring.running = true;
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> u16 {
        self.0.len() as u16 // made of a u16
    }

    pub(crate) fn views(&self, shared: &Shared) -> Vec<RingView> {
        let view = |ring: &Ring| RingView {
            entries: ring.layout.entries,
            is_placed: ring.layout.addresses.is_some(),
            is_kicked: !matches!(ring.kick, Kick::NotSet),
            is_polled: matches!(ring.kick, Kick::Polled),
            has_call: ring.call.is_some(),
            enabled: ring.enabled(shared),
            running: ring.running,
        };
        self.0.iter().map(view).collect()
    }

    fn ring(&mut self, index: u16) -> &mut Ring {
        &mut self.0[usize::from(index)]
    }

    /// Starts a ring if it is complete and not running.
    fn start(&mut self, index: u16, device: &mut impl Device, shared: &Shared) -> Result<(), RequestError> {
        let ring = self.ring(index);
        if ring.running {
            return Ok(());
        }
        if let Some(start) = ring.start(index, shared)? {
            device.start_ring(index, start).map_err(|error| RequestError::Device(index, error))?;
            ring.running = true;
        }
        Ok(())
    }

    fn stop(&mut self, index: u16, device: &mut impl Device, shared: &Shared) {
        let ring = self.ring(index);
        if std::mem::take(&mut ring.running) {
            ring.base_format = shared.format();
            match (device.stop_ring(index), ring.base_format) {
                (Some(base), RingFormat::Split) => ring.base = base,
                (Some(base), RingFormat::Packed) => ring.base = wire_position(base, ring.layout.entries),
                (None, _) => ring.is_lost = true,
            }
        }
    }

    /// Starts all complete rings in order; tries all, and returns the first error.
    pub(crate) fn start_all(
        &mut self,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), RequestError> {
        let tried = (0..self.count()).map(|index| self.start(index, device, shared));
        tried.fold(Ok(()), Result::and)
    }

    /// Stops all running rings in order; `start_all` starts them again.
    pub(crate) fn stop_all(&mut self, device: &mut impl Device, shared: &Shared) {
        for index in 0..self.count() {
            self.stop(index, device, shared);
        }
    }

    /// Stops all rings until they are kicked again. Positions are kept, since the front end may ask for them; `disable`
    /// also forgets SET_VRING_ENABLE.
    pub(crate) fn reset(&mut self, device: &mut impl Device, shared: &Shared, disable: bool) {
        self.stop_all(device, shared);
        for ring in &mut self.0 {
            ring.kick = Kick::NotSet;
            ring.enable = ring.enable.filter(|_| !disable);
        }
    }

    pub(crate) fn set_entries(
        &mut self,
        index: u16,
        entries: u32,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), RequestError> {
        if !entries.is_power_of_two() || entries > u32::from(RING_ENTRIES_MAX) {
            return Err(RequestError::Ring(index, RingError::BadSize(entries)));
        }
        let layout = Layout { entries: entries as u16, ..self.ring(index).layout };
        self.set_layout(index, layout, device, shared)
    }

    pub(crate) fn set_addresses(
        &mut self,
        index: u16,
        addresses: RingAddresses,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), RequestError> {
        let layout = Layout { addresses: Some(addresses), ..self.ring(index).layout };
        self.set_layout(index, layout, device, shared)
    }

    fn set_layout(
        &mut self,
        index: u16,
        layout: Layout,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), RequestError> {
        if self.ring(index).layout != layout {
            self.stop(index, device, shared);
            self.ring(index).layout = layout;
        }
        self.start(index, device, shared)
    }

    pub(crate) fn set_base(
        &mut self,
        index: u16,
        base: u32,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), RequestError> {
        let base = match shared.format() {
            RingFormat::Split => u16::try_from(base).map_err(|_| RequestError::RingBase(index, base))?,
            // The upper half is the used position. No chain is in flight when a ring starts, so it says nothing more; some
            // front ends leave it 0.
            RingFormat::Packed => base as u16,
        };
        self.stop(index, device, shared);
        let ring = self.ring(index);
        (ring.base, ring.base_format, ring.is_lost) = (base, shared.format(), false);
        self.start(index, device, shared)
    }

    /// Stops a ring until it is kicked again, and returns its position, if that is known; of a packed ring, both positions.
    pub(crate) fn take_base(&mut self, index: u16, device: &mut impl Device, shared: &Shared) -> Option<u32> {
        self.stop(index, device, shared);
        let ring = self.ring(index);
        ring.kick = Kick::NotSet;
        let base = u32::from(ring.base);
        (!ring.is_lost).then_some(match ring.base_format {
            RingFormat::Split => base,
            RingFormat::Packed => base | base << 16,
        })
    }

    /// Starts a ring, or restarts it.
    pub(crate) fn set_kick(
        &mut self,
        index: u16,
        kick: Kick,
        device: &mut impl Device,
        shared: &Shared,
    ) -> Result<(), RequestError> {
        self.stop(index, device, shared);
        self.ring(index).kick = kick;
        self.start(index, device, shared)
    }

    pub(crate) fn set_call(
        &mut self,
        index: u16,
        call: Option<Numbered>,
        device: &mut impl Device,
    ) -> Result<(), RequestError> {
        let ring = self.ring(index);
        ring.call = call;
        if ring.running {
            let call = ring.call.as_ref().map(duplicate).transpose()?;
            device.set_ring_call(index, call);
        }
        Ok(())
    }

    pub(crate) fn set_enabled(
        &mut self,
        index: u16,
        enabled: bool,
        device: &mut impl Device,
        shared: &Shared,
    ) {
        let ring = self.ring(index);
        let before = ring.enabled(shared);
        ring.enable = Some(enabled);
        if ring.running && before != enabled {
            device.set_ring_enabled(index, enabled);
        }
    }
}

/// Duplicates a descriptor: the session keeps its own, to restart the ring with.
fn duplicate(numbered: &Numbered) -> Result<ForeignFd, RequestError> {
    numbered.fd.try_clone().map_err(|error| RequestError::System("duplicating an eventfd".to_owned(), error))
}
