//! The back end of a vhost-user session: its requests become tasks of workers.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lasthop_guestmem::{MemoryMap, Word};
use lasthop_module_api::PortId;
use lasthop_vhost::{Device, ForeignFd, Offer, RingStart, features as virtio};

use crate::EngineError;
use crate::control::{ControlPace, ControlQueue};
use crate::features;
use crate::port::{PortConfig, PortRecord, PortTable};
use crate::port_control::PortControl;

/// A wait of a worker for others counts as this many changes: a wait takes 10 ms, a change 0.5 ms.
const WAIT_CHANGES: u64 = 20;

/// The switch's end of one attached guest; has workers carry out the requests of its vhost-user session.
#[derive(Debug)]
pub struct PortDevice {
    port: PortId,
    offer: Offer,
    /// Acknowledged virtio and protocol features.
    features: u64,
    protocol_features: u64,
    /// The guest's memory, for its control ring.
    map: Arc<MemoryMap>,
    /// Number of changes that were sent to all workers.
    changes: Arc<AtomicU64>,
    control: Arc<PortControl>,
    ports: Arc<Mutex<PortTable>>,
}

impl PortDevice {
    /// A device for a port; the caller has attached to it.
    pub(crate) fn new(
        port: PortId,
        config: &PortConfig,
        control: Arc<PortControl>,
        ports: Arc<Mutex<PortTable>>,
    ) -> Self {
        let offer = Offer {
            features: features::offered(config),
            queue_pairs: config.queue_pairs,
            mac: config.policy.mac.map(|mac| mac.0),
            mtu: config.mtu,
            private: features::private(config),
        };
        let (map, changes) = (Arc::default(), Arc::default());
        Self { port, offer, features: 0, protocol_features: 0, map, changes, control, ports }
    }

    /// Number of changes that workers were told of so far; each takes some of their time. A change that made a worker
    /// wait for others counts several times.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// A handle to the same number, which stays valid until the guest is completely detached.
    #[must_use]
    pub fn change_count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.changes)
    }

    /// Has `doorbell`, a non-blocking eventfd, written when workers stop rings of this guest.
    pub fn watch_stops(&self, doorbell: Arc<OwnedFd>) {
        self.control.pool.stops().watch(self.port, doorbell);
    }

    /// Why workers stopped rings of this guest, once for each stop. The guest or its front end is at fault, and has to start
    /// them again.
    #[must_use]
    pub fn take_stop(&self) -> Option<String> {
        self.control.pool.stops().take(self.port)
    }

    /// Has workers change the port; does nothing if the port is removed.
    fn change<R>(&mut self, make: impl FnOnce(&Self) -> R) -> Option<R> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let control = Arc::clone(&self.control);
        let _change = control.port_changes().session_change(self.port);
        let is_there = self.table().get(self.port).is_some();
        let made = is_there.then(|| make(self));
        self.changes.fetch_add(WAIT_CHANGES * control.take_waits(self.port), Ordering::Relaxed);
        made
    }

    fn use_features(&mut self) {
        let capabilities = features::capabilities(self.features, self.protocol_features);
        self.change(|this| _ = this.control.set_capabilities(this.port, capabilities));
    }

    fn table(&self) -> MutexGuard<'_, PortTable> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the queue pairs that the guest requested from another process's control queue; 0 for none.
    fn restore_pairs(&self, pairs: u32) {
        let pairs = u16::try_from(pairs).ok().filter(|pairs| (1..=self.offer.queue_pairs).contains(pairs));
        if let Some(pairs) = pairs {
            self.control.grant_pairs(self.port, pairs);
        }
    }

    /// Queue pairs that the guest can use. The control queue follows them (virtio 1.2, 5.1.2).
    fn usable_pairs(&self) -> u16 {
        let has_one = self.features & (virtio::CTRL_VQ | virtio::MQ) == virtio::CTRL_VQ;
        if has_one { 1 } else { self.offer.queue_pairs }
    }

    fn start(&self, index: u16, start: RingStart) -> Result<std::io::Result<()>, EngineError> {
        let port = self.port;
        let RingStart { ring, kick, call, enabled, is_taken_over, granted } = start;
        if let Some(pairs) = granted.as_ref().filter(|_| is_taken_over).map(Word::load) {
            self.restore_pairs(pairs);
        }
        let queue_pairs_max = self.usable_pairs();
        let started = if index == 2 * queue_pairs_max {
            let map = Arc::clone(&self.map);
            let (pace, is_polled) = (ControlPace::default(), kick.is_none());
            let control =
                ControlQueue { ring, map, index, queue_pairs_max, granted, is_polled, error: None, pace };
            self.control.start_control(port, control, (kick, call))
        } else {
            self.control.start_ring(port, index, ring, (kick, call), enabled)
        };
        if is_taken_over && matches!(started, Ok(Ok(()))) {
            // The previous process may have published entries without signalling the guest.
            self.control.signal_guest_later(port, index);
        }
        started
    }

    fn record(&self, change: impl FnOnce(&mut PortRecord)) {
        if let Some(record) = self.table().get_mut(self.port) {
            change(record);
        }
    }
}

