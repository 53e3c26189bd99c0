//! A guest that invents headers: flows of others, and their first packets, still pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_frontend::Guest;
use lasthop_wire::Offload;

use crate::plane::{Ends, Plane, two_guests};
use lasthop_rig::guests::{ONE, TWO, WAIT, check_balance, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually};

const THREE: [u8; 6] = [2, 0, 0, 0, 0, 3];

/// Sends frames to unknown addresses, far more than the limit of upcalls, until stopped; returns how many. It pauses,
/// as on a machine with few CPUs it would otherwise take all CPU time, for which there is no guarantee.
fn flood(guest: &mut Guest, stop: &AtomicBool) -> u32 {
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let [_, b, c, d] = number.to_be_bytes();
        guest.reclaim(0).expect("a sound ring");
        let frame = frame([2, 9, 9, b, c, d], THREE, number, 60);
        if !guest.send(0, &frame, Offload::default()).expect("connected") {
            guest.flush(0).expect("connected");
            guest.wait_sent(0, Some(Duration::from_millis(10))).expect("connected");
            continue;
        }
        number += 1;
        if number.is_multiple_of(256) {
            guest.flush(0).expect("connected");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // The last ones were not published yet.
    guest.flush(0).expect("connected");
    number
}

/// Sends a frame of its own flow until it arrives; returns how often. A control plane that gets no CPU for a second
/// loses its turn.
fn first_packet(from: &mut Guest, to: &mut Guest, frame: &[u8]) -> u64 {
    let mut bytes = Vec::new();
    for tries in 1..=5 {
        send(from, frame);
        while to.wait(Some(WAIT)).expect("connected") {
            // An older frame may arrive late.
            if to.recv(0, &mut bytes).expect("a sound ring").is_some() && bytes == frame {
                return tries;
            }
        }
    }
    panic!("its turn does not come");
}

#[test]
fn made_up_headers_of_one_guest_leave_others_flows_and_first_packets_alone() {
    let words =
        ["--module", "flow", "--controller", "none", "--vnic", "one", "--vnic", "two", "--vnic", "three"];
    let switch = Switch::start(&words);
    let (mut one, mut two) = two_guests(&switch);
    let mut three = guest(&switch, "three", THREE);
    let mut plane = Plane::new(&switch, "default");
    let numbers = ["one", "two", "three"].map(|name| plane.add_port(name));
    plane.place(TWO, numbers[1]);
    plane.place(ONE, numbers[0]);
    plane.join(numbers[1], numbers[0]);
    plane.listen(&switch);
    let stop = AtomicBool::new(false);
    let (flooded, sent) = std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| plane.serve(&stop));
        let flooding = scope.spawn(|| flood(&mut three, &stop));
        eventually("a flood that is cut", || {
            switch.port("three")["rx_drops"]["no_flow"].as_u64().filter(|count| *count > 1000)
        });
        for number in 0..200 {
            let known = frame(ONE, TWO, number, 60);
            send(&mut two, &known);
            assert_eq!(receive(&mut one), known, "by its flow");
        }
        // The first packet of a flow each time: each has a new source.
        let first = |number: u8| frame(TWO, [2, 0, 0, 0, 1, number], number.into(), 60);
        let sent: u64 = (0..50).map(|number| first_packet(&mut one, &mut two, &first(number))).sum();
        assert!(sent < 75, "{sent} packets for 50 to arrive: its turn comes rarely");
        stop.store(true, Ordering::Relaxed);
        (flooding.join().expect("a sound guest"), sent)
    });
    let [one, two] = ["one", "two"].map(|name| switch.port(name));
    assert_eq!((one["rx_packets"].as_u64(), two["rx_packets"].as_u64()), (Some(sent), Some(200)));
    assert_eq!(two["rx_drops"], serde_json::json!({}));
    let taken = || switch.port("three")["rx_packets"].as_u64() == Some(flooded.into());
    eventually("all that was sent", || taken().then_some(()));
    check_balance(&switch);
}
