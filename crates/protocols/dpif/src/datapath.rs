//! The server's view of the switch.

use std::ops::ControlFlow;

use lasthop_conntrack::{CtRecord, CtTuple};
use lasthop_flow::{Action, FlowKey, FlowStats, Match, Ufid};

use crate::family::{
    Band, DatapathStats, MegaflowStats, MeterStats, VportKind, VportOptions, VportStats, ZoneLimit,
};
use crate::netfilter::{ConnectionSelector, TimeoutPolicy};
use crate::refusal::{Errno, Refusal};

/// A connection, by a number that its owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// A datapath, by the number that clients use (`dp_ifindex`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatapathId(pub i32);

/// A port as clients requested it. Port 0 has the datapath's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number in its datapath.
    pub number: u32,
    /// Name, unique among all datapaths.
    pub name: String,
    /// Its kind.
    pub kind: VportKind,
    /// Options of tunnels.
    pub options: Option<VportOptions>,
    /// Port ids for its misses, unless the datapath has one for each CPU; 0 for none.
    pub upcall_port_ids: Vec<u32>,
}

/// A requested port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedPort<'a> {
    /// The requesting client.
    pub client: PeerId,
    /// Its datapath's name; for port 0 of a new datapath, that datapath's name.
    pub datapath: &'a str,
    /// Name.
    pub name: &'a str,
    /// Its kind.
    pub kind: VportKind,
    /// Options of a tunnel.
    pub options: Option<VportOptions>,
}

/// Whether the device of a port exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It exists: the port can be added.
    Ready,
    /// It is being made.
    NotYet,
}

/// The switch's view of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortView {
    /// Counters.
    pub stats: VportStats,
    /// Number of its device, if it has one.
    pub ifindex: Option<u32>,
    /// Network namespace of its device, if it is not the switch's.
    pub netns_id: Option<i32>,
}

/// How clients name a flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FlowName {
    /// By its name.
    Ufid(Ufid),
    /// By its whole key, for any mask.
    Key(Box<FlowKey>),
}

/// A flow to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowInstall {
    /// Its name, if it has one.
    pub ufid: Option<Ufid>,
    /// Its match, which is checked.
    pub matches: Match,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Whether this is a probe: no packet may match the flow, but it can be found and deleted by name.
    pub is_probe: bool,
    /// Whether an existing flow is an error; otherwise it gets the actions.
    pub is_new: bool,
}

/// A flow's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathFlow {
    /// Its name, if it has one.
    pub ufid: Option<Ufid>,
    /// Its match.
    pub matches: Match,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Its statistics.
    pub stats: FlowStats,
}

impl DatapathFlow {
    /// Its name in requests.
    #[must_use]
    pub fn name(&self) -> FlowName {
        self.ufid.map_or_else(|| FlowName::Key(Box::new(self.matches.key.clone())), FlowName::Ufid)
    }
}

/// A flow in a dump.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Its name, if it has one.
    pub ufid: Option<Ufid>,
    /// Its match.
    pub matches: &'a Match,
    /// Its actions.
    pub actions: &'a [Action],
    /// Its statistics.
    pub stats: FlowStats,
}

impl DatapathFlow {
    /// A reference to it as a [`FlowView`].
    #[must_use]
    pub fn view(&self) -> FlowView<'_> {
        FlowView { ufid: self.ufid, matches: &self.matches, actions: &self.actions, stats: self.stats }
    }
}

/// A removed flow whose last packets may not be counted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemovalId(pub u64);

/// A packet that the control plane has executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execute {
    /// The packet from its Ethernet header on.
    pub packet: Vec<u8>,
    /// Metadata beside the packet's bytes; its header fields are ignored.
    pub metadata: FlowKey,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Whether this is a probe.
    pub is_probe: bool,
    /// Length of the largest fragment of which it was reassembled.
    pub mru_bytes: Option<u16>,
    /// Its hash, as sent with the miss.
    pub hash: Option<u64>,
}

/// A meter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Rates are in kilobits a second, not in packets.
    pub is_kbps: bool,
    /// Its rates.
    pub bands: Vec<Band>,
    /// Packets and bytes that passed it.
    pub stats: MeterStats,
    /// Time of the last packet, in milliseconds of CLOCK_MONOTONIC; 0 for none.
    pub used_ms: u64,
}

