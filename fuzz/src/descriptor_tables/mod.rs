//! Two guests' ring memory, written by a stranger between any two calls of the fabric that moves packets between them.

pub(crate) mod layout;
mod oracle;
mod port;
pub(crate) mod program;
mod ranges;
mod seeds;
mod world;

use crate::input::Input;
use program::Step;
use world::World;

pub use ranges::checks as range_checks;
pub use seeds::seeds;

/// Steps of one input: enough for a ring to go around.
const STEPS_MAX: usize = 96;

/// Panics if a property does not hold for the writes of two guests.
pub fn run(bytes: &[u8]) {
    play(bytes);
}

/// The packets that were delivered and compared with their senders' memory.
fn play(bytes: &[u8]) -> usize {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(Step::decode(&mut input));
    }
    world.finish()
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn seeds_deliver_packets_that_are_compared() {
        for (name, bytes) in seeds() {
            assert!(play(&bytes) > 0, "{name}");
        }
    }
}
