use crate::support::{TestSwitch, config, eventually, frame, receive, send};
use lasthop_engine::PortState;
use lasthop_frontend::GuestOptions;
use lasthop_module_api::{DropReason, Mac, PortPolicy};
use lasthop_vhost::features;

#[test]
fn two_guests_talk_and_every_packet_is_accounted_for() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (one_port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (other_port, mut other) = switch.attach(config("other"), GuestOptions::default());
    for number in 0..3000_u32 {
        let len = 60 + (number as usize * 37) % 9000;
        send(&mut one, &frame(2, 1, number, len));
        assert_eq!(receive(&mut other), frame(2, 1, number, len));
        send(&mut other, &frame(1, 2, number, 64));
        assert_eq!(receive(&mut one), frame(1, 2, number, 64));
    }
    assert_eq!(switch.port(one_port).counters.rx_packets, 3000);
    assert_eq!(switch.port(other_port).counters.tx_packets, 3000);
    assert_eq!(switch.engine.fdb().len(), 2);
    assert_eq!(switch.port(one_port).state, PortState::Running);
    switch.assert_conserved();
    drop(one);
    eventually("the port waits for a guest again", || switch.port(one_port).state == PortState::Waiting);
    drop(other);
    assert!(switch.join_sessions().iter().all(|end| end.contains("hung up") || end.contains("closed")));
    switch.assert_conserved();
}

#[test]
fn nothing_passes_before_the_workers_begin_and_everything_after() {
    let mut switch = TestSwitch::prepare("bridge", WORKERS);
    let (one_port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    for number in 0..16 {
        send(&mut one, &frame(2, 1, number, 100));
    }
    assert_eq!(switch.port(one_port).state, PortState::Running);
    assert!(!other.wait(Some(std::time::Duration::from_millis(50))).unwrap(), "nobody is at work");
    assert_eq!(switch.port(one_port).counters.rx_packets, 0);
    switch.engine.begin().unwrap();
    for number in 0..16 {
        assert_eq!(receive(&mut other), frame(2, 1, number, 100));
    }
    switch.engine.begin().unwrap();
    assert_eq!(switch.port(one_port).counters.rx_packets, 16);
    switch.assert_conserved();
}

#[test]
fn an_engine_that_never_begins_ends() {
    let mut switch = TestSwitch::prepare("bridge", WORKERS);
    let (_, guest) = switch.attach(config("one"), GuestOptions::default());
    drop(guest);
    switch.join_sessions();
}

#[test]
fn a_stream_keeps_its_order_and_loses_nothing_that_is_not_counted() {
    let mut switch = TestSwitch::start("dummy", WORKERS);
    let (one_port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) =
        switch.attach(config("other"), GuestOptions { rx_buffers: 8, ..GuestOptions::default() });
    const FRAMES: u32 = 20_000;
    let receiver = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut numbers = Vec::new();
        while numbers.last() != Some(&FRAMES) {
            while other.recv(0, &mut bytes).unwrap().is_some() {
                numbers.push(u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]]));
            }
            other.wait(Some(std::time::Duration::from_millis(100))).unwrap();
        }
        (numbers, other)
    });
    for number in 0..FRAMES {
        send(&mut one, &frame(2, 1, number, 200));
    }
    // The slow receiver may lose the last frame like any other, so it is repeated.
    eventually("the last frame arrives", || {
        send(&mut one, &frame(2, 1, FRAMES, 200));
        receiver.is_finished()
    });
    let (mut numbers, mut other) = receiver.join().unwrap();
    eventually("nothing is under way", || {
        let mut bytes = Vec::new();
        while other.recv(0, &mut bytes).unwrap().is_some() {
            numbers.push(FRAMES);
        }
        let counters = switch.port(one_port).counters;
        counters.waiting == 0 && numbers.len() as u64 + counters.rx_drops.total() == counters.rx_packets
    });
    assert!(numbers.is_sorted(), "order within a queue");
    switch.assert_conserved();
}

#[test]
fn a_port_with_an_address_of_its_own_tells_and_enforces_it() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let settings = lasthop_engine::PortConfig { policy: own(mac), mtu: Some(1400), ..config("one") };
    let (port, mut one) =
        switch.attach(settings, GuestOptions { mac: [2, 0, 0, 0, 0, 9], ..GuestOptions::default() });
    assert_eq!(one.mac(), mac.0, "the guest is told its address");
    assert_ne!(switch.port(port).features & (features::MAC | features::MTU), 0);
    send(&mut one, &frame(2, 5, 0, 64));
    eventually("the spoofed frame is dropped", || {
        switch.port(port).counters.rx_drops.of(DropReason::SourceSpoofed) == 1
    });
    let taken = lasthop_engine::PortConfig { policy: own(mac), ..config("two") };
    assert!(switch.engine.add_port(taken).unwrap_err().to_string().contains("02:00:00:00:00:01"));
    switch.assert_conserved();
}

