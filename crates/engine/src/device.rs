use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use lasthop_guestmem::MemoryMap;
use lasthop_verdict::PortId;
use lasthop_vhost::{Device, Offer, RingStart};

use crate::control::ControlQueue;
use crate::crew::Crew;
use crate::features;
use crate::port::{PortConfig, PortRecord, PortTable};

/// The switch's end of one attached guest: what its vhost-user session asks for, done by the workers.
#[derive(Debug)]
pub struct PortDevice {
    port: PortId,
    offer: Offer,
    /// The guest's memory, for its control ring.
    map: Arc<MemoryMap>,
    crew: Arc<Crew>,
    ports: Arc<Mutex<PortTable>>,
}

impl PortDevice {
    pub(crate) fn new(
        port: PortId,
        config: &PortConfig,
        crew: Arc<Crew>,
        ports: Arc<Mutex<PortTable>>,
    ) -> Self {
        let offer = Offer {
            features: features::offered(config),
            queue_pairs: config.queue_pairs,
            mac: config.mac.map(|mac| mac.0),
            mtu: config.mtu,
        };
        let device = Self { port, offer, map: Arc::default(), crew, ports };
        device.record(|record| record.attached = true);
        device
    }

    fn record(&self, change: impl FnOnce(&mut PortRecord)) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = ports.get_mut(self.port) {
            change(record);
        }
    }
}

impl Device for PortDevice {
    fn offer(&self) -> Offer {
        self.offer
    }

    fn is_link_up(&self) -> bool {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.get(self.port).is_none_or(|record| record.config.link_up)
    }

    fn set_features(&mut self, features: u64) {
        self.record(|record| record.features = features);
        let (port, capabilities) = (self.port, features::capabilities(features));
        let _ = self.crew.set_capabilities(port, capabilities);
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        let _ = self.crew.set_memory(self.port, &map);
        self.map = map;
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        let port = self.port;
        let RingStart { ring, kick, call, enabled } = start;
        let queue_pairs_max = self.offer.queue_pairs;
        let started = if index == 2 * queue_pairs_max {
            let map = Arc::clone(&self.map);
            let control = ControlQueue { ring, map, index, queue_pairs_max, error: None };
            self.crew.start_control(port, control, (kick, call))
        } else {
            self.crew.start_ring(port, index, ring, (kick, call), enabled)
        };
        match started {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("cannot wait for kicks of ring {index}: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn stop_ring(&mut self, index: u16) -> Option<u16> {
        self.crew.stop_ring(self.port, index).ok().flatten()
    }

    fn set_ring_enabled(&mut self, index: u16, enabled: bool) {
        let _ = self.crew.set_ring_enabled(self.port, index, enabled);
    }

    fn set_ring_call(&mut self, index: u16, call: Option<OwnedFd>) {
        let _ = self.crew.set_ring_call(self.port, index, call);
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.record(|record| record.guest_mtu = Some(mtu));
    }
}

impl Drop for PortDevice {
    fn drop(&mut self) {
        self.record(|record| (record.attached, record.features, record.guest_mtu) = (false, 0, None));
        let _ = self.crew.detach(self.port);
    }
}
