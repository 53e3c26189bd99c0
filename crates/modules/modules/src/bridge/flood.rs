//! Floods: every other port that carries the frame's VLAN gets a copy, tagged or untagged as the port requires.

use lasthop_module_api::{DropReason, FrameTag, Header, Output, PortId, TagEdit, TagForm, Verdicts};

use super::Bridge;

/// A frame to be flooded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flooded<'a> {
    pub(crate) packet: usize,
    pub(crate) from: PortId,
    pub(crate) vid: u16,
    pub(crate) tag: FrameTag,
    pub(crate) header: &'a Header,
}

impl Bridge {
    /// Floods a frame of a VLAN.
    pub(super) fn flood(&self, frame: &Flooded<'_>, verdicts: &mut Verdicts) {
        let mut forms = Forms::default();
        let mut is_lost = false;
        let before = verdicts.outputs().len();
        for port in self.hearers(frame.from, frame.vid) {
            let form = self.vlans.of(port).form(frame.vid);
            match forms.image(frame, form, verdicts) {
                Ok(image) => put(frame.packet, image, port, verdicts),
                Err(reason) if !is_lost => {
                    is_lost = true; // counted once, however many ports need this form
                    verdicts.drop_packet(frame.packet, reason);
                }
                Err(_) => {}
            }
        }
        if verdicts.outputs().len() > before {
            verdicts.note_flood(frame.packet);
        } else if verdicts.lost() == 0 && !is_lost {
            verdicts.drop_packet(frame.packet, DropReason::NoDestination);
        }
    }

    /// Floods an untagged frame of a port without VLAN settings. Only ports without VLAN settings get it.
    pub(super) fn flood_as_it_is(&self, packet: usize, from: PortId, verdicts: &mut Verdicts) {
        if self.ports.isolation(from).is_barred() {
            return output_all(packet, self.hearers_as_it_is(from), verdicts);
        }
        output_all(packet, self.ports.others_without_vlans(from), verdicts);
    }

    /// Ports that receive a flood in this VLAN.
    pub(super) fn hearers(&self, from: PortId, vid: u16) -> impl Iterator<Item = PortId> {
        self.ports.others(from).filter(move |port| self.vlans.carries(*port, vid))
    }

    /// Ports that receive an untagged flood of a port without VLAN settings.
    pub(super) fn hearers_as_it_is(&self, from: PortId) -> impl Iterator<Item = PortId> {
        let others = self.ports.others_without_vlans(from);
        others.filter(move |port| self.ports.barrier(from, *port).is_none())
    }
}

#[inline]
fn output_all(packet: usize, ports: impl Iterator<Item = PortId>, verdicts: &mut Verdicts) {
    let mut ports = ports.peekable();
    if ports.peek().is_none() {
        return verdicts.drop_packet(packet, DropReason::NoDestination);
    }
    verdicts.note_flood(packet);
    ports.for_each(|port| verdicts.output(packet, port));
}

/// Sends a packet with an edited tag to one port.
pub(crate) fn output_edited(
    packet: usize,
    port: PortId,
    header: &Header,
    edit: TagEdit,
    verdicts: &mut Verdicts,
) {
    match add_edited(header, edit, verdicts) {
        Ok(image) => put(packet, image, port, verdicts),
        Err(reason) => verdicts.drop_packet(packet, reason),
    }
}

fn put(packet: usize, image: u16, port: PortId, verdicts: &mut Verdicts) {
    verdicts.push(Output { packet: packet as u16, image, port, truncate_len_bytes: u32::MAX });
}

fn add_edited(header: &Header, edit: TagEdit, verdicts: &mut Verdicts) -> Result<u16, DropReason> {
    verdicts.add_image(header.edited(edit)?).ok_or(DropReason::VerdictOverflow)
}

/// The header images of one packet. Each is made when the first port needs it.
#[derive(Default)]
struct Forms {
    untagged: Option<Result<u16, DropReason>>,
    tagged: Option<Result<u16, DropReason>>,
}

impl Forms {
    fn image(
        &mut self,
        frame: &Flooded<'_>,
        form: TagForm,
        verdicts: &mut Verdicts,
    ) -> Result<u16, DropReason> {
        let Some(edit) = frame.tag.edit(form, frame.vid) else { return Ok(frame.packet as u16) };
        let made = if form == TagForm::Untagged { &mut self.untagged } else { &mut self.tagged };
        *made.get_or_insert_with(|| add_edited(frame.header, edit, verdicts))
    }
}
