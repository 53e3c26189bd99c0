//! Guests in user space exchange frames through a running engine, over real vhost-user sessions. Each test runs with
//! one worker and with three, which have a thread each, share one, or move all the time.

#[path = "../support/mod.rs"]
mod support;

mod one_worker {
    const WORKERS: usize = 1;
    include!("cases.rs");
    include!("quiet.rs");
}

mod three_workers {
    const WORKERS: usize = 3;
    include!("cases.rs");
    include!("quiet.rs");
}

mod gathered_workers {
    use crate::support::TestWorkers;
    const WORKERS: TestWorkers = TestWorkers { workers: 3, gathering: lasthop_engine::Gathering::ByLoad };
    include!("cases.rs");
    include!("quiet.rs");
}

mod restless_workers {
    use crate::support::TestWorkers;
    const WORKERS: TestWorkers = TestWorkers { workers: 3, gathering: lasthop_engine::Gathering::Restless };
    include!("cases.rs");
    // Without quiet.rs: a worker that wakes moves, which wakes the next one.
}
