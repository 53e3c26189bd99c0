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
    /// Its actions; in an upcall, the flow's actions if the userspace action requests them.
    pub actions: Option<Vec<Action>>,
    /// Data of the userspace action that caused the upcall.
    pub user_data: Option<Vec<u8>>,
    /// Outer header that the packet would get, if requested.
    pub egress_tunnel: Option<Tunnel>,
    /// Whether this is a probe.
    pub is_probe: bool,
    /// Length of the largest fragment of which the packet was reassembled.
    pub mru_bytes: Option<u16>,
    /// Length of the packet before it was truncated.
    pub len_bytes: Option<u32>,
    /// The packet's hash, to be returned when it is executed.
    pub hash: Option<u64>,
}

impl PacketMessage {
    /// Decodes a message about a packet; ignores attributes without a use here, as the kernel does.
    ///
    /// # Errors
    /// EINVAL without packet or key, and for invalid keys and actions; ERANGE for other attributes of a wrong
    /// length.
    pub fn decode(datapath: i32, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self { datapath, ..Self::default() };
        message.read(attrs)?;
        Ok(message)
    }

    /// As [`Self::decode`], into an empty message where it is to be: messages are long to copy.
    pub(crate) fn read(&mut self, attrs: Attrs<'_>) -> Result<(), Refusal> {
        let (mut packet, mut has_key) = (None, false);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::PACKET => packet = Some(attr.payload),
                uapi::KEY => {
                    if std::mem::replace(&mut has_key, true) {
                        self.key = FlowKey::default();
                    }
                    key::decode_into(&mut self.key, attr.nested())?;
                }
                uapi::ACTIONS => self.actions = Some(action::decode(attr.payload)?),
                uapi::USERDATA => self.user_data = Some(attr.payload.to_vec()),
                uapi::EGRESS_TUN_KEY => self.egress_tunnel = Some(tunnel::decode(attr.nested())?),
                uapi::PROBE => self.is_probe = true,
                uapi::MRU => self.mru_bytes = Some(attr.u16()?),
                uapi::LEN => self.len_bytes = Some(attr.u32()?),
                uapi::HASH => self.hash = Some(attr.u64()?),
                _ => {}
            }
        }
        self.packet = packet.ok_or(Refusal::invalid("there is no packet"))?.to_vec();
        if has_key { Ok(()) } else { Err(Refusal::invalid("there is no key for the packet")) }
    }

    /// Reads the packet's hash in an otherwise invalid message. `None` for a probe.
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

    /// Encodes the attributes; the packet comes last, as in the kernel.
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
