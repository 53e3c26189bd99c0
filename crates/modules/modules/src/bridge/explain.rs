//! The decision about one frame with its reasons, and without effects.
//!
//! It applies the same rules (`lasthop_bridge_policy`) in the same order as a [`super::visit::Visit`]. The bridge's tests
//! compare each decision about a single frame with its explanation.

use lasthop_bridge_policy::{FloodKind, SourceEntry, Target, Unrecorded, admit, classify, route};
use lasthop_module_api::{DropReason, FrameTag, Header, Mac, NO_VID, PortId, Reasons, TagForm, Verdicts};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use super::Bridge;
use super::flood::{Flooded, output_edited};
use super::slot::Stamp;
use super::table::{key_in, mac_bits};
use super::vlans::PortRules;

/// A frame that is explained.
#[derive(Clone, Copy)]
struct Explained<'a> {
    port: PortId,
    header: &'a Header,
    destination: u64,
    source: u64,
    now: Stamp,
    now_ns: u64,
}

impl Bridge {
    pub(super) fn explain_frame(
        &self,
        (port, header): (PortId, &Header),
        now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) {
        let Some((destination, source, ethertype)) = header.ethernet() else {
            reasons.tell("frame", "it is shorter than an Ethernet header");
            return verdicts.drop_packet(0, DropReason::TooShort);
        };
        let now = Stamp::at(now_ns);
        let frame = Explained { port, header, destination, source, now, now_ns };
        let decided = self.vlan_of(frame, ethertype, reasons).and_then(|(vid, tag)| {
            let is_learned = self.admits(frame, vid, reasons)?;
            self.target_of(frame, vid, is_learned, reasons).map(|target| (vid, tag, target))
        });
        match decided {
            Err(reason) => verdicts.drop_packet(0, reason),
            Ok((vid, tag, Target::Port(to))) => self.explain_output(frame, (vid, tag, to), verdicts, reasons),
            Ok((vid, tag, Target::Flood)) => self.explain_flood(frame, (vid, tag), verdicts, reasons),
        }
    }

    /// The VLAN of a frame, and how it says so.
    fn vlan_of(
        &self,
        frame: Explained<'_>,
        ethertype: u16,
        reasons: &mut Reasons<'_>,
    ) -> Result<(u16, FrameTag), DropReason> {
        let standing = self.vlans.of(frame.port);
        if ethertype != ETHERTYPE_VLAN && standing.is_any() {
            reasons.tell("vlan", "none: the frame has no tag, and the port no VLAN settings");
            return Ok((NO_VID, FrameTag::None));
        }
        let is_cut = |_: &DropReason| reasons.tell("vlan", "the frame ends within its tag");
        let tag_vid = match ethertype {
            ETHERTYPE_VLAN => Some(frame.header.tag_vid().inspect_err(is_cut)?),
            _ => None,
        };
        let rules = PortRules { vlans: &self.vlans, port: frame.port, standing };
        let found = classify(&rules, tag_vid, &mut Unrecorded);
        let says = tag_vid.map_or_else(|| "no tag".to_owned(), |vid| format!("a tag of VLAN {vid}"));
        match found {
            Ok((NO_VID, _)) => reasons.tell("vlan", format!("none: the frame has {says}")),
            Ok((vid, _)) => {
                reasons.tell("vlan", format!("{vid}: the frame has {says}, and the port carries it"))
            }
            Err(_) => reasons.tell("vlan", format!("the frame has {says}, which the port does not take")),
        }
        found
    }

    /// Whether the frame may come from its port; and whether its source is learned there then.
    fn admits(&self, frame: Explained<'_>, vid: u16, reasons: &mut Reasons<'_>) -> Result<bool, DropReason> {
        if frame.port == PortId::INTERNAL {
            return Ok(false);
        }
        let (key, port, now) = (key_in(vid, frame.source), frame.port, frame.now);
        let own_mac = self.vlans.of(port).static_mac();
        let look_up = || {
            let known = self.table.find(key).map(|(_, place)| place).filter(|place| place.is_static());
            match known.or_else(|| self.find_everywhere(key)) {
                Some(place) if place.port() == port => SourceEntry::Here,
                Some(_) => SourceEntry::Elsewhere,
                None => SourceEntry::None(self.would_learn(key, port, now)),
            }
        };
        let is_entered = || self.is_configured(key, port);
        let found = admit(mac_bits(key), own_mac, is_entered, look_up, &mut Unrecorded);
        let source = Mac::from_bits(mac_bits(key));
        match &found {
            Err(DropReason::SourceInvalid) => {
                reasons.tell("source", format!("{source} is no address of a station"));
            }
            Err(_) if own_mac != 0 => {
                let own = Mac::from_bits(own_mac);
                reasons.tell("source", format!("{source} is not the port's own address, {own}"));
            }
            Err(_) => reasons.tell("source", format!("{source} is the static address of another port")),
            Ok(None) => reasons.tell("source", format!("{source} is a static address of the port")),
            Ok(Some((true, Some(at)))) if *at == port => {
                reasons.tell("source", format!("{source} is known there"));
            }
            Ok(Some((true, Some(at)))) => {
                let from = reasons.name(*at);
                reasons.tell("source", format!("{source} was at {from}; it would be learned here"));
            }
            Ok(Some((true, None))) => {
                reasons.tell("source", format!("{source} is new; it would be learned here"));
            }
            Ok(Some((false, _))) => {
                let why = "there is no room for it in the table or within the port's limit";
                reasons.tell("source", format!("{source} would not be learned: {why}"));
            }
        }
        found.map(|lesson| lesson.is_some_and(|(is_learned, _)| is_learned))
    }

