//! I/O of guests from a network card (Liao and Bhuyan, "Optimizing Virtualized I/O Processing over High Speed Networks"):
//! a card, the driver domain's virtual CPUs, a guest, and a credit scheduler that places them.
//!
//! ```text
//!   card ──> driver domain: I/O vCPU (driver, bridge, copy to the guest) ──> guest's vCPU (stack, copy to the user)
//!                  └──────────────── credit scheduler: which CPU, whose caches ────────────────┘
//! ```

pub(crate) mod credit;
pub(crate) mod figures;
pub(crate) mod receive;
