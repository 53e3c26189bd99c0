//! Fair turns: among the ports of a worker, and among the lines of packets for the control plane.
//!
//! **Purpose.** A port with much to do must not take the turns of others. [`DrrScheduler`] gives ports of one worker
//! equal shares of its time, by the cost that a [`Charge`] counts. [`Metering`] finds page faults in ports' memory, for which they are charged. [`UpcallTurns`] lets lines with few packets go ahead of busy ones; an
//! [`UpcallRecord`] says in which line a packet waits.
//!
//! ```text
//!   transmit rings of ports ──> DrrScheduler ──> the ring that a worker visits
//!   packets without a flow  ──> UpcallTurns  ──> the packet that the control plane gets
//! ```
//!
//! **Contract.** No clock, no thread, no system call. A round or a turn allocates nothing; adding a ring or a packet may. All
//! tables are bounded by the number of ports.
//!
//! **Not checked.** The costs that a caller reports.
//!
//! **Threading.** Each value belongs to one thread.
//!
//! # Examples
//!
//! ```
//! use lasthop_module_api::{PortId, RingId};
//! use lasthop_turns::{DrrScheduler, Visited};
//!
//! let ring = |port| RingId { port: PortId(port), queue: 0 };
//! let mut scheduler = DrrScheduler::default();
//! scheduler.add(ring(1), 0);
//! scheduler.add(ring(2), 0);
//! let mut visits = Vec::new();
//! // One visit of port 1 costs as much as its turn; those of port 2 cost little.
//! scheduler.round(0, |ring| {
//!     visits.push(ring.port);
//!     Visited { packets: 1, more: false, cost: if ring.port == PortId(1) { 256 << 10 } else { 1 } }
//! });
//! assert_eq!(visits, [PortId(1), PortId(2)]);
//! ```
#![forbid(unsafe_code)]

mod charge;
mod drr;
mod lines;
mod metering;
mod upcall_record;

pub use charge::{
    COPY_COST, Charge, FAULT_REST_FACTOR, FAULT_REST_NS_MAX, NS_COST, PACKET_COST, PIECE_COST, UPCALL_COST,
    VISIT_COST, VISIT_COST_MAX,
};
pub use drr::{ActiveRing, DrrScheduler, TURN_COST, Visited};
pub use lines::{UPCALL_LINES_OF_INTERNAL, UPCALLS_SPARSE, UpcallLine, UpcallTurns};
pub use metering::{Metering, VisitMeter};
pub use upcall_record::{UPCALL_PREFIX_BYTES, UpcallRecord};
