//! The controller process: decides for switches of module flow.
//!
//! This file has the sockets; the rest of the crate decides. The process opens nothing: connections to the switch
//! process come over the channel, and so do the settings of switches and ports.

use lasthop_api::controller_orders::{ControlledSwitch, ControllerOrder, ControllerReport};

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::{Controller, LINKS, StaticAddress, SwitchConfig};
use lasthop_dpif as dpif;
use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::bounds::DATAGRAM_BYTES_MAX;
use lasthop_foreign::{ForeignFd, Shortage};
use lasthop_module_api::{PortSettings, SwitchId};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use lasthop_api::explain::{Consultation, ConsultedKey, bytes_of, hex_of};
use lasthop_api::facts::MoveFacts;
use lasthop_api::fdb::Flush;
use lasthop_api::orders::SwitchPort;
use lasthop_api::report::{FdbLine, FdbReport, SwitchInside};
use lasthop_api::switches::SwitchName;
use lasthop_runtime::clock::{earlier, now_ns};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::ipc::{Channel, take_channel};
use lasthop_runtime::poller::{Interest, Poller};
use lasthop_runtime::sandbox::{self, KeptFds, ProcessRole};
use lasthop_runtime::signals;

/// The channel's number in the poller; connections have the next ones.
const CHANNEL: u64 = 0;
/// Datagrams read from each connection in a row; then its requests are sent. Those of a list have some hundred flows,
/// and packets wait meanwhile.
const DATAGRAMS_PER_TURN: [usize; LINKS] = [64, 4];
/// The switch process sends what it has in as few datagrams as it can, of 16 KiB and more. So one shorter than this is
/// usually the last one: looking for another one would cost a system call, and delay the answers. If there is one, the
/// poller says so.
const FULL_BYTES: usize = 8 << 10;

/// Runs until the supervisor is gone.
pub fn run(mode: sandbox::SandboxMode) -> Result<(), Fault> {
    // The supervisor handles signals to the process group.
    signals::ignore()?;
    // Sets the name, since it was started as /proc/self/exe.
    let _ = rustix::thread::set_name(c"lasthop-dpif");
    let mut channel: Channel<ControllerReport, ControllerOrder> = take_channel()?;
    let kept = KeptFds { channel: channel.as_fd() };
    match sandbox::enter(ProcessRole::Controller, mode, &kept, ControllerReport::Forbidden) {
        Ok(layers) => drop(channel.send(&ControllerReport::Sandbox(layers), None)),
        Err(fault) => {
            let _ = channel.send(&ControllerReport::Failed { why: fault.message }, None);
            // The supervisor reports it.
            std::process::exit(1);
        }
    }
    let poller = Poller::new()?;
    poller.add(&channel, CHANNEL, Interest::READ)?;
    Process::new(channel, poller).serve()
}

/// A connection to the switch process.
struct Socket {
    fd: OwnedFd,
    /// The socket is full: also wait for room.
    is_full: bool,
    /// State after a send that failed for lack of memory.
    shortage: Shortage,
}

struct Process {
    channel: Channel<ControllerReport, ControllerOrder>,
    /// The channel is full: also wait for room.
    is_channel_full: bool,
    poller: Poller,
    controller: Controller,
    /// The switches of the supervisor's last order.
    switches: BTreeMap<SwitchName, ControlledSwitch>,
    /// Empty while there is no switch process.
    sockets: Vec<Socket>,
    /// Number of orders to connect.
    connection: u64,
    /// The round for which the supervisor waits until flows follow its last orders, and the controller's mark if only
    /// replies are missing.
    settling: Option<(u64, Option<u64>)>,
    /// Orders that wait for that, so that replies keep the order of questions.
    waiting: VecDeque<ControllerOrder>,
    /// The process ends once all packets are answered, at this time at latest.
    finish_by: Option<Instant>,
    /// Time of the last message from the switch process.
    received_at: Instant,
    buffer: Vec<u8>,
}

/// How long the switch process may take to acknowledge the last packets.
const FINISH_PATIENCE: Duration = Duration::from_millis(500);
/// How long after the last message packets may still arrive that workers handed over before.
const UNDER_WAY: Duration = Duration::from_millis(30);

/// A number that differs each time.
fn nonce() -> u32 {
    (now_ns() >> 10) as u32 // a microsecond, about; wraps around after an hour
}