#[test]
fn a_guest_that_resets_stops_and_comes_back_goes_on() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (one_port, mut one) =
        switch.attach(config("one"), GuestOptions { start_position: 65_500, ..GuestOptions::default() });
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    for number in 0..100 {
        send(&mut one, &frame(2, 1, number, 100));
        assert_eq!(receive(&mut other), frame(2, 1, number, 100));
    }
    let bases = one.stop().unwrap();
    assert_eq!(bases[1], 65_500_u16.wrapping_add(100), "base = last fetched");
    one.start(&bases).unwrap();
    send(&mut one, &frame(2, 1, 100, 100));
    assert_eq!(receive(&mut other), frame(2, 1, 100, 100));
    one.reset().unwrap();
    send(&mut one, &frame(2, 1, 101, 100));
    assert_eq!(receive(&mut other), frame(2, 1, 101, 100));
    drop(one);
    eventually("the port is free", || switch.port(one_port).state == PortState::Waiting);
    let socket = switch.serve(one_port);
    let mut again = lasthop_frontend::Guest::over(socket, GuestOptions::plain()).unwrap();
    send(&mut again, &frame(2, 1, 102, 100));
    assert_eq!(receive(&mut other), frame(2, 1, 102, 100));
    switch.assert_conserved();
}

#[test]
fn a_guest_that_breaks_its_ring_is_stopped_and_named_while_others_go_on() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (bad_port, mut bad) = switch.attach(config("bad"), GuestOptions::default());
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    let ring = bad.transmit_ring(0).unwrap();
    ring.add(&[(0xdead_0000_0000, 64)], &[], 0).unwrap();
    ring.publish();
    bad.kick(0).unwrap();
    eventually("the ring is stopped by name", || match switch.port(bad_port).state {
        PortState::Stopped(why) => why.contains("outside guest memory"),
        _ => false,
    });
    send(&mut one, &frame(3, 2, 7, 64));
    assert_eq!(receive(&mut other), frame(3, 2, 7, 64));
    bad.reset().unwrap();
    eventually("a reset heals it", || switch.port(bad_port).state == PortState::Running);
    send(&mut bad, &frame(3, 1, 8, 64));
    assert_eq!(receive(&mut other), frame(3, 1, 8, 64));
    switch.assert_conserved();
}

#[test]
fn a_guest_that_cuts_its_memory_short_harms_itself_only() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (bad_port, bad) = switch.attach(config("bad"), GuestOptions::default());
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    let copy = rustix::io::dup(bad.memory_file()).unwrap();
    rustix::fs::ftruncate(&copy, 0).unwrap();
    // The worker finds out when it touches that memory next; a broadcast goes there, too.
    send(&mut one, &frame(0xff, 2, 1, 64));
    assert_eq!(receive(&mut other), frame(0xff, 2, 1, 64));
    eventually("the port is stopped by name", || match switch.port(bad_port).state {
        PortState::Stopped(why) => why.contains("cut short"),
        _ => false,
    });
    send(&mut one, &frame(3, 2, 2, 64));
    assert_eq!(receive(&mut other), frame(3, 2, 2, 64));
    switch.assert_conserved();
    std::mem::forget(bad); // its destructor would touch its own lost memory
}

#[test]
fn several_queue_pairs_carry_packets_once_they_are_enabled() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let settings = lasthop_engine::PortConfig { queue_pairs: 2, ..config("wide") };
    let (_, mut wide) = switch.attach(settings, GuestOptions { queue_pairs: 2, ..GuestOptions::default() });
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    assert!(wide.send(1, &frame(2, 1, 5, 64), lasthop_wire::Offload::default()).unwrap());
    wide.flush(1).unwrap();
    assert_eq!(receive(&mut other), frame(2, 1, 5, 64));
    send(&mut other, &frame(1, 2, 6, 64));
    let mut bytes = Vec::new();
    eventually("the answer arrives on one of the queues", || {
        wide.recv(0, &mut bytes).unwrap().is_some() || wide.recv(1, &mut bytes).unwrap().is_some()
    });
    assert_eq!(bytes, frame(1, 2, 6, 64));
    switch.assert_conserved();
}

