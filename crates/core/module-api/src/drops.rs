//! Drop reasons: a closed list of names and meanings.

/// Declares the closed set of drop reasons with their names and meanings.
macro_rules! drop_reasons {
    ($($variant:ident = $name:literal, $meaning:literal;)*) => {
        /// The reason that a packet was not delivered. The list is closed: every loss of the switch has one of these
        /// names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $meaning] $variant),* }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &[DropReason] = &[$(DropReason::$variant),*];

            /// The name in counters and output.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name),* }
            }

            /// One sentence for a person.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(DropReason::$variant => $meaning),* }
            }
        }
    };
}

drop_reasons! {
    TooShort = "too_short", "The frame is shorter than an Ethernet header.";
    TooLong = "too_long", "The frame is longer than 65553 bytes.";
    ChainTooLong = "chain_too_long", "The descriptor chain has more segments than a packet may have.";
    BadGso = "bad_gso", "The GSO type, size or headers (of up to 128 bytes) do not describe a frame that can be segmented.";
    BadCsum = "bad_csum", "The checksum field lies outside the frame, or in front of the transport header.";
    NoDestination = "no_destination", "No other port to send the frame to.";
    SamePort = "same_port", "The destination is behind the port that the frame came from.";
    LinkLocal = "link_local", "A link-local control frame (01-80-C2-00-00-0x), which a bridge does not forward.";
    SourceSpoofed = "source_spoofed", "The source address is not the one configured for the port.";
    SourceInvalid = "source_invalid", "The source address is a group address or zero.";
    StormBroadcast = "storm_broadcast", "More broadcasts from the port than its limit (storm-broadcast) allows.";
    StormMulticast = "storm_multicast", "More multicasts from the port than its limit (storm-multicast) allows.";
    StormUnknown = "storm_unknown", "More frames to unknown addresses from the port than its limit (storm-unknown) allows.";
    VlanTagged = "vlan_tagged", "A frame with a VLAN tag from a port that takes untagged ones only.";
    VlanUntagged = "vlan_untagged", "An untagged frame from a trunk port without a native VLAN.";
    VlanNotCarried = "vlan_not_carried", "The frame's VLAN is none of those that its port carries.";
    VlanNested = "vlan_nested", "Without its VLAN tag, a second tag in the frame would pass for the first.";
    Isolated = "isolated", "Sender and destination are isolated ports.";
    NoTransit = "no_transit", "Sender and destination are uplinks, of which at least one has no transit.";
    PortGone = "port_gone", "The destination port no longer exists.";
    PortDown = "port_down", "The destination port has no running guest. Flooded packets are not sent there, and not lost there.";
    LinkDown = "link_down", "The sender's or the receiver's link was set down by the operator.";
    QueueDisabled = "queue_disabled", "The sender's queue is disabled; its packets are discarded.";
    RxQueueFull = "rx_queue_full", "The receiver has no buffers and its internal receive queue is full; or another worker had the ring, and its queue of copies was full.";
    RxShare = "rx_share", "Too much of the sender's ring already waits for slow receivers, or too many packets of its port or worker do.";
    RxTimeout = "rx_timeout", "The receiver gave no buffers in time.";
    RxStalled = "rx_stalled", "The receiver let its queue expire and has not moved since.";
    RxBufferSmall = "rx_buffer_small", "A receive buffer is too small and the receiver does not merge buffers.";
    RxRingBroken = "rx_ring_broken", "The receiver's ring holds an invalid descriptor and is stopped.";
    Recalled = "recalled", "The sender's ring or memory was taken away while the packet waited.";
    Restart = "restart", "The switch process died while it had the packet, and the next one gave it back undelivered.";
    NoFlow = "no_flow", "No flow matches the packet and the control plane cannot be asked: its queue for the port is full, or no controller listens.";
    FlowDrop = "flow_drop", "The actions of the packet's flow send it nowhere.";
    MeterExceeded = "meter_exceeded", "More packets than a meter lets through.";
    ActionImpossible = "action_impossible", "An action of its flow is impossible for this packet; or headers that a flow, an action or a guard needs are missing, or end behind its first 128 bytes.";
    ActionBudget = "action_budget", "Its flows have more actions than the limit for one packet.";
    VerdictOverflow = "verdict_overflow", "The module decided on more copies than fit.";
    OutOfOrder = "out_of_order", "Packets of its flow were with the control plane: 256, the most that may be, others passed before it came back (after 50 ms), its guest had left by then, or one was just being sent when upcalls ended.";
    CtTableFull = "ct_table_full", "The table of connections is full, and none of them may be evicted.";
    CtPortShare = "ct_port_share", "Its port has as many connections as one port may, and none of them may be evicted.";
    CtZoneLimit = "ct_zone_limit", "The connection's zone has as many connections as its limit allows.";
    CtNatExhausted = "ct_nat_exhausted", "Address translation has no address and port left for a new connection.";
    CtTupleTaken = "ct_tuple_taken", "Another connection has the addresses and ports that a new one would have.";
    CtContended = "ct_contended", "The packet had to be compared with its connection's state, which other workers kept changing.";
    AclDenied = "acl_denied", "A rule of its sender or receiver denies its connection (lasthop acl list).";
    AclInvalid = "acl_invalid", "It belongs to no connection, and its sender or receiver has rules about connections.";
    FragOverlap = "frag_overlap", "A fragment that was there already, or the fragments of a packet that overlap each other.";
    FragTimeout = "frag_timeout", "The other fragments of its packet did not come in time.";
    FragShare = "frag_share", "More fragments are held than its port or zone may have, or than one packet may have.";
    FragSmall = "frag_small", "A fragment that others follow is shorter than any link makes them.";
    FragLarge = "frag_large", "The packet would be longer than an IP packet may be.";
    FragMalformed = "frag_malformed", "The headers or the length of a fragment contradict themselves.";
    IpSpoofed = "ip_spoofed", "An IP source address that is not one of the port's own (guard=ip).";
    ArpSpoofed = "arp_spoofed", "ARP or IPv6 neighbour discovery that claims an address that is not the port's own, or claims it for another Ethernet address (guard=arp).";
    RogueServer = "rogue_server", "An answer of a DHCP server, or an advertisement or redirect of a router, from a port that is neither (guard=dhcp).";
    BadTunnel = "bad_tunnel", "The tunnel header that the driver passed with a packet contradicts itself.";
}

