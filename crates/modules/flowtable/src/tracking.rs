//! Connections of a flow table's packets: the table of connections, and the names of timeout policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtDryRun, CtMetadata, CtPolicy, CtRefusal, CtRequest, CtRewrites, CtTrial,
    CtVerdict, POLICIES_MAX, PacketImage,
};
use lasthop_flow::ct_state;
use lasthop_guestmem::Mapping;
use lasthop_module_api::DropReason;
use lasthop_wire::Offload;
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP};
use lasthop_wire::key::{CtWords, LinkLayer};

use crate::action_packet::ActionPacket;
use crate::ct_words::{metadata_of, words_of};

/// Connections, and timeout policies by name.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// Made on first use: most flow tables track nothing.
    made: OnceLock<ConntrackTable>,
    policies: Mutex<BTreeMap<String, PolicyGroup>>,
}

/// Policies of several protocols with one number, like those that OVS makes for one of its own policies.
#[derive(Debug)]
struct PolicyGroup {
    /// From 1 on; 0 is the default policy.
    number: u8,
    timeouts: CtPolicy,
    names: BTreeSet<String>,
}

/// The result of `ct(...)` for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracked {
    /// The packet is tracked, and translated if necessary.
    Done,
    /// Nothing was done, since the image is not enough of the packet.
    Partial,
}

/// The group of a policy. OVS names the policies of one group `ovs_tp_ID_PROTOCOL`.
fn group_of(name: &str) -> &str {
    let of_ovs = name.strip_prefix("ovs_tp_").and(name.rsplit_once('_'));
    of_ovs.map_or(name, |(group, _)| group)
}

impl Tracking {
    pub(crate) fn new() -> Self {
        Self { made: OnceLock::new(), policies: Mutex::default() }
    }

    /// The connections; their table is made by the first call.
    #[inline]
    pub(crate) fn connections(&self, now_ms: u64) -> &ConntrackTable {
        self.made.get_or_init(|| ConntrackTable::new(CtBounds::default(), now_ms))
    }

    /// Makes the table in `memory`, with the connections that another process left there. `None` if there is a table
    /// already, or if the memory is too small.
    pub(crate) fn keep_in(&self, memory: &Arc<Mapping>, now_ms: u64) -> Option<()> {
        self.made.set(ConntrackTable::in_memory(memory, CtBounds::default(), now_ms)?).ok()
    }

    /// The connection table, if there is one.
    pub(crate) fn made(&self) -> Option<&ConntrackTable> {
        self.made.get()
    }

    fn policies(&self) -> MutexGuard<'_, BTreeMap<String, PolicyGroup>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a policy. An unknown name stands for the default, as in the kernel.
    pub(crate) fn policy(&self, name: &str) -> u8 {
        let policies = self.policies();
        let group = policies.get(group_of(name)).filter(|group| group.names.contains(name));
        group.map_or(0, |group| group.number)
    }

    /// Adds or replaces a policy of one protocol. Returns false if the number of groups is at its bound.
    pub(crate) fn set_policy(&self, name: &str, proto: u8, timeouts: &CtPolicy, now_ms: u64) -> bool {
        let mut policies = self.policies();
        let group = group_of(name);
        if !policies.contains_key(group) {
            let is_vacant = |number: &u8| policies.values().all(|other| other.number != *number);
            let Some(number) = (1..POLICIES_MAX).map(|number| number as u8).find(is_vacant) else {
                return false;
            };
            let (timeouts, names) = (CtPolicy::default(), BTreeSet::new());
            policies.insert(group.to_owned(), PolicyGroup { number, timeouts, names });
        }
        let Some(group) = policies.get_mut(group) else { return false };
        group.names.insert(name.to_owned());
        match proto {
            PROTO_TCP => group.timeouts.tcp = timeouts.tcp,
            PROTO_UDP => {
                group.timeouts.udp_single_s = timeouts.udp_single_s;
                group.timeouts.udp_multiple_s = timeouts.udp_multiple_s;
            }
            PROTO_ICMP => group.timeouts.icmp_s = timeouts.icmp_s,
            PROTO_ICMPV6 => group.timeouts.icmpv6_s = timeouts.icmpv6_s,
            _ => {}
        }
        self.connections(now_ms).set_policy(group.number, group.timeouts);
        true
    }

