//! Ports of whose packets the switch drops every one: the main reason, its cause and the remedy.

use lasthop_api::report::PortReport;
use lasthop_module_api::DropReason;

use super::drops::FROM_GUEST;

/// Packets below which it is no fault that all are dropped: a guest that boots announces itself to others that are still off.
const PACKETS_MIN: u64 = 10;
/// Reasons for which the control plane or an operator dropped each packet: one packet is enough.
const DECIDED: &[&str] = &["no_flow", "flow_drop", "acl_denied", "acl_invalid"];
/// Reasons that are usual at a wire or at the host, as long as no guest talks to it.
const USUAL_FROM_DEVICE: &[&str] = &[
    "no_destination",
    "same_port",
    "link_local",
    "port_gone",
    "port_down",
    "link_down",
    "recalled",
    "restart",
];

/// The remedy if packets have to be looked at.
const EXPLAIN: &str = "lasthop explain --from PORT PACKET tells the way of a packet; lasthop capture PORT | tcpdump -nr - shows them";
/// The remedy if the receivers are slow.
const SLOW: &str =
    "lasthop stats tells which guest loses packets to it; see that guest's console and its vCPUs' load";

/// A port whose packets are all dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Starved {
    /// The reason of most of them.
    pub(crate) reason: String,
    packets: u64,
    /// Since the first of two reads; otherwise since the counters began.
    is_now: bool,
}

impl Starved {
    /// Judges the packets since the read before or, if too few came since then, since the counters began.
    pub(crate) fn of(before: Option<&PortReport>, now: &PortReport) -> Option<Self> {
        let before = before.filter(|before| before.rx_packets < now.rx_packets);
        before.and_then(|before| Self::since(Some(before), now)).or_else(|| Self::since(None, now))
    }

    fn since(before: Option<&PortReport>, now: &PortReport) -> Option<Self> {
        let since = |count: fn(&PortReport) -> u64| count(now).saturating_sub(before.map_or(0, count));
        let packets = since(|port| port.rx_packets);
        // Packets for the controller count as delivered, and are injected if they come back.
        let upcalls = since(|port| port.upcalls);
        if packets == 0 || since(|port| port.forwarded) > upcalls {
            return None;
        }
        let of = |(name, count): (&String, &u64)| {
            let earlier = before.and_then(|port| port.rx_drops.get(name).copied());
            (name.clone(), count.saturating_sub(earlier.unwrap_or(0)))
        };
        let drops: Vec<(String, u64)> = now.rx_drops.iter().map(of).collect();
        // Some packets may be in flight, also to the controller, which may keep some.
        let decided = (packets + since(|port| port.injected)).saturating_sub(upcalls);
        if drops.iter().map(|(_, count)| count).sum::<u64>() < decided.max(packets.div_ceil(2)) {
            return None;
        }
        let (reason, _) = drops.into_iter().max_by_key(|(_, count)| *count)?;
        let is_enough = packets >= PACKETS_MIN || DECIDED.contains(&reason.as_str());
        is_enough.then_some(Self { reason, packets, is_now: before.is_some() })
    }

    /// Whether the control plane or an operator wanted it so, for the packets of now.
    pub(crate) fn is_decided_now(&self) -> bool {
        self.is_now && DECIDED.contains(&self.reason.as_str())
    }

    /// Whether it is a fault if the packets come from a device.
    pub(crate) fn matters_from_device(&self) -> bool {
        self.packets >= PACKETS_MIN && !USUAL_FROM_DEVICE.contains(&self.reason.as_str())
    }

    /// The complaint about each `packet`, for example "packet from the guest".
    pub(crate) fn text(&self, packet: &str, cause: &str) -> String {
        let when = if self.is_now { "now" } else { "since the counters began" };
        let reason = &self.reason;
        let named = if cause.contains(reason.as_str()) { String::new() } else { format!(" ({reason})") };
        format!("every {packet} is dropped ({when}): {cause}{named}")
    }

