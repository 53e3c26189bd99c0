//! A vnic as elements of a libvirt domain.

use crate::report::VnicReport;
use crate::vnic::Mode;

use super::mac;

/// What goes into `<domain>` and what goes into its `<devices>`.
pub(crate) fn libvirt(vnic: &VnicReport) -> String {
    let path = escape(&vnic.socket.to_string_lossy());
    let source = match vnic.mode {
        Mode::Listen => format!(
            "<source type='unix' path='{path}' mode='client'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>"
        ),
        Mode::Connect => format!("<source type='unix' path='{path}' mode='server'/>"),
    };
    let mut interface =
        vec![format!("<mac address='{}'/>", mac::of(vnic)), source, "<model type='virtio'/>".to_owned()];
    if vnic.queues > 1 {
        interface.push(format!("<driver queues='{}'/>", vnic.queues));
    }
    if let Some(mtu) = vnic.mtu {
        interface.push(format!("<mtu size='{mtu}'/>"));
    }
    format!(
        "<!-- in <domain>: memory that the switch can read and write -->\n\
         <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n\
         <!-- in <devices> -->\n\
         <interface type='vhostuser'>\n  {}\n</interface>\n",
        interface.join("\n  ")
    )
}

/// For an attribute in single quotes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn text(vnic: &str, socket: &str) -> String {
        libvirt(&VnicReport::new(&vnic.parse().expect("a vnic"), PathBuf::from(socket), "running"))
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
