//! Packets of tunnels without an Ethernet header. At ports they have a placeholder in front (`lasthop_wire::tunnel::layer3`); flows and
//! actions see them without it.
//!
//! ```text
//!   out of a tunnel   | placeholder | IP ...     key and image: | IP ...
//!   into a tunnel     | IP ...                   output:        | placeholder | IP ...   and a bit in the tunnel's header
//! ```

use lasthop_module_api::{Batch, DropReason, Header, Output, PortId};
use lasthop_wire::key::{LinkLayer, extract, field};
use lasthop_wire::tunnel::{TUNNEL_BYTES, layer3};
use lasthop_wire::{Key, Metadata, OuterHeader};

use crate::action_packet::ActionPacket;
use crate::course::Course;
use crate::dry_event::{DryEvent, DryOutput};
use crate::executor::{ActionResult, Executor};
use crate::module::FlowModule;
use crate::pending_filter::FilterKey;

impl FlowModule {
    /// Decides a packet that was received through `tunnel` without an Ethernet header.
    #[cold]
    pub(crate) fn decide_bare(
        &self,
        executor: &mut Executor<'_>,
        (batch, packet): (&Batch<'_>, usize),
        tunnel: &OuterHeader,
        metadata: &Metadata,
    ) {
        let Some((header, metadata)) = without_placeholder(&batch.headers[packet], metadata) else {
            return executor.verdicts.drop_packet(packet, DropReason::ActionImpossible);
        };
        let mut key = Key::default();
        extract(header.bytes(), header.frame_len_bytes() as usize, &metadata, &mut key);
        key.put_tunnel(tunnel);
        let copy = ActionPacket::without_image(packet, &header, metadata);
        match executor.look_up(&key, None) {
            Some(hit) => executor.act_on(copy, key.get(field::TCP_FLAGS) as u16, hit),
            None if self.has_asker() => executor.miss_of(copy, (&key, FilterKey::Unseen)),
            // No bridge that stands in for a controller can forward it by its addresses.
            None => executor.verdicts.drop_packet(packet, DropReason::NoFlow),
        }
    }
}

/// The image of a received packet, and its metadata, as flows see it. `None` if no packet is behind the placeholder.
pub(crate) fn without_placeholder(header: &Header, metadata: &Metadata) -> Option<(Header, Metadata)> {
    let ethertype = layer3::ethertype_in(header.bytes())?;
    let mut header = *header;
    header.remove(0, layer3::PLACEHOLDER_BYTES).ok()?;
    Some((header, Metadata { link: LinkLayer::None(ethertype), ..*metadata }))
}

/// The image of a packet without an Ethernet header as a tunnel's end takes it. An error if no action has set a tunnel.
fn with_placeholder(header: &Header, ethertype: u16) -> Result<Header, DropReason> {
    let (mut header, mut bytes) = (*header, [0; TUNNEL_BYTES]);
    let outer = OuterHeader::parse(header.tunnel()).ok_or(DropReason::ActionImpossible)?;
    let len = OuterHeader { is_layer3: true, ..outer }.emit(&mut bytes);
    header.set_tunnel(bytes.get(..len).unwrap_or_default())?;
    header.insert(0, &layer3::placeholder(ethertype)).map(|()| header)
}

impl<C: Course> Executor<'_, C> {
    /// Outputs a packet without an Ethernet header, which only tunnels carry. The copy itself stays as it is.
    #[cold]
    pub(crate) fn output_bare(
        &mut self,
        result: &mut ActionResult,
        copy: &ActionPacket<'_>,
        (number, port): (u16, PortId),
        truncate_len_bytes: u32,
    ) {
        let is_taken = self.shared.numbers.is_tunnel_end(port);
        let framed = match copy.metadata.link {
            LinkLayer::None(ethertype) if is_taken => with_placeholder(copy.header(), ethertype),
            _ => Err(DropReason::ActionImpossible),
        };
        let add = |header| self.verdicts.add_image(header).ok_or(DropReason::VerdictOverflow);
        let image = match framed.and_then(add) {
            Ok(image) => image,
            Err(reason) => return self.lose(result, copy, reason),
        };
        result.sent += 1;
        self.course.note(|| DryEvent::Output(DryOutput::of(copy, (number, port), truncate_len_bytes)));
        // The wire has the packet without its placeholder. The length of everything is the largest there is.
        let truncate_len_bytes = truncate_len_bytes.saturating_add(layer3::PLACEHOLDER_BYTES as u32);
        self.verdicts.push(Output { packet: copy.packet, image, port, truncate_len_bytes });
    }
}
