//! Sessions of attackers, which may be refused or ended at any time.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use lasthop_vhost::message::MemoryRegionMessage;

use lasthop_rig::rogue::{Desk, FEATURES, Rogue};

use super::{Ground, socket_of};

/// The pause of an attacker whose session ended, or is not accepted.
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_millis(500);

/// Opens sessions, one after the other, until the attack is over: each continues until `act` fails.
pub(super) fn again_and_again(ground: &Ground<'_>, act: impl FnMut() -> Option<()>) {
    ground.begin();
    while_it_goes_on(ground, act);
}

/// The same for an attack that says itself when it has begun.
pub(super) fn while_it_goes_on(ground: &Ground<'_>, mut act: impl FnMut() -> Option<()>) {
    while ground.goes_on() {
        if act().is_none() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// A connection to a vnic.
pub(super) fn connect(dir: &Path, vnic: &str) -> Option<Rogue> {
    let mut rogue = Rogue::over(UnixStream::connect(socket_of(dir, vnic)).ok()?);
    rogue.set_patience(PATIENCE);
    Some(rogue)
}

/// Memory beside the desk.
pub(super) type More<'a> = [(MemoryRegionMessage, BorrowedFd<'a>)];

/// A session with running rings, if it is accepted.
pub(super) fn attach(dir: &Path, vnic: &str, pairs: u16, more: &More<'_>) -> Option<(Rogue, Desk)> {
    let (rogue, desk) = (connect(dir, vnic)?, Desk::new(pairs));
    start(rogue, desk, more)
}

fn start(mut rogue: Rogue, desk: Desk, more: &More<'_>) -> Option<(Rogue, Desk)> {
    rogue.try_to_negotiate(FEATURES).ok()?;
    rogue.try_to_share(&desk, more).ok()?;
    for index in 0..2 * desk.pairs() {
        rogue.start_ring(index, Some(desk.kick.as_fd()), Some(desk.call.as_fd())).ok()?;
    }
    rogue.front.get_features().ok()?;
    Some((rogue, desk))
}
