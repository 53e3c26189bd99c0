//! A vhost-user port as a command line of DPDK's testpmd, whose virtio-user port is a guest without a virtual machine.

use crate::remedy::quote;
use lasthop_api::port::VnicMode;
use lasthop_api::report::Attachment;
use lasthop_runtime::fault::Fault;

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

    fn text(port: &str, socket: &str) -> Result<String, Fault> {
        testpmd(&guest(port, socket).attachment().expect("vhost-user"))
    }

    #[test]
    fn roles_and_queues_are_told() {
        let listening = text("vm1,mac=02:00:00:00:00:01", "/run/lasthop/vm1.sock").expect("possible");
        assert!(
            listening.contains(
                "--vdev net_virtio_user0,path=/run/lasthop/vm1.sock,mac=02:00:00:00:00:01,queues=1 "
            ),
            "{listening}"
        );
        let connecting = text("vm1,mode=connect,queues=4", "/run/vm 1.sock").expect("possible");
        assert!(connecting.contains("--vdev 'net_virtio_user0,path=/run/vm 1.sock,"), "{connecting}");
        assert!(
            connecting.contains("queues=4,server=1' ") && connecting.contains("--rxq=4 --txq=4"),
            "{connecting}"
        );
        assert!(text("vm1", "/a,b.sock").expect_err("a comma").message.contains("comma"));
    }
}
