//! Checks lost packets by reason: which of them are normal, and the remedies for the others.

use crate::finding::{State, Verdict};
use lasthop_api::readable::time;
use lasthop_api::report::{DropCounts, PortReport};

use super::Case;
use super::starved::{Starved, at};

/// The reason of packets from a guest that is alone.
const NO_DESTINATION: &str = "no_destination";

/// The remedy for a guest that uses an address that is not its port's.
const OWN_ADDRESSES: &str = "give the guest one of these addresses, or add the guest's address to the port: addresses= (with dhcp there: have the guest renew its lease); a link-local \
                             IPv6 address that is not made of mac= belongs there, too (in the guest: ip -6 address show scope link)";

/// Losses that indicate a fault at this vnic: name in the counters, meaning, remedy.
pub(super) const FROM_GUEST: &[(&str, &str, &str)] = &[
    (
        "vlan_tagged",
        "VLAN mismatch: the guest sends tagged frames, and its vnic takes untagged ones only",
        "take the VLAN interface out of the guest, or give the vnic trunk= instead of vlan=",
    ),
    (
        "vlan_untagged",
        "VLAN mismatch: the guest sends untagged frames, and its vnic is a trunk without native VLAN",
        "in the guest: ip link add link eth0 name eth0.N type vlan id N; or give the vnic native=N, or vlan=N",
    ),
    (
        "vlan_not_carried",
        "VLAN mismatch: the guest sends in a VLAN that its vnic does not carry",
        "add that VLAN to the vnic's trunk=",
    ),
    (
        "vlan_nested",
        "VLAN mismatch: the guest sends frames with two tags",
        "take one VLAN interface out of the guest",
    ),
    (
        "source_spoofed",
        "the guest sends from another address than the vnic's mac=, or from the address of another vnic",
        "give the guest that address (QEMU: mac=... at -device), or leave mac= out at the vnic; if a port of the host has it (lasthop port list; \
         ip link), give one of the two another",
    ),
    ("ip_spoofed", "the guest sends from an IP address that is not in its port's addresses=", OWN_ADDRESSES),
    (
        "arp_spoofed",
        "the guest claims an address that is not in its port's addresses=, or claims it for another Ethernet address than mac=",
        OWN_ADDRESSES,
    ),
    (
        "rogue_server",
        "the guest answers as a DHCP server or as a router of IPv6",
        "end that service in the guest, or leave dhcp out of the port's guard=",
    ),
    (
        "source_invalid",
        "the guest sends from a group address or zero",
        "set a unicast address in the guest: ip link set eth0 address ...",
    ),
    (
        "queue_disabled",
        "the guest sends on a queue that its front end disabled",
        "restart the guest; QEMU's monitor: set_link NET on",
    ),
    ("too_long", "the guest sends frames longer than 65553 bytes", "lower the guest's MTU"),
    (
        "too_short",
        "the guest sends frames shorter than an Ethernet header",
        "the guest's driver has a bug, or negotiated another header size",
    ),
    (
        "chain_too_long",
        "the guest sends frames in too many pieces",
        "see docs/user/control-api.md; turn off scatter-gather: ethtool -K eth0 sg off",
    ),
    (
        "bad_gso",
        "the guest asks to segment frames that cannot be segmented",
        "in the guest: ethtool -K eth0 tso off gso off",
    ),
    ("bad_csum", "the guest asks for checksums outside of frames", "in the guest: ethtool -K eth0 tx off"),
    ("verdict_overflow", "the module decided on more copies than fit", "report this as a bug"),
    (
        "ct_table_full",
        "the table of connections is full of established ones (ct_table_full)",
        "lasthop conntrack stats; shorter timeouts (ovs-vsctl add-zone-tp), or a limit for each zone (ovs-dpctl ct-set-limits)",
    ),
    (
        "ct_port_share",
        "the guest has as many tracked connections as one port may have (ct_port_share)",
        "lasthop conntrack list shows them; shorter timeouts: ovs-vsctl add-zone-tp",
    ),
    (
        "ct_zone_limit",
        "a zone of its flows has as many connections as its limit allows (ct_zone_limit)",
        "ovs-dpctl ct-get-limits; a higher one: ovs-dpctl ct-set-limits",
    ),
    (
        "ct_nat_exhausted",
        "address translation has no address and port left for its new connections (ct_nat_exhausted)",
        "more addresses or ports in nat(...) of its flows",
    ),
    (
        "ct_tuple_taken",
        "another connection has the addresses and ports that its new ones would have (ct_tuple_taken)",
        "lasthop conntrack list --address ADDRESS shows both; use separate zones for guests with equal addresses, or nat(...) with ports to choose from",
    ),
    (
        "ct_contended",
        "several workers changed one connection at the same time, and its packets could not be compared with it (ct_contended)",
        "a connection with a helper or with labels that change should not be spread over queues: queues=1 at the vnic",
    ),
    (
        "frag_share",
        "the guest has sent more incomplete packets than the switch holds for one port (frag_share)",
        "use smaller datagrams or a larger MTU in the guest; a guest that sends incomplete packets only is hostile, or its network loses many",
    ),
    (
        "frag_timeout",
        "fragments from the guest expired before their packets were complete (frag_timeout)",
        "look for lost packets in front of the switch: ip -s link in the guest; frag_share, rx_queue_full here",
    ),
    (
        "frag_overlap",
        "the guest sends fragments that overlap, as attacks on filters do (frag_overlap)",
        "lasthop capture PORT shows them; take the guest off the network if it is not yours",
    ),
    (
        "frag_small",
        "the guest sends fragments that are shorter than links make them (frag_small)",
        "lasthop capture PORT shows them; raise the guest's MTU to 576 (IPv4) or 1280 (IPv6) at least",
    ),
    (
        "frag_large",
        "the guest sends fragments of packets longer than 64 KiB (frag_large)",
        "lasthop capture PORT shows them",
    ),
    (
        "frag_malformed",
        "the guest sends fragments whose lengths are wrong (frag_malformed)",
        "lasthop capture PORT shows them",
    ),
];
const TO_GUEST: &[(&str, &str, &str)] = &[
    (
        "rx_buffer_small",
        "MTU mismatch: frames are larger than the guest's receive buffers, and it does not merge buffers",
        "give all vnics the same mtu=, or let the guest negotiate MRG_RXBUF (QEMU: leave out mrg_rxbuf=off)",
    ),
    (
        "rx_queue_full",
        "the guest does not take packets as fast as they come (rx_queue_full)",
        "more receive buffers (QEMU: rx_queue_size=1024), more vCPU time, or more queue pairs (queues=)",
    ),
    (
        "rx_timeout",
        "the guest gave no buffers in time: it hangs, is paused or overloaded",
        "see the guest's console and its vCPUs' load",
    ),
    ("rx_stalled", "the guest does not take packets any more", "see the guest's console and its vCPUs' load"),
    ("rx_ring_broken", "the guest's receive ring was broken by its driver", "restart the guest"),
    ("rx_share", "too many packets wait for this slow guest", "see the guest's vCPUs' load"),
];

