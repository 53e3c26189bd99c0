//! A driver between real devices and a real switch: veth pairs and taps in network namespaces, with the kernel's own
//! stack at the far ends. The tests need root, and run with `-- --ignored`.

mod facts;
mod faults;
mod frames;
mod lab;
mod rest;
#[path = "../support/mod.rs"]
mod support;
mod tags;
mod talk;
