//! A passive front end: VMMs at every stage, and with every mistake.

use std::os::fd::{AsFd, OwnedFd};

use lasthop_frontend::ALL_FEATURES;
use lasthop_guestmem::{Mapping, memfd};
use lasthop_vhost::features::{self, protocol};
use lasthop_vhost::front::FrontEnd;
use lasthop_vhost::{MemoryRegionMessage, RingAddressMessage};
use rustix::event::{EventfdFlags, eventfd};

use lasthop_rig::Switch;

/// Bytes of its guest's memory.
const MEMORY_BYTES: u64 = 1 << 20;
const USER_ADDR: u64 = 0x7000_0000_0000;
/// All bits of the device status of a driver that runs (virtio 1.2, 2.1).
pub(crate) const STATUS_RUNNING: u8 = 15;

pub(crate) struct Fake {
    pub(crate) front: FrontEnd,
    kicks: Vec<OwnedFd>,
    mapped: Option<Mapping>,
}

impl Fake {
    /// A VMM before its guest's driver starts.
    pub(crate) fn connect(switch: &Switch, port: &str) -> Self {
        let mut front = FrontEnd::new(switch.connect(&format!("{port}.sock"))).expect("connected");
        front.get_features().expect("features");
        front.set_owner().expect("owned");
        let offered = front.get_protocol_features().expect("protocol features");
        front.set_protocol_features(offered & protocol::OFFERED).expect("agreed");
        Self { front, kicks: Vec::new(), mapped: None }
    }

    /// Its guest's driver accepts features.
    pub(crate) fn negotiated(switch: &Switch, port: &str) -> Self {
        let mut fake = Self::connect(switch, port);
        let offered = fake.front.get_features().expect("features");
        let wanted = offered & (ALL_FEATURES | features::PROTOCOL_FEATURES);
        fake.front.set_features(wanted).expect("agreed");
        fake
    }

    /// Sends the descriptor of fresh memory, which it has not mapped.
    pub(crate) fn share(&mut self) {
        self.share_file();
    }

    /// Sends the descriptor of fresh memory, which it shares.
    pub(crate) fn share_mapped(&mut self) {
        let file = self.share_file();
        self.mapped = Some(Mapping::of_file(file.as_fd(), 0, MEMORY_BYTES).expect("mapped"));
    }

    fn share_file(&mut self) -> OwnedFd {
        let file = memfd("fake", MEMORY_BYTES).expect("a memfd");
        let region =
            MemoryRegionMessage { guest_addr: 0, size: MEMORY_BYTES, user_addr: USER_ADDR, offset: 0 };
        self.front.set_mem_table(&[region], &[file.as_fd()]).expect("memory");
        file
    }

    /// Starts and enables both rings of the first pair, to which its guest never writes.
    pub(crate) fn start_rings(&mut self) {
        for index in 0..2 {
            let base = USER_ADDR + 0x10_000 * u64::from(index);
            let address = RingAddressMessage {
                index: u32::from(index),
                flags: 0,
                descriptors: base,
                available: base + 0x4000,
                used: base + 0x8000,
                log: 0,
            };
            self.front.set_vring_num(index, 256).expect("entries");
            self.front.set_vring_base(index, 0).expect("a base");
            self.front.set_vring_addr(address).expect("a place");
            let kick = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
            self.front.set_vring_call(index, Some(kick.as_fd())).expect("a call");
            self.front.set_vring_kick(index, Some(kick.as_fd())).expect("started");
            self.front.set_vring_enable(index, true).expect("enabled");
            self.kicks.push(kick);
        }
        self.front.set_status(STATUS_RUNNING).expect("status");
    }

    pub(crate) fn kick(&self) {
        for kick in &self.kicks {
            rustix::io::write(kick, &1_u64.to_ne_bytes()).expect("kicked");
        }
    }
}