/// A kind of loss that matters.
struct Loss {
    text: String,
    remedy: &'static str,
    is_going_on: bool,
}

pub(super) fn drops(case: &Case<'_>, is_whole: bool) -> Verdict {
    let Some(port) = &case.now.counters else { return Verdict::not_reached() };
    let before = case.before.counters.as_ref();
    let from = losses(FROM_GUEST, &port.rx_drops, before.map(|port| &port.rx_drops));
    let to = losses(TO_GUEST, &port.tx_drops, before.map(|port| &port.tx_drops));
    let mut all: Vec<Loss> = from.into_iter().chain(to).collect();
    all.sort_by_key(|loss| !loss.is_going_on);
    let summary = summary(port, case.facts.switch.up_ms);
    if let Some(unaccounted) = unaccounted(case) {
        return unaccounted;
    }
    if !is_whole {
        // After a broken link, losses are its consequence.
        return if summary.starts_with("none") { Verdict::not_reached() } else { Verdict::unknown(summary) };
    }
    if let Some(starved) = starved(case) {
        return starved;
    }
    if let Some(loss) = all.first() {
        let state = if loss.is_going_on { State::NotOk } else { State::Warning };
        let since = if loss.is_going_on { "now".to_owned() } else { "earlier".to_owned() };
        let text = format!("{} ({since}); {summary}", loss.text);
        return Verdict::of(state, text).with(at(loss.remedy, case.now.name()));
    }
    let is_alone = case.neighbours().next().is_none() && port.rx_drops.contains_key(NO_DESTINATION);
    if is_alone {
        return Verdict::warning(
            format!("there is no other port to talk to: this is the only vnic of its switch; {summary}"),
            "add another one: lasthop port add NAME,backend=vhost-user",
        );
    }
    Verdict::ok(summary)
}

