//! Two guests of our own through each ceiling.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_frontend::{Guest, GuestError, GuestOptions};
use lasthop_vhost::features;
use lasthop_wire::vnet::Offload;

use super::lane_table::RingId;
use super::{Resident, ResidentKind};

const PATIENCE: Duration = Duration::from_secs(120);
const ENTRIES: u16 = 16;
/// Invalid metadata, which has to arrive unchanged.
const OFFLOAD: Offload =
    Offload { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 1448, csum_start: 34, csum_offset: 16 };

fn options() -> GuestOptions {
    GuestOptions {
        ring_entries: ENTRIES,
        rx_buffer_bytes: 9216,
        tx_slot_bytes: 9216,
        ..GuestOptions::default()
    }
}

fn join(resident: &Resident, port: u16, options: GuestOptions) -> Result<Guest, GuestError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    resident.attach(port, theirs).unwrap();
    Guest::over(ours, options)
}

fn guests(resident: &Resident) -> [Guest; 2] {
    [0, 1].map(|port| join(resident, port, options()).unwrap())
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(31) ^ number.wrapping_mul(2_654_435_761)) as u8).collect()
}

fn send(guest: &mut Guest, frame: &[u8]) {
    guest.reclaim(0).unwrap();
    while !guest.send(0, frame, OFFLOAD).unwrap() {
        assert!(guest.wait_sent(0, Some(PATIENCE)).unwrap(), "the ring stays full");
        guest.reclaim(0).unwrap();
    }
    guest.flush(0).unwrap();
}

fn receive(guest: &mut Guest) -> Vec<u8> {
    let mut frame = Vec::new();
    assert!(guest.wait(Some(PATIENCE)).unwrap(), "no frame");
    let received = guest.recv(0, &mut frame).unwrap().unwrap();
    assert_eq!((received.offload, received.num_buffers), (OFFLOAD, 1));
    frame
}

fn give_back_all(guest: &mut Guest) {
    let deadline = Instant::now() + PATIENCE;
    while guest.in_flight(0).unwrap() > 0 {
        assert!(Instant::now() < deadline, "frames are not given back");
        let _ = guest.wait_sent(0, Some(PATIENCE)).unwrap();
        guest.reclaim(0).unwrap();
    }
}

fn frames_arrive_whole(kind: ResidentKind, count: u32) {
    let resident = Resident::start(kind, None).unwrap();
    resident.set_running(true);
    for len in [64, 1500, 9000] {
        let [mut left, mut right] = guests(&resident);
        for number in 0..count {
            let (there, back) = (frame(number, len), frame(!number, len));
            send(&mut left, &there);
            send(&mut right, &back);
            assert_eq!(receive(&mut right), there, "frame {number} of {len} bytes");
            assert_eq!(receive(&mut left), back, "frame {number} of {len} bytes");
        }
        for guest in [&mut left, &mut right] {
            give_back_all(guest);
            let counters = guest.counters();
            assert_eq!(
                (counters.sent_frames, counters.received_frames),
                (u64::from(count), u64::from(count))
            );
            assert_eq!(counters.received_bytes, u64::from(count) * len as u64);
        }
        assert_eq!((resident.fault(0), resident.fault(1)), (None, None));
    }
}

#[test]
fn limit_delivers_every_frame() {
    frames_arrive_whole(ResidentKind::Limit, 300);
}

/// Between two frames of a direction it may sleep, as each is waited for.
#[test]
fn limit_that_sleeps_delivers_every_frame() {
    frames_arrive_whole(ResidentKind::SleepingLimit, 300);
}

