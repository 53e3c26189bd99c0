//! The host's own stack at an uplink of the built binary: separated, or at its own port.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use lasthop_rig::guests::{ONE, check_balance, guest};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually, signal};
use rustix::process::Signal;
use serde_json::Value;

const HOST: &str = "192.0.2.1:4000";
const OUTSIDE: &str = "192.0.2.9:4000";

/// A switch in a namespace with `wire`, which leads to another namespace; both have an address on it.
struct Lab {
    switch: Switch,
    host: Namespace,
    outside: Namespace,
}

impl Lab {
    fn new(uplink: &str) -> Self {
        let (host, outside) = (Namespace::new(), Namespace::new());
        host.wire("wire", &outside, "eth0");
        host.ip("addr add 192.0.2.1/24 dev wire");
        outside.ip("addr add 192.0.2.9/24 dev eth0");
        let switch = Switch::start_in(host.name(), &["--vnic", "vm1", "--uplink", uplink]);
        Self { switch, host, outside }
    }

    fn show(&self, port: &str) -> Value {
        self.switch.json(&["port", "show", port])
    }

    fn until(&self, port: &str, state: &str) {
        eventually(&format!("{port} {state}"), || (self.show(port)["state"] == state).then_some(()));
    }

    fn kill_driver(&self) {
        let driver = || self.show("wire")["driver"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let first = driver().expect("a driver process");
        signal(first, Signal::KILL);
        eventually("another driver", || driver().is_some_and(|pid| pid != first).then_some(()));
        self.until("wire", "up");
    }

    /// Whether a datagram from outside reaches the host's stack, and the answer returns.
    fn can_talk(&self) -> bool {
        let bind = |address: &str| {
            // A process that another test starts may have the earlier socket for a moment, until its exec.
            let socket = eventually("the address", || UdpSocket::bind(address).ok());
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
            socket
        };
        let (host, outside) = (self.host.within(|| bind(HOST)), self.outside.within(|| bind(OUTSIDE)));
        let mut bytes = [0; 16];
        let pass = |from: &UdpSocket, to: &UdpSocket, address: &str, bytes: &mut [u8]| {
            let address: SocketAddr = address.parse().expect("an address");
            // The next call reports a neighbour that does not answer.
            let _ = from.send_to(b"hello", address);
            match to.recv_from(bytes) {
                Ok((len, _)) => bytes[..len] == *b"hello",
                Err(error) => {
                    // Interrupted: the test's processes were stopped and continued.
                    assert!(
                        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
                        "{error}"
                    );
                    false
                }
            }
        };
        pass(&outside, &host, HOST, &mut bytes) && pass(&host, &outside, OUTSIDE, &mut bytes)
    }

    fn until_they_talk(&self) {
        eventually("host and outside talk", || self.can_talk().then_some(()));
    }
}

#[test]
fn a_host_that_is_shut_out_stays_out_while_the_driver_is_away() {
    if !may() {
        return;
    }
    for backend in ["af_packet", "af_xdp"] {
        let lab = Lab::new(&format!("wire,host=off,backend={backend}"));
        lab.until("wire", "up");
        assert_eq!(lab.show("wire")["backend"], backend);
        assert!(!lab.can_talk(), "{backend}");
        lab.kill_driver();
        assert!(!lab.can_talk(), "{backend}, with another driver");
        let _vm1 = guest(&lab.switch, "vm1", ONE);
        check_balance(&lab.switch);
        lab.switch.ask(&["port", "del", "wire"]).ok();
        lab.until_they_talk();
    }
}

#[test]
fn a_host_talks_by_a_port_of_its_own() {
    if !may() {
        return;
    }
    for backend in ["af_packet", "af_xdp"] {
        let lab = Lab::new(&format!("wire,host=port,backend={backend}"));
        eventually("the remedy", || {
            let shown = lab.switch.ask(&["port", "show", "wire"]).ok();
            shown.contains("lasthop port add wire-host,tap=wire-host").then_some(())
        });
        lab.switch.ask(&["port", "add", "wire-host,tap=wire-host"]).ok();
        for port in ["wire", "wire-host"] {
            lab.until(port, "up");
        }
        lab.until_they_talk();
        let by_switch = lab.show("wire-host")["counters"]["to_device"]["frames"].as_u64();
        assert!(by_switch > Some(0), "{backend}: {by_switch:?}");
        check_balance(&lab.switch);
        lab.kill_driver();
        lab.until_they_talk();
        signal(lab.switch.switch_pid().expect("a switch process"), Signal::KILL);
        eventually("the switch", || lab.switch.log().contains("running again").then_some(()));
        lab.until_they_talk();
        lab.switch.ask(&["port", "del", "wire-host"]).ok();
        lab.switch.ask(&["port", "add", "wire-host,tap=wire-host"]).ok();
        lab.until_they_talk();
    }
}

#[test]
fn what_cannot_be_is_said_with_the_remedy() {
    if !may() {
        return;
    }
    let lab = Lab::new("wire,backend=af_xdp");
    eventually("the reason", || {
        let shown = lab.switch.ask(&["port", "show", "wire"]).ok();
        shown.contains("set host = \"off\" or \"port\", or use backend = \"af_packet\"").then_some(())
    });
}