impl Process {
    fn new(channel: Channel<ControllerReport, ControllerOrder>, poller: Poller) -> Self {
        Self {
            channel,
            is_channel_full: false,
            poller,
            controller: Controller::new(nonce()),
            switches: BTreeMap::new(),
            sockets: Vec::new(),
            connection: 0,
            settling: None,
            waiting: VecDeque::new(),
            finish_by: None,
            received_at: Instant::now(),
            buffer: vec![0; DATAGRAM_BYTES_MAX],
        }
    }

    fn serve(&mut self) -> Result<(), Fault> {
        let mut has_more = false;
        loop {
            let due = if has_more { Some(Instant::now()) } else { self.due() };
            for happening in self.poller.wait(due)? {
                match happening.source {
                    CHANNEL if !self.hear() => return Ok(()),
                    CHANNEL => {}
                    link => {
                        self.received_at = Instant::now();
                        self.receive(link as usize - 1); // ours are small
                    }
                }
            }
            has_more = !self.sockets.is_empty() && self.controller.turn(now_ns());
            self.settle(has_more);
            self.controller
                .take_log_lines()
                .into_iter()
                .for_each(|words| self.tell(&ControllerReport::Said(words)));
            self.tell_leases();
            self.send_all(|fd, datagram| send(fd, datagram, SendFlags::NOSIGNAL));
            if self.is_finished() {
                self.disconnect();
                return Ok(());
            }
            self.watch()?;
        }
    }

    /// Whether it has to end, and has answered all packets.
    fn is_finished(&self) -> bool {
        let is_quiet = || self.is_answered() && self.quiet_at() <= Instant::now();
        self.finish_by.is_some_and(|by| is_quiet() || by <= Instant::now())
    }

    /// Whether all packets that came are answered, and new ones go elsewhere.
    fn is_answered(&self) -> bool {
        self.sockets.is_empty() || self.controller.has_left() && self.controller.is_idle()
    }

    /// The time at which all pending packets have arrived.
    fn quiet_at(&self) -> Instant {
        self.received_at + UNDER_WAY
    }

    fn due(&self) -> Option<Instant> {
        if self.finish_by.is_some() && self.is_answered() {
            return Some(self.quiet_at());
        }
        let due_ns = self.controller.due_ns().filter(|_| !self.sockets.is_empty());
        let due = due_ns.map(|due_ns| Instant::now() + Duration::from_nanos(due_ns.saturating_sub(now_ns())));
        self.sockets
            .iter()
            .map(|socket| socket.shortage.due())
            .fold(earlier(earlier(due, self.channel.due()), self.finish_by), earlier)
    }

    /// Executes orders of the supervisor. Returns false when it is gone.
    fn hear(&mut self) -> bool {
        let is_open = self.channel.flush().is_ok() && self.channel.receive().unwrap_or(false);
        while let Some((order, fds)) = self.channel.take() {
            self.execute(order, fds.unwrap_or_default());
        }
        is_open
    }

    /// Reports that flows follow the last orders, once they do.
    fn settle(&mut self, has_more: bool) {
        while let Some((round, mark)) = self.settling {
            let mark = mark.or_else(|| self.controller.settling().filter(|_| !has_more));
            self.settling = Some((round, mark));
            if !mark.is_some_and(|mark| self.controller.has_settled(mark)) {
                return;
            }
            self.settling = None;
            self.tell(&ControllerReport::Settled { round });
            while let (None, Some(order)) = (self.settling, self.waiting.pop_front()) {
                self.execute(order, Vec::new());
            }
        }
    }

    fn execute(&mut self, order: ControllerOrder, fds: Vec<ForeignFd>) {
        let is_question = matches!(
            order,
            ControllerOrder::Flush { .. } | ControllerOrder::Tell { .. } | ControllerOrder::Settle { .. }
        );
        if is_question && self.settling.is_some() && !self.sockets.is_empty() {
            return self.waiting.push_back(order);
        }
        match order {
            ControllerOrder::Settle { round } => self.settling = Some((round, None)),
            ControllerOrder::Connect => self.connect(fds),
            ControllerOrder::Switches(switches) => self.take_switches(switches),
            ControllerOrder::Flush { round, flush } => {
                let flushed = self.flush(&flush);
                self.tell(&ControllerReport::Flushed { round, flushed });
            }
            ControllerOrder::Consult { round, switch, keys } => {
                let consultations = keys.iter().map(|key| self.consult(switch.as_str(), key)).collect();
                self.tell(&ControllerReport::Consulted { round, consultations });
            }
            ControllerOrder::Live { round } => self.tell(&ControllerReport::Alive { round }),
            ControllerOrder::Tell { round } => self.tell_all(round),
            ControllerOrder::Finish => {
                self.controller.leave();
                self.received_at = Instant::now();
                self.finish_by = Some(Instant::now() + FINISH_PATIENCE);
            }
        }
    }

