//! Tests actions with packets that an independent implementation writes.

#![allow(missing_docs)]

mod dry_run;
mod packets;
mod paths;
mod rewrites;
mod services;
mod support;
mod tracked_runs;
mod tracking;
