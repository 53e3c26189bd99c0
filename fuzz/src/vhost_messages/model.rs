//! The session's state after each message, told once more and simpler: which rings run, where, and enabled or not.

use std::sync::Arc;

use lasthop_guestmem::MemoryMap;
use lasthop_ring::{RING_ENTRIES_MAX, RingAddresses, RingMemory};
use lasthop_vhost::features::{PROTOCOL_FEATURES, protocol};
use lasthop_vhost::message::{
    CONFIG_BYTES_MAX, ConfigMessage, FLAG_REPLY, VERSION, VRING_INDEX_MASK, VRING_NO_FD, VhostMessage,
    request,
};
use lasthop_vhost::{Offer, SessionEnd};

use super::files::Kind;
use super::recorder::{Event, Notes};

#[derive(Clone, Copy, Default)]
struct Ring {
    entries: u32,
    addresses: Option<RingAddresses>,
    kick: bool,
    base: u16,
    enable: Option<bool>,
}

impl Ring {
    fn is_complete(&self, map: Option<&Arc<MemoryMap>>) -> bool {
        let (Some(map), Some(addresses)) = (map, self.addresses) else { return false };
        self.kick && RingMemory::new(map, self.entries, addresses).is_ok()
    }
}

pub(super) struct Model {
    offered: u64,
    features: u64,
    acks: bool,
    rings: Vec<Ring>,
    /// The sent messages are not known any more.
    lost: bool,
}

/// The first words of a body, zero where there is none.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().map_or(0, u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().map_or(0, u64::from_ne_bytes)
    }
}

impl Model {
    pub(super) fn new(offer: Offer) -> Self {
        let rings = vec![Ring::default(); usize::from(offer.rings())];
        let offered = offer.features | PROTOCOL_FEATURES;
        Self { offered, features: 0, acks: false, rings, lost: false }
    }

    pub(super) fn lose_track(&mut self) {
        self.lost = true;
    }

    /// Takes in a message, the reply to it, and the requests to the device meanwhile.
    pub(super) fn follow(
        &mut self,
        message: &VhostMessage,
        kinds: &[Kind],
        outcome: &Result<Option<VhostMessage>, SessionEnd>,
        events: &[Event],
    ) {
        if self.lost {
            return;
        }
        let new_base = self.new_base(message);
        for event in events {
            match *event {
                Event::Stop(index, base) => self.rings[usize::from(index)].base = base,
                Event::Start(index, base) => {
                    let expected = new_base.filter(|(moved, _)| *moved == index);
                    let expected = expected.map_or(self.rings[usize::from(index)].base, |(_, base)| base);
                    assert_eq!(base, expected, "ring {index} goes on elsewhere");
                }
            }
        }
        if let Some((index, base)) = new_base {
            self.rings[usize::from(index)].base = base;
        }
        if let Ok(reply) = outcome {
            self.apply(message, kinds);
            self.check_reply(message, reply.as_ref());
        }
    }

    fn new_base(&self, message: &VhostMessage) -> Option<(u16, u16)> {
        let words = Words(&message.body);
        let index = u16::try_from(words.u32(0)).ok().filter(|index| usize::from(*index) < self.rings.len());
        let base = u16::try_from(words.u32(4)).ok();
        let is_meant = message.request == request::SET_VRING_BASE && message.body.len() >= 8;
        index.zip(base).filter(|_| is_meant && message.flags & FLAG_REPLY == 0)
    }

    /// The session continues, so the message was long enough and named a ring that exists.
    fn apply(&mut self, message: &VhostMessage, kinds: &[Kind]) {
        let words = Words(&message.body);
        match message.request {
            request::SET_FEATURES if words.u64(0) & !self.offered == 0 => self.features = words.u64(0),
            request::SET_PROTOCOL_FEATURES if words.u64(0) & !protocol::OFFERED == 0 => {
                self.acks = words.u64(0) & protocol::REPLY_ACK != 0;
            }
            request::RESET_OWNER | request::RESET_DEVICE => self.reset(true),
            request::SET_STATUS if words.u64(0) as u8 == 0 => self.reset(false),
            request::SET_VRING_NUM
            | request::SET_VRING_ENABLE
            | request::GET_VRING_BASE
            | request::SET_VRING_ADDR
            | request::SET_VRING_KICK => self.apply_to_ring(message.request, &words, kinds),
            _ => {}
        }
    }