/// Limits for a datapath's meters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterFeatures {
    /// Largest number of meters.
    pub meters_max: u32,
    /// Largest number of bands of a meter.
    pub bands_max: u32,
}

/// The switch, as the server uses it. The server handles names, port numbers and port ids for misses; it makes calls
/// for existing datapaths and ports, with valid arguments. All calls return soon: a dump of a large table takes several
/// calls.
pub trait Datapath {
    /// Adds a datapath without ports.
    ///
    /// # Errors
    /// If there can be no other datapath.
    fn created(&mut self, id: DatapathId, name: &str) -> Result<(), Refusal>;
    /// Whether the datapath of this name belongs to the embedded controller. It appears in lists only for clients that
    /// ask for all, and no client removes it.
    fn is_reserved(&self, name: &str) -> bool {
        let _ = name;
        false
    }
    /// Removes a datapath with everything in it.
    fn destroyed(&mut self, id: DatapathId);
    /// Reports whether a client receives its misses; at first none does.
    fn asked(&mut self, id: DatapathId, is_asked: bool) {
        let _ = (id, is_asked);
    }
    /// Its counters, except `lost`.
    fn stats(&self, id: DatapathId) -> (DatapathStats, MegaflowStats);

    /// Prepares a port, including port 0 before its datapath is added. While its device is being made, its client
    /// waits, and others are served. The server repeats the call in every
    /// [`Server::settle`](crate::server::Server::settle), until the port is ready or refused, or
    /// [`Datapath::port_unwanted`] ends the request.
    ///
    /// # Errors
    /// ENODEV if there is no such device, and any reason why it cannot be made.
    fn port_wanted(&mut self, wanted: WantedPort<'_>) -> Result<Readiness, Refusal> {
        let _ = wanted;
        Ok(Readiness::Ready)
    }
    /// Ends the request for a port that was not ready: no client waits for it any more.
    fn port_unwanted(&mut self, name: &str) {
        let _ = name;
    }
    /// Adds a port.
    ///
    /// # Errors
    /// ENODEV if there is no device or guest of its name, EOPNOTSUPP for kinds that are not implemented.
    fn port_added(&mut self, id: DatapathId, port: &Port) -> Result<(), Refusal>;
    /// Changes a port's options.
    ///
    /// # Errors
    /// If they are invalid; then nothing changes.
    fn port_changed(&mut self, id: DatapathId, port: &Port) -> Result<(), Refusal>;
    /// Removes a port.
    fn port_removed(&mut self, id: DatapathId, number: u32);
    /// The state of a port.
    fn port_view(&self, id: DatapathId, number: u32) -> PortView;

    /// Installs a flow. An existing flow gets the actions and keeps its counters.
    ///
    /// # Errors
    /// EEXIST if it must be new and is not, or if another flow has the same match and mask; EINVAL for
    /// unsupported parts.
    fn flow_install(&mut self, id: DatapathId, flow: FlowInstall) -> Result<(), Refusal>;
    /// Changes a flow: sets its actions, unless `None`, and resets its counters, if `is_clear`.
    ///
    /// # Errors
    /// ENOENT, and EINVAL for unsupported parts.
    fn flow_change(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        actions: Option<Vec<Action>>,
        is_clear: bool,
    ) -> Result<(), Refusal>;
    /// One flow.
    fn flow(&self, id: DatapathId, name: &FlowName) -> Option<DatapathFlow>;
    /// Removes a flow: no later packet matches it. If a client wants its final statistics, returns a number for
    /// [`Self::flow_removed`], since workers may still have packets to count.
    ///
    /// # Errors
    /// ENOENT.
    fn flow_remove(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        wants_last: bool,
    ) -> Result<Option<RemovalId>, Refusal>;
    /// A removed flow's last state, once; `None` while its last packets are not counted. The server repeats the call,
    /// so that a datagram with many removals waits only once.
    fn flow_removed(&mut self, removal: RemovalId) -> Option<DatapathFlow>;
    /// Removes some flows from `cursor` on (0 is the first). Returns the cursor to continue with; `None` at the end.
    /// Flows that are installed between two calls may be removed or not.
    fn flows_flush(&mut self, id: DatapathId, cursor: u64) -> Option<u64>;
    /// Passes flows from `cursor` on (0 is the first) to `visit`, until it breaks. Returns the cursor of the last flow,
    /// to continue there; `None` at the end. Flows that are installed or removed meanwhile may be missing.
    fn flows_visit(
        &self,
        id: DatapathId,
        cursor: u64,
        visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
    ) -> Option<u64>;

