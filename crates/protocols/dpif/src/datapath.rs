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

/// A port as clients asked for it. Port 0 has the datapath's name.
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
    /// Where its misses go, unless the datapath's go by CPU; 0 is nowhere.
    pub upcall_port_ids: Vec<u32>,
}

/// A port that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedPort<'a> {
    /// The requesting client.
    pub client: PeerId,
    /// Its datapath's name; of port 0 of a datapath that is to begin itself, its own.
    pub datapath: &'a str,
    /// Name.
    pub name: &'a str,
    /// Its kind.
    pub kind: VportKind,
    /// Of a tunnel.
    pub options: Option<VportOptions>,
}

/// Whether the device of a port is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is: the port can begin.
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

/// A flow to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowInstall {
    /// Its name, if it has one.
    pub ufid: Option<Ufid>,
    /// Its match; checked.
    pub matches: Match,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Only asked whether it could be: no packet may meet it, but it is found, and deleted, by name.
    pub is_probe: bool,
    /// One that is there already is an error; else it gets the actions.
    pub is_new: bool,
}

/// A flow as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathFlow {
    /// Its name, if it has one.
    pub ufid: Option<Ufid>,
    /// As it was installed.
    pub matches: Match,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Its statistics.
    pub stats: FlowStats,
}

impl DatapathFlow {
    /// How it is named in requests.
    #[must_use]
    pub fn name(&self) -> FlowName {
        self.ufid.map_or_else(|| FlowName::Key(Box::new(self.matches.key.clone())), FlowName::Ufid)
    }
}

/// A flow as it is shown in a dump.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Its name, if it has one.
    pub ufid: Option<Ufid>,
    /// As it was installed.
    pub matches: &'a Match,
    /// Its actions.
    pub actions: &'a [Action],
    /// Its statistics.
    pub stats: FlowStats,
}

impl DatapathFlow {
    /// The same, without owning it.
    #[must_use]
    pub fn view(&self) -> FlowView<'_> {
        FlowView { ufid: self.ufid, matches: &self.matches, actions: &self.actions, stats: self.stats }
    }
}

/// A removed flow whose last packets may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemovalId(pub u64);

/// A packet of the control plane's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execute {
    /// From its Ethernet header on.
    pub packet: Vec<u8>,
    /// Metadata that its bytes do not have; header fields in it are ignored.
    pub metadata: FlowKey,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Only asked whether it could be done.
    pub is_probe: bool,
    /// Bytes of the largest fragment that it was put together from.
    pub mru_bytes: Option<u16>,
    /// Its hash, as it was told along with the miss.
    pub hash: Option<u64>,
}

/// A meter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Rates are in kilobits a second, not in packets.
    pub is_kbps: bool,
    /// Its rates.
    pub bands: Vec<Band>,
    /// Packets and bytes that it saw.
    pub stats: MeterStats,
    /// When a packet last went through it, in milliseconds of CLOCK_MONOTONIC; 0 is never.
    pub used_ms: u64,
}

/// Meters that a datapath may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterFeatures {
    /// Meters.
    pub meters_max: u32,
    /// Bands of each.
    pub bands_max: u32,
}

/// The switch, as the server sees it. The server handles names, port numbers and where misses go. These calls
/// are about datapaths and ports that it has, with arguments that make sense by themselves. All calls return
/// soon: a client that dumps a large table is given some flows a call.
pub trait Datapath {
    /// A datapath begins, without ports.
    ///
    /// # Errors
    /// When there cannot be another one.
    fn created(&mut self, id: DatapathId, name: &str) -> Result<(), Refusal>;
    /// Whether the datapath of this name belongs to the switch's own controller. It appears in lists only for
    /// clients that ask for all, and no client removes it.
    fn is_reserved(&self, name: &str) -> bool {
        let _ = name;
        false
    }
    /// It ends, and all that is in it.
    fn destroyed(&mut self, id: DatapathId);
    /// Whether a client takes its misses from now on; at first none does.
    fn asked(&mut self, id: DatapathId, is_asked: bool) {
        let _ = (id, is_asked);
    }
    /// Its counters, `lost` excepted.
    fn stats(&self, id: DatapathId) -> (DatapathStats, MegaflowStats);

