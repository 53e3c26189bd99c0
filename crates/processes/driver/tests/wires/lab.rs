//! Namespaces with wires between them, a switch, and a driver whose ports are the wires' other ends.

use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use lasthop_device::OpenedDevice;
use lasthop_driver::{DevicePortId, DevicePortStats, Driver, DriverEvent, DriverSettings};
use lasthop_module_api::PortId;
use lasthop_netdev::{PacketOptions, TapOptions};

use crate::support::{self, Switch};

/// Queue pairs of each port of the switch.
pub(crate) const QUEUE_PAIRS: u16 = 2;

/// A network namespace, deleted when dropped.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lhdrv-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        succeed("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.run("ip link set lo up");
        namespace.run("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        namespace
    }

    /// Runs `work` in a thread inside the namespace.
    pub(crate) fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        support::within(&self.name, work)
    }

    /// Runs a command, given as words separated by blanks, which has to succeed; returns its output.
    pub(crate) fn run(&self, command: &str) -> String {
        let output = self.output(command);
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn output(&self, command: &str) -> Output {
        let words = ["netns", "exec", &self.name].into_iter().chain(command.split_whitespace());
        Command::new("ip").args(words).output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        succeed("ip", &["netns", "del", &self.name]);
    }
}

fn succeed(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A switch, a driver, and a namespace with the devices that the driver serves.
pub(crate) struct Lab {
    pub(crate) driver: Driver,
    pub(crate) switch: Switch,
    pub(crate) host: Namespace,
    knives: Vec<(DevicePortId, PortId, UnixStream)>,
}

impl Lab {
    pub(crate) fn new(threads: usize) -> Self {
        let settings = DriverSettings { threads, ..DriverSettings::default() };
        Self {
            driver: Driver::start(&settings).unwrap(),
            switch: Switch::start(),
            host: Namespace::new(),
            knives: Vec::new(),
        }
    }

    /// A namespace with `eth0`, which is one end of a wire; the other one is `name` in the host's namespace.
    pub(crate) fn wire(&self, name: &str, address: &str, mtu: u32) -> Namespace {
        let namespace = Namespace::new();
        self.rewire(&namespace, name, address, mtu);
        namespace
    }

    pub(crate) fn rewire(&self, namespace: &Namespace, name: &str, address: &str, mtu: u32) {
        let peer = &namespace.name;
        self.host
            .run(&format!("ip link add {name} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {peer}"));
        self.host.run(&format!("ip link set {name} up"));
        namespace.run(&format!("ip address add {address}/24 dev eth0"));
        let last = address.rsplit('.').next().unwrap();
        namespace.run(&format!("ip -6 address add fd00::{last}/64 dev eth0 nodad"));
        namespace.run("ip link set eth0 up");
    }

    pub(crate) fn open_packet(&self, name: &str, options: PacketOptions) -> OpenedDevice {
        self.host.within(|| lasthop_netdev::packet(name, options)).unwrap()
    }

    /// Makes an opened device a port of the switch.
    pub(crate) fn attach(&mut self, number: u32, device: OpenedDevice) -> DevicePortId {
        let (id, port) = (DevicePortId(number), self.switch.add_port(&device.facts.name, QUEUE_PAIRS));
        let (front, knife) = self.switch.serve(port);
        self.driver.attach(id, device.facts, device.descriptors, front).unwrap();
        self.knives.push((id, port, knife));
        id
    }

    /// Adds a wire that ends in a port.
    pub(crate) fn packet_port(&mut self, number: u32, mtu: u32, options: PacketOptions) -> Namespace {
        let name = format!("wire{number}");
        let namespace = self.wire(&name, &format!("192.0.2.{number}"), mtu);
        let device = self.open_packet(&name, options);
        self.attach(number, device);
        namespace
    }

    /// Adds a tap as a port; returns the namespace with the host's end.
    pub(crate) fn tap_port(&mut self, number: u32, options: TapOptions) -> Namespace {
        let namespace = Namespace::new();
        let device = namespace.within(|| lasthop_netdev::tap("tap0", options)).unwrap();
        namespace.run(&format!("ip address add 192.0.2.{number}/24 dev tap0"));
        namespace.run(&format!("ip -6 address add fd00::{number}/64 dev tap0 nodad"));
        self.attach(number, device);
        namespace
    }

    /// Cuts the switch's end of a port's connection. Returns the connection that serves the port then.
    pub(crate) fn cut(&mut self, id: DevicePortId) -> UnixStream {
        let at = self.knives.iter().position(|(other, ..)| *other == id).unwrap();
        let (_, port, knife) = self.knives.remove(at);
        knife.shutdown(std::net::Shutdown::Both).unwrap();
        self.knives.push((id, port, knife));
        self.reconnect(id)
    }

    /// Waits until a port requests another connection to the switch, and makes one.
    pub(crate) fn reconnect(&mut self, id: DevicePortId) -> UnixStream {
        let event = self.event();
        assert!(matches!(event, DriverEvent::SwitchGone { port, .. } if port == id), "{event:?}");
        let at = self.knives.iter().position(|(other, ..)| *other == id).unwrap();
        let (_, port, _) = self.knives.remove(at);
        let (front, knife) = self.switch.serve(port);
        self.knives.push((id, port, knife));
        front
    }

    pub(crate) fn event(&mut self) -> DriverEvent {
        support::event(&mut self.driver)
    }

    pub(crate) fn port(&self, id: u32) -> DevicePortStats {
        support::port(&self.driver, id)
    }

    /// Checks that every frame is accounted for, in the driver and in the switch.
    pub(crate) fn assert_conserved(&self) {
        support::assert_conserved(&self.driver, &self.switch);
    }
}
