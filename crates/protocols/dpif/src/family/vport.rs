//! Family `ovs_vport`.

use super::{put_words, u32_bytes, u32_list, words};
use crate::attr::{Attrs, Writer};
use crate::bounds::{CPUS_MAX, NAME_BYTES_MAX};
use crate::refusal::{Errno, Refusal};
use crate::uapi::vport as uapi;

/// The kind of a port (`enum ovs_vport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VportKind {
    /// A network device, or a guest.
    Netdev,
    /// A device of the host's own stack that the datapath makes.
    Internal,
    /// GRE tunnels.
    Gre,
    /// VXLAN tunnels.
    Vxlan,
    /// Geneve tunnels.
    Geneve,
    /// Tunnels of mirrored packets.
    Erspan,
    /// The same over IPv6.
    Ip6Erspan,
    /// GRE tunnels over IPv6.
    Ip6Gre,
    /// Packets directly behind UDP.
    Bareudp,
    /// Kinds of later versions, by number.
    Other(u32),
}

impl From<u32> for VportKind {
    fn from(number: u32) -> Self {
        match number {
            uapi::TYPE_NETDEV => Self::Netdev,
            uapi::TYPE_INTERNAL => Self::Internal,
            uapi::TYPE_GRE => Self::Gre,
            uapi::TYPE_VXLAN => Self::Vxlan,
            uapi::TYPE_GENEVE => Self::Geneve,
            uapi::TYPE_ERSPAN => Self::Erspan,
            uapi::TYPE_IP6ERSPAN => Self::Ip6Erspan,
            uapi::TYPE_IP6GRE => Self::Ip6Gre,
            uapi::TYPE_BAREUDP => Self::Bareudp,
            other => Self::Other(other),
        }
    }
}

impl From<VportKind> for u32 {
    fn from(kind: VportKind) -> Self {
        match kind {
            VportKind::Netdev => uapi::TYPE_NETDEV,
            VportKind::Internal => uapi::TYPE_INTERNAL,
            VportKind::Gre => uapi::TYPE_GRE,
            VportKind::Vxlan => uapi::TYPE_VXLAN,
            VportKind::Geneve => uapi::TYPE_GENEVE,
            VportKind::Erspan => uapi::TYPE_ERSPAN,
            VportKind::Ip6Erspan => uapi::TYPE_IP6ERSPAN,
            VportKind::Ip6Gre => uapi::TYPE_IP6GRE,
            VportKind::Bareudp => uapi::TYPE_BAREUDP,
            VportKind::Other(number) => number,
        }
    }
}

/// Options of tunnel ports (`OVS_TUNNEL_ATTR_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VportOptions {
    /// UDP port.
    pub dst_port: Option<u16>,
    /// VXLAN with group-based policy.
    pub is_gbp: bool,
    /// VXLAN with protocol extension.
    pub is_gpe: bool,
}

/// A port's counters (`struct ovs_vport_stats`); received packets are those from the guest or the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VportStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Invalid packets received.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets dropped on their way in.
    pub rx_dropped: u64,
    /// Packets dropped on their way out.
    pub tx_dropped: u64,
}

/// `OVS_VPORT_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VportMessage {
    /// The datapath; 0 in requests that name the port.
    pub datapath: i32,
    /// Number in the datapath.
    pub number: Option<u32>,
    /// Its kind.
    pub kind: Option<VportKind>,
    /// Name.
    pub name: Option<String>,
    /// Options of tunnels.
    pub options: Option<VportOptions>,
    /// Port ids for misses; the packet's hash selects one.
    pub upcall_port_ids: Option<Vec<u32>>,
    /// Counters.
    pub stats: Option<VportStats>,
    /// Number of its device.
    pub ifindex: Option<u32>,
    /// Network namespace of its device, if it is another one.
    pub netns_id: Option<i32>,
}

