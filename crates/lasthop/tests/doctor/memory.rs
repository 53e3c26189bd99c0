//! Memory that is missing, not shared, unusable, or gone.

use std::fs::File;
use std::os::fd::AsFd;

use lasthop_vhost::MemoryRegionMessage;

use crate::fake::{Fake, STATUS_RUNNING};
use crate::{ONE, blames, guest, has_all, logs};
use lasthop_rig::Switch;

#[test]
fn memory_without_a_file_is_not_shared() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    fake.front.set_status(STATUS_RUNNING).expect("status");
    blames(&switch, &["vm1 memory", "shared memory", "share=on"]);
}

#[test]
fn a_guest_that_writes_elsewhere_does_not_share_its_memory() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    fake.share();
    fake.start_rings();
    fake.kick();
    blames(&switch, &["vm1 memory", "most likely not shared", "share=on"]);
}

#[test]
fn a_guest_that_is_slow_to_start_is_not_accused() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    fake.share_mapped();
    fake.start_rings();
    fake.kick();
    // Its rings are empty, and it was kicked: a VMM does that before a driver posts the first buffer, however long that
    // takes.
    blames(&switch, &["vm1 rings", "posted no receive buffers"]);
    let said = switch.ask(&["doctor"]).out;
    assert!(said.contains("memory ok") && !said.contains("share=on"), "{said}");
}

#[test]
fn memory_in_a_file_on_a_disk_is_refused() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut fake = Fake::negotiated(&switch, "vm1");
    let program = File::open(std::env::current_exe().expect("a path")).expect("readable");
    let region = MemoryRegionMessage { guest_addr: 0, size: 4096, user_addr: 0, offset: 0 };
    let refused = fake.front.set_mem_table(&[region], &[program.as_fd()]);
    assert!(refused.is_err());
    blames(&switch, &["vm1 memory", "neither a memfd nor", "use a memfd"]);
    assert!(has_all(&switch.ask(&["vnic", "show", "vm1"]).ok(), &["last refusal", "neither a memfd nor"]));
}

#[test]
fn memory_that_was_cut_short_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut guest = guest(&switch, "vm1", ONE);
    rustix::fs::ftruncate(guest.memory_file(), 0).expect("cut short");
    guest.kick(0).expect("kicked");
    blames(&switch, &["vm1 memory", "truncated", "restart the guest"]);
    logs(&switch, &["port vm1: its rings are stopped: the guest's memory file was cut short"]);
}
