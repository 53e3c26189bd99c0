//! Forwarding policies: decisions on frames whose headers the fabric has fetched.
//!
//! **Purpose.** Each module implements [`Module`]: [`Dummy`] joins ports in pairs, [`Bridge`] learns addresses as an
//! IEEE 802.1D bridge does. [`by_name`] makes the module that `--module` names. [`Switches`] hands each port's frames
//! to the module of the port's own switch. [`Unattached`] drops the frames of ports without a switch.
//!
//! **Contract.** That of `lasthop-module-api`: every packet of a batch gets at least one output or one drop with a
//! reason. Time and randomness come from the caller: the time with each call, the bridge's hash key in its settings.
//!
//! **Not checked.** A batch may come from a port that was not added: its frames are forwarded, but nothing is learned
//! from them. The fabric checks that an output's port still has a guest.
//!
//! **Threading.** `decide` runs on all workers concurrently. Look-up and refresh are loads and at most one
//! compare-and-swap. Learning a new or moved address tries a lock a bounded number of times; if that fails, the next
//! frame learns the address. So no packet ever sleeps. Adding and removing ports, and listing, may wait.
//!
//! ```text
//!   header ─► source: valid? configured for another port? ─► learn or refresh ─► destination: known ─► one port
//!                └─ drop                                        (table)                       └ unknown, group ─► flood
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_module_api::{Batch, Hashes, Header, PortId, PortSettings, Verdicts};
//!
//! let bridge = lasthop_modules::by_name("bridge", &Default::default()).unwrap();
//! for port in [1, 2] {
//!     bridge.port_added(PortId(port), &PortSettings { name: format!("vm{port}"), ..Default::default() }).unwrap();
//! }
//! // A frame of port 1 teaches the bridge its source; the answer goes there.
//! let frames = [[[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]], [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]]];
//! let mut verdicts = Verdicts::default();
//! for (port, macs) in [1, 2].into_iter().zip(frames) {
//!     let frame = [&macs.concat()[..], &[8, 0], &[0; 46]].concat();
//!     let headers = [Header::new(&frame, 60, Default::default())];
//!     verdicts.clear();
//!     let batch = Batch { port: PortId(port), headers: &headers, hashes: &Hashes::NONE };
//!     bridge.decide(&batch, 1_000_000_000, &mut verdicts);
//! }
//! assert_eq!(verdicts.outputs()[0].port, PortId(1));
//! assert_eq!(bridge.fdb(1_000_000_000).len(), 2);
//! ```
#![forbid(unsafe_code)]

mod bridge;
mod dummy;
mod switches;
#[cfg(test)]
mod testing;

pub use bridge::{
    AGEING_NS_DEFAULT, Bridge, BridgeSettings, BridgeStats, FDB_ENTRIES_LIMIT, FDB_ENTRIES_MAX,
    FDB_ENTRIES_MIN, random_key,
};
pub use dummy::Dummy;
pub use switches::{Switches, Unattached};

use lasthop_module_api::{Module, PORTS_MAX, PortId, PortSettings};

/// The names that [`by_name`] knows.
pub const NAMES: &[&str] = &["bridge", "dummy"];

/// Returns a module; `None` if `name` is not one of [`NAMES`]. The settings are for the bridge.
#[must_use]
pub fn by_name(name: &str, bridge: &BridgeSettings) -> Option<Box<dyn Module>> {
    match name {
        "bridge" => Some(Box::new(Bridge::new(bridge))),
        "dummy" => Some(Box::new(Dummy::default())),
        _ => None,
    }
}

/// Refuses a port whose number exceeds the tables.
pub(crate) fn check_number(port: PortId, settings: &PortSettings) -> Result<(), String> {
    if port.index() < PORTS_MAX {
        return Ok(());
    }
    let last = PORTS_MAX - 1;
    Err(format!(
        "port number {port} of \"{}\" is too high; the last is {last}: remove a port first",
        settings.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_the_module_of_that_name() {
        let settings = BridgeSettings::default();
        for name in NAMES {
            assert_eq!(by_name(name, &settings).expect("a listed name is known").name(), *name);
        }
        assert!(by_name("router", &settings).is_none());
    }
}
