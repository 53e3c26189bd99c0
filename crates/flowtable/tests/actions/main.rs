//! What actions make of packets, against packets that an independent implementation writes.

#![allow(missing_docs)]

mod packets;
mod paths;
mod rewrites;
mod services;
mod support;
