//! Messages between supervisor and switch process.

use lasthop_device::TunnelFacts;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capture::CaptureSpec;
use crate::explain::{Consultation, ExplainSpec, Explained};
use crate::facts::Inspection;
use crate::fdb::{Flush, StaticEntry};
use crate::placement::CpuPlaceNumbers;
use crate::port::{PeerKind, PortCommon};
use crate::profile::ProfileSpec;
use crate::report::{FdbReport, StatsReport, SwitchInside};
use crate::sched::{PolicyModes, QueueMove, SchedTrace, SeenGuest};
use crate::sched_table::SchedTable;
use crate::switches::SwitchSpec;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::sandbox::{ForbiddenCall, Layer};
use lasthop_vhost::features;

/// Version of orders and reports, of saved sessions, and of the memory of counters. A switch process of another version
/// cannot take over.
pub const STATE_VERSION: u64 = 4;

/// Size of the file that keeps a switch process's flows for the next one. Only parts that were used once take memory:
/// some 500,000 flows of the usual length fit.
pub const FLOW_MEMORY_BYTES: u64 = 256 << 20;

/// Size of an area for connections (`ct` actions). Only parts that were used once take memory.
pub const CONNECTION_MEMORY_BYTES: u64 = 448 << 20;
/// Number of areas for connections behind the flows.
pub const CONNECTION_AREAS: u64 = 2;

/// An order of the supervisor, and the number of its reply.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The number of the reply; 0 for orders without one.
    pub id: u64,
    /// The order.
    pub order: Order,
}

/// An order to the switch process.
///
/// `name` is that of a vnic, port or switch. `attachment` numbers the connections of guests' front ends, each once.
/// `numbers` are a session's numbers for its descriptors; each attached descriptor has one, in order. A refusal is a
/// [`Fault`] with a sentence for the user, and changes nothing.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Add a switch beside the default one.
    AddSwitch(SwitchSpec),
    /// Change a switch's module or settings; it keeps its ports.
    SetSwitch(SwitchSpec),
    /// Remove a switch without ports.
    RemoveSwitch { name: String },
    /// Report the state of each switch.
    Switches,
    /// Add a port; its guest may come later.
    AddPort(SwitchPort),
    /// Change a port, whose guest may be attached.
    ChangePort(SwitchPort),
    /// Remove a port and hang up on its guest.
    RemovePort { name: String },
    /// The host's device behind a port has changed.
    HostDevice { name: String, device: Option<HostDevice> },
    /// The request ([`Report::Wanted`]) for a port is refused, with a number as in errno(3). The log has the reason.
    Denied { name: String, errno: i32 },
    /// The first attached descriptor is a connection to the port's guest, the second one, if there is one, memory for a
    /// successor. [`Report::Detached`] follows when the connection ends, which may be at once.
    Attach { name: String, attachment: u64 },
    /// The attached descriptors, with these numbers, belong to a session that will be taken over.
    Bring { attachment: u64, numbers: Vec<u32> },
    /// Continue a session as a dead switch process left it, without the guest's notice. The attached descriptors are
    /// the connection to the port's guest and the session's memory. `session` is the last saved state; null if there is
    /// none.
    TakeOver { name: String, attachment: u64, session: Value },
    /// Like `TakeOver`, while the guest's process is still running: prepare everything, and do nothing else before
    /// `GoOn`. An earlier preparation for the same port is dropped.
    Prepare { name: String, attachment: u64, session: Value },
    /// Fault the memory of prepared sessions' rings in, for this many microseconds at most. No reply.
    Touch { for_us: u64 },
    /// Continue the sessions that were prepared under these numbers: no other process serves them any more.
    GoOn { attachments: Vec<u64> },
    /// The attached descriptor is a client's connection, to which the capture is written in pcapng, after `greeting`.
    Capture { spec: CaptureSpec, greeting: String },
    /// The attached descriptor is a client's connection, to which the profile is written at its end, after `greeting`.
    Profile { spec: ProfileSpec, greeting: String },
    /// Make the datapaths of the last [`Report::Datapaths`] again; all ports exist. The attached descriptor is memory
    /// in which the last process left its flows and connections, and where this one keeps its own.
    Restore(Value),
    /// The attached descriptor is a connection of a permitted client of the datapath socket.
    Connect,
    /// Same, for a connection of the controller process.
    ConnectController,
    /// The first attached descriptor is the view of the host's scheduler, with these guests in it; without a descriptor there
    /// is no view. Only for a process that knows this order ([`Answer::Knows`]). The others, if that process knows them, are
    /// the requests for wake-ups and the workers' event queues.
    Scheduler {
        policies: PolicyModes,
        guests: Vec<SeenGuest>,
        /// The place of each CPU, by number. Earlier supervisors do not tell.
        #[serde(default)]
        places: Vec<CpuPlaceNumbers>,
    },
    /// Report the last decisions by that view. Only for a process that knows this order ([`Answer::Knows`]).
    SchedTrace,
    /// Report the data movement table. Only for a process that knows this order ([`Answer::Knows`]).
    SchedTable,
    /// Move a queue pair to another worker. Only for a process that knows this order ([`Answer::Knows`]).
    MoveQueue(QueueMove),
    /// Report all counters.
    Stats,
    /// Explain the decisions about a packet, which is not sent. `consultations` are the embedded controller's answers about
    /// its passes, in order.
    Explain { spec: ExplainSpec, consultations: Vec<Consultation> },
    /// How far all guests have come, or the one of the named port.
    Inspect { name: Option<String> },
    /// Report the forwarding tables, or that of one switch. If requested, in parts that fit a message each; older
    /// supervisors do not request that.
    Fdb {
        switch: Option<String>,
        #[serde(default)]
        in_parts: bool,
    },
    /// Add a static address.
    FdbAdd(StaticEntry),
    /// Remove a static address.
    FdbDel(StaticEntry),
    /// Forget learned addresses.
    FdbFlush(Flush),
    /// Report the state version.
    Know,
    /// Stop fetching packets from guests, and finish or postpone fetched ones: another process will continue.
    Rest,
    /// Fetch nothing from guests before `Wake`. Older supervisors send this before they pass guests; it has no effect
    /// on a process that has not begun.
    Hold,
    /// Start to fetch from guests, or continue. Prepared sessions that were not continued are dropped.
    Wake,
    /// Disconnect every guest, and end.
    End,
}

