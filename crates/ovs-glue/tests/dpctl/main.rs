//! The stock ovs-dpctl, with the library in front of libc, against a datapath in memory. Without ovs-dpctl (Debian:
//! openvswitch-switch) there is nothing to try, and the tests say so.

mod commands;
#[path = "../../../control/tests/codec/values.rs"]
mod values;

mod dumps;
mod rig;