#[cfg(test)]
mod tests {
    use super::DropReason;

    /// Installed flows name reasons by their position in this list, and flows outlive a process.
    const PUBLISHED: &[&str] = &[
        "too_short",
        "too_long",
        "chain_too_long",
        "bad_gso",
        "bad_csum",
        "no_destination",
        "same_port",
        "link_local",
        "source_spoofed",
        "source_invalid",
        "storm_broadcast",
        "storm_multicast",
        "storm_unknown",
        "vlan_tagged",
        "vlan_untagged",
        "vlan_not_carried",
        "vlan_nested",
        "isolated",
        "no_transit",
        "port_gone",
        "port_down",
        "link_down",
        "queue_disabled",
        "rx_queue_full",
        "rx_share",
        "rx_timeout",
        "rx_stalled",
        "rx_buffer_small",
        "rx_ring_broken",
        "recalled",
        "restart",
        "no_flow",
        "flow_drop",
        "meter_exceeded",
        "action_impossible",
        "action_budget",
        "verdict_overflow",
        "out_of_order",
        "ct_table_full",
        "ct_port_share",
        "ct_zone_limit",
        "ct_nat_exhausted",
        "ct_tuple_taken",
        "ct_contended",
        "acl_denied",
        "acl_invalid",
        "frag_overlap",
        "frag_timeout",
        "frag_share",
        "frag_small",
        "frag_large",
        "frag_malformed",
        "ip_spoofed",
        "arp_spoofed",
        "rogue_server",
        "bad_tunnel",
    ];

    #[test]
    fn new_reasons_are_appended() {
        let names: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert!(names.starts_with(PUBLISHED), "append new reasons, or raise STATE_VERSION: {names:?}");
        assert_eq!(names.len(), PUBLISHED.len(), "name the new reasons here, too");
    }
}
