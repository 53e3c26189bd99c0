//! A vhost-user port as arguments for Cloud Hypervisor.

use crate::remedy::quote;
use lasthop_api::port::VnicMode;
use lasthop_api::report::Attachment;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::guest;

    fn text(port: &str, socket: &str) -> String {
        cloud_hypervisor(&guest(port, socket).attachment().expect("vhost-user"))
    }

    #[test]
    fn a_listening_vnic_has_the_vmm_as_client() {
        let expected = "--memory size=1G,shared=on \\\n\
            --net mac=02:00:00:00:00:01,vhost_user=true,socket=/run/lasthop/vm1.sock,vhost_mode=client,\
            num_queues=2,queue_size=256\n";
        assert_eq!(text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock"), expected);
    }

    #[test]
    fn a_connecting_vnic_with_queues_and_mtu_is_served() {
        let text = text("vm1,mode=connect,queues=2,mtu=1400", "/a,b.sock");
        assert!(text.starts_with("--cpus boot=2 \\\n"), "as many CPUs as queue pairs: {text}");
        assert!(
            text.contains("socket=\"/a,b.sock\",vhost_mode=server,num_queues=4,queue_size=256,mtu=1400'\n"),
            "{text}"
        );
    }
}
