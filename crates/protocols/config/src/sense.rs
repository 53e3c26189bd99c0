//! Whether a vnic or a switch makes sense, alone and beside the others of its file.

use lasthop_module_api::PortVlans;

use lasthop_api::port::{self, PortSpec};
use lasthop_api::switches::{self, SwitchSpec};
use lasthop_api::vnic::VnicSpec;
use lasthop_runtime::fault::Fault;

/// Refuses settings that the switch would refuse, as far as the file tells.
pub(super) fn check(vnic: &VnicSpec, earlier: &[VnicSpec]) -> Result<(), Fault> {
    vnic.check()?;
    let name = &vnic.name;
    for other in earlier {
        let other_name = &other.name;
        if other_name == name {
            return Err(Fault::params(format!(
                "there is a vnic or port \"{name}\" already; give one another name"
            )));
        }
        if let Some(mac) = vnic.mac.filter(|mac| other.mac == Some(*mac) && share_addresses(vnic, other)) {
            let why =
                format!("{mac} is the address of \"{other_name}\" already; give \"{name}\" another one");
            return Err(Fault::params(why));
        }
        if let Some(path) = vnic.socket.as_ref().filter(|path| other.socket.as_ref() == Some(path)) {
            let path = path.display();
            let why = format!("the socket \"{path}\" is that of vnic \"{other_name}\"; use another path");
            return Err(Fault::params(why));
        }
    }
    Ok(())
}

/// Refuses a device port that cannot be beside the others, or beside the vnics of its file, which those others are among.
pub(super) fn check_port(port: &PortSpec, earlier: &[PortSpec], vnics: &[VnicSpec]) -> Result<(), Fault> {
    port.check()?;
    port::check_beside(port, earlier)?;
    check(&port.vnic(), vnics)
}

/// Refuses a switch that cannot be beside the others of its file.
pub(super) fn check_switch(switch: &SwitchSpec, earlier: &[SwitchSpec]) -> Result<(), Fault> {
    switches::check_beside(switch, earlier)
}

/// Whether two vnics with one address would be in each other's way: in one switch, in a VLAN that both carry, or as trunks, whose addresses
/// are kept together.
fn share_addresses(one: &VnicSpec, other: &VnicSpec) -> bool {
    if one.switch != other.switch {
        return false;
    }
    let (one, other) = (one.port_vlans(), other.port_vlans());
    let is_trunk = |vlans: &PortVlans| matches!(vlans, PortVlans::Trunk { .. });
    (is_trunk(&one) && is_trunk(&other)) || (0..4096).any(|vid| one.carries(vid) && other.carries(vid))
}