    /// Where the frame goes. Its own source is looked up as it is then.
    fn target_of(
        &self,
        frame: Explained<'_>,
        vid: u16,
        is_learned: bool,
        reasons: &mut Reasons<'_>,
    ) -> Result<Target<PortId>, DropReason> {
        let key = key_in(vid, frame.destination);
        let place = self.table.look_up(key, frame.now).or_else(|| self.find_everywhere(key));
        let is_own = frame.destination == frame.source && frame.port != PortId::INTERNAL;
        let is_static = place.is_some_and(|place| place.is_static());
        let known = match place {
            Some(place) if is_static || !is_own => Some(place.port()),
            _ if is_own && is_learned => Some(frame.port),
            _ => None,
        };
        let barrier = |to: PortId| self.ports.barrier(frame.port, to);
        let target = route(mac_bits(key), frame.port, || known, barrier, &mut Unrecorded);
        let destination = Mac::from_bits(mac_bits(key));
        let at = known.map(|port| reasons.name(port)).unwrap_or_default();
        let age_s = place
            .filter(|_| !is_static)
            .map(|place| frame.now_ns.saturating_sub(place.stamp().as_ns()) / 1_000_000_000);
        let how = age_s.map_or_else(|| "static".to_owned(), |age_s| format!("learned, seen {age_s} s ago"));
        match target {
            Ok(Target::Port(_)) => reasons.tell("destination", format!("{destination} is at {at} ({how})")),
            Ok(Target::Flood) if destination.is_group() => {
                reasons.tell("destination", format!("{destination} is a group address: flooded"));
            }
            Ok(Target::Flood) => reasons.tell("destination", format!("{destination} is unknown: flooded")),
            Err(DropReason::SamePort) => {
                reasons
                    .tell("destination", format!("{destination} is at the port that the frame comes from"));
            }
            Err(DropReason::LinkLocal) => {
                reasons.tell("destination", format!("{destination} is for bridges, which do not forward it"));
            }
            Err(_) => {
                reasons.tell(
                    "destination",
                    format!("{destination} is at {at}, which this port does not talk to"),
                );
            }
        }
        target
    }

    fn explain_output(
        &self,
        frame: Explained<'_>,
        (vid, tag, to): (u16, FrameTag, PortId),
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) {
        let form = self.vlans.of(to).form(vid);
        match tag.edit(form, vid) {
            None => verdicts.output(0, to),
            Some(edit) => {
                let leaves = if form == TagForm::Untagged { "without its tag" } else { "with a tag" };
                reasons.tell("tag", format!("it leaves {leaves}, as {} wants it", reasons.name(to)));
                output_edited(0, to, frame.header, edit, verdicts);
            }
        }
    }

    fn explain_flood(
        &self,
        frame: Explained<'_>,
        (vid, tag): (u16, FrameTag),
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) {
        let hearers = match vid {
            NO_VID => self.hearers_as_it_is(frame.port).count(),
            vid => self.hearers(frame.port, vid).count(),
        };
        let ports = if hearers == 1 { "port" } else { "ports" };
        let kind = FloodKind::of(frame.destination);
        let (is_limited, admitted) = self.storms.would_admit(frame.port, kind, hearers > 0, frame.now_ns);
        match admitted {
            Err(DropReason::NoDestination) => reasons.tell("flood", "no other port would get it"),
            Err(_) => reasons.tell("flood", "the port has used up its storm limit for now"),
            Ok(()) if is_limited => {
                reasons.tell("flood", format!("within the storm limit, to {hearers} {ports}"));
            }
            Ok(()) => reasons.tell("flood", format!("without a storm limit, to {hearers} {ports}")),
        }
        match admitted {
            Err(reason) => verdicts.drop_packet(0, reason),
            Ok(()) if vid == NO_VID => self.flood_as_it_is(0, frame.port, verdicts),
            Ok(()) => {
                let Explained { port: from, header, .. } = frame;
                self.flood(&Flooded { packet: 0, from, vid, tag, header }, verdicts);
            }
        }
    }
}
