//! A port as the controller knows it: the VLANs that it carries, their form, and the ports that it may reach. The rules
//! are the bridge's (`lasthop_bridge_policy`).

use std::net::IpAddr;
use std::rc::Rc;

use lasthop_bridge_policy::IsolationClass;
use lasthop_module_api::{DropReason, Mac, PortSettings, TagForm};

use crate::acl::PortAcl;

/// A port that has a number.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) settings: PortSettings,
    /// The rules about its connections, if there are any.
    pub(crate) acl: Option<Rc<PortAcl>>,
    /// Addresses that DHCP servers gave to it.
    pub(crate) leased: Rc<[IpAddr]>,
}

impl Port {
    /// Its own address, the only permitted source besides configured ones; 0 for none.
    pub(crate) fn own_mac(&self) -> u64 {
        self.settings.policy.mac.map_or(0, Mac::to_bits)
    }

    /// Whether the port carries VLAN `vid`.
    pub(crate) fn carries(&self, vid: u16) -> bool {
        self.settings.policy.vlans.carries(vid)
    }

    /// The form of frames of VLAN `vid`, which the port carries.
    pub(crate) fn form(&self, vid: u16) -> TagForm {
        TagForm::of(vid, self.settings.policy.vlans.untagged_vid())
    }

    /// Why no packet passes between the two; `None` if packets do.
    pub(crate) fn barrier(&self, other: &Self) -> Option<DropReason> {
        self.isolation().barrier(other.isolation())
    }

    fn isolation(&self) -> IsolationClass {
        IsolationClass::of(self.settings.policy.is_isolated, self.settings.kind)
    }
}
