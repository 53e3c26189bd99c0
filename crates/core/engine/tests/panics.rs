//! A worker that panics ends its process: a supervisor notices a dead process, but not a missing thread.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use lasthop_frontend::GuestOptions;
use lasthop_module_api::{Batch, Module, PortId, PortSettings, Verdicts};
use support::{TestSwitch, config, frame, send};

/// Set for the process that is to panic.
const CHILD: &str = "LASTHOP_TEST_PANIC";

struct Panicking;

impl Module for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn decide(&self, _: &Batch<'_>, _: u64, _: &mut Verdicts) {
        panic!("on purpose");
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

#[test]
fn a_worker_that_panics_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let mut switch = TestSwitch::with(Arc::new(Panicking), 1);
        let (_, mut guest) = switch.attach(config("one"), GuestOptions::default());
        send(&mut guest, &frame(2, 1, 0, 64));
        std::thread::sleep(std::time::Duration::from_secs(60));
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "a_worker_that_panics_ends_the_process"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0");
    let output = child.output().unwrap();
    assert_eq!(output.status.signal(), Some(6), "{output:?}");
}
