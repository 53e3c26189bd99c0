//! Family `nlctrl`: which number a family has.

use crate::attr::{Attrs, Writer};
use crate::bounds::FAMILY_BYTES_MAX;
use crate::refusal::Refusal;
use crate::uapi::ctrl as uapi;

/// Bytes of `struct ovs_header`.
const HEADER_BYTES: u32 = 4;

/// `CTRL_ATTR_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyMessage {
    /// Number: the type of its messages.
    pub id: Option<u16>,
    /// Name.
    pub name: Option<String>,
    /// Version.
    pub version: Option<u32>,
    /// Largest attribute.
    pub attr_max: Option<u32>,
    /// Multicast groups by name and number.
    pub groups: Vec<(String, u32)>,
}

impl FamilyMessage {
    /// Decodes a message about a family; ignores attributes without a use here.
    ///
    /// # Errors
    /// ERANGE for wrong lengths.
    pub fn decode(attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let mut message = Self::default();
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::ATTR_FAMILY_ID => message.id = Some(attr.u16()?),
                uapi::ATTR_FAMILY_NAME => message.name = Some(attr.string(FAMILY_BYTES_MAX)?),
                uapi::ATTR_VERSION => message.version = Some(attr.u32()?),
                uapi::ATTR_MAXATTR => message.attr_max = Some(attr.u32()?),
                uapi::ATTR_MCAST_GROUPS => {
                    let groups = attr.nested().map(|group| decode_group(group?.nested()));
                    message.groups = groups.collect::<Result<_, _>>()?;
                }
                _ => {}
            }
        }
        Ok(message)
    }

    /// Encodes the attributes.
    pub fn encode(&self, writer: &mut Writer) {
        if let Some(name) = &self.name {
            writer.put_string(uapi::ATTR_FAMILY_NAME, name);
        }
        writer.put_some(uapi::ATTR_FAMILY_ID, self.id.map(u16::to_ne_bytes));
        writer.put_some(uapi::ATTR_VERSION, self.version.map(u32::to_ne_bytes));
        writer.put_some(uapi::ATTR_HDRSIZE, self.version.map(|_| HEADER_BYTES.to_ne_bytes()));
        writer.put_some(uapi::ATTR_MAXATTR, self.attr_max.map(u32::to_ne_bytes));
        if !self.groups.is_empty() {
            writer.nest(uapi::ATTR_MCAST_GROUPS, |nested| self.encode_groups(nested));
        }
    }

    fn encode_groups(&self, writer: &mut Writer) {
        for (at, (name, id)) in (1..).zip(&self.groups) {
            writer.nest(at, |group| {
                group.put_string(uapi::GROUP_NAME, name);
                group.put(uapi::GROUP_ID, &id.to_ne_bytes());
            });
        }
    }
}

fn decode_group(attrs: Attrs<'_>) -> Result<(String, u32), Refusal> {
    let (mut name, mut id) = (None, None);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            uapi::GROUP_NAME => name = Some(attr.string(FAMILY_BYTES_MAX)?),
            uapi::GROUP_ID => id = Some(attr.u32()?),
            _ => {}
        }
    }
    name.zip(id).ok_or(Refusal::invalid("a multicast group has no name or no number"))
}
