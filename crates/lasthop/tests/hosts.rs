//! The host's own stack at an uplink of the built binary: separated, or at its own port.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use lasthop_rig::guests::{ONE, check_balance, frame, guest, send};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually, signal, stop};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
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

    fn driver(&self) -> Option<u32> {
        self.show("wire")["driver"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
    }

    fn kill_driver(&self) {
        let first = self.driver().expect("a driver process");
        signal(first, Signal::KILL);
        eventually("another driver", || self.driver().is_some_and(|pid| pid != first).then_some(()));
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

/// All eventfds of a process.
fn event_fds(pid: u32) -> Vec<OwnedFd> {
    let process = Pid::from_raw(pid as i32).expect("a process");
    let process = pidfd_open(process, PidfdFlags::empty()).expect("running");
    let of_process = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
    let numbers = of_process.filter_map(|fd| {
        let target = std::fs::read_link(fd.path()).ok()?;
        (target.to_str()? == "anon_inode:[eventfd]").then(|| fd.file_name().to_str()?.parse().ok()).flatten()
    });
    numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()).collect()
}

#[test]
fn a_device_port_that_the_switch_stopped_connects_again() {
    if !may() {
        return;
    }
    let lab = Lab::new("wire,host=port");
    lab.switch.ask(&["port", "add", "wire-host,tap=wire-host"]).ok();
    lab.until_they_talk();
    let mut vm1 = guest(&lab.switch, "vm1", ONE);
    let driver = lab.driver().expect("a driver process");
    // A driver process that was taken over: the switch's writes to its call eventfds block.
    signal(driver, Signal::STOP);
    let eventfds = event_fds(driver);
    for fd in &eventfds {
        while rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
            let _ = rustix::io::read(fd, &mut [0_u8; 8][..]);
        }
        fcntl_setfl(fd, fcntl_getfl(fd).expect("flags") - OFlags::NONBLOCK).expect("flags");
    }
    send(&mut vm1, &frame([0xff; 6], ONE, 7, 60));
    for port in ["wire", "wire-host"] {
        let line = format!("port {port}: its rings are stopped: a call eventfd blocks");
        eventually(&line, || lab.switch.log().contains(&line).then_some(()));
    }
    for fd in eventfds {
        fcntl_setfl(&fd, fcntl_getfl(&fd).expect("flags") | OFlags::NONBLOCK).expect("flags");
        // Its threads do not read them: a full one would wake none of them for ever.
        let _ = rustix::io::read(&fd, &mut [0_u8; 8][..]);
    }
    signal(driver, Signal::CONT);
    lab.until_they_talk();
    assert_eq!(lab.driver(), Some(driver), "{}", lab.switch.log());
    check_balance(&lab.switch);
}

/// The number that the kernel gave an eventfd of a process (proc_pid_fdinfo(5)).
fn event_id(process: &str, fd: &str) -> Option<String> {
    let told = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).ok()?;
    told.lines().find(|line| line.starts_with("eventfd-id:")).map(str::to_owned)
}

/// Has the writes of a driver process's main thread to its I/O threads block.
fn hang(driver: u32, switch: u32) {
    let id = |fd: &OwnedFd| event_id("self", &fd.as_raw_fd().to_string());
    // Those of the rings are the switch process's, too.
    let shared: Vec<_> = event_fds(switch).iter().map(id).collect();
    let own = event_fds(driver).into_iter().filter(|fd| !shared.contains(&id(fd)));
    let own: Vec<OwnedFd> = own.collect();
    assert!(!own.is_empty() && id(&own[0]).is_some());
    for fd in own {
        while rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
            let _ = rustix::io::read(&fd, &mut [0_u8; 8][..]);
        }
        fcntl_setfl(&fd, fcntl_getfl(&fd).expect("flags") - OFlags::NONBLOCK).expect("flags");
    }
}

#[test]
fn a_driver_process_that_hangs_is_named_and_another_one_takes_its_place() {
    if !may() {
        return;
    }
    let lab = Lab::new("wire,host=port");
    lab.switch.ask(&["port", "add", "wire-host,tap=wire-host"]).ok();
    lab.until_they_talk();
    let driver = lab.driver().expect("a driver process");
    // One that somebody has stopped goes on.
    stop(driver);
    let shown = lab.show("wire");
    assert_eq!(shown["driver"]["pid"], driver, "what is known without it: {shown}");
    let said = |why: &str| format!("the driver process (process {driver}) {why}");
    let until = |line: String| eventually(&line, || lab.switch.log().contains(&line).then_some(()));
    until(said("does not answer: it is stopped (T)"));
    signal(driver, Signal::CONT);
    until(said("answers again"));
    lab.until_they_talk();
    assert_eq!(lab.driver(), Some(driver), "{}", lab.switch.log());
    hang(driver, lab.switch.switch_pid().expect("a switch process"));
    // Nothing but the question tells of it.
    lab.show("wire");
    until(said("does not answer: it waits for something (S); ending it"));
    until(format!("the driver process {driver} was killed by signal 9"));
    eventually("another one", || lab.driver().filter(|pid| *pid != driver));
    for port in ["wire", "wire-host"] {
        lab.until(port, "up");
    }
    lab.until_they_talk();
    check_balance(&lab.switch);
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