    /// Cause and remedy for a guest's packets.
    pub(crate) fn of_guest(&self, port: &str) -> (String, String) {
        let of_guests = FROM_GUEST.iter().chain(FROM_ANY).find(|(name, ..)| *name == self.reason);
        let (cause, remedy) = of_guests
            .map_or_else(|| (self.meaning(), EXPLAIN), |(_, cause, remedy)| ((*cause).to_owned(), *remedy));
        (cause, at(remedy, port))
    }

    /// The same for frames from a device, where no guest is to blame.
    pub(crate) fn of_device(&self, port: &str) -> (String, String) {
        let of_devices = FROM_DEVICE.iter().find(|(name, _)| *name == self.reason);
        let of_any = FROM_ANY.iter().find(|(name, ..)| *name == self.reason);
        let remedy = of_devices.map(|(_, remedy)| *remedy).or(of_any.map(|(_, _, remedy)| *remedy));
        let cause = of_any.map_or_else(|| self.meaning(), |(_, cause, _)| (*cause).to_owned());
        (cause, at(remedy.unwrap_or(EXPLAIN), port))
    }

    /// The meaning of the reason; a later program may have others.
    fn meaning(&self) -> String {
        let known = DropReason::ALL.iter().find(|reason| reason.name() == self.reason);
        let meaning = known.map_or("this program does not know the reason", |reason| reason.meaning());
        meaning.trim_end_matches('.').to_owned()
    }
}

/// A remedy for this port.
pub(super) fn at(remedy: &str, port: &str) -> String {
    remedy.replace("PORT", port)
}

/// Name in the counters, cause, remedy: for all reasons that are not in [`FROM_GUEST`].
const FROM_ANY: &[(&str, &str, &str)] = &[
    (
        "no_destination",
        "the switch has no other port that they may go to",
        "lasthop port list shows the ports and their state; lasthop explain --from PORT PACKET tells the way of a packet",
    ),
    (
        "same_port",
        "their destination is behind the port that they come from",
        "lasthop fdb show tells where addresses are; look for a loop behind PORT",
    ),
    (
        "link_local",
        "they are control frames of a link (STP, LACP, LLDP), which end at a switch",
        "see why nothing else is sent: addresses and routes there",
    ),
    (
        "storm_broadcast",
        "they are more broadcasts than storm-broadcast allows",
        "lasthop capture PORT | tcpdump -nr - shows them; a higher limit: storm-broadcast= at the port",
    ),
    (
        "storm_multicast",
        "they are more multicasts than storm-multicast allows",
        "lasthop capture PORT | tcpdump -nr - shows them; a higher limit: storm-multicast= at the port",
    ),
    (
        "storm_unknown",
        "they are more frames to unknown addresses than storm-unknown allows",
        "lasthop capture PORT | tcpdump -nr - shows them; a higher limit: storm-unknown= at the port",
    ),
    (
        "isolated",
        "they are for another isolated port, and isolated ones do not talk to each other",
        "if it is to talk to them: lasthop port set PORT isolated=false",
    ),
    (
        "no_transit",
        "they are for another uplink, and uplinks do not talk to each other",
        "if there is no other way round, make both uplinks anew with transit=true",
    ),
    (
        "port_gone",
        "the port that they are for was deleted",
        "lasthop port list shows the ports; lasthop flow show lists flows that still name it",
    ),
    (
        "port_down",
        "the guest that they are for is not running",
        "start it; lasthop doctor names the vnics without a guest",
    ),
    (
        "link_down",
        "the link of this port or of the one that they are for was set down",
        "lasthop port list names the port; lasthop port set NAME link=up",
    ),
    ("rx_queue_full", "the guests that they are for do not take packets as fast as they come", SLOW),
    ("rx_share", "too many packets wait for slow guests", SLOW),
    ("rx_timeout", "the guests that they are for gave no buffers in time", SLOW),
    ("rx_stalled", "the guests that they are for do not take packets any more", SLOW),
    (
        "rx_buffer_small",
        "MTU mismatch: they are larger than the receive buffers of the guests that they are for",
        "give all vnics the same mtu=, or let those guests negotiate MRG_RXBUF (QEMU: leave out mrg_rxbuf=off)",
    ),
    (
        "rx_ring_broken",
        "the receive ring of the guest that they are for was broken by its driver",
        "lasthop doctor names that guest; restart it",
    ),
    (
        "recalled",
        "their ring or memory was taken away while they waited",
        "look again once the guest has started; if it lasts, see its console",
    ),
    (
        "restart",
        "the switch process died while it had them",
        "lasthop doctor --switch; see the log of lasthop run",
    ),
    (
        "no_flow",
        "no flow matches them, and no controller makes one",
        "lasthop ovs status names the controller; lasthop flow show lists the flows",
    ),
    (
        "flow_drop",
        "a flow drops them",
        "lasthop flow show lists the flows; with Open vSwitch: ovs-ofctl dump-flows BRIDGE",
    ),
    (
        "meter_exceeded",
        "they are more than a meter lets through",
        "ovs-ofctl dump-meters BRIDGE shows the meters; a higher rate there",
    ),
    (
        "action_impossible",
        "an action of their flow is impossible for them, or their headers are cut short",
        EXPLAIN,
    ),
    (
        "action_budget",
        "their flows have more actions than a packet may have",
        "lasthop flow show lists the flows; fewer ports of a flood, or fewer tables that add actions",
    ),
    (
        "out_of_order",
        "packets of their flows are with the control plane for too long",
        "lasthop ovs status, lasthop doctor: is the controller stopped, or short of CPU?",
    ),
    ("acl_denied", "rules deny them", "lasthop acl list shows the rules of all ports, sender and receiver"),
    (
        "acl_invalid",
        "they belong to no connection, and there are rules about connections",
        "lasthop acl list shows the rules of all ports; begin the connections anew",
    ),
    (
        "bad_tunnel",
        "their tunnel headers contradict themselves",
        "see the tunnel's options at both ends; lasthop capture PORT | tcpdump -nr - shows them",
    ),
];

