//! Family `ovs_packet`: packets to the control plane, and from it.

use lasthop_flow::{Action, FlowKey, Tunnel};

use crate::attr::{Attrs, Writer};
use crate::refusal::Refusal;
use crate::uapi::packet as uapi;
use crate::{action, key, tunnel};

/// `OVS_PACKET_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketMessage {
    /// The datapath.
    pub datapath: i32,
    /// The packet from its Ethernet header on.
    pub packet: Vec<u8>,
    /// Its flow key; for a packet to be executed, the metadata that its bytes do not have.
    pub key: FlowKey,
    /// Its actions; to the control plane, the flow's actions where they are wanted.
    pub actions: Option<Vec<Action>>,
    /// From the action that sent it.
    pub user_data: Option<Vec<u8>>,
    /// Outer header that the packet would get, where it is wanted.
    pub egress_tunnel: Option<Tunnel>,
    /// Only asked whether it could be done.
    pub is_probe: bool,
    /// Bytes of the largest fragment that the packet was put together from.
    pub mru_bytes: Option<u16>,
    /// Bytes of the packet before it was truncated.
    pub len_bytes: Option<u32>,
    /// The packet's hash, to be given back when it is executed.
    pub hash: Option<u64>,
}

impl PacketMessage {
    /// Attributes of a message about a packet; those of no meaning here are passed over, as the kernel does.
    ///
    /// # Errors
    /// EINVAL without packet or key, and for keys and actions that cannot be read; ERANGE for other attributes of a wrong
    /// length.
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let (mut packet, mut found) = (None, None);
        let mut message = Self { datapath, ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::PACKET => packet = Some(attr.payload.to_vec()),
                uapi::KEY => found = Some(key::decode(attr.nested())?),
                uapi::ACTIONS => message.actions = Some(action::decode(attr.payload)?),
                uapi::USERDATA => message.user_data = Some(attr.payload.to_vec()),
                uapi::EGRESS_TUN_KEY => message.egress_tunnel = Some(tunnel::decode(attr.nested())?),
                uapi::PROBE => message.is_probe = true,
                uapi::MRU => message.mru_bytes = Some(attr.u16()?),
                uapi::LEN => message.len_bytes = Some(attr.u32()?),
                uapi::HASH => message.hash = Some(attr.u64()?),
                _ => {}
            }
        }
        message.packet = packet.ok_or(Refusal::invalid("there is no packet"))?;
        message.key = found.ok_or(Refusal::invalid("there is no key for the packet"))?;
        Ok(message)
    }

    /// The packet's hash in a message that cannot be read otherwise. None of one that only asks whether it could be done.
    #[must_use]
    pub fn hash_in(attrs: Attrs<'_>) -> Option<u64> {
        let mut hash = None;
        for attr in attrs.map_while(Result::ok) {
            match attr.kind {
                uapi::PROBE => return None,
                uapi::HASH => hash = attr.u64().ok(),
                _ => {}
            }
        }
        hash
    }

    /// Its attributes; the packet comes last, as it does in the kernel's.
    pub fn encode(&self, writer: &mut Writer) {
        writer.nest(uapi::KEY, |nested| key::encode(nested, &self.key));
        if let Some(user_data) = &self.user_data {
            writer.put(uapi::USERDATA, user_data);
        }
        if let Some(outer) = &self.egress_tunnel {
            writer.nest(uapi::EGRESS_TUN_KEY, |nested| tunnel::encode(nested, outer));
        }
        if let Some(actions) = &self.actions {
            writer.nest(uapi::ACTIONS, |nested| action::encode(nested, actions));
        }
        writer.put_flag(uapi::PROBE, self.is_probe);
        writer.put_some(uapi::MRU, self.mru_bytes.map(u16::to_ne_bytes));
        writer.put_some(uapi::LEN, self.len_bytes.map(u32::to_ne_bytes));
        writer.put_some(uapi::HASH, self.hash.map(u64::to_ne_bytes));
        writer.put(uapi::PACKET, &self.packet);
    }
}
