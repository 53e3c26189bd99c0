//! A vhost-user port as elements of a libvirt domain.

use std::path::Path;

use lasthop_api::port::VnicMode;
use lasthop_api::report::Attachment;

use crate::permissions::Credentials;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::guest;

    fn text(port: &str, socket: &str) -> String {
        libvirt(&guest(port, socket).attachment().expect("vhost-user"), false)
    }

    #[test]
    fn a_guest_without_kvm_has_no_vectors() {
        let port = guest("vm1", "/s");
        let text = libvirt(&port.attachment().expect("vhost-user"), true);
        assert!(text.contains("name='vectors' type='unsigned' value='0'"), "{text}");
        assert!(!self::text("vm1", "/s").contains("vectors"));
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
    fn a_listening_vnic_has_the_vmm_as_client() {
        let text = text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock");
        let expected = "<interface type='vhostuser'>\n  \
            <mac address='02:00:00:00:00:01'/>\n  \
            <source type='unix' path='/run/lasthop/vm1.sock' mode='client'>\n    \
            <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
            <model type='virtio'/>\n</interface>\n";
        assert!(text.ends_with(expected) && text.contains("<access mode='shared'/>"), "{text}");
    }

    #[test]
    fn a_connecting_vnic_has_the_vmm_as_server() {
        let text = text("vm1,mode=connect,queues=2,mtu=9000", "/a&'b.sock");
        assert!(text.contains("path='/a&amp;&apos;b.sock' mode='server'/>"), "{text}");
        assert!(text.contains("<driver queues='2'/>") && text.contains("<mtu size='9000'/>"), "{text}");
    }
}