impl Order {
    /// Whether the order needs no running worker: a switch process gets its whole configuration before its workers
    /// start.
    pub fn is_preparation(&self) -> bool {
        matches!(
            self,
            Self::AddSwitch(_)
                | Self::AddPort(_)
                | Self::FdbAdd(_)
                | Self::Restore(_)
                | Self::Know
                | Self::Scheduler { .. }
                | Self::Hold
                | Self::Bring { .. }
                | Self::TakeOver { .. }
                | Self::Prepare { .. }
                | Self::Touch { .. }
                | Self::GoOn { .. }
                | Self::Wake
        )
    }
}

/// A port as the switch process gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchPort {
    /// Its settings. Older programs only have vnics.
    #[serde(rename = "vnic")]
    pub common: PortCommon,
    /// The ports that it may reach.
    pub leads: PeerKind,
    /// Whether the switch requested it ([`Report::Wanted`]); then it is removed when the switch releases it.
    pub is_requested: bool,
    /// The host's device behind it.
    pub device: Option<HostDevice>,
    /// Whether it is a tunnel port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tunnel: bool,
}

/// A network device, as other programs on the host find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevice {
    /// Interface index, in its network namespace.
    pub index: u32,
    /// The supervisor's number for the device's network namespace; `None` for its own namespace.
    pub namespace: Option<i32>,
}

/// A device that a switch requests as a port of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedDevice {
    /// Its name; the kernel allows up to 15 bytes.
    pub name: String,
    /// The kind of device.
    pub kind: WantedKind,
    /// The switch, which only the switch process may know.
    pub switch: String,
}

/// The kind of a requested device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantedKind {
    /// It exists.
    Netdev,
    /// It has to be made: a tap that connects the host's own stack.
    Internal,
    /// It has to be made: a tunnel port.
    Tunnel(TunnelFacts),
}

