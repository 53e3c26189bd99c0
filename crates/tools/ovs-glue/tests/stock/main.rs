//! The stock programs of Open vSwitch, with the library in front of libc, against a datapath in memory. Tests are
//! skipped with a message without these programs (Debian: openvswitch-switch), and those of the daemon without root.

mod commands;
mod daemon;
mod dumps;
mod misses;
mod rig;
#[path = "../../../../protocols/dpif/tests/codec/values.rs"]
mod values;
