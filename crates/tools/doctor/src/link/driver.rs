//! Checks the features that front end and guest negotiated, and the link state that the guest sees.

use crate::finding::Verdict;
use lasthop_api::facts::SessionFacts;
use lasthop_api::readable::time;

use super::{Case, vlans};

/// The driver gave up (virtio 1.2, 2.1).
const STATUS_FAILED: u8 = 128;
/// Offloads, and the cost without them; both directions of one are reported once.
const OFFLOADS: &[(&str, &str)] = &[
    ("HOST_TSO4", "TCP from this guest (IPv4) goes out in packets of one MTU, up to 45 times as many"),
    ("GUEST_TSO4", "TCP to this guest (IPv4) is segmented by the switch, up to 45 packets for one"),
    ("CSUM", "the guest computes all checksums itself"),
    ("GUEST_CSUM", "the switch completes each checksum before this guest gets a packet"),
    ("MRG_RXBUF", "each receive buffer has to hold the largest packet"),
];

/// The supervisor's warnings of MTUs begin with it. Its others are of limits on the vnic's tap on the host.
const OF_MTU: &str = "mtu";

/// The MTU of a guest that is told none.
const MTU_USUAL: u16 = 1500;

/// Checks the features.
pub(super) fn negotiation(case: &Case<'_>) -> Verdict {
    let Some(session) = &case.now.session else { return Verdict::not_reached() };
    if session.messages == 0 {
        return Verdict::broken(
            format!("the connected program has sent nothing {}", since(case)),
            "connect a vhost-user front end; QEMU: -netdev vhost-user,chardev=..., not a plain -netdev stream",
        );
    }
    if let Some(refusal) = case.refusal(&["features that were not offered", "packed rings"]) {
        return Verdict::broken(refusal, "turn that feature off at the VMM");
    }
    if session.status & STATUS_FAILED != 0 {
        return Verdict::broken(
            "the guest's virtio-net driver failed (status FAILED)",
            "see the guest's log (dmesg | grep virtio); remove options that you added to the device",
        );
    }
    if session.features.is_empty() {
        // A front end whose memory was refused never starts its guest's driver.
        if let Some(refusal) = case.refusal(&[""]) {
            return Verdict::broken(refusal, "remedy the cause, then start the guest again");
        }
        if case.has_private_memory() {
            return Verdict::unknown("the driver has not started, and its memory could not be used");
        }
        return Verdict::broken(
            format!("the guest's virtio-net driver has not started {}", since(case)),
            "wait until the guest has booted; then lspci in it must show a virtio network device, and modprobe virtio_net must load its driver",
        );
    }
    offloads(case, session)
}

fn since(case: &Case<'_>) -> String {
    case.now.connection.attached_ms.map(|ms| format!("(connected for {})", time(ms))).unwrap_or_default()
}

fn offloads(case: &Case<'_>, session: &SessionFacts) -> Verdict {
    let agreed = format!("{} features: {}", session.features.len(), session.features.join(" "));
    let missing: Vec<_> = OFFLOADS.iter().filter(|(name, _)| !case.now.has(name)).collect();
    let Some((_, cost)) = missing.first() else { return Verdict::ok(agreed) };
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let is_masked = |name: &str| !session.offered.iter().any(|offered| offered == name);
    let text = format!("offloads are off, {} not negotiated: {cost}", names.join(" "));
    let off = &case.now.common().features_off;
    let remedy = if !off.is_empty() && names.iter().any(|name| is_masked(name)) {
        format!("this vnic has features-off={}; leave that out", off.joined())
    } else {
        "the guest's driver or VMM did not accept them: for QEMU leave out csum=off, host_tso4=off, guest_tso4=off, mrg_rxbuf=off; DPDK has none by default".to_owned()
    };
    Verdict::warning(text, remedy)
}

