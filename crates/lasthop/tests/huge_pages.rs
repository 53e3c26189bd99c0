//! Huge pages for the memory of many connections, and for the process that continues with it.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_frontend::Guest;
use lasthop_guestmem::{Mapping, Words, memfd};
use lasthop_rig::guests::{ONE, TWO, controlled, guest, send};
use lasthop_rig::{Switch, eventually, signal};
use rustix::process::Signal;

/// Connections whose places, with those that are touched ahead, reach the first huge page; it begins at place 8160.
const SOME: u16 = 5000;
/// Connections that use places of it.
const MANY: u16 = 9500;

/// Kilobytes that a process has mapped by huge pages, in files of this name.
fn huge_kib(pid: u32, name: &str) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let (mut is_inside, mut kib) = (false, 0);
    for line in smaps.lines() {
        if let Some(number) = line.strip_prefix("ShmemPmdMapped:").filter(|_| is_inside) {
            kib += number.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
        }
        if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            is_inside = line.contains(name);
        }
    }
    kib
}

/// Whether this process gets huge pages here.
fn may() -> bool {
    const BYTES: usize = 4 << 20;
    let file = memfd("huge-probe", BYTES as u64).expect("a memfd");
    let mapping = Mapping::of_file_with_huge_pages(file.as_fd(), 4096, BYTES as u64 - 4096).expect("mapped");
    let words = Words::new(&Arc::new(mapping), 0, BYTES / 8 - 512).expect("words");
    words.touch(0..u32::MAX, 1);
    let may = huge_kib(std::process::id(), "huge-probe") > 0;
    if !may {
        let _ = std::io::stderr()
            .write_all(b"skip: this kernel makes no huge pages of shared memory (MADV_COLLAPSE)\n");
    }
    may
}

/// Begins connections, each from a port of its own.
fn begin(one: &mut Guest, numbers: std::ops::Range<u16>) {
    for number in numbers {
        // UDP from 10.0.0.1 to 10.0.0.2:53, without a checksum.
        let ip = [0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0x66, 0xc7, 10, 0, 0, 1, 10, 0, 0, 2];
        let udp = [0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let source = (1024 + number).to_be_bytes();
        send(one, &[&TWO[..], &ONE, &[8, 0], &ip, &source, &udp, &[0; 10]].concat());
    }
}

/// A switch with a table of connections that is asked about its pages.
fn switch(words: &[&str]) -> (Switch, Guest, Guest) {
    let words = [&["--module", "flow", "--vnic", "one", "--vnic", "two"], words].concat();
    let switch = Switch::start(&words);
    controlled(&switch);
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    switch.ask(&["acl", "add", "ask", "--port", "one", "--direction", "egress", "--action", "allow"]).ok();
    let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    (switch, one, two)
}

/// Waits until there are as many connections; repeats those that were not begun, as while no controller was there.
fn await_connections(switch: &Switch, one: &mut Guest, count: u16) {
    eventually("connections", || {
        let now = switch.json(&["conntrack", "stats"])["connections"].as_u64();
        let are_all = now >= Some(u64::from(count));
        if !are_all {
            begin(one, 0..count);
        }
        are_all.then_some(())
    });
}

fn process(switch: &Switch) -> u32 {
    eventually("the switch process", || switch.switch_pid())
}

#[test]
fn many_connections_are_in_huge_pages_also_of_the_next_process() {
    if !may() {
        return;
    }
    let (switch, mut one, _two) = switch(&[]);
    let first = process(&switch);
    await_connections(&switch, &mut one, SOME);
    // The next second touches what may be used in it.
    eventually("a huge page", || (huge_kib(first, "lasthop-flows") > 0).then_some(()));
    await_connections(&switch, &mut one, MANY);
    signal(first, Signal::KILL);
    let next = eventually("the next one", || switch.switch_pid().filter(|next| *next != first));
    // It reads each connection that the first one left.
    eventually("a huge page", || (huge_kib(next, "lasthop-flows") > 0).then_some(()));
    assert!(switch.json(&["conntrack", "stats"])["connections"].as_u64() >= Some(MANY.into()));
}

#[test]
fn they_can_be_switched_off() {
    let (switch, mut one, _two) = switch(&["--huge-pages", "off"]);
    assert_eq!(switch.json(&["config", "show"])["huge_pages"], "off");
    await_connections(&switch, &mut one, SOME);
    let smaps = || fs::read_to_string(format!("/proc/{}/smaps", process(&switch))).expect("smaps");
    // As many places are touched ahead: 4096 of 256 bytes.
    let rss_kib = || {
        let text = smaps();
        let lines = text.lines().skip_while(|line| !line.contains("lasthop-flows"));
        let numbers = lines.filter_map(|line| line.strip_prefix("Rss:"));
        numbers.filter_map(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).max()
    };
    eventually("places", || (rss_kib() > Some((u64::from(SOME) + 4096) / 4)).then_some(()));
    assert_eq!(huge_kib(process(&switch), "lasthop-flows"), 0);
}
