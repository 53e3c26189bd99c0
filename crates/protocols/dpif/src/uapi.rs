//! Numbers of the kernel's interface, with its names: linux/netlink.h, linux/genetlink.h, linux/openvswitch.h.

/// linux/netlink.h: message types.
pub(crate) mod nlmsg {
    pub(crate) const ERROR: u16 = 2;
    pub(crate) const DONE: u16 = 3;
}

/// linux/netlink.h: flags of a message.
pub(crate) mod nlm {
    pub(crate) const REQUEST: u16 = 0x1;
    pub(crate) const MULTI: u16 = 0x2;
    pub(crate) const ACK: u16 = 0x4;
    pub(crate) const ECHO: u16 = 0x8;
    /// Requests: `NLM_F_ROOT | NLM_F_MATCH`.
    pub(crate) const DUMP: u16 = 0x300;
    /// Requests to create an object.
    pub(crate) const CREATE: u16 = 0x400;
    /// Acknowledgements: the request is not repeated behind its header.
    pub(crate) const CAPPED: u16 = 0x100;
    /// Acknowledgements: attributes follow.
    pub(crate) const ACK_TLVS: u16 = 0x200;
}

/// linux/netlink.h: attributes of an extended acknowledgement.
pub(crate) mod ack_attr {
    pub(crate) const MSG: u16 = 1;
}

/// linux/netlink.h: protocols of sockets.
pub(crate) mod protocol {
    pub(crate) const NETFILTER: u32 = 12;
    pub(crate) const GENERIC: u32 = 16;
}

/// linux/genetlink.h: the family that describes families.
pub(crate) mod ctrl {
    pub(crate) const FAMILY_ID: u16 = 0x10;
    pub(crate) const NEWFAMILY: u8 = 1;
    pub(crate) const GETFAMILY: u8 = 3;
    pub(crate) const ATTR_FAMILY_ID: u16 = 1;
    pub(crate) const ATTR_FAMILY_NAME: u16 = 2;
    pub(crate) const ATTR_VERSION: u16 = 3;
    pub(crate) const ATTR_HDRSIZE: u16 = 4;
    pub(crate) const ATTR_MAXATTR: u16 = 5;
    pub(crate) const ATTR_MCAST_GROUPS: u16 = 7;
    pub(crate) const GROUP_NAME: u16 = 1;
    pub(crate) const GROUP_ID: u16 = 2;
}

/// Commands that datapaths, vports and flows share.
pub(crate) mod command {
    pub(crate) const NEW: u8 = 1;
    pub(crate) const DEL: u8 = 2;
    pub(crate) const GET: u8 = 3;
    pub(crate) const SET: u8 = 4;
}

/// OVS_DP_ATTR_* and OVS_DP_F_*.
pub(crate) mod dp {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const UPCALL_PID: u16 = 2;
    pub(crate) const STATS: u16 = 3;
    pub(crate) const MEGAFLOW_STATS: u16 = 4;
    pub(crate) const USER_FEATURES: u16 = 5;
    pub(crate) const MASKS_CACHE_SIZE: u16 = 7;
    pub(crate) const PER_CPU_PIDS: u16 = 8;
    pub(crate) const IFINDEX: u16 = 9;

    pub(crate) const F_UNALIGNED: u32 = 1 << 0;
    pub(crate) const F_VPORT_PIDS: u32 = 1 << 1;
    pub(crate) const F_TC_RECIRC_SHARING: u32 = 1 << 2;
    pub(crate) const F_DISPATCH_UPCALL_PER_CPU: u32 = 1 << 3;
}

/// OVS_VPORT_ATTR_*, OVS_VPORT_TYPE_* and OVS_TUNNEL_ATTR_*.
pub(crate) mod vport {
    pub(crate) const PORT_NO: u16 = 1;
    pub(crate) const TYPE: u16 = 2;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const OPTIONS: u16 = 4;
    pub(crate) const UPCALL_PID: u16 = 5;
    pub(crate) const STATS: u16 = 6;
    pub(crate) const IFINDEX: u16 = 8;
    pub(crate) const NETNSID: u16 = 9;

    pub(crate) const TYPE_NETDEV: u32 = 1;
    pub(crate) const TYPE_INTERNAL: u32 = 2;
    pub(crate) const TYPE_GRE: u32 = 3;
    pub(crate) const TYPE_VXLAN: u32 = 4;
    pub(crate) const TYPE_GENEVE: u32 = 5;
    // Of Open vSwitch's own, which no kernel has.
    pub(crate) const TYPE_ERSPAN: u32 = 107;
    pub(crate) const TYPE_IP6ERSPAN: u32 = 108;
    pub(crate) const TYPE_IP6GRE: u32 = 109;
    pub(crate) const TYPE_BAREUDP: u32 = 111;

