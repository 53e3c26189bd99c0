#[test]
fn an_idle_worker_sleeps_and_visits_nothing() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    send(&mut one, &frame(2, 1, 0, 64));
    receive(&mut other);
    // Each read of the counters is a task, which costs one sleep. Between two reads no other event may occur.
    eventually("the worker has gone to sleep", || {
        let before = switch.engine.stats().unwrap().workers;
        std::thread::sleep(std::time::Duration::from_millis(300));
        let after = switch.engine.stats().unwrap().workers;
        before.iter().zip(after).all(|(before, after)| {
            after.visits == before.visits && after.polls == before.polls && after.sleeps == before.sleeps + 1
        })
    });
}

#[test]
fn a_guest_that_sleeps_over_its_signal_is_signalled_once_more() {
    let mut switch = TestSwitch::start("dummy", WORKERS);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (port, mut other) = switch.attach(config("other"), GuestOptions::default());
    send(&mut one, &frame(2, 1, 0, 64));
    receive(&mut other);
    assert!(!other.wait(Some(std::time::Duration::ZERO)).unwrap(), "it asks for a signal");
    let before = switch.port(port).counters.signals;
    let mut number = 0;
    eventually("a second signal", || {
        // One poll may end early, since another thread wants the core.
        number += 1;
        send(&mut one, &frame(2, 1, number, 64));
        switch.port(port).counters.signals == before + 2
    });
    let more = (0..20).map(|_| {
        send(&mut one, &frame(2, 1, 0, 64));
        std::thread::sleep(std::time::Duration::from_millis(1));
        switch.port(port).counters.signals
    });
    assert!(more.into_iter().all(|signals| signals == before + 2), "there is no third one");
}
