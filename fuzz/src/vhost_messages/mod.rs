//! A front end's messages and file descriptors, in any order and of any kind, into a session or its state machine.

mod files;
mod model;
mod recorder;
mod script;
mod seeds;
mod side;

use std::sync::Once;
use std::time::{Duration, Instant};

use lasthop_guestmem::guard;
use lasthop_vhost::{Offer, features};

use crate::input::Input;
use files::Files;
use model::Model;
use recorder::Recorder;
use script::Step;
use side::Side;

pub use files::checks as file_checks;
pub use script::checks as script_checks;
pub use seeds::seeds;

/// Messages of one input: more than any front end needs to start, stop and start again.
const STEPS_MAX: usize = 192;
/// How long closes may take on a busy machine, and the pause between two looks.
const CLOSES_MAX: Duration = Duration::from_secs(60);
const CLOSES_LOOK: Duration = Duration::from_micros(100);
/// The device's offer; without a control queue a port has an even number of rings.
const OFFERED: u64 = features::CSUM
    | features::GUEST_CSUM
    | features::MRG_RXBUF
    | features::EVENT_IDX
    | features::VERSION_1
    | features::CTRL_VQ;

/// Panics when something does not hold for a front end.
///
/// Installs the handler for files that are cut short under their mapping, for the whole process.
pub fn run(bytes: &[u8]) {
    static GUARD: Once = Once::new();
    GUARD.call_once(|| guard::install().expect("a signal handler"));
    play_to_the_last_close(&mut Input::new(bytes));
}

fn play_to_the_last_close(input: &mut Input<'_>) {
    let before = open_descriptors();
    play(input);
    // Other threads close descriptors that were sent.
    let until = Instant::now() + CLOSES_MAX;
    while open_descriptors() != before && Instant::now() < until {
        std::thread::sleep(CLOSES_LOOK);
    }
    assert_eq!(open_descriptors(), before, "a file descriptor was left open, or one too many closed");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn play(input: &mut Input<'_>) {
    let (through_socket, two_pairs) = (input.bool(), input.bool());
    let offer = Offer {
        features: OFFERED,
        queue_pairs: 1 + u16::from(two_pairs),
        mac: Some([0x52, 0x54, 0, 1, 2, 3]),
        mtu: Some(9000),
        private: 0,
    };
    let recorder = Recorder::new(offer);
    let mut files = Files::default();
    let mut side = Side::new(through_socket, recorder.clone());
    let mut model = Model::new(offer);
    for _ in 0..STEPS_MAX {
        if input.is_empty() || !step(Step::decode(input), &mut files, &mut side, &mut model, &recorder) {
            break;
        }
    }
    drop(side);
    recorder.assert_nothing_left();
}

/// One step; whether the session continues.
fn step(step: Step, files: &mut Files, side: &mut Side, model: &mut Model, recorder: &Recorder) -> bool {
    match step {
        Step::Progress(heads) => recorder.notes().progress = heads,
        Step::Reluctant(reluctant) => recorder.notes().reluctant = reluctant,
        Step::Truncate { file, bytes } => files.truncate(file, bytes),
        Step::Garbage(bytes) => {
            model.lose_track();
            return side.send_garbage(bytes).is_ok();
        }
        Step::Message { message, kinds, cut } => {
            let fds = kinds.iter().map(|kind| files.open(*kind)).collect();
            let outcome = side.tell(&message, fds, cut);
            let events = std::mem::take(&mut recorder.notes().events);
            model.follow(&message, &kinds, &outcome, &events);
            if outcome.is_err() {
                return false;
            }
            model.compare(&recorder.notes());
        }
    }
    true
}

/// Tests, which `tests/targets.rs` runs.
pub mod checks {
    use super::*;

    /// One test, since open descriptors are counted.
    pub fn seeds_start_rings_and_go_on_to_their_end() {
        for (name, bytes) in seeds() {
            run(&bytes);
            let mut input = Input::new(&bytes);
            play_to_the_last_close(&mut input);
            assert!(input.is_empty(), "{name} goes on to its end");
        }
    }
}
