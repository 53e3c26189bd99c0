//! The protocol's state: updates for the process that keeps it, and the takeover from a process that died.

use std::sync::Arc;

use lasthop_foreign::ForeignFd;

use crate::channel::BackendChannel;
use crate::features::PROTOCOL_FEATURES;
use crate::inflight::Inflight;
use crate::message::MemoryRegionMessage;
use crate::rings::Rings;
use crate::saved::{FdNumbers, PreviousSession};
use crate::{Device, Protocol, RequestError, SavedSession, SessionUpdate, TakeOverError, memory};

impl<D: Device> Protocol<D> {
    /// The update for a successor since the last one.
    pub fn update(&mut self) -> Option<SessionUpdate> {
        let memory = self.shared.kept.as_ref()?;
        let mut session = self.kept();
        let mut fds = self.fd_numbers.take();
        if session == self.told {
            return None;
        }
        session.told = session.told.wrapping_add(1);
        memory.set_told(session.told);
        let wanted: Vec<u32> = session.fds().collect();
        fds.retain(|(number, _)| wanted.contains(number));
        self.told = session.clone();
        Some(SessionUpdate { session, fds })
    }

    fn kept(&self) -> SavedSession {
        SavedSession {
            told: self.told.told,
            offer: self.offer,
            features: self.shared.features,
            protocol_features: self.protocol_features,
            status: self.status,
            mtu: self.mtu,
            regions: self.regions.clone(),
            rings: self.rings.kept(),
            back_channel: self.backend_channel.kept(),
            inflight: self.shared.inflight.as_ref().map(|inflight| inflight.kept),
        }
    }

    /// Notes that a message may be partially read from now on.
    pub(crate) fn set_reading(&self) {
        self.shared.kept.iter().for_each(crate::SessionMemory::set_reading);
    }

    /// Notes that all begun messages are served and answered, and that the last update was reported.
    pub(crate) fn set_resting(&self) {
        self.shared.kept.iter().for_each(crate::SessionMemory::set_resting);
    }

    /// Whether that was so at the last call. A session whose state no process keeps has no successor.
    pub(crate) fn is_resting(&self) -> bool {
        self.shared.kept.as_ref().is_none_or(crate::SessionMemory::is_resting)
    }

    /// Prepares to continue the session of a process that may still be running; writes no word of its rings.
    ///
    /// # Errors
    /// [`TakeOverError`] if the session cannot continue.
    pub(crate) fn prepare(device: D, mut previous: PreviousSession) -> Result<Self, TakeOverError> {
        let mut this = Self::new(device);
        previous.check_rings(previous.session.offer.rings())?;
        this.told = previous.session.clone();
        this.fd_numbers = FdNumbers::new(this.told.fds().max().unwrap_or_default());
        this.rings = Rings::of_kept(&mut previous)?;
        this.take_over_shared(&mut previous)?;
        this.shared.kept = Some(previous.memory);
        this.messages = 1; // there were some; their number is not known
        Ok(this)
    }

    /// Faults the memory of running rings in, ring after ring until `is_over`.
    pub(crate) fn touch(&self, is_over: impl Fn() -> bool) {
        let running = self.running().into_iter();
        running.take_while(|_| !is_over()).for_each(|index| self.rings.touch(index, &self.shared));
    }

    /// Continues the session. The old process has died, or does nothing any more. The rings run as before, and the
    /// front end does not notice.
    ///
    /// # Errors
    /// [`TakeOverError`] if the session cannot continue.
    pub(crate) fn take_over(&mut self) -> Result<(), TakeOverError> {
        self.shared.kept.as_ref().map_or(Ok(()), |kept| kept.check(self.told.told))?;
        for index in self.running() {
            self.rings.take_over(index, &mut self.device, &self.shared)?;
        }
        Ok(())
    }

    /// Rings that were running at the last update.
    fn running(&self) -> Vec<u16> {
        let rings = (0..).zip(&self.told.rings);
        rings.filter(|(_, ring)| ring.is_running).map(|(index, _)| index).collect()
    }

    /// Takes over the state that all rings share.
    fn take_over_shared(&mut self, previous: &mut PreviousSession) -> Result<(), TakeOverError> {
        let session = std::mem::take(&mut previous.session);
        self.offer = session.offer;
        (self.protocol_features, self.status) = (session.protocol_features, session.status);
        self.shared.features = session.features;
        self.device.set_features(session.features & !PROTOCOL_FEATURES);
        if session.protocol_features & self.offer.private != 0 {
            // They change the packets' format, and the rings continue in it.
            self.device.set_protocol_features(session.protocol_features);
        }
        if let Some(mtu) = session.mtu {
            self.mtu = Some(mtu);
            self.device.set_mtu(mtu);
        }
        if let Some(number) = session.back_channel {
            self.backend_channel = BackendChannel::of_kept(previous.take_fd(number)?, number);
        }
        if let Some(kept) = session.inflight {
            let file = previous.take_fd(kept.file)?;
            self.shared.inflight = Some(Inflight::of_kept(kept, &file, session.offer.rings())?);
        }
        let files = session.regions.iter().map(|region| previous.take_fd(region.file));
        let files: Vec<ForeignFd> = files.collect::<Result<_, _>>()?;
        let messages: Vec<MemoryRegionMessage> = session.regions.iter().map(|r| r.message()).collect();
        self.regions = session.regions;
        if !messages.is_empty() {
            self.take_over_memory(&messages, &files)?;
        }
        Ok(())
    }

    fn take_over_memory(
        &mut self,
        messages: &[MemoryRegionMessage],
        files: &[ForeignFd],
    ) -> Result<(), RequestError> {
        // It was checked when the front end sent it; a lower memory-max of the vnic applies to the next guest.
        let nothing = lasthop_guestmem::MemoryMap::default();
        let map = Arc::new(memory::replaced(&nothing, messages, files, u64::MAX)?);
        self.shared.map = Some(Arc::clone(&map));
        self.device.set_memory(map);
        Ok(())
    }
}