    pub(crate) const OPTION_DST_PORT: u16 = 1;
    pub(crate) const OPTION_EXTENSION: u16 = 2;
    pub(crate) const VXLAN_EXT_GBP: u16 = 1;
    pub(crate) const VXLAN_EXT_GPE: u16 = 8;
}

/// OVS_FLOW_ATTR_* and OVS_UFID_F_*.
pub(crate) mod flow {
    pub(crate) const KEY: u16 = 1;
    pub(crate) const ACTIONS: u16 = 2;
    pub(crate) const STATS: u16 = 3;
    pub(crate) const TCP_FLAGS: u16 = 4;
    pub(crate) const USED: u16 = 5;
    pub(crate) const CLEAR: u16 = 6;
    pub(crate) const MASK: u16 = 7;
    pub(crate) const PROBE: u16 = 8;
    pub(crate) const UFID: u16 = 9;
    pub(crate) const UFID_FLAGS: u16 = 10;

    pub(crate) const OMIT_KEY: u32 = 1 << 0;
    pub(crate) const OMIT_MASK: u32 = 1 << 1;
    pub(crate) const OMIT_ACTIONS: u32 = 1 << 2;
}

/// OVS_PACKET_CMD_* and OVS_PACKET_ATTR_*.
pub(crate) mod packet {
    pub(crate) const MISS: u8 = 1;
    pub(crate) const ACTION: u8 = 2;
    pub(crate) const EXECUTE: u8 = 3;

    pub(crate) const PACKET: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const ACTIONS: u16 = 3;
    pub(crate) const USERDATA: u16 = 4;
    pub(crate) const EGRESS_TUN_KEY: u16 = 5;
    pub(crate) const PROBE: u16 = 8;
    pub(crate) const MRU: u16 = 9;
    pub(crate) const LEN: u16 = 10;
    pub(crate) const HASH: u16 = 11;
}

/// OVS_KEY_ATTR_*.
pub(crate) mod key {
    pub(crate) const ENCAP: u16 = 1;
    pub(crate) const PRIORITY: u16 = 2;
    pub(crate) const IN_PORT: u16 = 3;
    pub(crate) const ETHERNET: u16 = 4;
    pub(crate) const VLAN: u16 = 5;
    pub(crate) const ETHERTYPE: u16 = 6;
    pub(crate) const IPV4: u16 = 7;
    pub(crate) const IPV6: u16 = 8;
    pub(crate) const TCP: u16 = 9;
    pub(crate) const UDP: u16 = 10;
    pub(crate) const ICMP: u16 = 11;
    pub(crate) const ICMPV6: u16 = 12;
    pub(crate) const ARP: u16 = 13;
    pub(crate) const ND: u16 = 14;
    pub(crate) const SKB_MARK: u16 = 15;
    pub(crate) const TUNNEL: u16 = 16;
    pub(crate) const SCTP: u16 = 17;
    pub(crate) const TCP_FLAGS: u16 = 18;
    pub(crate) const DP_HASH: u16 = 19;
    pub(crate) const RECIRC_ID: u16 = 20;
    pub(crate) const MPLS: u16 = 21;
    pub(crate) const CT_STATE: u16 = 22;
    pub(crate) const CT_ZONE: u16 = 23;
    pub(crate) const CT_MARK: u16 = 24;
    pub(crate) const CT_LABELS: u16 = 25;
    pub(crate) const CT_ORIG_TUPLE_IPV4: u16 = 26;
    pub(crate) const CT_ORIG_TUPLE_IPV6: u16 = 27;
    pub(crate) const NSH: u16 = 28;
    /// Higher numbers are private to user space, or not used by it.
    pub(crate) const LAST: u16 = NSH;

    pub(crate) const NSH_BASE: u16 = 1;
    pub(crate) const NSH_MD1: u16 = 2;
    pub(crate) const NSH_MD2: u16 = 3;
}

/// OVS_TUNNEL_KEY_ATTR_*.
pub(crate) mod tunnel {
    pub(crate) const ID: u16 = 0;
    pub(crate) const IPV4_SRC: u16 = 1;
    pub(crate) const IPV4_DST: u16 = 2;
    pub(crate) const TOS: u16 = 3;
    pub(crate) const TTL: u16 = 4;
    pub(crate) const DONT_FRAGMENT: u16 = 5;
    pub(crate) const CSUM: u16 = 6;
    pub(crate) const OAM: u16 = 7;
    pub(crate) const GENEVE_OPTS: u16 = 8;
    pub(crate) const TP_SRC: u16 = 9;
    pub(crate) const TP_DST: u16 = 10;
    pub(crate) const VXLAN_OPTS: u16 = 11;
    pub(crate) const IPV6_SRC: u16 = 12;
    pub(crate) const IPV6_DST: u16 = 13;
    pub(crate) const PAD: u16 = 14;
    pub(crate) const ERSPAN_OPTS: u16 = 15;
    pub(crate) const IPV4_INFO_BRIDGE: u16 = 16;
}

