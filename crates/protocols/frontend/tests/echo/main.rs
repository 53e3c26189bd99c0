//! A guest at a back end that sends every frame back.

mod backend;
mod card;

use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

use backend::{MAC, Seen};
use lasthop_frontend::{
    ALL_FEATURES, BurstGuest, DeviceConfig, Guest, GuestError, GuestListener, GuestOptions, ReadDepth,
    START_BYTES,
};
use lasthop_vhost::features::{self, protocol};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, Offload};

/// Fails instead of hanging for ever; it does not limit speed.
const HANG: Option<Duration> = Some(Duration::from_secs(60));

fn pair(options: GuestOptions) -> (Guest, JoinHandle<Seen>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let offered = ALL_FEATURES | features::IN_ORDER | features::RING_PACKED;
    let backend = backend::spawn(theirs, offered, options.queue_pairs);
    (Guest::over(ours, options).unwrap(), backend)
}

fn end(guest: Guest, backend: JoinHandle<Seen>) -> Seen {
    drop(guest);
    backend.join().unwrap()
}

fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect()
}

fn offload(seed: u16) -> Offload {
    Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54 + seed,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    }
}

fn receive(guest: &mut Guest, queue: u16, into: &mut Vec<u8>) -> lasthop_frontend::ReceivedFrame {
    loop {
        if let Some(received) = guest.recv(queue, into).unwrap() {
            return received;
        }
        assert!(guest.wait(HANG).unwrap(), "no frame came");
    }
}

/// Sends frames of many sizes, a few at a time, and compares the frames that come back.
fn echo(guest: &mut Guest, queue: u16, frames: usize, len_max: usize, cuts: &[u32]) {
    let mut into = Vec::new();
    let len_of = |number: usize| 14 + number * 977 % (len_max - 13);
    for first in (0..frames).step_by(4) {
        for number in first..first + 4 {
            let sent = guest.send_parts(queue, &frame(len_of(number), number), offload(number as u16), cuts);
            assert!(sent.unwrap());
        }
        guest.flush(queue).unwrap();
        for number in first..first + 4 {
            let received = receive(guest, queue, &mut into);
            assert_eq!(received.len, len_of(number));
            assert_eq!(received.offload, offload(number as u16));
            assert!(into == frame(len_of(number), number), "frame {number} of {} bytes", received.len);
        }
        while guest.in_flight(queue).unwrap() > 0 {
            guest.reclaim(queue).unwrap();
        }
    }
}

#[test]
fn frames_up_to_64_kib_come_back_in_mergeable_buffers() {
    let (mut guest, backend) = pair(GuestOptions::default());
    assert_eq!(guest.features(), ALL_FEATURES);
    echo(&mut guest, 0, 400, 65_549, &[]);
    let mut into = Vec::new();
    for (len, buffers) in [(14, 1), (1524, 1), (1525, 2), (3060, 2), (3061, 3), (65_549, 43)] {
        assert!(guest.send(0, &frame(len, 0), Offload::default()).unwrap());
        guest.flush(0).unwrap();
        assert_eq!(receive(&mut guest, 0, &mut into).num_buffers, buffers, "{len} bytes");
    }
    let counters = guest.counters();
    assert_eq!((counters.sent_frames, counters.received_frames), (406, 406));
    assert_eq!(counters.sent_bytes, counters.received_bytes);
    let seen = end(guest, backend);
    assert_eq!((seen.frames, seen.descriptors, seen.regions), (406, 406, 1));
    assert_eq!(seen.enabled, [0, 1]);
}

#[test]
fn every_set_of_ring_features_carries_frames() {
    let optional = [
        features::INDIRECT_DESC,
        features::EVENT_IDX,
        features::MRG_RXBUF,
        features::VERSION_1,
        features::IN_ORDER,
        features::RING_PACKED,
    ];
    let all = ALL_FEATURES | features::IN_ORDER | features::RING_PACKED;
    for set in 0..1 << optional.len() {
        let without = (0..optional.len()).filter(|bit| set >> bit & 1 == 1).map(|bit| optional[bit]).sum();
        let options = GuestOptions {
            rx_buffer_bytes: 2048,
            ring_entries: 32,
            start_position: 65_500,
            features: all,
            ..GuestOptions::default()
        };
        let (mut guest, backend) = pair(options.without(without));
        assert_eq!(guest.features(), all & !without);
        echo(&mut guest, 0, 100, 2036, &[4, 8, 100]);
        assert_eq!(end(guest, backend).frames, 100);
    }
}

