//! Destinations that do not exist: measures a visit without delivery.

use lasthop_module_api::{Batch, Module, PortId, PortSettings, Verdicts};

/// The first of these ports.
const FIRST: u16 = 500;

/// Sends each packet to one of `destinations` ports in turn, or to all of them.
pub struct Nowhere {
    pub destinations: u16,
    pub flood: bool,
}

impl Module for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for packet in 0..batch.headers.len() {
            if self.flood {
                (0..self.destinations).for_each(|number| verdicts.output(packet, PortId(FIRST + number)));
            } else {
                verdicts.output(packet, PortId(FIRST + packet as u16 % self.destinations));
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}
