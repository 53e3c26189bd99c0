//! A control plane of a few lines, as a client of the control interface.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_dpif::client::{Client, ClientError};
use lasthop_dpif::family::{DatapathMessage, FlowMessage, PacketMessage, VportKind, VportMessage};
use lasthop_dpif::message::Messages;
use lasthop_flow::{Action, Ethernet, FlowKey, Ufid};
use lasthop_frontend::Guest;
use lasthop_module_api::Mac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use lasthop_rig::guests::{ONE, TWO, guest};
use lasthop_rig::{Switch, eventually};

/// Misses go by worker, packets need no alignment (`OVS_DP_F_*`).
const PER_WORKER: u32 = 9;

/// Set when dropped, also by a panic; then threads that wait for it end.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) struct Plane {
    pub(crate) client: Client,
    /// The one that receives upcalls.
    asked: Option<Client>,
    pub(crate) datapath: i32,
    /// The port of each address.
    places: BTreeMap<[u8; 6], u32>,
}

/// A switch of module flow with vnics `one` and `two`, no controller, and the arguments `words`.
pub(crate) fn two_vnics(words: &[&str]) -> Switch {
    let two = ["--module", "flow", "--controller", "none", "--vnic", "one", "--vnic", "two"];
    Switch::start(&[&two[..], words].concat())
}

/// Guests on both vnics.
pub(crate) fn two_guests(switch: &Switch) -> (Guest, Guest) {
    (guest(switch, "one", ONE), guest(switch, "two", TWO))
}

impl Plane {
    /// A connection; one to a previous switch process ends with that process.
    pub(crate) fn connect(switch: &Switch) -> Client {
        eventually("a connection", || Client::connect(&switch.path("datapath.sock")).ok())
    }

    /// The control plane of datapath `name`, which it creates.
    pub(crate) fn new(switch: &Switch, name: &str) -> Self {
        Self::try_new(switch, name).expect("made")
    }

    /// The same, with both vnics and their numbers.
    pub(crate) fn of_two(switch: &Switch, name: &str) -> (Self, u32, u32) {
        let mut plane = Self::new(switch, name);
        let (one, two) = (plane.add_port("one"), plane.add_port("two"));
        (plane, one, two)
    }

    pub(crate) fn try_new(switch: &Switch, name: &str) -> Result<Self, ClientError> {
        let mut client = Self::connect(switch);
        let wanted = DatapathMessage {
            name: Some(name.to_owned()),
            upcall_port_id: Some(0),
            user_features: Some(PER_WORKER),
            ..DatapathMessage::default()
        };
        let datapath = client.datapath_add(&wanted)?.datapath;
        Ok(Self { client, asked: None, datapath, places: BTreeMap::new() })
    }

    /// Attaches to an existing datapath.
    pub(crate) fn of_existing(switch: &Switch, name: &str) -> Self {
        let (client, all) = eventually("a connection that lasts", || {
            let mut client = Self::connect(switch);
            let all = client.datapaths().ok()?;
            Some((client, all))
        });
        let found = all.iter().find(|datapath| datapath.name.as_deref() == Some(name)).expect("there");
        Self { client, asked: None, datapath: found.datapath, places: BTreeMap::new() }
    }

    /// Gives the port of this name a number.
    pub(crate) fn add_port(&mut self, name: &str) -> u32 {
        self.try_add_port(name).expect("a port")
    }

    pub(crate) fn try_add_port(&mut self, name: &str) -> Result<u32, ClientError> {
        let wanted = VportMessage {
            datapath: self.datapath,
            name: Some(name.to_owned()),
            kind: Some(VportKind::Netdev),
            upcall_port_ids: Some(vec![0]),
            ..VportMessage::default()
        };
        Ok(self.client.port_add(&wanted)?.number.expect("a number"))
    }

    pub(crate) fn remove_port(&mut self, number: u32) {
        let wanted =
            VportMessage { datapath: self.datapath, number: Some(number), ..VportMessage::default() };
        self.client.port_remove(&wanted).expect("removed");
    }

    /// From now on frames to `mac` go to port `number`, if they cause upcalls.
    pub(crate) fn place(&mut self, mac: [u8; 6], number: u32) {
        self.places.insert(mac, number);
    }

    /// The flow of all packets from a port.
    pub(crate) fn flow_from(&self, from: u32, actions: Vec<Action>) -> FlowMessage {
        self.flow(
            FlowKey { in_port: Some(from), ethernet: Some(Ethernet::default()), ..FlowKey::default() },
            FlowKey { in_port: Some(u32::MAX), ..FlowKey::default() },
            actions,
        )
    }

    /// Packets from `from` go to port `to`.
    pub(crate) fn join(&mut self, from: u32, to: u32) {
        let flow = self.flow_from(from, vec![Action::Output(to)]);
        self.client.flow_add(&flow).expect("installed");
    }

