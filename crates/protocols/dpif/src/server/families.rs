//! The families, their numbers and multicast groups.

use crate::family::FamilyMessage;

/// A family of datapath messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Datapaths.
    Datapath,
    /// Ports.
    Vport,
    /// Flows.
    Flow,
    /// Packets.
    Packet,
    /// Meters.
    Meter,
    /// Limits of connections.
    CtLimit,
}

/// First number of a family; the kernel assigns numbers from 17 on.
const ID_FIRST: u16 = 0x20;

impl Family {
    const ALL: [(Family, &str); 6] = [
        (Family::Datapath, "ovs_datapath"),
        (Family::Vport, "ovs_vport"),
        (Family::Flow, "ovs_flow"),
        (Family::Packet, "ovs_packet"),
        (Family::Meter, "ovs_meter"),
        (Family::CtLimit, "ovs_ct_limit"),
    ];

    /// The family of messages of this type.
    #[must_use]
    pub fn of(kind: u16) -> Option<Self> {
        let at = kind.checked_sub(ID_FIRST)?;
        Self::ALL.get(usize::from(at)).map(|(family, _)| *family)
    }

    /// The family of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(family, _)| *family)
    }

    /// Type of its messages.
    #[must_use]
    pub fn id(self) -> u16 {
        ID_FIRST + self as u16
    }

    /// Its version in linux/openvswitch.h.
    #[must_use]
    pub fn version(self) -> u8 {
        if self == Family::Datapath { 2 } else { 1 }
    }

    /// Its multicast group; packets have none.
    #[must_use]
    pub fn group(self) -> Option<u32> {
        (self != Family::Packet).then(|| u32::from(self.id()))
    }

    /// The answer to a request for this family.
    #[must_use]
    pub fn message(self) -> FamilyMessage {
        let name = Self::ALL.iter().find(|(family, _)| *family == self).map(|(_, name)| (*name).to_owned());
        let group = name.clone().zip(self.group());
        FamilyMessage {
            id: Some(self.id()),
            name,
            version: Some(self.version().into()),
            attr_max: Some(self.attr_max()),
            groups: group.into_iter().collect(),
        }
    }

    fn attr_max(self) -> u32 {
        match self {
            Family::Datapath | Family::Vport | Family::Meter => 9,
            Family::Flow | Family::Packet => 11,
            Family::CtLimit => 1,
        }
    }
}
