//! Compares the controller with the bridge, over the real flow table and the real control interface.

mod acl;
mod guard;
mod model;
mod scenarios;
mod support;
