//! Three processes in one thread: a supervisor that gives orders to the other two, and the order in which these get
//! them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lasthop_controller::{Controller, LINKS, SwitchConfig};
use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::PacketMessage;
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::server::{DatapathUpcall, PeerId, Server, UpcallKind, Upcalled};
use lasthop_flowtable::describe;
use lasthop_module_api::PortSettings;
use lasthop_wire::Metadata;

pub(crate) const SWITCHES: usize = 3;
const MILLI_NS: u64 = 1_000_000;

/// The next event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    AddSwitch(usize),
    RemoveSwitch(usize),
    /// Another client takes the datapath for a moment.
    LoseDatapath(usize),
    AddPort(usize, usize),
    RemovePort(usize),
    /// The switch process executes an order of the supervisor.
    Serve,
    /// The controller gets an order of the supervisor.
    Tell,
    /// A datagram goes from the controller to the switch process.
    Send(usize),
    /// A datagram goes back.
    Answer(usize),
    Turn,
    /// This number of milliseconds passes.
    Wait(u64),
    /// All connections are lost and made again.
    Reconnect,
}

/// An order of the supervisor.
#[derive(Clone, Debug)]
enum Order {
    AddSwitch(String),
    RemoveSwitch(String),
    LoseDatapath(String),
    AddPort { switch: String, port: String },
    RemovePort { switch: String, port: String },
}

