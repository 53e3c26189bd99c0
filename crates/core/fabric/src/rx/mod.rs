//! Receive rings: claims, reservations, copying, leases and internal receive queues.

pub(crate) mod deliver;
pub(crate) mod express;
pub(crate) mod lease;
pub(crate) mod queue_choice;
pub(crate) mod receive_ring;
pub(crate) mod receiver;
pub(crate) mod reservation;
pub(crate) mod service;
pub(crate) mod shared;