    fn reset(&mut self, disable: bool) {
        self.features = 0;
        for ring in &mut self.rings {
            ring.kick = false;
            ring.enable = ring.enable.filter(|_| !disable);
        }
    }

    fn apply_to_ring(&mut self, number: u32, words: &Words<'_>, kinds: &[Kind]) {
        let is_kick = number == request::SET_VRING_KICK;
        let index = if is_kick { words.u64(0) & VRING_INDEX_MASK } else { u64::from(words.u32(0)) };
        let (ring, value) = (&mut self.rings[index as usize], words.u32(4));
        match number {
            request::SET_VRING_NUM if value.is_power_of_two() && value <= u32::from(RING_ENTRIES_MAX) => {
                ring.entries = value;
            }
            request::SET_VRING_ENABLE if value <= 1 => ring.enable = Some(value == 1),
            request::GET_VRING_BASE => ring.kick = false,
            request::SET_VRING_ADDR => {
                let [descriptors, used, available] = [8, 16, 24].map(|at| words.u64(at));
                ring.addresses = Some(RingAddresses { descriptors, available, used });
            }
            request::SET_VRING_KICK => ring.kick |= words.u64(0) & VRING_NO_FD != 0 || kinds == [Kind::Event],
            _ => {}
        }
    }

    fn check_reply(&self, message: &VhostMessage, reply: Option<&VhostMessage>) {
        let asks = matches!(
            message.request,
            request::GET_FEATURES
                | request::GET_PROTOCOL_FEATURES
                | request::GET_QUEUE_NUM
                | request::GET_MAX_MEM_SLOTS
                | request::GET_STATUS
                | request::GET_CONFIG
                | request::GET_VRING_BASE
        );
        assert_eq!(reply.is_some(), asks || (self.acks && message.needs_reply()), "{message:?}: {reply:?}");
        let Some(reply) = reply else { return };
        assert_eq!((reply.request, reply.flags), (message.request, VERSION | FLAG_REPLY));
        match message.request {
            request::GET_CONFIG => {
                let config_bytes = reply.body.len().saturating_sub(ConfigMessage::BYTES);
                assert!(config_bytes <= CONFIG_BYTES_MAX as usize);
                let asked = Words(&message.body).u32(4) as usize;
                assert!(reply.body.is_empty() || reply.body.len() == ConfigMessage::BYTES + asked);
            }
            request::GET_VRING_BASE => {
                let (asked, told) = (Words(&message.body), Words(&reply.body));
                let base = u32::from(self.rings[asked.u32(0) as usize].base);
                assert_eq!((reply.body.len(), told.u32(0), told.u32(4)), (8, asked.u32(0), base));
            }
            _ if asks => assert_eq!(reply.body.len(), 8),
            _ => assert!(reply.body.len() == 8 && Words(&reply.body).u64(0) <= 1),
        }
    }

    /// A ring runs exactly while all is there that it needs.
    pub(super) fn compare(&mut self, notes: &Notes) {
        // A ring that the device refused once is tried again when something about it changes.
        self.lost |= notes.reluctant;
        if self.lost {
            return;
        }
        for (index, ring) in self.rings.iter().enumerate() {
            let running = notes.running.get(&(index as u16));
            assert_eq!(running.is_some(), ring.is_complete(notes.map.as_ref()), "ring {index} runs");
            let enabled = ring.enable.unwrap_or(self.features & PROTOCOL_FEATURES == 0);
            assert!(
                running.is_none_or(|start| start.enabled == enabled),
                "ring {index} is enabled: {enabled}"
            );
        }
    }
}