    /// The answer about a packet that has not come.
    fn consult(&self, switch: &str, ConsultedKey(key): &ConsultedKey) -> Consultation {
        let key = bytes_of(key).and_then(|bytes| dpif::key::decode(Attrs::new(&bytes)).ok());
        let told = key.and_then(|key| self.controller.consult(switch, &key, now_ns()));
        let Some((actions, reasons)) = told else { return Consultation::default() };
        let actions = actions.map(|actions| {
            let mut writer = Writer::new(Vec::new());
            dpif::action::encode(&mut writer, &actions);
            hex_of(&writer.finish().unwrap_or_default())
        });
        Consultation { actions, reasons }
    }

    fn tell_all(&mut self, round: u64) {
        let (fdb, switches) = self.describe();
        let (parts, fdb) = fdb.in_parts();
        parts.into_iter().for_each(|fdb| self.tell(&ControllerReport::Addresses { round, fdb }));
        let moves = self.moves();
        self.tell(&ControllerReport::Answer { round, fdb, moves, switches });
    }

    /// Reports changes of leases, which the supervisor keeps for the next controller process.
    fn tell_leases(&mut self) {
        for (switch, leases) in self.controller.take_leases(now_ns()) {
            if let Ok(switch) = switch.parse() {
                self.tell(&ControllerReport::Leases { switch, leases });
            }
        }
    }

    fn tell(&mut self, report: &ControllerReport) {
        // If the supervisor is gone, the next read shows it.
        let _ = self.channel.send(report, None);
    }

    /// Connects to a switch process, the first or another one.
    fn connect(&mut self, fds: Vec<ForeignFd>) {
        self.disconnect();
        self.connection += 1;
        if fds.len() != LINKS {
            let why =
                "no file descriptors are left for connections to the switch; raise the limit (ulimit -n)";
            self.tell(&ControllerReport::Said(why.to_owned()));
            return self.lose_connection();
        }
        self.controller.reconnected(nonce());
        if let Some((_, mark)) = &mut self.settling {
            // Requests of the former connection get no reply.
            *mark = None;
        }
        // The supervisor made the descriptors.
        for (number, fd) in (1..).zip(fds.into_iter().map(ForeignFd::into_trusted)) {
            if self.poller.add(&fd, number, Interest::READ).is_err() {
                return self.lose_connection();
            }
            self.sockets.push(Socket { fd, is_full: false, shortage: Shortage::default() });
        }
    }

    /// Closes all connections: the supervisor makes other ones.
    fn lose_connection(&mut self) {
        self.disconnect();
        self.tell(&ControllerReport::Disconnected { connection: self.connection });
    }

    fn disconnect(&mut self) {
        for socket in self.sockets.drain(..) {
            self.poller.remove(&socket.fd);
        }
    }

    /// Passes changes of the switches to the controller.
    fn take_switches(&mut self, switches: Vec<ControlledSwitch>) {
        let switches: BTreeMap<_, _> =
            switches.into_iter().map(|switch| (switch.name.clone(), switch)).collect();
        let old = std::mem::replace(&mut self.switches, switches);
        for name in old.keys().filter(|name| !self.switches.contains_key(*name)) {
            self.controller.remove_switch(name.as_str());
        }
        for (name, switch) in &self.switches {
            update(&mut self.controller, old.get(name), switch);
        }
    }

    fn flush(&mut self, flush: &Flush) -> usize {
        let port = flush.port.as_ref().map(lasthop_api::port::Name::as_str);
        let has_port = |switch: &&ControlledSwitch| {
            port.is_none_or(|port| switch.ports.iter().any(|known| known.common.name.as_str() == port))
        };
        let names = self.switches.values().filter(has_port).map(|switch| switch.name.as_str());
        names.map(|name| self.controller.flush(name, port, flush.vlan, now_ns())).sum()
    }