    /// A flow of packets with a mark, which no guest sends. Some have names.
    pub(crate) fn add_other(&mut self, number: u32) {
        self.client.flow_add(&self.other(number)).expect("installed");
    }

    pub(crate) fn remove_other(&mut self, number: u32) {
        self.client.flow_remove(&self.other(number)).expect("removed");
    }

    fn other(&self, number: u32) -> FlowMessage {
        let key = FlowKey { mark: Some(number), ethernet: Some(Ethernet::default()), ..FlowKey::default() };
        let mask = FlowKey { mark: Some(u32::MAX), ..FlowKey::default() };
        let name = u128::from(number).to_be_bytes();
        let ufid = number.is_multiple_of(3).then_some(Ufid(name));
        FlowMessage { ufid, ..self.flow(key, mask, vec![Action::Output(number)]) }
    }

    /// All flows without their statistics, in some order that is always the same.
    pub(crate) fn flows(&mut self) -> Vec<FlowMessage> {
        let mut flows = self.client.flows(self.datapath).expect("listed");
        flows.iter_mut().for_each(|flow| flow.stats = None);
        flows.sort_by_key(|flow| format!("{flow:?}"));
        flows
    }

    /// Packets of the flow that joins `from` to another port.
    pub(crate) fn packets_from(&mut self, from: u32) -> u64 {
        let flows = self.client.flows(self.datapath).expect("listed");
        let all = flows.iter().filter(|flow| {
            flow.ufid.is_none() && flow.key.as_ref().is_some_and(|key| key.in_port == Some(from))
        });
        all.filter_map(|flow| flow.stats).map(|stats| stats.packets).sum()
    }

    fn flow(&self, key: FlowKey, mask: FlowKey, actions: Vec<Action>) -> FlowMessage {
        FlowMessage {
            datapath: self.datapath,
            key: Some(key),
            mask: Some(mask),
            actions: Some(actions),
            ..FlowMessage::default()
        }
    }

    /// Requests upcalls.
    pub(crate) fn listen(&mut self, switch: &Switch) {
        let asked = Self::connect(switch);
        let wanted = DatapathMessage {
            datapath: self.datapath,
            user_features: Some(PER_WORKER),
            per_cpu_port_ids: Some(vec![asked.port_id()]),
            ..DatapathMessage::default()
        };
        self.client.datapath_set(&wanted).expect("changed");
        self.asked = Some(asked);
    }

    /// Answers upcalls until stopped.
    pub(crate) fn serve(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.serve_once(Duration::from_millis(10));
        }
    }

    /// The next upcall, if one comes soon.
    pub(crate) fn next(&mut self, patience: Duration) -> Option<PacketMessage> {
        let asked = self.asked.as_mut().expect("it listens");
        let timeout = Timespec::try_from(patience).expect("short");
        let mut fds = [PollFd::from_borrowed_fd(asked.fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).expect("polled") == 0 {
            return None;
        }
        let datagram = asked.receive().ok()?;
        let message = Messages::new(&datagram).next().expect("a message");
        let (datapath, attrs) = message.generic().expect("generic").datapath().expect("a datapath's");
        Some(PacketMessage::decode(datapath, attrs).expect("a packet"))
    }

    pub(crate) fn serve_once(&mut self, patience: Duration) {
        if let Some(packet) = self.next(patience) {
            self.answer(packet);
        }
    }

    /// Sends the packet on, and installs a flow for later ones.
    pub(crate) fn answer(&mut self, packet: PacketMessage) {
        let ethernet = packet.key.ethernet.expect("a frame");
        let to = self.places.get(&ethernet.dst.0).copied();
        let actions: Vec<Action> = to.into_iter().map(Action::Output).collect();
        let in_port = packet.key.in_port;
        let execute = PacketMessage { actions: Some(actions.clone()), ..packet };
        // A switch whose workers get no CPU for a while refuses more than it can remember.
        let is_taken = |result: Result<_, ClientError>| match result {
            Err(ClientError::Refused { errno, .. }) if errno == Errno::NOMEM.raw_os_error() => None,
            result => {
                result.expect("sent");
                Some(())
            }
        };
        eventually("room for a packet", || is_taken(self.client.execute(&execute)));
        let key = FlowKey { in_port, ethernet: Some(ethernet), ..FlowKey::default() };
        let all = Ethernet { src: Mac([0xff; 6]), dst: Mac([0xff; 6]) };
        let mask = FlowKey { in_port: Some(u32::MAX), ethernet: Some(all), ..FlowKey::default() };
        let name = [&ethernet.dst.0[..], &ethernet.src.0, &in_port.unwrap_or(0).to_be_bytes()].concat();
        let ufid = Ufid(name.try_into().expect("16 bytes"));
        let flow = FlowMessage { ufid: Some(ufid), ..self.flow(key, mask, actions) };
        // It may exist: several packets caused upcalls.
        let _ = self.client.flow_add(&flow);
    }
}
