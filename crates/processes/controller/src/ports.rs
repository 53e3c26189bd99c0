//! A port as the controller knows it: the VLANs it carries, in which form, and the ports it may reach. The rules are the bridge's (`lasthop_bridge_policy`).

use std::rc::Rc;

use lasthop_bridge_policy::IsolationClass;
use lasthop_module_api::{DropReason, Mac, PortSettings, TagForm};

use crate::acl::PortAcl;

/// A port that has a number.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) settings: PortSettings,
    /// The rules about its connections, if there are some.
    pub(crate) acl: Option<Rc<PortAcl>>,
}

impl Port {
    /// Its own address, the only one that it may send from but for entries of the user's; 0 is none.
    pub(crate) fn own_mac(&self) -> u64 {
        self.settings.policy.mac.map_or(0, Mac::to_bits)
    }

    /// Whether frames of VLAN `vid` come from and go to the port.
    pub(crate) fn carries(&self, vid: u16) -> bool {
        self.settings.policy.vlans.carries(vid)
    }

    /// The form of frames of VLAN `vid`, which the port carries.
    pub(crate) fn form(&self, vid: u16) -> TagForm {
        TagForm::of(vid, self.settings.policy.vlans.untagged_vid())
    }

    /// Why nothing passes between the two; `None` if it does.
    pub(crate) fn barrier(&self, other: &Self) -> Option<DropReason> {
        self.isolation().barrier(other.isolation())
    }

    fn isolation(&self) -> IsolationClass {
        IsolationClass::of(self.settings.policy.is_isolated, self.settings.kind)
    }
}
