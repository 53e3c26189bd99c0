//! A vhost-user port as arguments for QEMU.

use crate::remedy::quote;
use lasthop_api::port::VnicMode;
use lasthop_api::report::Attachment;

/// Arguments to paste after `qemu-system-…`. The memory has to be the guest's whole memory, and shared.
///
/// `tcg`: without KVM.
pub(crate) fn qemu(port: &Attachment<'_>, tcg: bool) -> String {
    let name = port.name;
    let path = quote(&port.socket.to_string_lossy().replace(',', ",,"));
    let role = match port.mode {
        VnicMode::Listen => "reconnect=1",
        VnicMode::Connect => "server=on",
    };
    let arguments = [
        // Names of vCPU threads, by which the view of the host's scheduler finds them.
        format!("-name {name},debug-threads=on"),
        "-m 1G".to_owned(),
        "-object memory-backend-memfd,id=lasthop-memory,size=1G,share=on".to_owned(),
        "-machine memory-backend=lasthop-memory".to_owned(),
        format!("-chardev socket,id=chr-{name},path={path},{role}"),
        format!("-netdev vhost-user,id=net-{name},chardev=chr-{name},queues={}", port.queues),
        format!("-device {}", device(port, tcg)),
    ];
    arguments.join(" \\\n") + "\n"
}

/// A hint about the arguments; separate, since a shell accepts no comment between arguments.
pub(crate) fn qemu_hint(port: &Attachment<'_>, tcg: bool) -> String {
    let role = match port.mode {
        VnicMode::Listen => "since QEMU 9.2 write reconnect-ms=1000 instead of reconnect=1",
        VnicMode::Connect => "QEMU waits for the switch before it starts the guest",
    };
    let without_kvm = if tcg { "" } else { "; without KVM, QEMU 7.2 crashes: add --tcg" };
    format!("size= and -m are the guest's memory; {role}{without_kvm}")
}

fn device(port: &Attachment<'_>, tcg: bool) -> String {
    let mut device = format!("virtio-net-pci,netdev=net-{},mac={}", port.name, port.mac);
    if port.queues > 1 {
        device.push_str(",mq=on");
    }
    // One vector for each queue, one for the control queue, one for configuration changes. Without KVM, QEMU 7.2
    // crashes when its guest enables MSI-X.
    match tcg {
        true => device.push_str(",vectors=0"),
        false if port.queues > 1 => device.push_str(&format!(",vectors={}", 2 * port.queues + 2)),
        false => {}
    }
    if let Some(mtu) = port.mtu {
        device.push_str(&format!(",host_mtu={mtu}"));
    }
    device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::guest;

    fn text(text: &str, socket: &str, tcg: bool) -> String {
        qemu(&guest(text, socket).attachment().expect("vhost-user"), tcg)
    }

    #[test]
    fn a_listening_vnic_is_connected_to_again_and_again() {
        let text = text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock", false);
        let expected = "-name vm1,debug-threads=on \\\n\
            -m 1G \\\n\
            -object memory-backend-memfd,id=lasthop-memory,size=1G,share=on \\\n\
            -machine memory-backend=lasthop-memory \\\n\
            -chardev socket,id=chr-vm1,path=/run/lasthop/vm1.sock,reconnect=1 \\\n\
            -netdev vhost-user,id=net-vm1,chardev=chr-vm1,queues=1 \\\n\
            -device virtio-net-pci,netdev=net-vm1,mac=02:00:00:00:00:01\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_connecting_vnic_with_queues_and_mtu_is_served() {
        let text = text("vm1,mode=connect,queues=4,mtu=1400", "/a b/x,y.sock", false);
        assert!(text.contains("path='/a b/x,,y.sock',server=on"), "{text}");
        assert!(text.contains("queues=4 ") && text.contains(",mq=on,vectors=10,host_mtu=1400\n"), "{text}");
        assert!(text.contains("mac=52:54:00:"), "{text}");
    }

    #[test]
    fn without_kvm_there_are_no_vectors() {
        for (port, device) in [
            ("vm1,mac=02:00:00:00:00:01", ":01,vectors=0\n"),
            ("vm1,queues=2,mtu=1400", ",mq=on,vectors=0,host_mtu=1400\n"),
        ] {
            let text = text(port, "/s", true);
            assert!(text.ends_with(device), "{text}");
        }
    }
}
