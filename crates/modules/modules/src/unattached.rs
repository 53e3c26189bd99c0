//! The module for ports that belong to no switch, before they join one or after they leave it.

use lasthop_module_api::{Batch, DropReason, Header, Module, PortId, PortSettings, Reasons, Verdicts};

/// Drops every packet, and sends none to any port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unattached;

impl Module for Unattached {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        (0..batch.headers.len()).for_each(|packet| verdicts.drop_packet(packet, DropReason::NoDestination));
    }

    fn explain(
        &self,
        _: (PortId, &Header),
        _now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        reasons.tell("switch", "the port waits to be given to a switch");
        verdicts.drop_packet(0, DropReason::NoDestination);
        true
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::check_number(port, settings)
    }

    fn port_removed(&self, _port: PortId) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Lab, frame};

    #[test]
    fn nothing_leaves() {
        let mut lab = Lab::new(Unattached);
        for port in [1, 2] {
            lab.add(port).expect("a port");
        }
        for (from, source, destination) in [(1, 1, 2), (2, 2, 1), (1, 1, 2)] {
            assert_eq!(lab.send(from, frame(source, destination)), Err(DropReason::NoDestination));
        }
    }
}
