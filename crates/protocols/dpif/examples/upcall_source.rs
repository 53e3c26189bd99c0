//! A datapath that only asks, to measure how fast a control plane answers: `upcall_source SOCKET`. `bench/ovs-limit` runs it.
//!
//! It never sleeps while it measures, so an answer never waits for it. Each line of standard input is an order:
//!
//! ```text
//! learn COUNT                    each of COUNT addresses of both ports sends a broadcast
//! measure COUNT WINDOW           COUNT packets, each the first of its flow, of which at most WINDOW are unanswered
//! ```
//!
//! and it is answered by a line with the time in ns, the number of flows that were installed meanwhile, and the median and
//! the 99th of 100 of the times from question to answer in ns.

#![allow(clippy::print_stdout, reason = "a measurement says what it found")]

use std::error::Error;
use std::io::{BufRead, BufReader, Stdin, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::PacketMessage;
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::server::{DatapathUpcall, Server, UpcallKind, Upcalled};
use lasthop_dpif::socket::{Access, Connections};
use lasthop_flow::{Ethernet, FRAGMENT_NONE, FlowKey, Ipv4, Ports};
use lasthop_module_api::Mac;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The devices of both ports.
const PORTS: [&str; 2] = ["port0", "port1"];
/// Addresses of each port.
const ADDRESSES: u32 = 1024;
/// A control plane that answers nothing for so long has lost a packet.
const PATIENCE: Duration = Duration::from_secs(5);
const UDP: u8 = 17;

/// The first packet of flow `number`, from port 0 to port 1: it has other addresses, and other ports of UDP, than earlier ones.
fn first(number: u32) -> ([Mac; 2], [u16; 2]) {
    let (src, dst) = (number % ADDRESSES, number / ADDRESSES % ADDRESSES);
    let [_, _, high, low] = number.to_be_bytes();
    (
        [address(0, src), address(1, dst)],
        [1024 + u16::from(number.to_be_bytes()[1]), u16::from_be_bytes([high, low])],
    )
}

fn address(port: u8, number: u32) -> Mac {
    let [_, _, high, low] = number.to_be_bytes();
    Mac([2, port, 0, 0, high, low])
}

/// The miss of a packet of UDP over IPv4 that comes from a port; its hash is one more than `at`, since 0 does not come back.
fn miss(port: u32, ([src, dst], [from, to]): ([Mac; 2], [u16; 2]), at: u64) -> DatapathUpcall {
    let mut packet = [
        dst.0.as_slice(),
        &src.0,
        &[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
    ]
    .concat();
    packet.extend([from.to_be_bytes(), to.to_be_bytes(), [0, 26], [0, 0]].concat());
    packet.resize(60, 0);
    let key = FlowKey {
        recirc_id: Some(0),
        dp_hash: Some(0),
        priority: Some(0),
        mark: Some(0),
        in_port: Some(port),
        ethernet: Some(Ethernet { src, dst }),
        ether_type: Some(0x0800),
        ipv4: Some(Ipv4 {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            proto: UDP,
            tos: 0,
            ttl: 64,
            frag: FRAGMENT_NONE,
        }),
        udp: Some(Ports { src: from, dst: to }),
        ..FlowKey::default()
    };
    let message = PacketMessage { datapath: 1, packet, key, hash: Some(at + 1), ..PacketMessage::default() };
    DatapathUpcall { kind: UpcallKind::Miss, port, worker: 0, message }
}

struct Source {
    listener: OwnedFd,
    connections: Connections,
    datapath: MemoryDatapath,
    /// The next flow.
    next: u32,
}

impl Source {
    fn new(path: &str) -> Result<Self, Box<dyn Error>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, 128)?;
        let connections = Connections::new(Server::new(), Access::default())?;
        Ok(Self { listener, connections, datapath: MemoryDatapath::new(), next: 0 })
    }

    /// Serves requests. Answers are drained at least this often: the datapath remembers the packets of half a turn only.
    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        while let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            self.connections.add(socket.into())?;
        }
        self.connections.turn(&mut self.datapath)?;
        Ok(())
    }

    /// Serves requests until there is an order.
    fn serve(&mut self, orders: &Stdin) -> Result<(), Box<dyn Error>> {
        loop {
            let (input, listener, set) = (orders.as_fd(), self.listener.as_fd(), self.connections.fd());
            let mut fds = [input, listener, set].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut fds, self.connections.has_more().then_some(&at_once))?;
            if !fds[0].revents().is_empty() {
                return Ok(());
            }
            self.turn()?;
        }
    }

    fn port(&self, name: &str) -> Result<u32, Box<dyn Error>> {
        let records = self.connections.server().records();
        let mut ports = records.values().flat_map(|record| record.ports.values());
        let found = ports.find(|port| port.name == name).map(|port| port.number);
        found.ok_or_else(|| format!("there is no port {name}").into())
    }

    /// Asks for packets and waits for all answers; returns the times of the answers.
    fn ask(&mut self, upcalls: &[DatapathUpcall], window: usize) -> Result<Vec<u64>, Box<dyn Error>> {
        let (mut since, mut taken) = (Vec::with_capacity(upcalls.len()), Vec::with_capacity(upcalls.len()));
        let mut last = Instant::now();
        while taken.len() < upcalls.len() {
            while let Some(upcall) = upcalls.get(since.len()).filter(|_| since.len() - taken.len() < window) {
                if self.connections.server().reader_of(upcall).is_none_or(|reader| reader.is_busy) {
                    break;
                }
                since.push(Instant::now());
                if self.connections.upcall(upcall.clone(), &mut self.datapath) == Upcalled::Lost {
                    return Err("it takes no packets".into());
                }
            }
            self.connections.send_batches(&mut self.datapath);
            self.turn()?;
            let now = Instant::now();
            for (_, execute) in self.datapath.executed.drain(..) {
                let asked = execute.hash.and_then(|hash| since.get(usize::try_from(hash).ok()? - 1));
                taken.extend(asked.map(|asked| (now - *asked).as_nanos() as u64));
                last = now;
            }
            if last.elapsed() > PATIENCE {
                return Err(format!("{} of {} packets were answered", taken.len(), upcalls.len()).into());
            }
        }
        Ok(taken)
    }

    fn learn(&mut self, count: u32) -> Result<(), Box<dyn Error>> {
        for (number, name) in (0..).zip(PORTS) {
            let port = self.port(name)?;
            let broadcast = |source| ([address(number, source), Mac([0xff; 6])], [1, 1]);
            let upcalls: Vec<_> =
                (0..count).map(|source| miss(port, broadcast(source), source.into())).collect();
            self.ask(&upcalls, 1)?;
        }
        Ok(())
    }

    fn measure(&mut self, count: u32, window: usize) -> Result<(), Box<dyn Error>> {
        let port = self.port(PORTS[0])?;
        let upcalls: Vec<_> = (0..count).map(|at| miss(port, first(self.next + at), at.into())).collect();
        self.next += count;
        let (before, start) = (self.datapath.flow_count(DatapathId(1)), Instant::now());
        let mut times = self.ask(&upcalls, window)?;
        let elapsed = start.elapsed().as_nanos();
        let flows = self.datapath.flow_count(DatapathId(1)) - before;
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0);
        println!("{elapsed} {flows} {} {}", at(50), at(99));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which socket? upcall_source SOCKET")?;
    let (mut source, orders) = (Source::new(&path)?, stdin());
    let mut lines = BufReader::new(stdin());
    let mut line = String::new();
    loop {
        source.serve(&orders)?;
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["learn", count] => {
                source.learn(count.parse()?)?;
                println!("0 0 0 0");
            }
            ["measure", count, window] => source.measure(count.parse()?, window.parse()?)?,
            _ => return Err(format!("unknown order: {line}").into()),
        }
    }
}
