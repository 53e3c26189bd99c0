//! The stock programs of Open vSwitch, with the library in front of libc, against a datapath in memory. Without them
//! (Debian: openvswitch-switch), and the daemon without root, there is nothing to try, and the tests say so.

mod commands;
mod daemon;
mod dumps;
mod misses;
mod rig;
#[path = "../../../../protocols/dpif/tests/codec/values.rs"]
mod values;