#[test]
fn a_call_that_had_no_descriptor_is_made_up_for() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (port, mut other) = switch.attach(config("other"), GuestOptions::default());
    other.front().set_vring_call(0, None).unwrap();
    send(&mut one, &frame(0xff, 1, 0, 64));
    eventually("the frame is published", || switch.port(port).counters.tx_packets == 1);
    let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    other.front().set_vring_call(0, Some(std::os::fd::AsFd::as_fd(&call))).unwrap();
    eventually("the guest is told", || rustix::io::read(&call, &mut [0_u8; 8][..]).is_ok());
}

#[test]
fn a_broken_ring_that_is_polled_is_left_alone() {
    let mut switch = TestSwitch::start("dummy", WORKERS);
    let (port, mut bad) = switch.attach(config("bad"), GuestOptions::default());
    bad.front().set_vring_kick(1, None).unwrap();
    let ring = bad.transmit_ring(0).unwrap();
    ring.add(&[(0xdead_0000_0000, 64)], &[], 0).unwrap();
    ring.publish();
    eventually("the ring is stopped", || matches!(switch.port(port).state, PortState::Stopped(_)));
    eventually("it is not visited any more", || {
        let visits =
            || -> u64 { switch.engine.stats().unwrap().workers.iter().map(|worker| worker.visits).sum() };
        let before = visits();
        std::thread::sleep(std::time::Duration::from_millis(50));
        visits() == before
    });
}

#[test]
fn idle_rings_are_left_alone_while_another_is_busy() {
    let mut switch = TestSwitch::start("dummy", WORKERS);
    let (port, mut busy) = switch.attach(config("busy"), GuestOptions::plain());
    let (_, _sink) = switch.attach(config("sink"), GuestOptions::plain());
    let mut idle: Vec<_> = (0..10)
        .map(|number| switch.attach(config(&format!("idle{number}")), GuestOptions::plain()).1)
        .collect();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let sender = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            send(&mut busy, &frame(2, 1, 0, 64));
            busy.reclaim(0).unwrap();
        }
    });
    eventually("the busy guest is heard", || switch.port(port).counters.rx_packets > 1000);
    idle.iter_mut().for_each(|guest| send(guest, &frame(2, 9, 0, 64)));
    eventually("only the busy ring is visited", || {
        let before = switch.port(port).counters.rx_packets;
        let workers = switch.engine.stats().unwrap().workers;
        let active: usize = workers.iter().map(|worker| worker.active_rings).sum();
        active <= 1 && switch.port(port).counters.rx_packets > before
    });
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    sender.join().unwrap();
    switch.assert_conserved();
}

/// Clears the non-blocking flag of a call descriptor.
fn make_blocking(call: impl std::os::fd::AsFd) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    fcntl_setfl(&call, fcntl_getfl(&call).unwrap() - OFlags::NONBLOCK).unwrap();
}

/// Makes the calls of a guest's receive ring block: its eventfd is full and blocking.
fn saturate(guest: &lasthop_frontend::Guest) {
    let call = guest.call_fds().next().unwrap();
    while rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(call, &mut [0_u8; 8][..]); // it may have been called meanwhile
    }
    make_blocking(call);
}

fn is_stopped_for_its_calls(switch: &TestSwitch, port: lasthop_module_api::PortId) -> bool {
    match switch.port(port).state {
        PortState::Stopped(why) => why.contains("a call eventfd blocks"),
        _ => false,
    }
}

#[test]
fn a_guest_whose_calls_block_is_stopped_and_named_while_others_lose_nothing() {
    const FRAMES: u32 = 3000;
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    send(&mut other, &frame(2, 3, 0, 64));
    receive(&mut one);
    let (bad_port, bad) = switch.attach(config("bad"), GuestOptions::default());
    saturate(&bad);
    let talk = |one: &mut lasthop_frontend::Guest, other: &mut lasthop_frontend::Guest, numbers| {
        for number in numbers {
            send(one, &frame(3, 2, number, 64));
            one.reclaim(0).unwrap();
            assert_eq!(receive(other), frame(3, 2, number, 64));
        }
    };
    send(&mut one, &frame(0xff, 2, 0, 64)); // a flood signals all guests
    assert_eq!(receive(&mut other), frame(0xff, 2, 0, 64));
    talk(&mut one, &mut other, 1..FRAMES / 2);
    eventually("the port is stopped by name", || is_stopped_for_its_calls(&switch, bad_port));
    assert!(switch.port(bad_port).rings.is_empty());
    talk(&mut one, &mut other, FRAMES / 2..FRAMES);
    let counters = switch.port(port).counters;
    let lost: Vec<_> = counters.rx_drops.nonzero().collect();
    assert_eq!((counters.rx_packets, lost), (u64::from(FRAMES), vec![]));
    switch.assert_conserved();

    drop(bad);
    eventually("the port is free", || switch.port(bad_port).state == PortState::Waiting);
    let mut again = lasthop_frontend::Guest::over(switch.serve(bad_port), GuestOptions::default()).unwrap();
    assert_eq!(switch.port(bad_port).state, PortState::Running, "another front end heals it");
    send(&mut again, &frame(3, 1, 1, 64));
    assert_eq!(receive(&mut other), frame(3, 1, 1, 64));
    send(&mut other, &frame(1, 3, 2, 64));
    assert_eq!(receive(&mut again), frame(1, 3, 2, 64));
    switch.assert_conserved();
}

