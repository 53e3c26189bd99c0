//! Compares the controller with the bridge, over the real flow table and the real control interface.

mod acl;
mod guard;
mod leases;
mod model;
mod scenarios;
mod support;
