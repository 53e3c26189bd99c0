//! Invalid sequences of messages: any request at any time, with any descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_vhost::features::{PROTOCOL_FEATURES, VERSION_1, protocol};
use lasthop_vhost::message::{VRING_NO_FD, request};

use super::odd_fds::{assortment, nested};
use super::random::Random;
use super::rogue::{Desk, Rogue, event_fd};

/// The last valid request, and some invalid ones.
const REQUESTS_END: u64 = 48;
/// Descriptors of one message: more than a session accepts.
const FDS_MAX: u64 = 10;
const FEATURES: u64 = VERSION_1 | PROTOCOL_FEATURES;

/// Descriptors of all kinds, and memory for rings.
pub struct Supply {
    desk: Desk,
    all: Vec<OwnedFd>,
    _files: tempfile::TempDir,
}

impl Supply {
    pub fn new() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let mut all: Vec<OwnedFd> = assortment(files.path()).into_iter().map(|(_, fd)| fd).collect();
        all.push(nested(event_fd().as_fd()));
        Self { desk: Desk::new(1), all, _files: files }
    }

    /// A random descriptor; memory and eventfds, which lead further, are frequent.
    fn any(&self, random: &mut Random) -> BorrowedFd<'_> {
        match random.below(4) {
            0 => self.desk.file.as_fd(),
            1 => self.desk.kick.as_fd(),
            _ => self.all[random.below(self.all.len() as u64) as usize].as_fd(),
        }
    }

    /// A body, valid for its request in most cases.
    fn body(&self, number: u32, random: &mut Random) -> Vec<u8> {
        let ring = |random: &mut Random| random.below(4);
        match number {
            _ if random.once_in(8) => (0..random.below(64)).map(|_| random.next() as u8).collect(),
            request::SET_FEATURES => FEATURES.to_ne_bytes().to_vec(),
            request::SET_PROTOCOL_FEATURES => protocol::OFFERED.to_ne_bytes().to_vec(),
            request::ADD_MEM_REG | request::REM_MEM_REG => {
                [&[0; 8], self.desk.region().encode().as_slice()].concat()
            }
            request::SET_MEM_TABLE => [&1_u64.to_ne_bytes(), self.desk.region().encode().as_slice()].concat(),
            request::SET_VRING_ADDR => Rogue::address(ring(random) as u16, ring(random) as u16).encode(),
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                let without = if random.once_in(4) { VRING_NO_FD } else { 0 };
                (ring(random) | without).to_ne_bytes().to_vec()
            }
            request::SET_VRING_NUM | request::SET_VRING_BASE | request::SET_VRING_ENABLE => {
                let value = [0, 1, 256, 300][random.below(4) as usize];
                [ring(random) as u32, value].map(u32::to_ne_bytes).concat()
            }
            request::GET_VRING_BASE => [ring(random) as u32, 0].map(u32::to_ne_bytes).concat(),
            request::SET_INFLIGHT_FD | request::GET_INFLIGHT_FD => vec![0; 24],
            _ => vec![0; 8 * random.below(3) as usize],
        }
    }

    /// Sends this number of messages, and reads no reply.
    pub fn send(&self, rogue: &Rogue, messages: usize, random: &mut Random) {
        for _ in 0..messages {
            let number = random.below(REQUESTS_END) as u32;
            let body = self.body(number, random);
            let count = if random.once_in(8) { random.below(FDS_MAX) } else { random.below(2) };
            let fds: Vec<_> = (0..count).map(|_| self.any(random)).collect();
            // The switch may hang up, and some descriptors cannot be sent.
            let _ = rogue.send(number, &body, &fds);
        }
    }
}
