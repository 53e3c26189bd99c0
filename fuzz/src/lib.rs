//! Fuzz targets for all code that takes a stranger's bytes: plain functions with seeds and assertions.
//!
//! **Purpose.** [`headers`] takes frames, [`vhost_messages`] a front end's messages and file descriptors,
//! [`descriptor_tables`] and [`control_queue`] a guest's ring memory, [`control_messages`] messages of clients of the
//! control interface, [`flow_actions`] packets and the actions of their flows, [`connections`] packets in any order through connection
//! tracking, [`fragments`] fragments in any order, [`tunnels`] datagrams of tunnels, [`dhcp`] messages of DHCP, [`coalescing`] TCP segments that
//! may be joined, [`kernel_types`] the kernel's description of its types. Each has a `run`, which panics if a property does not hold, and `seeds`, inputs made of the packets of real senders.
//!
//! **Contract.** A target is a pure function of its bytes: no clock, no thread, nothing random, so that an input that
//! fails once fails always. It ends in bounded time and leaves no descriptor and no mapping behind.
//!
//! **Not checked.** Guests that write their memory while it is read: one thread plays both sides here. Input that only the
//! operator writes (configuration, requests) and messages between supervisor and switch have tests in the binary's
//! own crate, which nothing else can use.
//!
//! **Threading.** None.
//!
//! ```text
//!   tools/fuzz       nightly: libFuzzer --------> libfuzzer/targets/NAME.rs --+
//!   cargo test       stable:  tests/neighbours -> mutations ------------------+--> NAME::run(bytes)
//!                                                                                  `-- seeds/NAME/*
//! ```

#![forbid(unsafe_code)]

pub mod coalescing;
pub mod connections;
pub mod control_messages;
pub mod control_queue;
pub mod descriptor_tables;
pub mod dhcp;
pub mod flow_actions;
pub mod fragments;
pub mod headers;
pub mod input;
pub mod kernel_types;
pub mod mutation;
pub mod neighbours;
pub mod tunnels;
pub mod vhost_messages;

/// A target by name.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// As in `fuzz/libfuzzer/targets` and `fuzz/seeds`.
    pub name: &'static str,
    /// Panics when something does not hold for these bytes.
    pub run: fn(&[u8]),
    /// Inputs to start from, with names for their files.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// Longest input worth trying, in bytes.
    pub input_bytes_max: usize,
}

/// All of them.
pub const TARGETS: [FuzzTarget; 12] = [
    FuzzTarget { name: "headers", run: headers::run, seeds: headers::seeds, input_bytes_max: 1024 },
    FuzzTarget {
        name: "vhost_messages",
        run: vhost_messages::run,
        seeds: vhost_messages::seeds,
        input_bytes_max: 4096,
    },
    FuzzTarget {
        name: "descriptor_tables",
        run: descriptor_tables::run,
        seeds: descriptor_tables::seeds,
        input_bytes_max: 4096,
    },
    FuzzTarget {
        name: "control_queue",
        run: control_queue::run,
        seeds: control_queue::seeds,
        input_bytes_max: 2048,
    },
    FuzzTarget {
        name: "control_messages",
        run: control_messages::run,
        seeds: control_messages::seeds,
        input_bytes_max: 4096,
    },
    FuzzTarget {
        name: "flow_actions",
        run: flow_actions::run,
        seeds: flow_actions::seeds,
        input_bytes_max: 1024,
    },
    FuzzTarget {
        name: "connections",
        run: connections::run,
        seeds: connections::seeds,
        input_bytes_max: 2048,
    },
    FuzzTarget { name: "fragments", run: fragments::run, seeds: fragments::seeds, input_bytes_max: 4096 },
    FuzzTarget {
        name: "kernel_types",
        run: kernel_types::run,
        seeds: kernel_types::seeds,
        input_bytes_max: 2048,
    },
    FuzzTarget { name: "tunnels", run: tunnels::run, seeds: tunnels::seeds, input_bytes_max: 512 },
    FuzzTarget { name: "dhcp", run: dhcp::run, seeds: dhcp::seeds, input_bytes_max: 512 },
    FuzzTarget { name: "coalescing", run: coalescing::run, seeds: coalescing::seeds, input_bytes_max: 1024 },
];
