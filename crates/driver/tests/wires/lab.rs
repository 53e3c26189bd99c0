//! Namespaces with wires between them, a switch, and a driver whose ports are the wires' other ends.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_driver::open::{self, PacketOptions, TapOptions};
use lasthop_driver::{Driver, DriverEvent, DriverSettings, OpenedDevice, PortId as DriverPort, PortStats};
use lasthop_engine::{Engine, EngineSettings, PortConfig};
use lasthop_modules::BridgeSettings;
use lasthop_verdict::{Module, PortId};
use lasthop_vhost::Session;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Long enough for the slowest machine; nothing is asserted about time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace, deleted when dropped.
pub(crate) struct Namespace {
    pub(crate) name: String,
    file: OwnedFd,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lhdrv-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        succeed("ip", &["netns", "add", &name]);
        let file = std::fs::File::open(format!("/run/netns/{name}")).unwrap().into();
        let namespace = Self { name, file };
        namespace.run("ip link set lo up");
        namespace.run("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        namespace
    }

    /// Runs `work` in a thread that is in the namespace.
    pub(crate) fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }

    /// A command, its words separated by blanks, which has to succeed; its output.
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

/// A switch with a bridge, and the sessions of its ports.
pub(crate) struct Switch {
    pub(crate) engine: Engine,
    sessions: Vec<JoinHandle<()>>,
}

impl Switch {
    pub(crate) fn start() -> Self {
        let module: Arc<dyn Module> =
            lasthop_modules::by_name("bridge", &BridgeSettings::default()).unwrap().into();
        Self { engine: Engine::start(module, &EngineSettings::default()).unwrap(), sessions: Vec::new() }
    }

    pub(crate) fn add_port(&self, name: &str) -> PortId {
        let config = PortConfig { name: name.into(), queue_pairs: 2, ..PortConfig::default() };
        self.engine.add_port(config).unwrap()
    }

    /// Serves a session on a port in a thread of its own; the front end's socket, and one to end the session with.
    pub(crate) fn serve(&mut self, port: PortId) -> (UnixStream, UnixStream) {
        self.try_serve(port).unwrap()
    }

    /// As `serve`; None while the port is another session's.
    pub(crate) fn try_serve(&mut self, port: PortId) -> Option<(UnixStream, UnixStream)> {
        let (front, back) = UnixStream::pair().unwrap();
        let knife = back.try_clone().unwrap();
        let mut session = Session::new(OwnedFd::from(back), self.engine.device(port).ok()?).unwrap();
        self.sessions.push(std::thread::spawn(move || {
            loop {
                let wanted =
                    if session.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                poll(&mut [PollFd::new(&session.fd(), wanted)], None).unwrap();
                if session.ready().is_err() {
                    return;
                }
            }
        }));
        Some((front, knife))
    }

    pub(crate) fn assert_conserved(&self) {
        let stats = self.engine.stats().unwrap();
        for port in &stats.ports {
            assert!(port.counters.is_conserved(), "{port:?}");
        }
        let forwarded: u64 = stats.ports.iter().map(|port| port.counters.forwarded).sum();
        let delivered: u64 = stats.ports.iter().map(|port| port.counters.tx_packets).sum();
        assert_eq!(forwarded, delivered);
    }
}

/// A switch, a driver, and a namespace where the devices are that the driver serves.
pub(crate) struct Lab {
    pub(crate) driver: Driver,
    pub(crate) switch: Switch,
    pub(crate) host: Namespace,
    knives: Vec<(DriverPort, PortId, UnixStream)>,
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
        self.host.within(|| open::packet(name, options)).unwrap()
    }

    /// Makes an opened device a port of the switch.
    pub(crate) fn attach(&mut self, number: u32, device: OpenedDevice) -> DriverPort {
        let (id, port) = (DriverPort(number), self.switch.add_port(&device.facts.name));
        let (front, knife) = self.switch.serve(port);
        self.driver.attach(id, device.facts, device.queues, front).unwrap();
        self.knives.push((id, port, knife));
        id
    }

    /// A wire whose end is a port.
    pub(crate) fn packet_port(&mut self, number: u32, mtu: u32, options: PacketOptions) -> Namespace {
        let name = format!("wire{number}");
        let namespace = self.wire(&name, &format!("192.0.2.{number}"), mtu);
        let device = self.open_packet(&name, options);
        self.attach(number, device);
        namespace
    }

    /// A tap that is a port; its namespace is where the host's end is.
    pub(crate) fn tap_port(&mut self, number: u32, options: TapOptions) -> Namespace {
        let namespace = Namespace::new();
        let device = namespace.within(|| open::tap("tap0", options)).unwrap();
        namespace.run(&format!("ip address add 192.0.2.{number}/24 dev tap0"));
        namespace.run(&format!("ip -6 address add fd00::{number}/64 dev tap0 nodad"));
        self.attach(number, device);
        namespace
    }

    /// The switch's end of a port's connection is cut; the connection to what serves the port then.
    pub(crate) fn cut(&mut self, id: DriverPort) -> UnixStream {
        let at = self.knives.iter().position(|(other, ..)| *other == id).unwrap();
        let (_, port, knife) = self.knives.remove(at);
        knife.shutdown(std::net::Shutdown::Both).unwrap();
        self.knives.push((id, port, knife));
        self.reconnect(id)
    }

    /// Waits for a port to want another connection to the switch, and makes one.
    pub(crate) fn reconnect(&mut self, id: DriverPort) -> UnixStream {
        let event = self.event();
        assert!(matches!(event, DriverEvent::SwitchGone { port, .. } if port == id), "{event:?}");
        let at = self.knives.iter().position(|(other, ..)| *other == id).unwrap();
        let (_, port, _) = self.knives.remove(at);
        let mut front = None;
        eventually("the old session has ended", || {
            front = self.switch.try_serve(port);
            front.is_some()
        });
        let (front, knife) = front.unwrap();
        self.knives.push((id, port, knife));
        front
    }

    pub(crate) fn event(&mut self) -> DriverEvent {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.driver.next_event() {
                return event;
            }
            assert!(Instant::now() < until, "no event comes");
            let timeout = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&self.driver.events_fd(), PollFlags::IN)], Some(&timeout)).unwrap();
        }
    }

    pub(crate) fn port(&self, id: u32) -> PortStats {
        let stats = self.driver.stats().unwrap();
        stats.ports.into_iter().find(|stats| stats.port == DriverPort(id)).unwrap()
    }

    /// Every frame is accounted for, in the driver and in the switch.
    pub(crate) fn assert_conserved(&self) {
        for port in self.driver.stats().unwrap().ports {
            assert!(port.counters.is_conserved(), "{port:?}");
        }
        self.switch.assert_conserved();
    }
}

/// Waits for a condition that somebody else brings about.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