    /// All addresses, and the counters of each switch.
    fn describe(&self) -> (FdbReport, Vec<SwitchInside>) {
        let (mut entries, mut switches) = (Vec::new(), Vec::new());
        for name in self.switches.keys() {
            let addresses = self.controller.addresses(name.as_str(), now_ns()).unwrap_or_default();
            let stats = self.controller.stats_of(name.as_str()).unwrap_or_default();
            let counters = stats.counters().map(|(name, count)| (name.to_owned(), count)).collect();
            switches.push(SwitchInside {
                name: name.clone(),
                addresses: addresses.len(),
                counters,
                callers: Vec::new(),
            });
            entries.extend(addresses.into_iter().map(|address| FdbLine {
                switch: name.clone(),
                mac: address.mac.to_string(),
                vlan: address.vlan,
                port: address.port,
                age_ms: address.age_ns / 1_000_000,
                is_static: address.is_static,
            }));
        }
        (FdbReport::whole(entries), switches)
    }

    /// Addresses that moved recently.
    fn moves(&self) -> Vec<MoveFacts> {
        let moves = self.switches.keys().flat_map(|name| self.controller.moves(name.as_str(), now_ns()));
        let told = moves.map(|moved| MoveFacts {
            mac: moved.mac.to_string(),
            from: moved.from,
            to: moved.to,
            count: moved.count,
            age_ms: moved.age_ns / 1_000_000,
        });
        told.collect()
    }