/// A message of the switch process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// Part of the answer to a request for addresses: those before the last part.
    Addresses { id: u64, fdb: FdbReport },
    /// The reply to a request.
    Reply { id: u64, result: Result<Answer, Fault> },
    /// A guest's connection has ended; `why` is a sentence without a full stop.
    Detached { name: String, attachment: u64, why: String },
    /// The attached descriptors, with these numbers, belong to a session from now on.
    Keep { attachment: u64, numbers: Vec<u32> },
    /// The saved state of a session for a successor; `numbers` are all its descriptors.
    Kept { attachment: u64, session: Value, numbers: Vec<u32> },
    /// Datapaths as clients of the datapath socket made them: a successor restores them.
    Datapaths(Value),
    /// A controller requests a port that the switch does not have. Answered by [`Order::AddPort`] or [`Order::Denied`].
    Wanted(WantedDevice),
    /// The port is not needed any more.
    Released { name: String },
    /// A request of a guest's VMM was refused, and the connection continues.
    Refused {
        name: String,
        why: String,
        /// Its rings were stopped for a fault of the guest or the VMM, until they are started again. Programs of before do not say that.
        #[serde(default)]
        is_stopped: bool,
    },
    /// The controller process got upcalls, and has not answered since.
    Unanswered,
    /// The layers of its sandbox, reported before it served any guest.
    Sandbox(Vec<Layer>),
    /// The switch made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// It cannot continue, and ends.
    Failed { why: String },
}

impl Report {
    /// Whether the message shows that the main thread works: sessions have threads of their own.
    pub fn is_of_main_thread(&self) -> bool {
        !matches!(self, Self::Keep { .. } | Self::Kept { .. } | Self::Detached { .. } | Self::Refused { .. })
    }
}

/// The reply to an order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    /// Whether the guest learnt of its new link state; `None` if the link did not change, or there is no guest.
    Changed {
        guest_told: Option<bool>,
    },
    Stats(StatsReport),
    Fdb(FdbReport),
    Inspection(Inspection),
    Switches(Vec<SwitchInside>),
    SchedTrace(SchedTrace),
    SchedTable(SchedTable),
    Explained(Box<Explained>),
    /// The program of the switch process.
    Knows(SwitchProgram),
    /// The sessions that cannot be continued.
    WentOn {
        refused: Vec<(u64, Fault)>,
    },
    /// The number of forgotten addresses.
    Flushed(usize),
}

/// The program of a switch process, as it tells in answer to [`Order::Know`]. Programs of before do not know [`Order::Prepare`] or
/// [`Order::Scheduler`], or write no flows into the memory of [`Order::Restore`], and say nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchProgram {
    /// Of orders, reports and sessions: `STATE_VERSION`.
    pub version: u64,
    #[serde(default)]
    pub prepares: bool,
    #[serde(default)]
    pub keeps_flows: bool,
    #[serde(default)]
    pub sees_scheduler: bool,
    /// Whether it knows the further descriptors of [`Order::Scheduler`].
    #[serde(default)]
    pub hears_sleepers: bool,
    /// Whether it knows [`Order::SchedTrace`].
    #[serde(default)]
    pub traces_decisions: bool,
    /// Whether it knows [`Order::SchedTable`].
    #[serde(default)]
    pub has_table: bool,
    /// Whether it knows [`Order::MoveQueue`].
    #[serde(default)]
    pub moves_queues: bool,
    /// Its version as text; older programs leave it empty.
    #[serde(default)]
    pub program: String,
    /// The keys that a vnic may have; older programs leave it empty.
    #[serde(default)]
    pub vnic_keys: Vec<String>,
    /// The virtio features with which it can serve a guest; older programs leave it 0.
    #[serde(default)]
    pub guest_features: u64,
}

/// The features that were added before programs told with which they can serve a guest.
const LATER_FEATURES: u64 = features::RING_PACKED;

impl SwitchProgram {
    /// The virtio features with which it cannot serve a guest.
    pub fn lacking(&self) -> u64 {
        match self.guest_features {
            0 => LATER_FEATURES,
            known => !(known | features::PROTOCOL_FEATURES),
        }
    }

    /// Its name for a reader.
    pub fn described(&self) -> String {
        match self.program.as_str() {
            "" => "a lasthop of before it".to_owned(),
            version => format!("lasthop {version}"),
        }
    }
}

impl Answer {
    /// Whether a process that gave this answer to [`Order::Know`] knows [`Order::MoveQueue`].
    ///
    /// # Errors
    /// The remedy.
    pub fn moves_queues(self) -> Result<(), Fault> {
        let why =
            "the switch process is of an older version, which moves no queues; lasthop upgrade replaces it";
        matches!(self, Self::Knows(SwitchProgram { moves_queues: true, .. }))
            .then_some(())
            .ok_or_else(|| Fault::refused(why))
    }
}
