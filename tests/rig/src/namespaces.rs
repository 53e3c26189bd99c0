//! Network namespaces with wires between them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::starts;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Whether this user may create namespaces and devices; if not, reports that once in the form that tools/test counts.
pub fn may() -> bool {
    static SAY: Once = Once::new();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // Not by a macro, as libtest hides its output for tests that pass.
        let line = b"\nskip device-ports: only root makes network namespaces\n";
        SAY.call_once(|| std::io::stderr().write_all(line).expect("written"));
    }
    is_root
}

/// A network namespace, deleted when dropped.
pub struct Namespace(String);

impl Namespace {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lasthop-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        Self(name)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` in the namespace; returns its output.
    pub fn ip(&self, words: &str) -> String {
        ip(&format!("-n {} {words}", self.0))
    }

    /// A wire from `own` here to `others` in the other namespace; both ends are up.
    pub fn wire(&self, own: &str, other: &Self, others: &str) {
        self.ip(&format!("link add {own} type veth peer name {others} netns {}", other.0));
        self.ip(&format!("link set {own} up"));
        other.ip(&format!("link set {others} up"));
    }

    /// Runs `work` in a thread in the namespace.
    pub fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let file = File::open(format!("/run/netns/{}", self.0)).expect("a namespace");
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
                work()
            });
            inside.join().expect("done")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = starts::status(Command::new("ip").args(["netns", "del", &self.0]));
    }
}

fn ip(words: &str) -> String {
    let output = starts::output(Command::new("ip").args(words.split_whitespace())).expect("ip runs");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