    /// A port is about to begin, port 0 of a datapath included, before the datapath does. While its device is being made its client waits,
    /// and others are served; this is asked again with every [`Server::settle`](crate::server::Server::settle), until it is
    /// ready or refused, or [`Datapath::port_unwanted`] says that it is not wanted any more.
    ///
    /// # Errors
    /// ENODEV if there is no such device, and any reason why it cannot be made.
    fn port_wanted(&mut self, wanted: WantedPort<'_>) -> Result<Readiness, Refusal> {
        let _ = wanted;
        Ok(Readiness::Ready)
    }
    /// A port that was not ready will not begin: no client waits for it any more.
    fn port_unwanted(&mut self, name: &str) {
        let _ = name;
    }
    /// A port begins.
    ///
    /// # Errors
    /// ENODEV if there is no device or guest of its name, EOPNOTSUPP for kinds that are not implemented.
    fn port_added(&mut self, id: DatapathId, port: &Port) -> Result<(), Refusal>;
    /// A port's options change.
    ///
    /// # Errors
    /// When they make no sense; then they are as before.
    fn port_changed(&mut self, id: DatapathId, port: &Port) -> Result<(), Refusal>;
    /// A port ends.
    fn port_removed(&mut self, id: DatapathId, number: u32);
    /// The state of a port.
    fn port_view(&self, id: DatapathId, number: u32) -> PortView;

    /// Installs a flow, or gives its actions to an existing one, whose counters continue.
    ///
    /// # Errors
    /// EEXIST if it must be new and is not, or if another flow has the same match and mask; EINVAL for
    /// unsupported parts.
    fn flow_install(&mut self, id: DatapathId, flow: FlowInstall) -> Result<(), Refusal>;
    /// Gives a flow that is there new actions, unless `None`, and fresh counters, if `is_clear`.
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
    /// Removes a flow: no later packet matches it. If a client wants its final statistics, returns a number
    /// to ask for them, since workers may still count packets of theirs.
    ///
    /// # Errors
    /// ENOENT.
    fn flow_remove(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        wants_last: bool,
    ) -> Result<Option<RemovalId>, Refusal>;
    /// The flow as it was at last, once; `None` while its last packets are under way. Asked until it is told, so that a
    /// datagram of many removals waits but once.
    fn flow_removed(&mut self, removal: RemovalId) -> Option<DatapathFlow>;
    /// Takes all flows out.
    fn flows_flush(&mut self, id: DatapathId);
    /// Shows flows from `cursor` on (0 is the first) until `visit` breaks. Returns where to continue: at the
    /// flow shown last; `None` when all were shown. Flows installed or removed meanwhile may be missed or
    /// shown.
    fn flows_visit(
        &self,
        id: DatapathId,
        cursor: u64,
        visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
    ) -> Option<u64>;

    /// Does something with a packet, or says whether it could.
    ///
    /// # Errors
    /// EINVAL for unsupported parts.
    fn execute(&mut self, id: DatapathId, execute: Execute) -> Result<(), Refusal>;

    /// A packet that the control plane was asked about comes back with this hash in a request that cannot be understood: it is not sent,
    /// and nothing need wait for it any more.
    fn not_executed(&mut self, id: DatapathId, hash: u64) {
        let _ = (id, hash);
    }

    /// The limits of meters.
    fn meter_features(&self, id: DatapathId) -> MeterFeatures;
    /// Makes a meter, or replaces one. Returns the statistics of the replaced one.
    ///
    /// # Errors
    /// When it cannot be had.
    fn meter_set(&mut self, id: DatapathId, meter: u32, what: Meter) -> Result<Option<Meter>, Refusal>;
    /// One meter.
    fn meter(&self, id: DatapathId, meter: u32) -> Option<Meter>;
    /// Takes a meter out. Returns it as it was at last.
    fn meter_remove(&mut self, id: DatapathId, meter: u32) -> Option<Meter>;

    /// Limits zones' connections.
    ///
    /// # Errors
    /// EOPNOTSUPP without connection tracking.
    fn ct_limits_set(&mut self, limits: &[ZoneLimit]) -> Result<(), Refusal> {
        let _ = limits;
        Err(without_conntrack())
    }
    /// Ends zones' limits.
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

    /// Shows connections from `cursor` on (0 is the first), of a zone or all, until `visit` breaks. With `is_all` it shows those of reserved datapaths, too. Returns where to continue: at the
    /// connection shown last; `None` when all were shown. Connections that come or go meanwhile may be missed or shown.
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
    /// Takes connections out; `is_all`: those of embedded controllers' datapaths as well. That there is none of a zone, or none at all, is no
    /// error.
    ///
    /// # Errors
    /// ENOENT if the one is not there.
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
    /// ENOSPC if there are as many as there may be.
    fn timeout_policy_set(&mut self, policy: TimeoutPolicy) -> Result<(), Refusal> {
        let _ = policy;
        Err(without_conntrack())
    }
    /// Timeout policies, by name.
    fn timeout_policies(&self) -> Vec<TimeoutPolicy> {
        Vec::new()
    }
    /// Takes a timeout policy away; whether there was one.
    fn timeout_policy_remove(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }
}

fn without_conntrack() -> Refusal {
    Refusal::new(Errno::EOPNOTSUPP, "the switch does not track connections")
}