#[test]
fn limit_that_sleeps_does_so_after_each_frame() {
    let resident = Resident::start(ResidentKind::SleepingLimit, None).unwrap();
    resident.set_running(true);
    let [mut left, mut right] = guests(&resident);
    for number in 0..20 {
        let sleeps = resident.lane_table.sleeps();
        send(&mut left, &frame(number, 64));
        assert_eq!(receive(&mut right), frame(number, 64));
        give_back_all(&mut left);
        let deadline = Instant::now() + PATIENCE;
        while resident.lane_table.sleeps() == sleeps {
            assert!(Instant::now() < deadline, "it stays awake after frame {number}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn null_delivers_the_first_round() {
    frames_arrive_whole(ResidentKind::Null, u32::from(ENTRIES));
}

#[test]
fn null_does_not_copy_again() {
    let resident = Resident::start(ResidentKind::Null, None).unwrap();
    resident.set_running(true);
    let [mut left, mut right] = guests(&resident);
    let rounds = 6 * u32::from(ENTRIES);
    let frames = (0..rounds).map(|number| {
        send(&mut left, &frame(number, 200));
        receive(&mut right)
    });
    let frames: Vec<_> = frames.collect();
    assert!(frames.iter().all(|found| found.len() == 200));
    for late in &frames[usize::from(ENTRIES)..] {
        assert!(
            (0..u32::from(ENTRIES)).any(|number| *late == frame(number, 200)),
            "a buffer was written again"
        );
    }
}

#[test]
fn frames_in_bursts_keep_their_order() {
    for entries in [16, 1024] {
        let resident = Resident::start(ResidentKind::Limit, None).unwrap();
        resident.set_running(true);
        let wanted = || GuestOptions { ring_entries: entries, ..options() };
        let mut left = join(&resident, 6, wanted()).unwrap();
        let mut right = join(&resident, 7, wanted()).unwrap();
        let (mut sent, mut received, mut into) = (0, 0, Vec::new());
        while received < 20_000 {
            left.reclaim(0).unwrap();
            while sent < 20_000 && left.send(0, &frame(sent, 61 + sent as usize % 100), OFFLOAD).unwrap() {
                sent += 1;
            }
            left.flush(0).unwrap();
            assert!(right.wait(Some(PATIENCE)).unwrap(), "no frame");
            while right.recv(0, &mut into).unwrap().is_some() {
                assert_eq!(into, frame(received, 61 + received as usize % 100));
                received += 1;
            }
        }
    }
}

#[test]
fn stopped_rings_go_on_where_they_stopped() {
    for kind in [ResidentKind::Null, ResidentKind::Limit, ResidentKind::SleepingLimit] {
        let resident = Resident::start(kind, None).unwrap();
        resident.set_running(true);
        let near_the_end = GuestOptions { start_position: 65_530, ..options() };
        let [mut left, mut right] = [2, 3].map(|port| join(&resident, port, near_the_end.clone()).unwrap());
        for number in 0..10 {
            send(&mut left, &frame(number, 64));
            receive(&mut right);
        }
        give_back_all(&mut left);
        let (left_bases, right_bases) = (left.stop().unwrap(), right.stop().unwrap());
        // On the left all was sent and nothing received; on the right it is the other way round.
        assert_eq!(left_bases, [65_530, 65_530_u16.wrapping_add(10)]);
        assert_eq!(right_bases, [65_530_u16.wrapping_add(10), 65_530]);
        send(&mut left, &frame(10, 64));
        left.start(&left_bases).unwrap();
        right.start(&right_bases).unwrap();
        assert_eq!(receive(&mut right), frame(10, 64), "{kind:?}");
    }
}

#[test]
fn nothing_moves_unless_it_runs() {
    let resident = Resident::start(ResidentKind::Limit, Some(0)).unwrap();
    let [mut left, mut right] = guests(&resident);
    for number in 0..20 {
        assert!(!resident.lane_table.is_polling());
        send(&mut left, &frame(number, 100));
        assert!(!right.wait(Some(Duration::from_millis(5))).unwrap(), "moved while it was to rest");
        assert_eq!(left.in_flight(0).unwrap(), 1);
        resident.set_running(true);
        assert!(resident.lane_table.is_polling());
        assert_eq!(receive(&mut right), frame(number, 100));
        give_back_all(&mut left);
        resident.set_running(false);
    }
}

#[test]
fn a_new_front_end_takes_the_place_of_the_old_one() {
    let resident = Resident::start(ResidentKind::Limit, None).unwrap();
    resident.set_running(true);
    let [mut old, mut right] = guests(&resident);
    send(&mut old, &frame(1, 64));
    assert_eq!(receive(&mut right), frame(1, 64));
    let mut new = join(&resident, 0, options()).unwrap();
    assert!(matches!(old.wait(Some(PATIENCE)), Err(GuestError::HungUp)));
    send(&mut new, &frame(2, 64));
    assert_eq!(receive(&mut right), frame(2, 64));
    new.stop().unwrap();
    send(&mut right, &frame(3, 64)); // the port does not exist: the frame waits
    let mut next = join(&resident, 0, options()).unwrap();
    assert_eq!(receive(&mut next), frame(3, 64));
}

#[test]
fn guests_that_a_ceiling_cannot_serve_are_refused_with_a_reason() {
    let resident = Resident::start(ResidentKind::Limit, None).unwrap();
    let cut = GuestOptions { regions: 2, ..options() };
    assert!(join(&resident, 0, cut).is_err());
    assert!(resident.fault(0).unwrap().contains("2 memory regions"), "{:?}", resident.fault(0));
    assert!(join(&resident, 1, options().without(features::VERSION_1)).is_err());
    assert!(resident.fault(1).unwrap().contains("VERSION_1"), "{:?}", resident.fault(1));
    assert!(resident.attach(256, UnixStream::pair().unwrap().0).is_err());
    let _whole = join(&resident, 0, options()).unwrap();
    assert_eq!(resident.fault(0), None);
}

#[test]
fn a_driver_that_breaks_its_ring_is_told_of_and_can_start_anew() {
    let resident = Resident::start(ResidentKind::Limit, None).unwrap();
    let [mut left, mut right] = guests(&resident);
    left.transmit_ring(0).unwrap().set_raw_index(ENTRIES + 1);
    resident.set_running(true);
    let deadline = Instant::now() + PATIENCE;
    while resident.fault(1).is_none() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(
        resident.fault(1).unwrap(),
        "on the way from port 0 to 1: available index jumped by 17 in a ring of 16"
    );
    send(&mut right, &frame(1, 64)); // the other direction works
    assert_eq!(receive(&mut left), frame(1, 64));
    drop(left);
    let mut left = join(&resident, 0, options()).unwrap();
    send(&mut left, &frame(2, 64));
    assert_eq!(receive(&mut right), frame(2, 64));
    assert_eq!(resident.fault(1), None);
}

#[test]
fn a_disabled_ring_waits() {
    let resident = Resident::start(ResidentKind::Limit, None).unwrap();
    resident.set_running(true);
    let [mut left, mut right] = guests(&resident);
    let ring = RingId { port: 1, transmits: false };
    resident.lane_table.with(|rings| rings.set_enabled(ring, false));
    send(&mut left, &frame(1, 64));
    assert!(!right.wait(Some(Duration::from_millis(20))).unwrap());
    resident.lane_table.with(|rings| rings.set_enabled(ring, true));
    assert_eq!(receive(&mut right), frame(1, 64));
}

#[test]
fn nothing_is_left_running() {
    for running in [false, true] {
        let resident = Resident::start(ResidentKind::Null, None).unwrap();
        resident.set_running(running);
        let guests = guests(&resident);
        let lane_table = Arc::downgrade(&resident.lane_table);
        assert_eq!(lane_table.strong_count(), 4, "the handle, the data thread, two sessions");
        drop(resident);
        assert_eq!(lane_table.strong_count(), 0, "each thread held the lane table");
        for mut guest in guests {
            assert!(matches!(guest.wait(Some(PATIENCE)), Err(GuestError::HungUp)));
        }
    }
}

#[test]
fn a_cpu_that_is_not_there_is_an_error() {
    for cpu in [1023, usize::MAX] {
        let error = Resident::start(ResidentKind::Null, Some(cpu)).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot run on CPU {cpu}: ")), "{error}");
    }
}
