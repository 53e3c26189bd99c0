//! A card without a driver, with the test's own buffers.

use std::os::unix::net::UnixStream;

use lasthop_frontend::{ALL_FEATURES, GuestError, Vnic, VnicOptions, VnicPair};
use lasthop_guestmem::Segment;
use lasthop_vhost::features;
use rustix::event::{PollFd, PollFlags, poll};

use crate::backend::{self, MAC};
use crate::frame;

const HEADER_BYTES: usize = 12;
const SLOT_BYTES: u32 = 2048;
const SLOTS: u32 = 8;

fn options() -> VnicOptions {
    let features = ALL_FEATURES & !features::MRG_RXBUF;
    VnicOptions {
        features,
        queue_pairs: 1,
        rx_entries: 8,
        tx_entries: 16,
        arena_bytes: 2 * SLOTS * SLOT_BYTES,
        has_tunnel: false,
    }
}

fn slot(pair: &VnicPair, offset: u32) -> Segment {
    let arena = pair.arena();
    Segment { offset: arena.offset + u64::from(offset), len: SLOT_BYTES, region: arena.region }
}

/// Waits for a frame, and copies it out of its buffer.
fn receive(pair: &mut VnicPair) -> (u32, Vec<u8>) {
    loop {
        if let Some(used) = pair.rx.take_back().unwrap() {
            let mut bytes = vec![0; used.len as usize];
            pair.map().read(slot(pair, used.token), 0, &mut bytes).unwrap();
            return (used.token, bytes.split_off(HEADER_BYTES));
        }
        if !pair.rx.arm_calls() {
            poll(&mut [PollFd::from_borrowed_fd(pair.rx.call_fd(), PollFlags::IN)], None).unwrap();
        }
        pair.rx.suppress_calls();
    }
}

/// Frames from buffers in the upper half of the arena return in buffers of the lower half.
fn echo(pair: &mut VnicPair) {
    let at = |number: u32| number * SLOT_BYTES;
    assert_eq!((pair.rx.room(), pair.tx.room(), pair.header_bytes()), (8, 16, HEADER_BYTES));
    assert!(!pair.is_mergeable() && pair.arena().offset.is_multiple_of(4096));
    assert!((0..SLOTS).all(|number| pair.rx.lend(at(number), SLOT_BYTES, at(number))));
    assert!(!pair.rx.lend(0, SLOT_BYTES, 0), "the ring is full");
    pair.rx.flush().unwrap();
    for number in 0..100 {
        let (sent, offset) = (frame(60 + number * 7, number), at(SLOTS + number as u32 % SLOTS));
        pair.map().write(slot(pair, offset), 0, &[0; HEADER_BYTES]).unwrap();
        pair.map().write(slot(pair, offset), HEADER_BYTES as u32, &sent).unwrap();
        assert!(pair.tx.lend(offset, (HEADER_BYTES + sent.len()) as u32, offset));
        assert_eq!(pair.tx.in_flight(), 0, "not shown yet");
        pair.tx.flush().unwrap();
        let (token, received) = receive(pair);
        assert_eq!(received, sent);
        assert!(pair.rx.lend(token, SLOT_BYTES, token));
        pair.rx.flush().unwrap();
        while pair.tx.in_flight() > 0 {
            if let Some(used) = pair.tx.take_back().unwrap() {
                assert_eq!(used.token, offset);
            }
        }
    }
    assert!(!pair.rx.flush().unwrap(), "nothing is left to be shown");
}

#[test]
fn buffers_are_lent_and_come_back() {
    let serve = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, backend::spawn(theirs, ALL_FEATURES, 1))
    };
    let (stream, backend) = serve();
    let (mut vnic, mut pairs) = Vnic::over(stream, options()).unwrap();
    assert_eq!((vnic.features(), vnic.config().mac), (options().features, MAC));
    echo(&mut pairs[0]);
    pairs = vnic.reset(features::VERSION_1, None).unwrap();
    assert_eq!(vnic.features(), features::VERSION_1);
    echo(&mut pairs[0]);
    drop(pairs);
    let (stream, other) = serve();
    pairs = vnic.reconnect(stream).unwrap();
    assert_eq!(backend.join().unwrap().frames, 200);
    echo(&mut pairs[0]);
    drop(vnic);
    assert_eq!(other.join().unwrap().frames, 100);
}

#[test]
fn cards_that_cannot_be_are_named() {
    let wrong = [
        VnicOptions { queue_pairs: 0, ..options() },
        VnicOptions { rx_entries: 3, ..options() },
        VnicOptions { tx_entries: 0, ..options() },
        VnicOptions { arena_bytes: 0, ..options() },
    ];
    for options in wrong {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = Vnic::over(ours, options).map(drop).unwrap_err();
        assert!(matches!(error, GuestError::Options(_)), "{options:?}: {error}");
    }
}
