//! Actions on guests and ports; the same sequence for the same seed.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lasthop_rig::random::Random;
use lasthop_rig::rogue::Rogue;
use lasthop_rig::sequences::Supply;

/// Vhost-user: GET_FEATURES, version 1, no body.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
/// SET_MEM_TABLE, version 1, of 40 bytes, without them.
const HALF_A_TABLE: [u8; 16] = [5, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0];

/// An action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The guest process is killed, and starts again.
    Kill,
    /// The guest process is stopped for this many milliseconds.
    Stop(u64),
    /// The guest leaves and attaches again as another kind of guest.
    Reconnect,
    /// RESET_DEVICE, fresh rings.
    Reset,
    /// GET_VRING_BASE of all rings, and a restart at that position.
    Restart,
    /// A new memory table, with the same memory in other regions.
    Memory,
    /// The vnic is removed while its guest is attached, and added again with this many queue pairs.
    Port(u16),
    /// The link of the vnic is down for this many milliseconds.
    Link(u64),
    /// A descriptor that no driver would write.
    Hostile,
    /// The read-only commands.
    Look,
    /// Half a vhost-user message to a vnic, then a hang-up.
    Half,
    /// This many random bytes to a vnic.
    Garbage(u64),
    /// Messages with descriptors of all kinds to a vnic, from this seed.
    Rogue(u64),
    /// A queue pair of the vnic moves to another worker; two numbers choose them.
    Move(u16, u64),
    /// The switch process is killed while a queue pair moves, or not.
    Death,
}

/// Whether the switch process is killed in the run with this seed. A frame that it had begun to write is overwritten by
/// the next one, so guests do not check the bytes after frames in that run.
pub(crate) fn may_die(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Whether a process stands by in the run with this seed: the switch process dies there, too.
pub(crate) fn has_standby(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

impl Action {
    /// The next action, its guest (from 1), and the pause after it.
    pub(crate) fn next(random: &mut Random, guests: u8, may_die: bool) -> (Self, u8, Duration) {
        let action = match random.below(23) {
            0 | 1 => Self::Kill,
            2 | 3 => Self::Stop(100 + random.below(900)),
            4 => Self::Reconnect,
            5 | 6 => Self::Reset,
            7 | 8 => Self::Restart,
            9 | 10 => Self::Memory,
            11 => Self::Port(1 + random.below(2) as u16),
            12 => Self::Hostile,
            13 => Self::Look,
            14 => Self::Half,
            15 | 16 => Self::Link(random.below(60)),
            19 => Self::Rogue(random.next()),
            20..=22 => Self::Move(random.below(2) as u16, random.next()),
            17 if may_die => Self::Death,
            _ => Self::Garbage(random.next()),
        };
        let guest = 1 + random.below(u64::from(guests)) as u8;
        (action, guest, Duration::from_millis(10 + random.below(150)))
    }

    /// Its name in the summary.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop(_) => "stop",
            Self::Reconnect => "reconnect",
            Self::Reset => "reset",
            Self::Restart => "restart",
            Self::Memory => "memory",
            Self::Port(_) => "port",
            Self::Link(_) => "link",
            Self::Hostile => "hostile",
            Self::Look => "look",
            Self::Half => "half",
            Self::Garbage(_) => "garbage",
            Self::Rogue(_) => "rogue",
            Self::Move(..) => "move",
            Self::Death => "death",
        }
    }

    /// The order to a guest, if the guest itself has to act.
    pub(crate) fn order(self) -> Option<&'static str> {
        matches!(self, Self::Reconnect | Self::Reset | Self::Restart | Self::Memory | Self::Hostile)
            .then(|| self.name())
    }

    /// Whether frames may be lost that neither side counts: those in rings that are reset.
    pub(crate) fn forgets_rings(self) -> bool {
        matches!(self, Self::Kill | Self::Reconnect | Self::Reset | Self::Port(_) | Self::Hostile)
    }
}

/// A connection that ends in the middle of a message.
pub(crate) fn half(mut socket: UnixStream) {
    // The switch may hang up first.
    let _ = socket.write_all(&GET_FEATURES).and_then(|()| socket.write_all(&HALF_A_TABLE));
}

/// A connection with another protocol.
pub(crate) fn garbage(mut socket: UnixStream, seed: u64) {
    let mut random = Random::new(seed);
    let len = 1 + random.below(4000);
    let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = socket.write_all(&bytes);
}

/// A front end that sends any requests with any descriptors, and reads no reply.
pub(crate) fn rogue(rogue: &Rogue, seed: u64) {
    Supply::new().send(rogue, 40, &mut Random::new(seed));
}
