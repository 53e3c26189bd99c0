//! Inserts and removes VLAN tags in a simple way, as a reference.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part of this module

use lasthop_module_api::{Batch, Module, Output, PortId, PortSettings, TagEdit, Verdicts};
use lasthop_wire::Offload;

use crate::support::Received;

/// The frame with a tag inserted, and its metadata.
pub fn tagged(frame: &[u8], offload: Offload, tci: u16) -> (Vec<u8>, Offload) {
    let [high, low] = tci.to_be_bytes();
    let bytes = [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat();
    let hdr_len = if offload.hdr_len > 0 { offload.hdr_len + 4 } else { 0 };
    let csum_start = if offload.needs_csum() { offload.csum_start + 4 } else { 0 };
    (bytes, Offload { csum_start, hdr_len, ..offload })
}

/// The received frame with its tag removed, which it must have.
pub fn untagged(received: &Received, tci: u16) -> Received {
    let Received { mut offload, num_buffers, mut frame } = received.clone();
    let [high, low] = tci.to_be_bytes();
    assert_eq!(frame[12..16], [0x81, 0, high, low], "the tag");
    frame.drain(12..16);
    if offload.needs_csum() {
        offload.csum_start -= 4;
        offload.hdr_len -= offload.hdr_len.min(4);
    }
    Received { offload, num_buffers, frame }
}

/// A module that sends every packet to a list of ports, with its tag edited. A copy that cannot be made is dropped.
pub struct Retagging(pub Vec<(PortId, Option<TagEdit>)>);

impl Module for Retagging {
    fn name(&self) -> &'static str {
        "retagging"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for (packet, header) in batch.headers.iter().enumerate() {
            for &(port, edit) in self.0.iter().filter(|(port, _)| *port != batch.port) {
                send(packet, header, port, edit, verdicts);
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

/// Sends a packet of a batch to `port`, with its tag edited.
pub fn send(
    packet: usize,
    header: &lasthop_module_api::Header,
    port: PortId,
    edit: Option<TagEdit>,
    verdicts: &mut Verdicts,
) {
    let Some(edit) = edit else { return verdicts.output(packet, port) };
    match header.edited(edit) {
        Ok(made) => {
            let image = verdicts.add_image(made).expect("two images for each packet at most");
            verdicts.push(Output { packet: packet as u16, image, port, truncate_len_bytes: u32::MAX });
        }
        Err(reason) => verdicts.drop_packet(packet, reason),
    }
}
