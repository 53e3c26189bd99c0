//! Two network namespaces with a veth pair; one end is an uplink of a switch. Needs root.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::CapabilitySet;

use crate::bench::with_only;
use crate::support::within;

/// Address of the guest; every namespace has a static neighbour entry.
pub(crate) const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub(crate) const GUEST_IP: [u8; 4] = [10, 9, 0, 9];
/// Address at the far end.
pub(crate) const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const FAR_IP: [u8; 4] = [10, 9, 0, 1];
/// Address of the host at the uplink.
pub(crate) const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const HOST_IP: [u8; 4] = [10, 9, 0, 2];
pub(crate) const GUEST_ADDRESS: (std::net::Ipv4Addr, u16) = address(GUEST_IP);
pub(crate) const FAR_ADDRESS: (std::net::Ipv4Addr, u16) = address(FAR_IP);
pub(crate) const HOST_ADDRESS: (std::net::Ipv4Addr, u16) = address(HOST_IP);

const fn address(ip: [u8; 4]) -> (std::net::Ipv4Addr, u16) {
    (std::net::Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]), UDP_PORT)
}

/// The uplink's name.
pub(crate) const UPLINK: &str = "up0";
/// UDP port of the guest, the host and the far end.
pub(crate) const UDP_PORT: u16 = 4000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Runs a command that has to succeed.
pub(crate) fn run(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {text}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The namespaces; dropping deletes them with everything in them.
pub(crate) struct Lab {
    host: String,
    far: String,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with_queues(1)
    }

    pub(crate) fn with_queues(queues: u32) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("lasthop-xdp-{}-{number}-{end}", std::process::id());
        let lab = Self { host: name("host"), far: name("far") };
        run(&format!("ip netns add {}; ip netns add {}", lab.host, lab.far));
        lab.plug(queues);
        lab
    }

    /// Makes the pair.
    pub(crate) fn plug(&self, queues: u32) {
        let Self { host, far } = self;
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let ip = |ip: [u8; 4]| ip.map(|byte| byte.to_string()).join(".");
        for namespace in [host, far] {
            run(&format!(
                "ip netns exec {namespace} sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"
            ));
        }
        run(&format!(
            "ip -n {host} link add {UPLINK} address {} numrxqueues {queues} numtxqueues {queues} type veth \
             peer name far0 address {} numrxqueues {queues} numtxqueues {queues} netns {far}",
            mac(HOST_MAC),
            mac(FAR_MAC),
        ));
        for (namespace, device, own, others) in [
            (host, UPLINK, HOST_IP, [(GUEST_IP, GUEST_MAC), (FAR_IP, FAR_MAC)]),
            (far, "far0", FAR_IP, [(GUEST_IP, GUEST_MAC), (HOST_IP, HOST_MAC)]),
        ] {
            run(&format!("ip -n {namespace} addr add {}/24 dev {device}", ip(own)));
            run(&format!("ip -n {namespace} link set {device} up; ip -n {namespace} link set lo up"));
            for (other, address) in others {
                run(&format!(
                    "ip -n {namespace} neigh replace {} lladdr {} dev {device} nud permanent",
                    ip(other),
                    mac(address)
                ));
            }
        }
    }

    /// Removes the pair.
    pub(crate) fn unplug(&self) {
        run(&format!("ip -n {} link del {UPLINK}", self.host));
    }

    /// The name of the uplink's namespace.
    pub(crate) fn host_name(&self) -> &str {
        &self.host
    }

    /// Like [`Self::on_host`], without capabilities.
    pub(crate) fn on_host_without_capabilities<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.on_host(|| with_only(CapabilitySet::empty(), work))
    }

    /// Whether the stack at the uplink has programs: our filter keeps datagrams from the stack.
    pub(crate) fn has_stack_programs(&self) -> bool {
        let (far, stack) = (self.far_socket(), self.host_socket());
        far.send_to(b"anybody there?", HOST_ADDRESS).unwrap();
        stack.recv(&mut [0; 64]).is_err()
    }

    /// Runs `work` in the uplink's namespace.
    pub(crate) fn on_host<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        within(&self.host, work)
    }

    /// Runs `work` in the far end's namespace.
    pub(crate) fn far_away<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        within(&self.far, work)
    }

    /// Frames that the far end could not send into the pair.
    pub(crate) fn far_drops(&self) -> u64 {
        let told = self.far_command("cat /sys/class/net/far0/statistics/tx_dropped");
        told.trim().parse().unwrap()
    }

    /// Runs a command at the uplink.
    pub(crate) fn host_command(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.host))
    }

    /// Runs a command at the far end.
    pub(crate) fn far_command(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.far))
    }

    pub(crate) fn host_socket(&self) -> UdpSocket {
        self.on_host(|| udp(HOST_IP))
    }

    pub(crate) fn far_socket(&self) -> UdpSocket {
        self.far_away(|| udp(FAR_IP))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in [&self.host, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn udp(ip: [u8; 4]) -> UdpSocket {
    let socket = UdpSocket::bind(address(ip)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}