#[test]
fn headers_and_buffers_straddle_descriptors_and_regions() {
    straddle(ALL_FEATURES);
    straddle(ALL_FEATURES | features::RING_PACKED);
    straddle(ALL_FEATURES & !features::INDIRECT_DESC | features::RING_PACKED);
}

fn straddle(features: u64) {
    let options = GuestOptions {
        features,
        regions: 7,
        rx_cuts: vec![5, 3, 700],
        rx_buffer_bytes: 1500,
        ..GuestOptions::default()
    };
    let (mut guest, backend) = pair(options);
    echo(&mut guest, 0, 400, 60_000, &[1, 10, 3, 1000, 5000]);
    let seen = end(guest, backend);
    assert_eq!(seen.regions, 7);
    assert!(seen.descriptors > 400 * 4);
}

#[test]
fn queue_pairs_are_separate() {
    let (mut guest, backend) =
        pair(GuestOptions { queue_pairs: 4, ring_entries: 64, ..GuestOptions::default() });
    for queue in 0..4 {
        assert!(guest.send(queue, &frame(100, usize::from(queue)), Offload::default()).unwrap());
    }
    for queue in (0..4).rev() {
        guest.flush(queue).unwrap();
        let mut into = Vec::new();
        receive(&mut guest, queue, &mut into);
        assert_eq!(into, frame(100, usize::from(queue)));
        assert!((0..4).all(|queue| guest.recv(queue, &mut into).unwrap().is_none()));
    }
    assert!(matches!(guest.send(4, &[0; 60], Offload::default()), Err(GuestError::NoSuchQueue(4))));
    assert_eq!(end(guest, backend).enabled, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn rings_go_on_where_they_were_stopped() {
    let (mut guest, backend) = pair(GuestOptions { start_position: 65_400, ..GuestOptions::default() });
    for round in 1..5_u16 {
        echo(&mut guest, 0, 100, 1500, &[]);
        let bases = guest.stop().unwrap();
        assert_eq!(bases[1], 65_400_u16.wrapping_add(100 * round));
        // The back end finds frames at its start that were sent while it was stopped, without a kick.
        assert!(guest.send(0, &frame(60, 1), Offload::default()).unwrap());
        guest.transmit_ring(0).unwrap().publish();
        guest.start(&bases).unwrap();
        let mut into = Vec::new();
        receive(&mut guest, 0, &mut into);
        assert_eq!(into, frame(60, 1));
        guest.reset().unwrap();
        echo(&mut guest, 0, 100, 1500, &[]);
        let bases = guest.stop().unwrap();
        assert_eq!(bases[1], 65_500);
        guest.reset().unwrap();
        (0..round).for_each(|_| echo(&mut guest, 0, 100, 1500, &[]));
    }
    end(guest, backend);
}

#[test]
fn a_lost_back_end_is_noticed_and_replaced() {
    let (mut guest, mut backend) = pair(GuestOptions::default());
    for _ in 0..3 {
        echo(&mut guest, 0, 100, 1500, &[]);
        rustix::net::shutdown(guest.front().fd(), rustix::net::Shutdown::Write).unwrap();
        while guest.wait(HANG).is_ok() {}
        assert!(matches!(guest.wait(HANG), Err(GuestError::HungUp)));
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(backend.join().unwrap().frames, 100);
        backend = backend::spawn(theirs, ALL_FEATURES, 1);
        guest.reconnect(ours).unwrap();
    }
    echo(&mut guest, 0, 100, 1500, &[]);
    assert_eq!(end(guest, backend).frames, 100);
}

#[test]
fn either_side_may_serve_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (vmm, switch) = (dir.path().join("vmm.sock"), dir.path().join("switch.sock"));
    let listener = GuestListener::bind(&vmm).unwrap();
    let backend = backend::spawn(UnixStream::connect(&vmm).unwrap(), ALL_FEATURES, 1);
    let mut guest = listener.accept(GuestOptions::plain()).unwrap();
    echo(&mut guest, 0, 8, 1500, &[]);
    assert_eq!(end(guest, backend).frames, 8);
    drop(listener);
    assert!(!vmm.exists());

    let listener = UnixListener::bind(&switch).unwrap();
    let backend = std::thread::spawn(move || backend::spawn(listener.accept().unwrap().0, ALL_FEATURES, 1));
    let mut guest = Guest::connect(&switch, GuestOptions::plain()).unwrap();
    echo(&mut guest, 0, 8, 1500, &[]);
    assert_eq!(end(guest, backend.join().unwrap()).frames, 8);
}

#[test]
fn the_configuration_is_read_and_the_address_taken() {
    let (guest, backend) = pair(GuestOptions::default());
    assert_eq!(guest.config(), DeviceConfig { mac: MAC, status: 1, queue_pairs: 1, mtu: 1400 });
    assert_eq!(guest.mac(), MAC);
    end(guest, backend);
    let own = GuestOptions { mac: [2, 0, 0, 0, 0, 9], ..GuestOptions::default() };
    let (guest, backend) = pair(own.without(features::MAC));
    assert_eq!(guest.mac(), [2, 0, 0, 0, 0, 9]);
    end(guest, backend);
}

#[test]
fn works_without_acknowledgements_or_any_protocol_feature() {
    for protocol_features in [0, protocol::OFFERED & !protocol::REPLY_ACK, protocol::REPLY_ACK] {
        let (mut guest, backend) = pair(GuestOptions { protocol_features, ..GuestOptions::default() });
        echo(&mut guest, 0, 8, 1500, &[]);
        end(guest, backend);
    }
}

#[test]
fn a_full_ring_says_so_and_empties() {
    let options = GuestOptions { ring_entries: 8, rx_buffers: 2, ..GuestOptions::default() };
    let (mut guest, backend) = pair(options);
    for _ in 0..8 {
        assert!(guest.send(0, &frame(200, 5), offload(1)).unwrap());
    }
    assert!(!guest.send(0, &[0; 60], Offload::default()).unwrap());
    guest.flush(0).unwrap();
    let (mut received, mut reclaimed, mut into) = (0, 0, Vec::new());
    while reclaimed < 8 {
        assert!(guest.wait_sent(0, HANG).unwrap(), "nothing was sent");
        reclaimed += guest.reclaim(0).unwrap();
        while received < 8 && guest.recv(0, &mut into).unwrap().is_some() {
            assert_eq!(into, frame(200, 5));
            received += 1;
        }
    }
    while received < 8 {
        receive(&mut guest, 0, &mut into);
        received += 1;
    }
    end(guest, backend);
}

#[test]
fn bursts_go_round_and_come_back_in_order() {
    for (features, depth) in [(ALL_FEATURES, ReadDepth::All), (features::VERSION_1, ReadDepth::Start)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let backend = backend::spawn(theirs, ALL_FEATURES, 1);
        let options =
            GuestOptions { features, ring_entries: 16, start_position: 65_530, ..GuestOptions::default() };
        let mut guest = BurstGuest::over(ours, options).unwrap();
        let (mut sent, mut seen) = (0_usize, 0_usize);
        while seen < 1000 {
            for _ in 0..guest.room().unwrap().min(1000 - sent) {
                let bytes = [vec![0; 12], frame(60 + sent % 1000, sent)].concat();
                match sent % 2 {
                    0 => guest.put(&bytes).unwrap(),
                    _ => guest.put_start(bytes.first_chunk().unwrap(), bytes.len()).unwrap(),
                }
                sent += 1;
            }
            guest.flush().unwrap();
            // All frames may have come back before the back end completes them; then there is room soon.
            assert!(sent == seen || guest.wait(HANG).unwrap(), "no frame came");
            let each = |start: &[u8; START_BYTES], len: usize| {
                assert_eq!(len, 60 + seen % 1000);
                assert!(start[12..] == frame(len, seen)[..52], "frame {seen}");
                seen += 1;
            };
            guest.recv(32, depth, each).unwrap();
        }
        while guest.in_flight() > 0 {
            guest.room().unwrap();
        }
        assert_eq!(guest.room().unwrap(), 16);
        drop(guest);
        assert_eq!(backend.join().unwrap().frames, 1000);
    }
}

#[test]
fn invalid_values_are_refused() {
    let (mut guest, backend) = pair(GuestOptions::plain());
    let long = vec![0; 2037];
    assert!(matches!(guest.send(0, &long, Offload::default()), Err(GuestError::FrameTooLong(2037))));
    assert!(guest.send(0, &long[1..], Offload::default()).unwrap());
    let parts = guest.send_parts(0, &long[..100], Offload::default(), &[1; 64]);
    assert!(matches!(parts, Err(GuestError::TooManyParts(65))));
    end(guest, backend);

    let (ours, theirs) = UnixStream::pair().unwrap();
    let backend = backend::spawn(theirs, ALL_FEATURES, 1);
    let many = Guest::over(ours, GuestOptions { queue_pairs: 3, ..GuestOptions::default() });
    assert!(matches!(many, Err(GuestError::TooFewQueues { offered: 2, wanted: 3 })), "{many:?}");
    backend.join().unwrap();
}