    /// Reads datagrams from the switch process.
    fn receive(&mut self, link: usize) {
        for _ in 0..DATAGRAMS_PER_TURN.get(link).copied().unwrap_or_default() {
            let Some(socket) = self.sockets.get(link) else { return };
            match recv(&socket.fd, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((0, _)) => return self.lose_connection(),
                Ok((len, _)) => {
                    let datagram = self.buffer.get(..len).unwrap_or_default();
                    self.controller.received(link, datagram, now_ns());
                    if len < FULL_BYTES {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // Usually the switch process is gone; the supervisor passes connections to the next one.
                Err(_) => return self.lose_connection(),
            }
        }
    }

    /// Sends while the switch process takes datagrams.
    fn send_all(&mut self, send: impl Fn(&OwnedFd, &[u8]) -> rustix::io::Result<usize>) {
        let now = Instant::now();
        for link in 0..self.sockets.len() {
            while let Some((socket, datagram)) = self.sockets.get_mut(link).zip(self.controller.output(link))
            {
                socket.shortage.take_over(now);
                if socket.shortage.due().is_some() {
                    break;
                }
                match send(&socket.fd, datagram) {
                    Ok(_) => {
                        socket.shortage.end();
                        self.controller.sent(link);
                    }
                    Err(Errno::NOBUFS) => {
                        socket.shortage.hit(now);
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(_) => return self.lose_connection(),
                }
            }
        }
    }

    /// Waits for room where output is pending.
    fn watch(&mut self) -> Result<(), Fault> {
        for (link, socket) in self.sockets.iter_mut().enumerate() {
            // When memory is short, the socket looks writable all the time.
            let write = self.controller.output(link).is_some() && socket.shortage.due().is_none();
            if write != socket.is_full {
                self.poller.modify(&socket.fd, link as u64 + 1, Interest { read: true, write })?;
                socket.is_full = write;
            }
        }
        let _ = self.channel.flush(); // if the other side is gone, reading says so
        let interest = self.channel.interest();
        if interest.write != self.is_channel_full {
            self.poller.modify(&self.channel, CHANNEL, interest)?;
            self.is_channel_full = interest.write;
        }
        Ok(())
    }
}

/// Passes changes of one switch to the controller.
fn update(controller: &mut Controller, old: Option<&ControlledSwitch>, switch: &ControlledSwitch) {
    let name = switch.name.as_str();
    let pair_flows_max = switch.pair_flows.0 as usize; // fits
    let config = SwitchConfig { name: name.to_owned(), addresses_max: switch.addresses_max, pair_flows_max };
    controller.set_switch(&config);
    // Rules first: no port is served without its rules.
    let old_acl = old.map(|old| old.acl.as_slice()).unwrap_or_default();
    if switch.acl != old_acl {
        controller.set_acl(name, switch.acl.clone());
    }
    let old_ports = old.map(|old| old.ports.as_slice()).unwrap_or_default();
    let old_fdb = old.map(|old| old.fdb.as_slice()).unwrap_or_default();
    let is_in = |port: &SwitchPort, ports: &[SwitchPort]| {
        ports.iter().any(|other| other.common.name == port.common.name)
    };
    for gone in old_ports.iter().filter(|port| !is_in(port, &switch.ports)) {
        controller.remove_port(name, gone.common.name.as_str());
    }
    for port in switch.ports.iter().filter(|port| !old_ports.contains(port)) {
        controller.set_port(name, settings(port));
    }
    // Those of ports that are new.
    switch.leases.iter().for_each(|leases| controller.restore_leases(name, leases.clone(), now_ns()));
    if switch.fdb != old_fdb {
        let entries = switch.fdb.iter().map(|entry| StaticAddress {
            mac: entry.mac,
            vlan: entry.vlan,
            port: entry.port.to_string(),
        });
        controller.set_statics(name, entries.collect());
    }
}

/// The port's settings for a module.
fn settings(SwitchPort { common, leads, .. }: &SwitchPort) -> PortSettings {
    PortSettings {
        name: common.name.to_string(),
        switch: SwitchId::DEFAULT,
        policy: common.policy.clone(),
        macs_max: None,
        kind: leads.kind(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn connections_that_the_other_side_closes_are_told_of_once() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let channel = Channel::new(ours.into()).expect("a channel");
        let mut process = Process::new(channel, Poller::new().expect("a poller"));
        let mut supervisor: Channel<ControllerOrder, ControllerReport> =
            Channel::new(theirs.into()).expect("a channel");
        let pairs = (0..LINKS).map(|_| UnixStream::pair().expect("a pair"));
        let (near, far): (Vec<ForeignFd>, Vec<UnixStream>) =
            pairs.map(|(near, far)| (near.into(), far)).unzip();
        process.execute(ControllerOrder::Connect, Vec::new());
        process.execute(ControllerOrder::Connect, near);
        assert_eq!(process.sockets.len(), LINKS);
        drop(far);
        (0..LINKS).for_each(|link| process.receive(link));
        assert!(process.sockets.is_empty());
        supervisor.receive().expect("what was said");
        let lost = std::iter::from_fn(|| supervisor.take()).filter_map(|(report, _)| match report {
            ControllerReport::Disconnected { connection } => Some(connection),
            _ => None,
        });
        assert_eq!(lost.collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_process_that_is_to_finish_sends_all_that_waits_and_ends() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let mut process =
            Process::new(Channel::new(ours.into()).expect("a channel"), Poller::new().expect("a poller"));
        let pairs = (0..LINKS).map(|_| UnixStream::pair().expect("a pair"));
        let (near, far): (Vec<ForeignFd>, Vec<UnixStream>) =
            pairs.map(|(near, far)| (near.into(), far)).unzip();
        process.execute(ControllerOrder::Connect, near);
        assert!(!process.is_finished() && !process.controller.is_idle(), "its first requests wait");
        process.execute(ControllerOrder::Finish, Vec::new());
        assert!(!process.is_finished());
        process.serve().expect("an end in order");
        assert!(process.controller.is_idle() && process.sockets.is_empty());
        for mut link in far {
            let mut sent = Vec::new();
            std::io::Read::read_to_end(&mut link, &mut sent).expect("up to its end");
            assert!(!sent.is_empty());
        }
    }

    #[test]
    fn a_connection_without_memory_is_left_alone_for_a_while_and_then_tried_again() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let channel = Channel::new(ours.into()).expect("a channel");
        let mut process = Process::new(channel, Poller::new().expect("a poller"));
        let pairs = (0..LINKS).map(|_| UnixStream::pair().expect("a pair"));
        let (near, far): (Vec<ForeignFd>, Vec<UnixStream>) =
            pairs.map(|(near, far)| (near.into(), far)).unzip();
        process.execute(ControllerOrder::Connect, near);
        for _ in 0..20 {
            process.send_all(|_, _| Err(Errno::NOBUFS));
            process.watch().expect("watched");
            assert!(process.sockets.iter().all(|socket| socket.shortage.due().is_some() && !socket.is_full));
            let due = process.due().expect("another try");
            assert!(process.poller.wait(Some(due)).expect("waited").is_empty(), "nobody calls before");
        }
        while process.sockets.iter().any(|socket| socket.shortage.due().is_some()) {
            process.poller.wait(process.due()).expect("waited");
            process.send_all(|fd, datagram| send(fd, datagram, SendFlags::NOSIGNAL));
        }
        assert!((0..LINKS).all(|link| process.controller.output(link).is_none()), "all is sent");
        drop(far);
    }
}
