//! A check of port numbers that all modules share.

use lasthop_module_api::{PORTS_MAX, PortId, PortSettings};

/// Refuses a port whose number exceeds the tables.
pub(crate) fn check(port: PortId, settings: &PortSettings) -> Result<(), String> {
    if port.index() < PORTS_MAX {
        return Ok(());
    }
    let last = PORTS_MAX - 1;
    Err(format!(
        "port number {port} of \"{}\" is too high; the last is {last}: remove a port first",
        settings.name
    ))
}
