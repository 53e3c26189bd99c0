//! The module of the crew's switch: a bridge by the last byte of the destination, which tags frames for some ports.

use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, TagEdit, Verdicts};

use crate::tags::send;

/// Ports with even numbers get their frames with a tag that is the port's number.
pub(crate) fn edit_for(port: PortId) -> Option<TagEdit> {
    port.0.is_multiple_of(2).then_some(TagEdit::Push(port.0))
}

/// Sends to the port that the last byte of the destination names; 0xff is all others.
pub(crate) struct ByLastByte(pub(crate) u16);

impl Module for ByLastByte {
    fn name(&self) -> &'static str {
        "by-last-byte"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for (index, header) in batch.headers.iter().enumerate() {
            match header.bytes()[5] {
                0xff => {
                    let others = (1..=self.0).map(PortId).filter(|port| *port != batch.port);
                    others.for_each(|port| send(index, header, port, edit_for(port), verdicts));
                }
                0 => verdicts.drop_packet(index, DropReason::NoDestination),
                port => {
                    let port = PortId(u16::from(port));
                    send(index, header, port, edit_for(port), verdicts);
                }
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}
