//! A vhost-user port in the form of a VMM: arguments for QEMU and Cloud Hypervisor, elements for libvirt, and a command line
//! of DPDK's testpmd, whose virtio-user port is a guest without a virtual machine.

use std::path::Path;

use lasthop_api::port::VnicMode;
use lasthop_api::report::Attachment;
use lasthop_runtime::fault::Fault;

use lasthop_doctor::permissions::Credentials;
use lasthop_doctor::remedy::quote;

use crate::qemu_version::QemuVersion;

/// Arguments to paste after `qemu-system-…`. The memory has to be the guest's whole memory, and shared.
///
/// `tcg`: without KVM. `version`: `None` if it is not known.
pub(crate) fn qemu(port: &Attachment<'_>, tcg: bool, version: Option<QemuVersion>) -> String {
    let name = port.name;
    let path = quote(&port.socket.to_string_lossy().replace(',', ",,"));
    let role = match port.mode {
        VnicMode::Listen => QemuVersion::reconnect(version),
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
pub(crate) fn qemu_hint(port: &Attachment<'_>, tcg: bool, version: Option<QemuVersion>) -> String {
    let role = match port.mode {
        VnicMode::Listen => reconnect_hint(version),
        VnicMode::Connect => "QEMU waits for the switch before it starts the guest".to_owned(),
    };
    let without_kvm = if tcg { "" } else { "; without KVM, QEMU 7.2 crashes: add --tcg" };
    format!("size= and -m are the guest's memory; {role}{without_kvm}")
}

fn reconnect_hint(version: Option<QemuVersion>) -> String {
    let option = QemuVersion::reconnect(version);
    match version {
        Some(version) => format!(
            "{option} is for QEMU {version} (--qemu-version X.Y: another one; reconnect-ms=1000 from 9.2 on, reconnect=1 before)"
        ),
        None => format!(
            "no QEMU was found here, and {option} is for those before 10.2 (--qemu-version X.Y: another one, from 9.2 on reconnect-ms=1000)"
        ),
    }
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

/// libvirt's users for QEMU: on Debian and its derivatives, and on Fedora and its derivatives.
const USERS: &[&str] = &["libvirt-qemu", "qemu"];

/// An option of QEMU without an element in libvirt. Without KVM, QEMU 7.2 crashes when its guest enables MSI-X.
const TCG: &str = "<!-- in <domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>; net0 is its first interface -->
<qemu:override>
  <qemu:device alias='net0'>
    <qemu:frontend>
      <qemu:property name='vectors' type='unsigned' value='0'/>
    </qemu:frontend>
  </qemu:device>
</qemu:override>
";

/// A hint about the elements: a user that may not connect yet, and further needs of the guest.
pub(crate) fn libvirt_hint(port: &Attachment<'_>, tcg: bool) -> Option<String> {
    let closed =
        Credentials::of_one(USERS).filter(|_| port.mode == VnicMode::Listen).and_then(|(name, user)| {
            let closed = user.closed_at(port.socket)?;
            Some(access_hint(port, &name, &user, &closed))
        });
    let tcg = (!tcg).then(|| "without KVM, QEMU 7.2 crashes: add --tcg".to_owned());
    let hints: Vec<String> = closed.into_iter().chain(tcg).collect();
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// How libvirt's user for QEMU gets access to the socket: without that, `virsh start` waits for ever.
fn access_hint(port: &Attachment<'_>, name: &str, user: &Credentials, closed: &Path) -> String {
    let shown = closed.display();
    if closed != port.socket {
        return format!("{name}, whom libvirt runs QEMU as, may not enter {shown}: chgrp, chmod g+x");
    }
    let group = user.group().unwrap_or_else(|| name.to_owned());
    format!(
        "{name}, whom libvirt runs QEMU as, may not connect to {shown}: lasthop port set {} socket-group={group}",
        port.name
    )
}

/// Elements for `<domain>`, and those for its `<devices>`; with `tcg` for a guest without KVM.
pub(crate) fn libvirt(port: &Attachment<'_>, tcg: bool) -> String {
    let path = escape(&port.socket.to_string_lossy());
    let source = match port.mode {
        VnicMode::Listen => format!(
            "<source type='unix' path='{path}' mode='client'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>"
        ),
        VnicMode::Connect => format!("<source type='unix' path='{path}' mode='server'/>"),
    };
    let mut interface =
        vec![format!("<mac address='{}'/>", port.mac), source, "<model type='virtio'/>".to_owned()];
    if port.queues > 1 {
        interface.push(format!("<driver queues='{}'/>", port.queues));
    }
    if let Some(mtu) = port.mtu {
        interface.push(format!("<mtu size='{mtu}'/>"));
    }
    format!(
        "<!-- in <domain>: memory that the switch can read and write -->\n\
         <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n\
         <!-- in <devices> -->\n\
         <interface type='vhostuser'>\n  {}\n</interface>\n{}",
        interface.join("\n  "),
        if tcg { TCG } else { "" }
    )
}

/// For an attribute in single quotes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

/// Arguments to paste after `cloud-hypervisor …`. The memory has to be the guest's whole memory, and shared.
pub(crate) fn cloud_hypervisor(port: &Attachment<'_>) -> String {
    let path = port.socket.to_string_lossy();
    // A quoted path may have commas.
    let path = if path.contains([',', '[', ']']) { format!("\"{path}\"") } else { path.into_owned() };
    let role = match port.mode {
        VnicMode::Listen => "client",
        VnicMode::Connect => "server",
    };
    let mut net = format!(
        "mac={},vhost_user=true,socket={path},vhost_mode={role},num_queues={},queue_size=256",
        port.mac,
        2 * port.queues
    );
    if let Some(mtu) = port.mtu {
        net.push_str(&format!(",mtu={mtu}"));
    }
    let cpus = if port.queues > 1 { format!("--cpus boot={} \\\n", port.queues) } else { String::new() };
    format!("{cpus}--memory size=1G,shared=on \\\n--net {}\n", quote(&net))
}

/// A hint about the arguments.
pub(crate) fn cloud_hypervisor_hint(port: &Attachment<'_>) -> &'static str {
    match port.mode {
        VnicMode::Listen => {
            "size= is the guest's memory; Cloud Hypervisor waits 60 s for a switch that went away, then gives the device up"
        }
        VnicMode::Connect => {
            "size= is the guest's memory; Cloud Hypervisor waits for the switch before it starts the guest"
        }
    }
}

/// A hint about the command line.
pub(crate) const TESTPMD_HINT: &str = "a guest without huge pages that answers with what it gets (macswap); \
     start and stop are its commands, and -l names its cores: one for the prompt, one for packets";

/// The whole command line.
pub(crate) fn testpmd(port: &Attachment<'_>) -> Result<String, Fault> {
    let name = port.name;
    let path = port.socket.to_string_lossy();
    if path.contains(',') {
        return Err(Fault::params(format!(
            "DPDK takes no socket path with a comma, as \"{path}\" is; give port \"{name}\" another one"
        )));
    }
    let role = match port.mode {
        VnicMode::Listen => "",
        VnicMode::Connect => ",server=1",
    };
    let (mac, queues) = (port.mac, port.queues);
    let device = format!("net_virtio_user0,path={path},mac={mac},queues={queues}{role}");
    let arguments = [
        format!("dpdk-testpmd --no-huge -m 384 --no-pci -l 0,1 --file-prefix={name}"),
        format!("--vdev {}", quote(&device)),
        format!("-- -i --forward-mode=macswap --nb-cores=1 --rxq={queues} --txq={queues}"),
        "--total-num-mbufs=16000 --no-mlockall".to_owned(),
    ];
    Ok(arguments.join(" \\\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::guest;

    fn qemu_text(text: &str, socket: &str, tcg: bool) -> String {
        qemu(&guest(text, socket).attachment().expect("vhost-user"), tcg, None)
    }

    #[test]
    fn qemu_is_given_the_option_of_its_version() {
        let port = guest("vm1", "/s");
        let port = port.attachment().expect("vhost-user");
        for (version, option) in [
            (None, "reconnect=1"),
            (Some("7.2"), "reconnect=1"),
            (Some("9.2"), "reconnect-ms=1000"),
            (Some("11.0"), "reconnect-ms=1000"),
        ] {
            let version = version.map(|text| text.parse().expect("a version"));
            let text = qemu(&port, false, version);
            assert!(text.contains(&format!("path=/s,{option} ")), "{text}");
            let hint = qemu_hint(&port, false, version);
            assert!(hint.contains(&format!("{option} is for ")), "{hint}");
        }
    }

    #[test]
    fn a_listening_vnic_is_connected_to_again_and_again() {
        let text = qemu_text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock", false);
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
    fn qemu_a_connecting_vnic_with_queues_and_mtu_is_served() {
        let text = qemu_text("vm1,mode=connect,queues=4,mtu=1400", "/a b/x,y.sock", false);
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
            let text = qemu_text(port, "/s", true);
            assert!(text.ends_with(device), "{text}");
        }
    }

    fn libvirt_text(port: &str, socket: &str) -> String {
        libvirt(&guest(port, socket).attachment().expect("vhost-user"), false)
    }

    #[test]
    fn a_guest_without_kvm_has_no_vectors() {
        let port = guest("vm1", "/s");
        let text = libvirt(&port.attachment().expect("vhost-user"), true);
        assert!(text.contains("name='vectors' type='unsigned' value='0'"), "{text}");
        assert!(!self::libvirt_text("vm1", "/s").contains("vectors"));
    }

    #[test]
    fn who_may_not_connect_is_told_how_to() {
        let (port, user) = (guest("vm1", "/r/vm1.sock"), Credentials { uid: 7, gids: vec![0] });
        let port = port.attachment().expect("vhost-user");
        let hint = access_hint(&port, "libvirt-qemu", &user, Path::new("/r/vm1.sock"));
        assert!(hint.ends_with("lasthop port set vm1 socket-group=root"), "{hint}");
        let hint = access_hint(&port, "libvirt-qemu", &user, Path::new("/r"));
        assert!(hint.contains("may not enter /r: "), "{hint}");
    }

    #[test]
    fn libvirt_a_listening_vnic_has_the_vmm_as_client() {
        let text = libvirt_text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock");
        let expected = "<interface type='vhostuser'>\n  \
            <mac address='02:00:00:00:00:01'/>\n  \
            <source type='unix' path='/run/lasthop/vm1.sock' mode='client'>\n    \
            <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
            <model type='virtio'/>\n</interface>\n";
        assert!(text.ends_with(expected) && text.contains("<access mode='shared'/>"), "{text}");
    }

    #[test]
    fn a_connecting_vnic_has_the_vmm_as_server() {
        let text = libvirt_text("vm1,mode=connect,queues=2,mtu=9000", "/a&'b.sock");
        assert!(text.contains("path='/a&amp;&apos;b.sock' mode='server'/>"), "{text}");
        assert!(text.contains("<driver queues='2'/>") && text.contains("<mtu size='9000'/>"), "{text}");
    }

    fn cloud_hypervisor_text(port: &str, socket: &str) -> String {
        cloud_hypervisor(&guest(port, socket).attachment().expect("vhost-user"))
    }

    #[test]
    fn cloud_hypervisor_a_listening_vnic_has_the_vmm_as_client() {
        let expected = "--memory size=1G,shared=on \\\n\
            --net mac=02:00:00:00:00:01,vhost_user=true,socket=/run/lasthop/vm1.sock,vhost_mode=client,\
            num_queues=2,queue_size=256\n";
        assert_eq!(cloud_hypervisor_text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock"), expected);
    }

    #[test]
    fn cloud_hypervisor_a_connecting_vnic_with_queues_and_mtu_is_served() {
        let text = cloud_hypervisor_text("vm1,mode=connect,queues=2,mtu=1400", "/a,b.sock");
        assert!(text.starts_with("--cpus boot=2 \\\n"), "as many CPUs as queue pairs: {text}");
        assert!(
            text.contains("socket=\"/a,b.sock\",vhost_mode=server,num_queues=4,queue_size=256,mtu=1400'\n"),
            "{text}"
        );
    }

    fn testpmd_text(port: &str, socket: &str) -> Result<String, Fault> {
        testpmd(&guest(port, socket).attachment().expect("vhost-user"))
    }

    #[test]
    fn roles_and_queues_are_told() {
        let listening = testpmd_text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock").expect("possible");
        assert!(
            listening.contains(
                "--vdev net_virtio_user0,path=/run/lasthop/vm1.sock,mac=02:00:00:00:00:01,queues=1 "
            ),
            "{listening}"
        );
        let connecting = testpmd_text("vm1,mode=connect,queues=4", "/run/vm 1.sock").expect("possible");
        assert!(connecting.contains("--vdev 'net_virtio_user0,path=/run/vm 1.sock,"), "{connecting}");
        assert!(
            connecting.contains("queues=4,server=1' ") && connecting.contains("--rxq=4 --txq=4"),
            "{connecting}"
        );
        assert!(testpmd_text("vm1", "/a,b.sock").expect_err("a comma").message.contains("comma"));
    }
}
