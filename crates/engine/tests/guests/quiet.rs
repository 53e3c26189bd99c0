#[test]
fn an_idle_worker_sleeps_and_visits_nothing() {
    let mut switch = TestSwitch::start("bridge", WORKERS);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
    send(&mut one, &frame(2, 1, 0, 64));
    receive(&mut other);
    // Each look at the counters is an errand: it costs one sleep. Between two looks nothing else may happen.
    eventually("the worker has gone to sleep", || {
        let before = switch.engine.stats().unwrap().workers;
        std::thread::sleep(std::time::Duration::from_millis(300));
        let after = switch.engine.stats().unwrap().workers;
        before.iter().zip(after).all(|(before, after)| {
            after.visits == before.visits && after.polls == before.polls && after.sleeps == before.sleeps + 1
        })
    });
}