impl VportMessage {
    /// Decodes a message about a port of `datapath`; ignores attributes without a use here, as the kernel does.
    ///
    /// # Errors
    /// As [`super::DatapathMessage::decode`].
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self { datapath, ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::PORT_NO => message.number = Some(attr.u32()?),
                uapi::TYPE => message.kind = Some(attr.u32()?.into()),
                uapi::NAME => message.name = Some(attr.string(NAME_BYTES_MAX)?),
                uapi::OPTIONS => message.options = Some(decode_options(attr.nested())?),
                uapi::UPCALL_PID => message.upcall_port_ids = Some(u32_list(&attr, CPUS_MAX)?),
                uapi::STATS => message.stats = Some(stats(words::<64, 8>(&attr)?)),
                uapi::IFINDEX => message.ifindex = Some(attr.u32()?),
                uapi::NETNSID => message.netns_id = Some(attr.array().map(i32::from_ne_bytes)?),
                _ => {}
            }
        }
        Ok(message)
    }

    /// Encodes the attributes.
    pub fn encode(&self, writer: &mut Writer) {
        writer.put_some(uapi::PORT_NO, self.number.map(u32::to_ne_bytes));
        writer.put_some(uapi::TYPE, self.kind.map(|kind| u32::from(kind).to_ne_bytes()));
        if let Some(name) = &self.name {
            writer.put_string(uapi::NAME, name);
        }
        writer.put_some(uapi::IFINDEX, self.ifindex.map(u32::to_ne_bytes));
        writer.put_some(uapi::NETNSID, self.netns_id.map(i32::to_ne_bytes));
        if let Some(stats) = self.stats {
            put_words(writer, uapi::STATS, stats_words(stats));
        }
        if let Some(ids) = &self.upcall_port_ids {
            writer.put(uapi::UPCALL_PID, &u32_bytes(ids));
        }
        if let Some(options) = &self.options {
            writer.nest(uapi::OPTIONS, |nested| encode_options(nested, options));
        }
    }
}

fn decode_options(attrs: Attrs<'_>) -> Result<VportOptions, Refusal> {
    let mut options = VportOptions::default();
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::OPTION_DST_PORT => options.dst_port = Some(attr.u16()?),
            uapi::OPTION_EXTENSION => decode_extensions(attr.nested(), &mut options)?,
            _ => {}
        }
    }
    Ok(options)
}

fn decode_extensions(attrs: Attrs<'_>, options: &mut VportOptions) -> Result<(), Refusal> {
    let refused = |why| Err(Refusal::new(Errno::EOPNOTSUPP, why));
    for attr in attrs {
        match attr?.kind {
            uapi::VXLAN_EXT_GBP => options.is_gbp = true,
            uapi::VXLAN_EXT_GPE => options.is_gpe = true,
            _ => {
                return refused(
                    "of VXLAN's extensions, only group-based policy and next protocol are known here",
                );
            }
        }
    }
    if options.is_gbp && options.is_gpe {
        return refused("VXLAN has group-based policy or a next protocol, not both");
    }
    Ok(())
}

fn encode_options(writer: &mut Writer, options: &VportOptions) {
    writer.put_some(uapi::OPTION_DST_PORT, options.dst_port.map(u16::to_ne_bytes));
    if options.is_gbp || options.is_gpe {
        writer.nest(uapi::OPTION_EXTENSION, |nested| {
            nested.put_flag(uapi::VXLAN_EXT_GBP, options.is_gbp);
            nested.put_flag(uapi::VXLAN_EXT_GPE, options.is_gpe);
        });
    }
}

fn stats(words: [u64; 8]) -> VportStats {
    let [rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped] = words;
    VportStats { rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped }
}

fn stats_words(stats: VportStats) -> [u64; 8] {
    let VportStats {
        rx_packets,
        tx_packets,
        rx_bytes,
        tx_bytes,
        rx_errors,
        tx_errors,
        rx_dropped,
        tx_dropped,
    } = stats;
    [rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped]
}
