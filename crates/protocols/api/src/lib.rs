//! The types that the processes of the switch and its users exchange.
//!
//! **Purpose.** Specifications of ports and switches as users write them, reports as the API answers them, orders from
//! the supervisor to the inner processes, and the messages of JSON-RPC. The command line, the supervisor and the inner
//! processes share these types without depending on each other.
//!
//! **Contract.** A parsed value is valid by itself: names, addresses, numbers in their ranges. An error names the
//! thing, the fault and the remedy ([`lasthop_runtime::fault::Fault`]). docs/user/control-api.md describes the reports;
//! a renamed field of an order changes [`orders::STATE_VERSION`].
//!
//! **Not checked.** Consistency between values: two ports of one name, a port of an unknown switch. The supervisor
//! checks that.
//!
//! **Threading.** None: plain values.
//!
//! ```text
//!   command line ──rpc──> supervisor ──orders──> switch process
//!        ^   specs, settings   │  │──controller_orders──> controller process
//!        └──────report, facts──┘  └──driver_orders──────> driver process
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_api::port::PortSpec;
//!
//! let port: PortSpec = "vm1,backend=vhost-user,queues=4,mac=02:00:00:00:00:01".parse().unwrap();
//! assert_eq!((port.name().as_str(), port.common.queues), ("vm1", 4));
//! let error = "vm1,backend=vhost-user,queues=none".parse::<PortSpec>().unwrap_err();
//! assert!(error.message.contains("queues"), "{}", error.message);
//! ```
#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "docs/user/control-api.md explains the fields of reports")]

pub mod acl;
pub mod capture;
pub mod controller_orders;
pub mod cpus;
pub mod device_patterns;
pub mod driver_orders;
pub mod explain;
pub mod facts;
pub mod fdb;
pub mod groups;
pub mod guard;
pub mod leases;
pub mod mac;
pub mod modules;
pub mod names;
pub mod offload_bounds;
mod options;
pub mod orders;
pub mod pair_flows;
mod pairs;
pub mod pcapng;
pub mod placement;
pub mod polling;
pub mod port;
pub mod profile;
pub mod readable;
pub mod report;
pub mod rpc;
pub mod rundir;
pub mod sched;
pub mod sched_part;
pub mod sched_table;
mod schema;
pub mod settings;
pub mod silence;
pub mod switches;
pub mod upcalls;
pub mod workers;

/// The word by which `lasthop run` starts this binary as the switch process.
pub const SWITCH_ROLE: &str = "switch-process";
/// The word for the driver process.
pub const DRIVER_ROLE: &str = "driver-process";
/// The word for the controller process.
pub const CONTROLLER_ROLE: &str = "controller-process";
