//! A driver without work.

use std::time::Duration;

use lasthop_netdev::{PacketOptions, TapOptions};

use crate::lab::Lab;
use crate::support::eventually;
use crate::talk::stream;

/// Context switches of a thread: it slept and was woken, or lost its core.
fn context_switches(thread_id: i32) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/status")).unwrap();
    let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
    lines.map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root"]
fn an_idle_driver_makes_no_system_call() {
    let mut lab = Lab::new(1);
    let one = lab.packet_port(1, 1500, PacketOptions::default());
    let two = lab.tap_port(2, TapOptions::default());
    stream(&one, &two, "192.0.2.2", 1 << 20);
    // Unsolicited packets are disabled.
    for (namespace, device) in [(&one, "eth0"), (&two, "tap0"), (&lab.host, "wire1")] {
        namespace.run(&format!("sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1"));
        namespace.run("ip neighbour flush all");
    }
    let thread_id = lab.driver.stats().unwrap().threads[0].thread_id;
    let rested = || {
        let before = context_switches(thread_id);
        std::thread::sleep(Duration::from_secs(1));
        before == context_switches(thread_id)
    };
    eventually("a second without a system call", rested);
    // It was asleep, not gone.
    let number = |lab: &Lab| lab.driver.stats().unwrap().threads[0].sleeps;
    let before = number(&lab);
    eventually("it sleeps again", || number(&lab) > before);
    stream(&one, &two, "192.0.2.2", 1 << 20);
    lab.assert_conserved();
}