    /// Removes a policy and returns whether it existed. Without the last policy of a group its connections follow the
    /// default.
    pub(crate) fn remove_policy(&self, name: &str) -> bool {
        let mut policies = self.policies();
        let Some(group) = policies.get_mut(group_of(name)) else { return false };
        let was_there = group.names.remove(name);
        if group.names.is_empty() {
            self.made().into_iter().for_each(|connections| connections.delete_policy(group.number));
            policies.remove(group_of(name));
        }
        was_there
    }

    /// Executes `ct(...)` for a packet that was received by `port` of the switch; `now_ms` is CLOCK_MONOTONIC, which
    /// all processes share.
    pub(crate) fn track(
        &self,
        copy: &mut ActionPacket<'_>,
        request: &CtRequest,
        (port, now_ms): (u16, u64),
    ) -> Result<Tracked, DropReason> {
        track_with(copy, request, port, |image, before| {
            self.connections(now_ms).track(image, before, request, now_ms)
        })
    }

    /// The same without effects. Also returns the trial, if the packet was looked up among connections.
    pub(crate) fn try_out(
        &self,
        (copy, dry_run): (&mut ActionPacket<'_>, &CtDryRun),
        request: &CtRequest,
        (port, now_ms): (u16, u64),
    ) -> (Result<Tracked, DropReason>, Option<CtTrial>) {
        let mut told = None;
        let tracked = track_with(copy, request, port, |image, before| {
            let trial = dry_run.track(self.made(), image, before, request, now_ms);
            told.insert(trial).verdict.clone()
        });
        (tracked, told)
    }

    /// Executes `ct(...)` for a whole packet in `frame` that is no fragment.
    pub(crate) fn track_whole(
        &self,
        (frame, words): (&mut Vec<u8>, &mut CtWords),
        request: &CtRequest,
        (port, now_ms): (u16, u64),
    ) -> Result<(), DropReason> {
        let len_bytes = frame.len() as u32;
        let image = PacketImage::parse(frame, len_bytes, Offload::default(), port);
        let image = image.map_err(|_| DropReason::ActionImpossible)?;
        let before = metadata_of(words, image.layers.l3);
        let verdict = self.connections(now_ms).track(&image, &before, request, now_ms);
        if let Some(refusal) = verdict.refused {
            return Err(reason_of(refusal));
        }
        *words = words_of(&verdict.metadata);
        if !verdict.rewrites.is_empty() {
            *frame = verdict.rewrites.applied(frame);
        }
        Ok(())
    }
}

/// `ct(...)` for a packet that came in by `port`, which `track` looks up.
#[inline(always)]
fn track_with(
    copy: &mut ActionPacket<'_>,
    request: &CtRequest,
    port: u16,
    track: impl FnOnce(&PacketImage<'_>, &CtMetadata) -> CtVerdict,
) -> Result<Tracked, DropReason> {
    let Some(verdict) = verdict(copy, request, port, track) else {
        return Ok(Tracked::Partial);
    };
    if let Some(refusal) = verdict.refused {
        return Err(reason_of(refusal));
    }
    copy.metadata.ct = words_of(&verdict.metadata);
    if !verdict.rewrites.is_empty() {
        rewrite(copy, &verdict.rewrites)?;
    }
    Ok(Tracked::Done)
}

/// None if more of the packet is needed.
#[inline(always)]
fn verdict(
    copy: &ActionPacket<'_>,
    request: &CtRequest,
    port: u16,
    track: impl FnOnce(&PacketImage<'_>, &CtMetadata) -> CtVerdict,
) -> Option<CtVerdict> {
    let header = copy.header();
    let image = PacketImage::parse(copy.seen(), header.frame_len_bytes(), header.offload, port);
    let (Ok(image), LinkLayer::Ethernet) = (image, copy.metadata.link) else {
        return Some(CtVerdict { metadata: invalid(request.zone), ..CtVerdict::default() });
    };
    if image.layers.is_fragment {
        return None;
    }
    let before = metadata_of(&copy.metadata.ct, image.layers.l3);
    let verdict = track(&image, &before);
    (!verdict.wants_whole).then_some(verdict)
}

/// The state of a packet that cannot be tracked.
fn invalid(zone: u16) -> CtMetadata {
    CtMetadata { state: ct_state::TRACKED | ct_state::INVALID, zone, ..CtMetadata::default() }
}

fn reason_of(refusal: CtRefusal) -> DropReason {
    match refusal {
        CtRefusal::TableFull => DropReason::CtTableFull,
        CtRefusal::PortShare => DropReason::CtPortShare,
        CtRefusal::ZoneLimit => DropReason::CtZoneLimit,
        CtRefusal::NatExhausted => DropReason::CtNatExhausted,
        CtRefusal::TupleTaken => DropReason::CtTupleTaken,
        CtRefusal::NotInImage => DropReason::ActionImpossible,
        CtRefusal::Contended => DropReason::CtContended,
    }
}

/// Translates the packet's headers, and text in its payload if necessary.
#[inline(never)]
fn rewrite(copy: &mut ActionPacket<'_>, rewrites: &CtRewrites) -> Result<(), DropReason> {
    let header = copy.edit();
    rewrites.apply(header.bytes_mut());
    let Some(splice) = &rewrites.splice else { return Ok(()) };
    header.replace(splice.at.into(), splice.removed_bytes.into(), &splice.inserted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_numbers_as_long_as_they_are_there() {
        let tracking = Tracking::new();
        let set = |name: &str| tracking.set_policy(name, PROTO_UDP, &CtPolicy::OVS, 0);
        assert_eq!(tracking.policy("a"), 0);
        assert!(set("a") && set("b"));
        assert_eq!((tracking.policy("a"), tracking.policy("b")), (1, 2));
        assert!(set("a") && tracking.policy("a") == 1);
        assert!(tracking.remove_policy("a") && !tracking.remove_policy("a"));
        assert_eq!(tracking.policy("a"), 0);
        let more = (0..).take_while(|number| set(&number.to_string())).count();
        assert_eq!((more, tracking.policy("0")), (POLICIES_MAX - 2, 1));
    }

    #[test]
    fn policies_of_one_group_are_one_with_timeouts_of_each_protocol() {
        let tracking = Tracking::new();
        for (name, proto) in [("ovs_tp_7_udp4", PROTO_UDP), ("ovs_tp_7_tcp6", PROTO_TCP)] {
            assert!(tracking.set_policy(name, proto, &CtPolicy::OVS, 0));
            assert_eq!(tracking.policy(name), 1);
        }
        assert_eq!(tracking.policy("ovs_tp_7_icmp4"), 0, "it was not made");
        let policies = tracking.policies();
        let wanted = CtPolicy { icmp_s: CtPolicy::LINUX.icmp_s, icmpv6_s: 30, ..CtPolicy::OVS };
        let wanted = CtPolicy { generic_s: CtPolicy::LINUX.generic_s, ..wanted };
        assert_eq!(policies["ovs_tp_7"].timeouts, wanted);
        drop(policies);
        assert!(tracking.remove_policy("ovs_tp_7_udp4") && tracking.policy("ovs_tp_7_tcp6") == 1);
        assert!(tracking.remove_policy("ovs_tp_7_tcp6") && tracking.policies().is_empty());
    }
}
