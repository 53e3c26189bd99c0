//! The messages of front ends as observed with Linux 6.1 UML, QEMU 7.2 and DPDK 22.11 virtio-user, in short.

use lasthop_vhost::features::PROTOCOL_FEATURES;
use lasthop_vhost::features::protocol::{CONFIGURE_MEM_SLOTS, REPLY_ACK, STATUS};
use lasthop_vhost::front::{encode_memory_region, encode_memory_table};
use lasthop_vhost::message::{
    ConfigMessage, MemoryRegionMessage, RingAddressMessage, RingStateMessage, VRING_NO_FD, request,
};

use crate::input::Seed;

use super::OFFERED;
use super::files::Kind;
use super::script::{USER, encode_message, encode_progress};

const MEMORY_BYTES: u64 = 0x10_0000;

/// A front end in the making.
struct Front {
    seed: Seed,
    flags: u8,
}

impl Front {
    fn new(through_socket: bool, two_pairs: bool) -> Self {
        let mut seed = Seed::default();
        seed.u8(through_socket.into()).u8(two_pairs.into());
        Self { seed, flags: 0 }
    }

    fn tell(&mut self, number: u32, body: &[u8], kinds: &[Kind]) {
        encode_message(&mut self.seed, number, self.flags, body, kinds);
    }

    fn tell_u64(&mut self, number: u32, value: u64) {
        self.tell(number, &value.to_ne_bytes(), &[]);
    }

    fn tell_ring(&mut self, number: u32, index: u32, value: u32) {
        self.tell(number, &RingStateMessage { index, value }.encode(), &[]);
    }

    fn ask(&mut self, number: u32) {
        self.tell(number, &[], &[]);
    }

    fn negotiate(&mut self, features: u64, protocol_features: u64) {
        self.ask(request::SET_OWNER);
        self.ask(request::GET_FEATURES);
        self.ask(request::GET_PROTOCOL_FEATURES);
        self.tell_u64(request::SET_PROTOCOL_FEATURES, protocol_features);
        self.flags = u8::from(protocol_features & REPLY_ACK != 0);
        self.ask(request::GET_QUEUE_NUM);
        self.tell_u64(request::SET_FEATURES, features);
    }

    fn start_ring(&mut self, index: u32, kick: &[Kind]) {
        let at = USER + u64::from(index) * 0x4000;
        let address = RingAddressMessage {
            index,
            descriptors: at,
            available: at + 0x1000,
            used: at + 0x2000,
            ..RingAddressMessage::default()
        };
        self.tell_ring(request::SET_VRING_NUM, index, 256);
        self.tell_ring(request::SET_VRING_BASE, index, 0);
        self.tell(request::SET_VRING_ADDR, &address.encode(), &[]);
        for number in [request::SET_VRING_CALL, request::SET_VRING_ERR] {
            self.tell(number, &u64::from(index).to_ne_bytes(), &[Kind::Event]);
        }
        let word = u64::from(index) | if kick.is_empty() { VRING_NO_FD } else { 0 };
        self.tell(request::SET_VRING_KICK, &word.to_ne_bytes(), kick);
    }

    fn stop_ring(&mut self, index: u32) {
        self.tell_ring(request::GET_VRING_BASE, index, 0);
    }

    fn finish(self) -> Vec<u8> {
        self.seed.into_bytes()
    }
}

fn region(guest_addr: u64) -> MemoryRegionMessage {
    MemoryRegionMessage { guest_addr, user_addr: USER, size: MEMORY_BYTES, offset: 0 }
}

fn uml() -> Vec<u8> {
    let mut front = Front::new(true, false);
    front.negotiate(OFFERED, REPLY_ACK);
    let mut table = encode_memory_table(&[region(0x10_0000)]);
    table.resize(72, 0);
    front.tell(request::SET_MEM_TABLE, &table, &[Kind::Memory(0)]);
    (0..2).for_each(|index| front.start_ring(index, &[Kind::Event]));
    front.finish()
}

fn qemu(two_pairs: bool) -> Vec<u8> {
    let mut front = Front::new(false, two_pairs);
    front.negotiate(OFFERED | PROTOCOL_FEATURES, REPLY_ACK | STATUS);
    let rings = if two_pairs { 5 } else { 3 };
    front.tell(request::SET_MEM_TABLE, &encode_memory_table(&[region(0)]), &[Kind::Memory(0)]);
    for index in 0..rings {
        front.start_ring(index, &[Kind::Event]);
        front.tell_ring(request::SET_VRING_ENABLE, index, 1);
    }
    front.tell_u64(request::SET_STATUS, 0xf);
    encode_progress(&mut front.seed, 5);
    (0..rings).for_each(|index| front.stop_ring(index));
    front.tell_u64(request::SET_STATUS, 0);
    front.ask(request::RESET_OWNER);
    (0..rings).for_each(|index| front.start_ring(index, &[Kind::Event]));
    front.finish()
}

/// Regions one by one, one of them moved while rings run; no kicks.
fn slots() -> Vec<u8> {
    let mut front = Front::new(true, false);
    front.negotiate(OFFERED | PROTOCOL_FEATURES, REPLY_ACK | CONFIGURE_MEM_SLOTS);
    front.ask(request::GET_MAX_MEM_SLOTS);
    front.tell(request::ADD_MEM_REG, &encode_memory_region(region(0x10_0000)), &[Kind::Memory(0)]);
    (0..2).for_each(|index| front.start_ring(index, &[]));
    front.tell(request::REM_MEM_REG, &encode_memory_region(region(0x10_0000)), &[]);
    front.tell(request::ADD_MEM_REG, &encode_memory_region(region(0x40_0000)), &[Kind::Memory(0)]);
    front.tell(request::GET_CONFIG, &ConfigMessage { offset: 0, size: 12, flags: 0 }.encode(&[0; 12]), &[]);
    front.tell_u64(request::NET_SET_MTU, 1500);
    front.tell(request::SET_BACKEND_REQ_FD, &[], &[Kind::Socket]);
    front.finish()
}

/// Sequences of real front ends.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seeds = [("uml", uml()), ("qemu", qemu(false)), ("qemu-two-pairs", qemu(true)), ("slots", slots())];
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}
