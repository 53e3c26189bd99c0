//! The supervisor itself ends, and guests are not affected: a service manager keeps descriptors for the next one.

mod changed;
mod full;
mod gap;
mod kept;
mod leases;
mod service;
mod stuck;