    /// Executes actions for a packet, or tests whether it could.
    ///
    /// # Errors
    /// EINVAL for unsupported parts.
    fn execute(&mut self, id: DatapathId, execute: Execute) -> Result<(), Refusal>;

    /// Notes that a packet of a miss came back with this hash in an invalid request: it is not sent, and no packet has
    /// to wait for it any more.
    fn not_executed(&mut self, id: DatapathId, hash: u64) {
        let _ = (id, hash);
    }

    /// The limits of meters.
    fn meter_features(&self, id: DatapathId) -> MeterFeatures;
    /// Makes a meter, or replaces one. Returns the statistics of the replaced one.
    ///
    /// # Errors
    /// If the meter cannot be made.
    fn meter_set(&mut self, id: DatapathId, meter: u32, what: Meter) -> Result<Option<Meter>, Refusal>;
    /// One meter.
    fn meter(&self, id: DatapathId, meter: u32) -> Option<Meter>;
    /// Removes a meter. Returns its last state.
    fn meter_remove(&mut self, id: DatapathId, meter: u32) -> Option<Meter>;

    /// Sets limits for zones' connections.
    ///
    /// # Errors
    /// EOPNOTSUPP without connection tracking.
    fn ct_limits_set(&mut self, limits: &[ZoneLimit]) -> Result<(), Refusal> {
        let _ = limits;
        Err(without_conntrack())
    }
    /// Removes zones' limits.
    ///
    /// # Errors
    /// As `ct_limits_set`.
    fn ct_limits_remove(&mut self, zones: &[ZoneLimit]) -> Result<(), Refusal> {
        let _ = zones;
        Err(without_conntrack())
    }
    /// Limits of some zones, or of all that have one.
    ///
    /// # Errors
    /// As `ct_limits_set`.
    fn ct_limits(&self, zones: Option<&[ZoneLimit]>) -> Result<Vec<ZoneLimit>, Refusal> {
        let _ = zones;
        Err(without_conntrack())
    }

    /// Passes connections from `cursor` on (0 is the first), of a zone or all, to `visit`, until it breaks. `is_all`
    /// includes those of reserved datapaths. Returns the cursor of the last connection, to continue there; `None` at
    /// the end. Connections that come or go meanwhile may be missing.
    fn connections_visit(
        &self,
        cursor: u64,
        (zone, is_all): (Option<u16>, bool),
        visit: &mut dyn FnMut(&CtRecord) -> ControlFlow<()>,
    ) -> Option<u64> {
        let _ = (cursor, zone, is_all, visit);
        None
    }
    /// The connection with this tuple, of either direction.
    fn connection(&self, tuple: &CtTuple) -> Option<CtRecord> {
        let _ = tuple;
        None
    }
    /// Removes connections; `is_all` includes those of embedded controllers' datapaths. It is no error if a zone, or
    /// all of them, has no connection.
    ///
    /// # Errors
    /// ENOENT if the single connection does not exist.
    fn connections_delete(&mut self, which: ConnectionSelector, is_all: bool) -> Result<(), Refusal> {
        let _ = is_all;
        match which {
            ConnectionSelector::All | ConnectionSelector::Zone(_) => Ok(()),
            ConnectionSelector::One(..) => Err(Refusal::new(Errno::ENOENT, "there is no such connection")),
        }
    }
    /// Makes a timeout policy, or replaces it.
    ///
    /// # Errors
    /// ENOSPC if there are too many.
    fn timeout_policy_set(&mut self, policy: TimeoutPolicy) -> Result<(), Refusal> {
        let _ = policy;
        Err(without_conntrack())
    }
    /// Timeout policies, by name.
    fn timeout_policies(&self) -> Vec<TimeoutPolicy> {
        Vec::new()
    }
    /// Removes a timeout policy; returns whether it existed.
    fn timeout_policy_remove(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }
}

fn without_conntrack() -> Refusal {
    Refusal::new(Errno::EOPNOTSUPP, "the switch does not track connections")
}
