//! A driver between real devices and a real switch: veth pairs and taps in network namespaces, and the kernels' own stacks at
//! the far ends. They need root, and are run with `-- --ignored`.

mod facts;
mod faults;
mod frames;
mod lab;
mod rest;
#[path = "../support/mod.rs"]
mod support;
mod tags;
mod talk;