pub(crate) struct World {
    /// The supervisor's state: ports by switch.
    switches: BTreeMap<String, BTreeSet<String>>,
    to_switch: VecDeque<Order>,
    to_controller: VecDeque<Order>,
    server: Server,
    datapath: MemoryDatapath,
    controller: Controller,
    peers: [PeerId; LINKS],
    nonce: u32,
    now_ns: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut datapath = MemoryDatapath::new();
        (datapath.devices, datapath.switches) = (Some(BTreeSet::new()), Some(BTreeSet::new()));
        Self {
            switches: BTreeMap::new(),
            to_switch: VecDeque::new(),
            to_controller: VecDeque::new(),
            server: Server::new(),
            datapath,
            controller: Controller::new(0x100),
            peers: [PeerId(1), PeerId(2)],
            nonce: 0x100,
            now_ns: 1_000_000 * MILLI_NS,
        }
    }

    pub(crate) fn step(&mut self, event: Event) {
        match event {
            Event::AddSwitch(number) => {
                let name = format!("s{number}");
                if !self.switches.contains_key(&name) {
                    self.switches.insert(name.clone(), BTreeSet::new());
                    self.to_switch.push_back(Order::AddSwitch(name));
                }
            }
            Event::RemoveSwitch(number) => self.remove_switch(&format!("s{number}")),
            Event::LoseDatapath(number) => {
                self.to_switch.push_back(Order::LoseDatapath(format!("s{number}")))
            }
            Event::AddPort(number, port) => {
                let (switch, port) = (format!("s{number}"), format!("p{}", 2 * number + port));
                if self.switches.get_mut(&switch).is_some_and(|ports| ports.insert(port.clone())) {
                    self.to_switch.push_back(Order::AddPort { switch, port });
                }
            }
            Event::RemovePort(number) => self.remove_port(&format!("p{number}")),
            Event::Serve => self.carry_out(),
            Event::Tell => self.tell(),
            Event::Send(link) => {
                self.send(link);
            }
            Event::Answer(link) => {
                self.answer(link);
            }
            Event::Turn => {
                self.turn();
            }
            Event::Wait(millis) => self.now_ns += millis * MILLI_NS,
            Event::Reconnect => self.reconnect(),
        }
    }

    /// Whether there is more to do. If not, nothing is due: the process would take turns without an end.
    fn turn(&mut self) -> bool {
        let has_more = self.controller.turn(self.now_ns);
        let due_ns = self.controller.due_ns();
        assert!(
            has_more || due_ns.is_none_or(|due_ns| due_ns > self.now_ns),
            "due at {due_ns:?}, now {}",
            self.now_ns
        );
        has_more
    }

    fn remove_switch(&mut self, name: &str) {
        if self.switches.get(name).is_some_and(BTreeSet::is_empty) {
            self.switches.remove(name);
            self.to_switch.push_back(Order::RemoveSwitch(name.to_owned()));
            self.to_controller.push_back(Order::RemoveSwitch(name.to_owned()));
        }
    }

    fn remove_port(&mut self, port: &str) {
        for (switch, ports) in &mut self.switches {
            if ports.remove(port) {
                let order = Order::RemovePort { switch: switch.clone(), port: port.to_owned() };
                self.to_switch.push_back(order.clone());
                self.to_controller.push_back(order);
            }
        }
    }

    /// The switch process gets orders first; the controller only learns of things that the switch process has.
    fn carry_out(&mut self) {
        let Some(order) = self.to_switch.pop_front() else { return };
        let Self { server, datapath, .. } = self;
        let (Some(switches), Some(devices)) = (&mut datapath.switches, &mut datapath.devices) else { return };
        match order {
            Order::AddSwitch(name) => {
                switches.insert(name.clone());
                let is_awaited = |order: &Order| matches!(order, Order::AddSwitch(other) if *other == name);
                if self.switches.contains_key(&name) && !self.to_switch.iter().any(is_awaited) {
                    self.to_controller.push_back(Order::AddSwitch(name));
                }
            }
            Order::RemoveSwitch(name) => {
                switches.remove(&name);
                server.datapath_lost(&name, datapath);
            }
            Order::LoseDatapath(name) => server.datapath_lost(&name, datapath),
            Order::AddPort { switch, port } => {
                devices.insert(port.clone());
                let is_awaited =
                    |order: &Order| matches!(order, Order::AddPort { port: other, .. } if *other == port);
                let is_there = self.switches.get(&switch).is_some_and(|ports| ports.contains(&port));
                if is_there && !self.to_switch.iter().any(is_awaited) {
                    self.to_controller.push_back(Order::AddPort { switch, port });
                }
            }
            Order::RemovePort { port, .. } => {
                devices.remove(&port);
                server.port_lost(&port, datapath);
            }
        }
    }

    fn tell(&mut self) {
        match self.to_controller.pop_front() {
            Some(Order::AddSwitch(name)) => self.controller.set_switch(&SwitchConfig::named(&name)),
            Some(Order::RemoveSwitch(name)) => self.controller.remove_switch(&name),
            Some(Order::AddPort { switch, port }) => {
                self.controller.set_port(&switch, PortSettings { name: port, ..PortSettings::default() });
            }
            Some(Order::RemovePort { switch, port }) => self.controller.remove_port(&switch, &port),
            Some(Order::LoseDatapath(_)) | None => {}
        }
    }

    fn send(&mut self, link: usize) -> bool {
        let peer = self.peers[link];
        let datagram = self.controller.output(link).map(<[u8]>::to_vec);
        let Some(datagram) = datagram.filter(|_| self.server.wants_input(peer)) else { return false };
        self.controller.sent(link);
        self.server.received(peer, datagram, &mut self.datapath).expect("a good client");
        true
    }

    fn answer(&mut self, link: usize) -> bool {
        let Some(datagram) = self.server.output(self.peers[link]).map(<[u8]>::to_vec) else { return false };
        self.server.sent(self.peers[link], &mut self.datapath);
        self.controller.received(link, &datagram, self.now_ns);
        true
    }

    fn reconnect(&mut self) {
        for peer in &mut self.peers {
            self.server.disconnected(*peer);
            peer.0 += LINKS as u64;
        }
        self.nonce += 0x100;
        self.controller.reconnected(self.nonce);
    }

    /// Passes messages until none is left.
    pub(crate) fn settle_soon(&mut self) {
        while !self.to_switch.is_empty() || !self.to_controller.is_empty() {
            self.carry_out();
            self.tell();
        }
        loop {
            let mut is_busy = self.turn();
            for link in 0..LINKS {
                while self.send(link) | self.answer(link) {
                    is_busy = true;
                }
            }
            if !is_busy {
                return;
            }
        }
    }

    /// Like [`Self::settle_soon`], and continues until no time-out is pending.
    pub(crate) fn settle(&mut self) {
        for _ in 0..60 {
            self.settle_soon();
            self.now_ns += 100 * MILLI_NS;
        }
    }

    pub(crate) fn check(&mut self) {
        assert!(self.controller.is_settled(), "{:?}", self.controller);
        let told = self.server.records().values().map(|known| {
            let ports = known.ports.values().filter(|port| port.number != 0).map(|port| port.name.clone());
            (known.name.clone(), ports.collect())
        });
        assert_eq!(told.collect::<BTreeMap<String, BTreeSet<String>>>(), self.switches);
        let records = self.server.records().clone();
        for (id, known) in records {
            for number in known.ports.keys().filter(|number| **number != 0) {
                self.check_miss(id, &known.name, *number);
            }
        }
    }

    /// Sends a miss, and checks that its port is known.
    fn check_miss(&mut self, id: DatapathId, switch: &str, number: u32) {
        let metadata = Metadata { in_port: number as u16, ..Metadata::default() };
        let packet = [&[0xff; 6][..], &[2, 0, 0, 0, 0, number as u8], &[8, 0], &[0; 46]].concat();
        let key = describe(&packet, &metadata);
        let message = PacketMessage { datapath: id.0, packet, key, ..PacketMessage::default() };
        let upcall = DatapathUpcall { kind: UpcallKind::Miss, port: number, worker: 0, message };
        let before = self.controller.stats_of(switch).expect("it is served");
        assert_eq!(self.server.upcall(upcall), Upcalled::Batched);
        self.settle_soon();
        let after = self.controller.stats_of(switch).expect("it is served");
        let (misses, strange) = (after.misses - before.misses, after.strange - before.strange);
        assert_eq!((misses, strange), (1, 0), "{switch} port {number}: {:?}", self.controller);
    }
}