/// Checks the link state that the guest sees.
pub(super) fn link(case: &Case<'_>) -> Verdict {
    let vnic = case.now.common();
    if !vnic.link.is_up() {
        return Verdict::broken(
            "the link was set down: all packets to and from the guest are dropped",
            format!("lasthop port set {} link=up", vnic.name),
        );
    }
    if case.now.port.guest.as_ref().is_some_and(|guest| guest.uplinks_down) {
        return Verdict::broken(
            "the link is down with its switch's uplinks (link-tracking): none of them has a link",
            "see which device is down: lasthop port list; or leave out link-tracking there",
        );
    }
    if let Some(mismatch) = vlans::alone(case) {
        return mismatch;
    }
    if let Some(warned) = warned(case.now.name(), &case.now.port.warnings, || one_mtu(case)) {
        return warned;
    }
    let mtu = match vnic.mtu {
        Some(mtu) => format!("up, MTU {mtu}"),
        None => "up, MTU as the guest has it".to_owned(),
    };
    let passes = case
        .now
        .session
        .as_ref()
        .is_some_and(|session| session.rings.iter().any(|ring| ring.running && ring.enabled));
    if passes { Verdict::ok(mtu) } else { Verdict::not_reached() }
}

/// The verdict about the supervisor's warnings for a vnic. Those of MTUs come first, since packets are lost.
fn warned(name: &str, warnings: &[String], one_mtu: impl FnOnce() -> String) -> Option<Verdict> {
    if let Some(warning) = warnings.iter().find(|warning| warning.starts_with(OF_MTU)) {
        return Some(Verdict::warning(format!("MTU mismatch: {warning}"), one_mtu()));
    }
    let unlimited = format!(
        "take the limits off the tap: ovs-vsctl clear port {name} qos; ovs-vsctl set interface {name} ingress_policing_rate=0"
    );
    warnings.first().map(|warning| Verdict::warning(warning.as_str(), unlimited))
}

/// The remedy for an MTU that is not the guest's, or not that of all others.
fn one_mtu(case: &Case<'_>) -> String {
    let (name, set) = (case.now.name(), case.now.common().mtu);
    let told = case.now.counters.as_ref().and_then(|port| port.guest_mtu);
    match (set, told) {
        (Some(set), None) if !case.now.has("MTU") => format!(
            "in the guest: ip link set eth0 mtu {set}; or QEMU: host_mtu={set} at -device, and start it again"
        ),
        (Some(set), Some(told)) if set != told => {
            format!("lasthop port set {name} mtu={told}; or QEMU: host_mtu={set} at -device")
        }
        _ => match smallest_mtu(case) {
            Some(mtu) => format!(
                "lasthop port set {name} mtu={mtu} for its next guest, and in this one: ip link set eth0 mtu {mtu}; or a larger mtu= at the others"
            ),
            None => "the same mtu= for all ports that talk to each other, and in their guests".to_owned(),
        },
    }
}

/// The smallest MTU of the other ports of the switch.
fn smallest_mtu(case: &Case<'_>) -> Option<u16> {
    let (own, switch) = (case.now.name(), &case.now.common().switch);
    let vnics = case.facts.vnics.iter().filter(|vnic| vnic.common().switch == *switch && vnic.name() != own);
    let vnics = vnics.map(|vnic| {
        let told = vnic.counters.as_ref().and_then(|port| port.guest_mtu);
        told.or(vnic.common().mtu).unwrap_or(MTU_USUAL)
    });
    let ports = case.facts.ports.iter().filter(|port| port.settings.common.switch == *switch);
    let ports = ports.filter_map(|port| u16::try_from(port.device.as_ref()?.mtu?).ok());
    vnics.chain(ports).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;

    #[test]
    fn only_warnings_of_mtus_are_headed_so() {
        let texts = ["policing is set on its tap", "mtu is 9000, but vm2 has 1500; give all the same"];
        let warnings = texts.map(str::to_owned);
        let told = |warnings: &[String]| warned("vm1", warnings, || "one MTU".to_owned());
        let limits = told(&warnings[..1]).expect("a warning");
        assert_eq!((limits.state, limits.text.as_str()), (State::Warning, texts[0]));
        assert!(limits.remedy.is_some_and(|remedy| remedy.contains("ingress_policing_rate=0")));
        let mtu = told(&warnings).expect("a warning");
        assert_eq!(mtu.text, format!("MTU mismatch: {}", texts[1]));
        assert_eq!(mtu.remedy.as_deref(), Some("one MTU"));
        assert!(told(&[]).is_none());
    }
}
