//! A device that checks and records the requests of a session.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use lasthop_guestmem::{Mapping, MemoryMap};
use lasthop_ring::RING_ENTRIES_MAX;
use lasthop_vhost::{Device, ForeignFd, MEMORY_SLOTS_MAX, MTU_BYTES_MIN, Offer, RingStart};

/// A ring that was started or stopped, and at which position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Start(u16, u16),
    Stop(u16, u16),
}

#[derive(Default)]
pub(super) struct Notes {
    pub(super) events: Vec<Event>,
    pub(super) running: BTreeMap<u16, RingStart>,
    pub(super) map: Option<Arc<MemoryMap>>,
    /// Heads that a ring takes before it is stopped.
    pub(super) progress: u16,
    /// Whether `start_ring` fails.
    pub(super) reluctant: bool,
    features: u64,
    mappings: Vec<Weak<Mapping>>,
}

#[derive(Clone)]
pub(super) struct Recorder {
    offer: Offer,
    notes: Rc<RefCell<Notes>>,
}

impl Recorder {
    pub(super) fn new(offer: Offer) -> Self {
        Self { offer, notes: Rc::default() }
    }

    pub(super) fn notes(&self) -> RefMut<'_, Notes> {
        self.notes.borrow_mut()
    }

    /// The session is gone: so are rings and memory.
    pub(super) fn assert_nothing_left(&self) {
        let mut notes = self.notes();
        assert!(notes.running.is_empty(), "a ring outlives its session");
        notes.map = None;
        assert!(
            notes.mappings.iter().all(|mapping| mapping.upgrade().is_none()),
            "a mapping outlives its session"
        );
    }
}

impl Device for Recorder {
    fn offer(&self) -> Offer {
        self.offer
    }

    fn set_features(&mut self, features: u64) {
        let mut notes = self.notes();
        assert_eq!(features & !self.offer.features, 0, "features that were not offered");
        assert!(
            notes.features == features || notes.running.is_empty(),
            "features change under running rings"
        );
        notes.features = features;
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        let mut notes = self.notes();
        assert!(notes.running.is_empty(), "memory changes under running rings");
        assert!(map.regions().len() <= MEMORY_SLOTS_MAX);
        notes.mappings.extend(map.regions().iter().map(|region| Arc::downgrade(&region.mapping)));
        notes.map = Some(map);
    }

    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String> {
        let mut notes = self.notes();
        assert!(index < self.offer.rings() && start.ring.entries() <= RING_ENTRIES_MAX);
        assert!(notes.map.is_some(), "ring {index} is started without memory");
        if notes.reluctant {
            return Err("reluctant".to_owned());
        }
        notes.events.push(Event::Start(index, start.ring.base()));
        assert!(notes.running.insert(index, start).is_none(), "ring {index} is started twice");
        Ok(())
    }

    fn stop_ring(&mut self, index: u16) -> Option<u16> {
        let mut notes = self.notes();
        let mut start = notes.running.remove(&index).expect("only running rings are stopped");
        start.ring.take(notes.progress);
        let base = start.ring.base();
        notes.events.push(Event::Stop(index, base));
        Some(base)
    }

    fn set_ring_enabled(&mut self, index: u16, enabled: bool) {
        let mut notes = self.notes();
        let start = notes.running.get_mut(&index).expect("only running rings are enabled and disabled");
        assert_ne!(start.enabled, enabled, "told what it knows");
        start.enabled = enabled;
    }

    fn set_ring_call(&mut self, index: u16, call: Option<ForeignFd>) {
        let mut notes = self.notes();
        notes.running.get_mut(&index).expect("only running rings get another call").call = call;
    }

    fn set_mtu(&mut self, mtu: u16) {
        assert!(mtu >= MTU_BYTES_MIN);
    }
}