#[test]
fn a_guest_whose_calls_block_again_and_again_is_held() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (port, mut bad) = switch.attach(config("bad"), GuestOptions::default());
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    for offence in 1..=4 {
        saturate(&bad);
        send(&mut one, &frame(0xff, 2, offence, 64)); // a flood signals all guests
        eventually("the port is stopped by name", || is_stopped_for_its_calls(&switch, port));
        drop(bad);
        eventually("the port is free", || switch.port(port).state == PortState::Waiting);
        let socket = switch.serve(port);
        match lasthop_frontend::Guest::over(socket, GuestOptions::default()) {
            Ok(guest) => bad = guest,
            Err(error) => {
                assert!(offence == 4 && error.to_string().contains("refused"), "{offence}: {error}");
                return;
            }
        }
    }
    panic!("it is not held");
}

#[test]
fn a_guest_whose_calls_go_to_a_full_socket_is_stopped() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (port, mut bad) = switch.attach(config("bad"), GuestOptions::default());
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (call, _other_end) = std::os::unix::net::UnixStream::pair().unwrap();
    bad.front().set_vring_call(0, Some(std::os::fd::AsFd::as_fd(&call))).unwrap();
    while rustix::io::write(&call, &[0; 4096]).is_ok() {}
    while rustix::io::write(&call, &[0]).is_ok() {}
    make_blocking(&call);
    send(&mut one, &frame(0xff, 2, 0, 64)); // a flood signals all guests
    eventually("the port is stopped by name", || is_stopped_for_its_calls(&switch, port));
    switch.assert_conserved();
}

#[test]
fn a_link_goes_down_and_up_under_a_guest_and_what_waits_for_it_goes() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (one_port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (other_port, mut other) =
        switch.attach(config("other"), GuestOptions { rx_buffers: 4, ..GuestOptions::default() });
    // A frame for an address that the bridge does not know would be a flood, which is not lost.
    send(&mut other, &frame(1, 2, 0, 100));
    assert_eq!(receive(&mut one), frame(1, 2, 0, 100));
    for number in 0..20 {
        send(&mut one, &frame(2, 1, number, 100));
    }
    // On a slow machine they may expire before the check.
    eventually("16 frames wait", || {
        let counters = switch.port(one_port).counters;
        counters.waiting + counters.rx_drops.total() == 16
    });
    let down = lasthop_engine::PortConfig { link_up: false, ..config("other") };
    switch.engine.change_port(other_port, down.clone()).unwrap();
    let counters = switch.port(one_port).counters;
    let dropped = counters.rx_drops.of(DropReason::LinkDown);
    assert!(counters.waiting == 0 && counters.rx_drops.total() == 16, "{counters:?}");
    send(&mut one, &frame(2, 1, 20, 100));
    send(&mut other, &frame(1, 2, 20, 100));
    eventually("both are dropped", || {
        let drops = |port| switch.port(port).counters.rx_drops.of(DropReason::LinkDown);
        (drops(one_port), drops(other_port)) == (dropped + 1, 1)
    });
    let wide = lasthop_engine::PortConfig { queue_pairs: 2, ..down };
    assert!(switch.engine.change_port(other_port, wide).unwrap_err().to_string().contains("add it anew"));
    switch.engine.change_port(other_port, config("other")).unwrap();
    for _ in 0..4 {
        receive(&mut other); // frames delivered before
    }
    send(&mut one, &frame(2, 1, 21, 100));
    assert_eq!(receive(&mut other), frame(2, 1, 21, 100));
    switch.assert_conserved();
    switch.engine.remove_port(other_port).unwrap();
    assert!(switch.engine.change_port(other_port, config("other")).is_err(), "it is gone");
}

fn own(mac: Mac) -> PortPolicy {
    PortPolicy { mac: Some(mac), ..PortPolicy::default() }
}