/// Name in the counters and remedy, where that of a guest does not fit frames from a device.
const FROM_DEVICE: &[(&str, &str)] = &[
    ("vlan_tagged", "give the port trunk= instead of vlan=, or have the other end send untagged frames"),
    (
        "vlan_untagged",
        "give the port native=N, or vlan=N instead of trunk=; or have the other end tag its frames",
    ),
    ("vlan_not_carried", "add the VLAN to the port's trunk=; lasthop vlan show has those of all ports"),
    ("vlan_nested", "give the port trunk= instead of vlan=, or take one tag off at the other end"),
    (
        "source_spoofed",
        "leave mac= out at the port; if a guest has the same address (lasthop port list), give one of the two another",
    ),
    ("ip_spoofed", "add the addresses behind the port to its addresses="),
    ("arp_spoofed", "add the addresses behind the port to its addresses="),
    ("rogue_server", "leave dhcp out of the port's guard=, if servers are behind it"),
    (
        "ct_table_full",
        "lasthop conntrack stats; shorter timeouts (ovs-vsctl add-zone-tp), or a limit for each zone (ovs-dpctl ct-set-limits)",
    ),
    (
        "ct_port_share",
        "lasthop conntrack list shows the connections; shorter timeouts: ovs-vsctl add-zone-tp",
    ),
    ("ct_zone_limit", "ovs-dpctl ct-get-limits; a higher one: ovs-dpctl ct-set-limits"),
    ("ct_nat_exhausted", "more addresses or ports in nat(...) of its flows"),
    ("verdict_overflow", "report this as a bug, with lasthop stats --json"),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn counted(packets: u64, forwarded: u64, drops: &[(&str, u64)]) -> PortReport {
        let rx_drops = drops.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        PortReport { rx_packets: packets, forwarded, rx_drops, ..PortReport::default() }
    }

    #[test]
    fn every_reason_has_a_cause_and_a_remedy() {
        for reason in DropReason::ALL.iter().map(|reason| reason.name()) {
            let port = counted(20, 0, &[(reason, 20)]);
            let starved = Starved::of(None, &port).expect(reason);
            let known: Vec<_> =
                FROM_GUEST.iter().chain(FROM_ANY).filter(|(name, ..)| *name == reason).collect();
            assert_eq!(known.len(), 1, "{reason} has one cause");
            for (cause, remedy) in [starved.of_guest("vm1"), starved.of_device("vm1")] {
                let text = starved.text("packet from the guest", &cause);
                assert!(
                    text.starts_with("every packet from the guest is dropped (since the counters began): ")
                );
                assert!(text.contains(reason) && !cause.is_empty(), "{text}");
                assert!(
                    !remedy.is_empty() && !remedy.contains("PORT") && !remedy.contains("VNIC"),
                    "{remedy}"
                );
            }
            let (cause, remedy) = starved.of_device("wire");
            let blames_guest =
                |text: &str| text.contains("the guest sends") || text.contains("in the guest:");
            assert!(!blames_guest(&cause) && !blames_guest(&remedy), "{reason}: {cause}; {remedy}");
        }
    }

    #[test]
    fn no_reason_has_two_texts_and_each_is_a_reason() {
        let names: HashSet<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        let of_tables =
            FROM_ANY.iter().map(|(name, ..)| *name).chain(FROM_DEVICE.iter().map(|(name, _)| *name));
        for name in of_tables.chain(DECIDED.iter().copied()).chain(USUAL_FROM_DEVICE.iter().copied()) {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn a_port_some_of_whose_packets_arrive_is_not_starved() {
        let starved = |before: Option<&PortReport>, now: &PortReport| Starved::of(before, now);
        assert_eq!(starved(None, &counted(0, 0, &[])), None, "it has sent nothing");
        assert_eq!(starved(None, &counted(20, 0, &[("isolated", 19)])), None, "one is on its way");
        assert_eq!(starved(None, &counted(20, 5, &[("rx_timeout", 40)])), None, "copies for others arrived");
        assert_eq!(starved(None, &counted(9, 0, &[("port_down", 9)])), None, "it boots");
        assert!(starved(None, &counted(1, 0, &[("no_flow", 1)])).is_some());
        let asked = |injected: u64, dropped: u64| PortReport {
            upcalls: 2,
            injected,
            ..counted(20, 2, &[("isolated", dropped)])
        };
        assert!(starved(None, &asked(0, 18)).is_some(), "the controller kept two");
        assert!(starved(None, &asked(2, 20)).is_some(), "they came back");
        assert_eq!(starved(None, &asked(2, 19)), None, "one is on its way");
        let waits = PortReport { upcalls: 19, ..counted(20, 19, &[("isolated", 1)]) };
        assert_eq!(starved(None, &waits), None, "the controller may send the others");
    }

    #[test]
    fn packets_between_the_reads_count_alone_if_there_are_some() {
        let (before, lost) = (counted(50, 40, &[("isolated", 10)]), counted(70, 40, &[("isolated", 30)]));
        let starved = Starved::of(Some(&before), &lost).expect("all since the first read");
        assert!(starved.text("packet", "a cause").ends_with("dropped (now): a cause (isolated)"));
        assert_eq!(Starved::of(Some(&lost), &lost), None, "some arrived earlier");
        let few = counted(21, 0, &[("isolated", 21)]);
        let starved = Starved::of(Some(&counted(20, 0, &[("isolated", 20)])), &few).expect("a slow guest");
        assert!(!starved.is_now, "one packet is too few");
        let mixed = counted(100, 40, &[("isolated", 30), ("vlan_nested", 30)]);
        assert_eq!(
            Starved::of(Some(&lost), &mixed).map(|starved| starved.reason).as_deref(),
            Some("vlan_nested")
        );
    }
}
