//! For tests: a process that does nothing, and ends with the test, even with a failed one.

use std::process::{Child, Command};

pub(crate) struct Sleeper(pub(crate) Child);

impl Sleeper {
    pub(crate) fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("a process"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // This only fails for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