/// Same as [`starved`], only for packets that the control plane or an operator drops between the two reads.
pub(super) fn starved_now(case: &Case<'_>) -> Option<Verdict> {
    let port = case.now.counters.as_ref()?;
    let starved = Starved::of(case.before.counters.as_ref(), port)?;
    starved.is_decided_now().then(|| judged(case, port, &starved))
}

/// All packets from the guest are dropped. A guest that is alone in its switch has a complaint of its own.
fn starved(case: &Case<'_>) -> Option<Verdict> {
    let port = case.now.counters.as_ref()?;
    let starved = Starved::of(case.before.counters.as_ref(), port)?;
    (starved.reason != NO_DESTINATION || case.neighbours().next().is_some())
        .then(|| judged(case, port, &starved))
}

fn judged(case: &Case<'_>, port: &PortReport, starved: &Starved) -> Verdict {
    let (cause, remedy) = starved.of_guest(case.now.name());
    let summary = summary(port, case.facts.switch.up_ms);
    Verdict::broken(format!("{}; {summary}", starved.text("packet from the guest", &cause)), remedy)
}

/// Packets that are missing in the counters.
pub(super) fn unaccounted(case: &Case<'_>) -> Option<Verdict> {
    let port = case.now.counters.as_ref().filter(|port| !port.conserved)?;
    Some(Verdict::broken(
        format!("packets are not accounted for: {}", summary(port, case.facts.switch.up_ms)),
        "lasthop stats --check names the ports; report this as a bug",
    ))
}

fn losses(table: &[(&str, &str, &'static str)], now: &DropCounts, before: Option<&DropCounts>) -> Vec<Loss> {
    let of = |(name, meaning, remedy): &(&str, &str, &'static str)| {
        let count = now.get(*name).copied().filter(|count| *count > 0)?;
        let earlier = before.map_or(count, |before| before.get(*name).copied().unwrap_or(0));
        let text = format!("{meaning}: {count} dropped as {name}");
        Some(Loss { text, remedy, is_going_on: count > earlier })
    };
    table.iter().filter_map(of).collect()
}

fn summary(port: &PortReport, up_ms: Option<u64>) -> String {
    let since = up_ms.map(|ms| format!(" in {}", time(ms))).unwrap_or_default();
    let line = |direction: &str, drops: &DropCounts| {
        let mut drops: Vec<_> = drops.iter().collect();
        drops.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
        let names: Vec<String> = drops.iter().map(|(name, count)| format!("{name} {count}")).collect();
        (!names.is_empty()).then(|| format!("{direction}: {}", names.join(", ")))
    };
    let lines: Vec<String> = [line("from guest", &port.rx_drops), line("to guest", &port.tx_drops)]
        .into_iter()
        .flatten()
        .collect();
    let passed = format!("{} packets from the guest, {} to it", port.rx_packets, port.tx_packets);
    if lines.is_empty() {
        format!("none of {passed}{since}")
    } else {
        format!("{}; of {passed}{since}", lines.join("; "))
    }
}
