//! Guests in user space talk through a running engine, over real vhost-user sessions: all of it with one worker and with
//! three.

#[path = "../support/mod.rs"]
mod support;

mod one_worker {
    const WORKERS: usize = 1;
    include!("cases.rs");
}

mod three_workers {
    const WORKERS: usize = 3;
    include!("cases.rs");
}
