//! Conflicts of a port or a switch with others of its file.

use std::path::PathBuf;

use lasthop_module_api::PortVlans;

use lasthop_api::port::{self, PortSpec};
use lasthop_api::switches::{self, SwitchSpec};
use lasthop_runtime::fault::Fault;

/// Refuses settings that the switch would refuse, as far as the file shows.
pub(super) fn check_port(port: &PortSpec, earlier: &[PortSpec]) -> Result<(), Fault> {
    port::check_beside(port, earlier)?;
    let name = port.name();
    for other in earlier {
        let other_name = other.name();
        if other_name == name {
            return Err(Fault::params(format!("there is a port \"{name}\" already; give one another name")));
        }
        let mac = port.common.policy.mac.filter(|mac| other.common.policy.mac == Some(*mac));
        if let Some(mac) = mac.filter(|_| share_addresses(port, other)) {
            let why =
                format!("{mac} is the address of \"{other_name}\" already; give \"{name}\" another one");
            return Err(Fault::params(why));
        }
        if let Some(path) = socket(port).filter(|path| socket(other) == Some(path)) {
            let path = path.display();
            let why = format!("the socket \"{path}\" is that of port \"{other_name}\"; use another path");
            return Err(Fault::params(why));
        }
    }
    Ok(())
}

fn socket(port: &PortSpec) -> Option<&PathBuf> {
    port.vhost_user()?.socket.as_ref()
}

/// Refuses a switch that conflicts with another one of its file.
pub(super) fn check_switch(switch: &SwitchSpec, earlier: &[SwitchSpec]) -> Result<(), Fault> {
    switches::check_beside(switch, earlier)
}

/// Whether one address at two ports is a conflict: in one switch, in a VLAN that both carry, or as trunks, which share one
/// table.
fn share_addresses(one: &PortSpec, other: &PortSpec) -> bool {
    let (one, other) = (&one.common, &other.common);
    if one.switch != other.switch {
        return false;
    }
    let (one, other) = (&one.policy.vlans, &other.policy.vlans);
    let is_trunk = |vlans: &PortVlans| matches!(vlans, PortVlans::Trunk { .. });
    (is_trunk(one) && is_trunk(other)) || (0..4096).any(|vid| one.carries(vid) && other.carries(vid))
}
