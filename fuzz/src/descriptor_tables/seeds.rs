//! Two guests that talk to each other as real ones do.

use crate::input::Seed;

use super::program::{FrameSpec, Place, Step};

const FIRST: Place = Place { port: 0, queue: 0 };
const SECOND: Place = Place { port: 1, queue: 0 };
const SECOND_QUEUE: Place = Place { port: 1, queue: 1 };
/// As `world::capabilities` reads them.
const MERGEABLE: u8 = 1;
const ALL: u8 = 31;
const LEGACY: u8 = 32;

fn seed(capabilities: [u8; 2], steps: &[Step<'_>]) -> Vec<u8> {
    let mut seed = Seed::default();
    seed.u8(7);
    for bits in capabilities {
        // 16 entries, with event indices.
        seed.u8(4).u8(1).u8(bits);
    }
    steps.iter().for_each(|step| step.encode(&mut seed));
    seed.into_bytes()
}

fn post(place: Place) -> Step<'static> {
    Step::Post { place, count: 12, len: 1600 }
}

fn send(place: Place, frame: FrameSpec, pieces: u8) -> Step<'static> {
    Step::Send { place, frame, pieces }
}

/// Small packets both ways, one in pieces.
fn ping_pong(capabilities: [u8; 2]) -> Vec<u8> {
    let frame = FrameSpec { payload: 300, ..FrameSpec::default() };
    let small = FrameSpec { shape: 0b0_1001, payload: 40, ..FrameSpec::default() };
    let mut steps = vec![post(FIRST), post(SECOND), post(SECOND_QUEUE)];
    for module in [0, 0b0110_0000] {
        let frame = FrameSpec { shape: frame.shape | module, ..frame };
        steps.extend([send(FIRST, frame, 1), send(FIRST, small, 5), Step::Visit(FIRST)]);
        steps.extend([send(SECOND, frame, 2), Step::Visit(SECOND), send(SECOND_QUEUE, small, 1)]);
        steps.push(Step::Visit(SECOND_QUEUE));
    }
    seed(capabilities, &steps)
}

/// A frame that the receiver wants in segments, or in several buffers.
fn large(capabilities: [u8; 2], shape: u8) -> Vec<u8> {
    let frame = FrameSpec { shape, payload: 6000, gso_size: 1000, astray: 0 };
    let steps = [post(SECOND), post(SECOND_QUEUE), post(FIRST), send(FIRST, frame, 10), Step::Visit(FIRST)];
    seed(capabilities, &steps)
}

/// Packets that go nowhere, one in too many pieces, and one that arrives.
fn losses() -> Vec<u8> {
    let frame = |shape| FrameSpec { shape, payload: 2000, ..FrameSpec::default() };
    let sent = [(0b0010_1000, 1), (0b0100_1000, 1), (0b0000_1000, 75), (0b0000_1000, 4)];
    let mut steps = vec![post(SECOND), post(SECOND_QUEUE)];
    steps.extend(sent.map(|(shape, pieces)| send(FIRST, frame(shape), pieces)));
    steps.push(Step::Visit(FIRST));
    seed([ALL, MERGEABLE], &steps)
}

/// A receiver that is slow, then gone for a while; frames of the switch's own.
fn slow_receiver() -> Vec<u8> {
    let frame = FrameSpec { payload: 100, ..FrameSpec::default() };
    let once = [post(FIRST), post(SECOND), post(SECOND_QUEUE), send(FIRST, frame, 1), Step::Visit(FIRST)];
    let mut steps = Vec::from(once);
    steps.extend([Step::Memory { port: 1, regions: 0 }, Step::Inject(frame)]);
    for _ in 0..3 {
        steps.extend((0..10).map(|_| send(FIRST, frame, 1)));
        steps.extend([Step::Visit(FIRST), Step::Expire { ms: 40 }]);
    }
    steps.extend([post(SECOND), Step::DrainWaiting, Step::Expire { ms: 40 }]);
    seed([ALL, MERGEABLE], &steps)
}

/// Steps of guests with different abilities.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seeds = [
        ("ping-pong", ping_pong([ALL, ALL])),
        ("ping-pong-plain", ping_pong([0, 0])),
        ("ping-pong-legacy", ping_pong([LEGACY, MERGEABLE])),
        ("large-merged", large([ALL, ALL], 0)),
        ("large-segmented", large([ALL, 0], 0)),
        ("large-segmented-ipv6", large([LEGACY, 2], 0b0_0011)),
        ("losses", losses()),
        ("slow-receiver", slow_receiver()),
    ];
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}