impl Device for PortDevice {
    fn offer(&self) -> Offer {
        self.offer
    }

    fn is_link_up(&self) -> bool {
        self.table().get(self.port).is_none_or(|record| record.config.link_up)
    }

    fn memory_bytes_max(&self) -> u64 {
        let max_bytes = self.table().get(self.port).map(|record| record.config.memory_bytes_max);
        max_bytes.unwrap_or(lasthop_vhost::MEMORY_BYTES_MAX_DEFAULT)
    }

    fn set_features(&mut self, features: u64) {
        self.record(|record| record.features = features);
        self.features = features;
        self.use_features();
    }

    fn set_protocol_features(&mut self, features: u64) {
        self.protocol_features = features;
        self.use_features();
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.change(|this| _ = this.control.set_memory(this.port, &map));
        self.map = map;
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        let started = self.change(|this| this.start(index, start));
        match started.unwrap_or(Err(EngineError::NoSuchPort(self.port))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("cannot wait for kicks of ring {index}: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn stop_ring(&mut self, index: u16) -> Option<u16> {
        self.change(|this| this.control.stop_running(this.port, index)).flatten()
    }

    fn set_ring_enabled(&mut self, index: u16, enabled: bool) {
        self.change(|this| _ = this.control.set_ring_enabled(this.port, index, enabled));
    }

    fn set_ring_call(&mut self, index: u16, call: Option<ForeignFd>) {
        self.change(|this| _ = this.control.set_ring_call(this.port, index, call));
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.record(|record| record.guest_mtu = Some(mtu));
    }
}

impl Drop for PortDevice {
    fn drop(&mut self) {
        let control = Arc::clone(&self.control);
        // All rings have stopped before, so this need not wait while the switch is quiesced.
        let _change = control.port_changes().control_change(self.port);
        let _ = control.detach(self.port);
        self.changes.fetch_add(1, Ordering::Relaxed);
        // Last: otherwise a ring of this guest that is not stopped yet would count as the next guest's.
        self.table().detach(self.port);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use lasthop_guestmem::{Mapping, Region};
    use lasthop_module_api::{Mac, PortPolicy};
    use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingMemory};

    use super::*;
    use crate::{Engine, EngineSettings};

    fn engine() -> (Engine, PortId) {
        let module = lasthop_modules::by_name("dummy", &lasthop_modules::BridgeSettings::default()).unwrap();
        let engine = Engine::start(module.into(), &EngineSettings::default()).unwrap();
        let port = engine.add_port(PortConfig::default()).unwrap();
        (engine, port)
    }

    /// Blocks the worker until the returned sender is dropped.
    fn hold_worker(engine: &Engine) -> Sender<()> {
        let (is_held, held) = channel();
        let (go_on, told) = channel();
        engine.pool.mailbox(0).post(Box::new(move |_| {
            is_held.send(()).unwrap();
            assert!(told.recv().is_err(), "nothing is sent");
        }));
        held.recv().unwrap();
        go_on
    }

    #[test]
    fn a_port_is_free_when_all_that_was_done_for_its_guest_is_undone() {
        let (engine, port) = engine();
        let device = engine.device(port).unwrap();
        let held = hold_worker(&engine);
        let leaving = std::thread::spawn(move || drop(device));
        while engine.pool.mailbox(0).len() == 0 {
            std::thread::yield_now();
        }
        // The guest is not detached completely yet; the next guest must not be affected by that.
        assert!(matches!(engine.device(port), Err(EngineError::Attached(_))));
        drop(held);
        leaving.join().unwrap();
        engine.device(port).unwrap();
    }

    #[test]
    fn a_removal_that_a_worker_delayed_is_completed_later() {
        let module = lasthop_modules::by_name("bridge", &lasthop_modules::BridgeSettings::default()).unwrap();
        let engine = Engine::start(module.into(), &EngineSettings::default()).unwrap();
        let policy = PortPolicy { mac: Some(Mac([2, 0, 0, 0, 0, 1])), ..PortPolicy::default() };
        let config = PortConfig { policy, ..PortConfig::default() };
        let port = engine.add_port(config.clone()).unwrap();
        let held = hold_worker(&engine);
        assert!(matches!(engine.remove_port(port), Err(EngineError::NoAnswer(0))));
        assert!(matches!(engine.device(port), Err(EngineError::NoSuchPort(_))), "it is found no more");
        drop(held);
        assert_eq!(engine.add_port(config).unwrap(), port, "its number and its address are free");
        let held = hold_worker(&engine);
        assert!(matches!(engine.remove_port(port), Err(EngineError::NoAnswer(0))));
        drop(held);
        engine.remove_port(port).unwrap();
        assert!(matches!(engine.remove_port(port), Err(EngineError::NoSuchPort(_))));
    }

    /// The answer of a control queue without kicks at virtqueue `index` of a port with two pairs, whose guest acknowledged
    /// `features`, to a command for `pairs` queue pairs.
    fn answer_at(index: u16, features: u64, pairs: u8) -> u8 {
        const ACK: u64 = 4200;
        let (engine, _) = engine();
        let config = PortConfig { name: "two".into(), queue_pairs: 2, ..PortConfig::default() };
        let mut device = engine.device(engine.add_port(config).unwrap()).unwrap();
        let (map, start) = ring();
        let place = |addr, len| map.translate(addr, len, &mut 0).unwrap();
        device.set_features(virtio::VERSION_1 | features);
        device.set_memory(Arc::clone(&map));
        device.start_ring(index, start()).unwrap();
        map.write(place(4096, 4), 0, &[4, 0, pairs, 0]).unwrap();
        map.write(place(ACK, 1), 0, &[0xee]).unwrap();
        let addresses = RingAddresses { descriptors: 0, available: 1024, used: 2048 };
        let mut driver = DriverRing::new(RingMemory::new(&map, 16, addresses).unwrap(), false);
        driver.add(&[(4096, 4)], &[(ACK, 1)], 0).unwrap();
        driver.publish();
        while driver.take_used().unwrap().is_none() {
            std::thread::yield_now();
        }
        let mut ack = [0];
        map.read(place(ACK, 1), 0, &mut ack).unwrap();
        ack[0]
    }

    #[test]
    fn the_control_queue_follows_the_pairs_that_the_guest_can_use() {
        assert_eq!(answer_at(4, virtio::CTRL_VQ | virtio::MQ, 2), 0);
        assert_eq!(answer_at(2, virtio::CTRL_VQ, 1), 0);
        assert_eq!(answer_at(2, virtio::CTRL_VQ, 2), 1, "it has one pair");
    }

    /// A guest's memory, and starts of a ring in it at its first position.
    fn ring() -> (Arc<MemoryMap>, impl Fn() -> RingStart) {
        let mapping = Arc::new(Mapping::anonymous(8192).unwrap());
        let map = Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap());
        let of_ring = Arc::clone(&map);
        let start = move || {
            let addresses = RingAddresses { descriptors: 0, available: 1024, used: 2048 };
            let ring = DeviceRing::new(RingMemory::new(&of_ring, 16, addresses).unwrap(), 0, false);
            RingStart { ring, kick: None, call: None, enabled: true, is_taken_over: false, granted: None }
        };
        (map, start)
    }

    /// Ring 1 of `device` does not start, and that of the next guest does.
    fn is_for_the_next_guest(
        engine: &Engine,
        mut device: PortDevice,
        map: &Arc<MemoryMap>,
        start: impl Fn() -> RingStart,
    ) {
        for _ in 0..2 {
            assert!(device.start_ring(1, start()).unwrap_err().contains("restart its guest"));
        }
        let port = device.port;
        drop(device);
        let mut device = engine.device(port).unwrap();
        device.set_memory(Arc::clone(map));
        device.start_ring(1, start()).unwrap();
        assert_eq!(device.stop_ring(1), Some(0));
    }

    #[test]
    fn a_ring_that_was_not_stopped_in_time_starts_for_the_next_guest_only() {
        let (engine, port) = engine();
        let (map, start) = ring();
        let mut device = engine.device(port).unwrap();
        device.set_memory(Arc::clone(&map));
        device.start_ring(1, start()).unwrap();
        let held = hold_worker(&engine);
        assert_eq!(device.stop_ring(1), None, "nobody knows where it stands");
        drop(held);
        is_for_the_next_guest(&engine, device, &map, start);
    }

    #[test]
    fn a_ring_that_is_not_where_it_should_be_starts_for_the_next_guest_only() {
        let (engine, port) = engine();
        let (map, start) = ring();
        let mut device = engine.device(port).unwrap();
        device.set_memory(Arc::clone(&map));
        device.start_ring(1, start()).unwrap();
        engine.pool.call(0, move |worker| worker.stop_ring(port, 1)).unwrap();
        assert_eq!(device.stop_ring(1), None, "its worker does not have it");
        is_for_the_next_guest(&engine, device, &map, start);
    }
}