/// OVS_ACTION_ATTR_* and the attributes nested in them.
pub(crate) mod action {
    pub(crate) const OUTPUT: u16 = 1;
    pub(crate) const USERSPACE: u16 = 2;
    pub(crate) const SET: u16 = 3;
    pub(crate) const PUSH_VLAN: u16 = 4;
    pub(crate) const POP_VLAN: u16 = 5;
    pub(crate) const SAMPLE: u16 = 6;
    pub(crate) const RECIRC: u16 = 7;
    pub(crate) const HASH: u16 = 8;
    pub(crate) const PUSH_MPLS: u16 = 9;
    pub(crate) const POP_MPLS: u16 = 10;
    pub(crate) const SET_MASKED: u16 = 11;
    pub(crate) const CT: u16 = 12;
    pub(crate) const TRUNC: u16 = 13;
    pub(crate) const PUSH_ETH: u16 = 14;
    pub(crate) const POP_ETH: u16 = 15;
    pub(crate) const CT_CLEAR: u16 = 16;
    pub(crate) const PUSH_NSH: u16 = 17;
    pub(crate) const POP_NSH: u16 = 18;
    pub(crate) const METER: u16 = 19;
    pub(crate) const CLONE: u16 = 20;
    pub(crate) const CHECK_PKT_LEN: u16 = 21;
    pub(crate) const ADD_MPLS: u16 = 22;
    /// Since Linux 6.8.
    pub(crate) const DROP: u16 = 24;

    pub(crate) const USERSPACE_PID: u16 = 1;
    pub(crate) const USERSPACE_USERDATA: u16 = 2;
    pub(crate) const USERSPACE_EGRESS_TUN_PORT: u16 = 3;
    pub(crate) const USERSPACE_ACTIONS: u16 = 4;

    pub(crate) const SAMPLE_PROBABILITY: u16 = 1;
    pub(crate) const SAMPLE_ACTIONS: u16 = 2;

    pub(crate) const CHECK_LEN: u16 = 1;
    pub(crate) const CHECK_GREATER: u16 = 2;
    pub(crate) const CHECK_LESS_EQUAL: u16 = 3;

    /// OVS_MPLS_L3_TUNNEL_FLAG_MASK.
    pub(crate) const MPLS_L3: u16 = 1;
}

/// OVS_CT_ATTR_* and OVS_NAT_ATTR_*.
pub(crate) mod ct {
    pub(crate) const COMMIT: u16 = 1;
    pub(crate) const ZONE: u16 = 2;
    pub(crate) const MARK: u16 = 3;
    pub(crate) const LABELS: u16 = 4;
    pub(crate) const HELPER: u16 = 5;
    pub(crate) const NAT: u16 = 6;
    pub(crate) const FORCE_COMMIT: u16 = 7;
    pub(crate) const EVENTMASK: u16 = 8;
    pub(crate) const TIMEOUT: u16 = 9;

    pub(crate) const NAT_SRC: u16 = 1;
    pub(crate) const NAT_DST: u16 = 2;
    pub(crate) const NAT_IP_MIN: u16 = 3;
    pub(crate) const NAT_IP_MAX: u16 = 4;
    pub(crate) const NAT_PROTO_MIN: u16 = 5;
    pub(crate) const NAT_PROTO_MAX: u16 = 6;
    pub(crate) const NAT_PERSISTENT: u16 = 7;
    pub(crate) const NAT_PROTO_HASH: u16 = 8;
    pub(crate) const NAT_PROTO_RANDOM: u16 = 9;
}

/// OVS_METER_CMD_*, OVS_METER_ATTR_* and OVS_BAND_ATTR_*.
pub(crate) mod meter {
    pub(crate) const FEATURES: u8 = 1;
    pub(crate) const SET: u8 = 2;
    pub(crate) const DEL: u8 = 3;
    pub(crate) const GET: u8 = 4;

    pub(crate) const ID: u16 = 1;
    pub(crate) const KBPS: u16 = 2;
    pub(crate) const STATS: u16 = 3;
    pub(crate) const BANDS: u16 = 4;
    pub(crate) const USED: u16 = 5;
    pub(crate) const CLEAR: u16 = 6;
    pub(crate) const MAX_METERS: u16 = 7;
    pub(crate) const MAX_BANDS: u16 = 8;

    pub(crate) const BAND_TYPE: u16 = 1;
    pub(crate) const BAND_RATE: u16 = 2;
    pub(crate) const BAND_BURST: u16 = 3;
    pub(crate) const BAND_STATS: u16 = 4;
    pub(crate) const BAND_DROP: u32 = 1;
}

/// OVS_CT_LIMIT_CMD_* and OVS_CT_LIMIT_ATTR_*.
pub(crate) mod ct_limit {
    pub(crate) const SET: u8 = 1;
    pub(crate) const DEL: u8 = 2;
    pub(crate) const GET: u8 = 3;
    pub(crate) const ZONE_LIMIT: u16 = 1;
}
