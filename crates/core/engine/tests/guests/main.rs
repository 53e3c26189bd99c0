//! Guests in user space talk through a running engine, over real vhost-user sessions: all of it with one worker and with
//! three, which have a thread each, share one while there is little to do, or go to and fro all the time.

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
    // Not quiet.rs: one who wakes goes elsewhere, which wakes the next.
}
