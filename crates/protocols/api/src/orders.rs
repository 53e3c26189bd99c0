//! Messages between supervisor and switch process.

use lasthop_device::TunnelFacts;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capture::CaptureSpec;
use crate::explain::{Consultation, ExplainSpec, Explained};
use crate::facts::Inspection;
use crate::fdb::{Flush, StaticEntry};
use crate::port::{Leads, PortCommon};
use crate::profile::ProfileSpec;
use crate::report::{FdbReport, StatsReport, SwitchInside};
use crate::sched::{PolicyModes, SchedTrace, SeenGuest};
use crate::switches::SwitchSpec;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::sandbox::{ForbiddenCall, Layer};

/// Of orders and reports, of saved sessions, and of the place of counters. A switch process of another version cannot take
/// over.
pub const STATE_VERSION: u64 = 4;

/// Bytes of the file that keeps a switch process's flows for the next one, of which those take memory that were used once:
/// some 500,000 flows of the usual length.
pub const FLOW_MEMORY_BYTES: u64 = 256 << 20;

/// Bytes of an area for connections (`ct` actions), of which those take memory that were used once.
pub const CONNECTION_MEMORY_BYTES: u64 = 448 << 20;
/// Areas for connections behind the flows.
pub const CONNECTION_AREAS: u64 = 2;

/// From the supervisor: an order and the number under which its answer is awaited.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The number of the answer; 0 is that of orders without one.
    pub id: u64,
    /// The order.
    pub order: Order,
}

/// An order to the switch process.
///
/// `name` is that of a vnic, port or switch. `attachment` numbers the connections that guests' front ends made, each once. `numbers` are
/// those by which a session knows its descriptors; each attached descriptor has one, in order. A refusal is a [`Fault`] with a sentence
/// for the user, and leaves all as it was.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Make a switch beside the default one.
    AddSwitch(SwitchSpec),
    /// Give a switch another module, or other settings, with the ports that it has.
    SetSwitch(SwitchSpec),
    /// Forget a switch that has no ports.
    RemoveSwitch { name: String },
    /// Report the state of each switch.
    Switches,
    /// Make a port; its guest may come later.
    AddPort(SwitchPort),
    /// Change a port, whose guest may be attached.
    ChangePort(SwitchPort),
    /// Forget a port and hang up on its guest.
    RemovePort { name: String },
    /// The host's device behind a port has changed.
    HostDevice { name: String, device: Option<HostDevice> },
    /// There is no port for a request ([`Report::Wanted`]): a number as errno(3) has it. The log says why.
    Denied { name: String, errno: i32 },
    /// The first attached descriptor is a connection to the port's guest, the second one memory for a successor, if there is
    /// any. Answered by [`Report::Detached`] when it ends, which may be at once.
    Attach { name: String, attachment: u64 },
    /// The attached descriptors, with these numbers, belong to a session that is to be taken over.
    Bring { attachment: u64, numbers: Vec<u32> },
    /// The attached descriptors are the connection to the port's guest and the memory of its session, as a dead switch process
    /// left them: continue, as if nothing had happened. `session` is the last one that was saved; null: none yet.
    TakeOver { name: String, attachment: u64, session: Value },
    /// As `TakeOver`, while the process that has the guest is at work still: get everything ready, and do nothing before `GoOn`. One
    /// that was got ready for the same port before is forgotten.
    Prepare { name: String, attachment: u64, session: Value },
    /// Have the memory mapped that sessions which were got ready use now, as far as it comes in so many microseconds. Not answered.
    Touch { for_us: u64 },
    /// Continue the sessions that were prepared under these numbers: no other process serves them any more.
    GoOn { attachments: Vec<u64> },
    /// The attached descriptor is a client's connection: the capture, in pcapng, goes there, after `greeting`.
    Capture { spec: CaptureSpec, greeting: String },
    /// The attached descriptor is a client's connection: the profile goes there when its time is over, after `greeting`.
    Profile { spec: ProfileSpec, greeting: String },
    /// Make again the datapaths that [`Report::Datapaths`] told of last; all ports are there. The attached descriptor is memory in which the
    /// last process left its flows and connections, and where this one writes its own.
    Restore(Value),
    /// The attached descriptor is a connection of a permitted client of the datapath socket.
    Connect,
    /// The same, for a connection of the controller process.
    ConnectController,
    /// The attached descriptor is the view of the host's scheduler, with these guests in it; without one there is no view any more. Only for
    /// a process that says that it knows this order ([`Answer::Knows`]).
    Scheduler { policies: PolicyModes, guests: Vec<SeenGuest> },
    /// The last decisions by that view. Only for a process that says that it knows this order ([`Answer::Knows`]).
    SchedTrace,
    /// All counters.
    Stats,
    /// Tell what becomes of a packet, which is not sent. `consultations` are the embedded controller's answers about its passes, in order.
    Explain { spec: ExplainSpec, consultations: Vec<Consultation> },
    /// How far all guests have come, or the one of the named port.
    Inspect { name: Option<String> },
    /// The forwarding tables, or that of one switch.
    /// In parts that fit into a message each, if so wanted: a supervisor of before knows none.
    Fdb {
        switch: Option<String>,
        #[serde(default)]
        in_parts: bool,
    },
    /// Enter a static address.
    FdbAdd(StaticEntry),
    /// Take it out again.
    FdbDel(StaticEntry),
    /// Forget learned addresses.
    FdbFlush(Flush),
    /// Report the known state version.
    Know,
    /// Take no more packets from any guest, and finish or postpone taken ones: another process will continue.
    Rest,
    /// Take nothing from any guest before `Wake`. Supervisors of before say so before they hand guests over; it changes nothing for a
    /// process that has not begun.
    Hold,
    /// Take from guests again, or begin to. Sessions that were got ready and not gone on with are forgotten.
    Wake,
    /// Let every guest go and end.
    End,
}

impl Order {
    /// Whether no packet has to pass when it was obeyed: a switch process is told all that there is before its workers start.
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
    /// Its settings. Programs of before had no others than vnics.
    #[serde(rename = "vnic")]
    pub common: PortCommon,
    /// Which ports it may reach.
    pub leads: Leads,
    /// It was made since the switch wanted it ([`Report::Wanted`]), and goes when it does not any more.
    pub is_requested: bool,
    /// The host's device behind it.
    pub device: Option<HostDevice>,
    /// Its packets come out of tunnels and go into them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tunnel: bool,
}

/// A network device as others on the host find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevice {
    /// Interface index, in its network namespace.
    pub index: u32,
    /// The number by which the supervisor's network namespace knows the device's; none if it is the same.
    pub namespace: Option<i32>,
}

/// A device that a switch is to have as a port of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedDevice {
    /// Its name, as long as the kernel allows: up to 15 bytes.
    pub name: String,
    /// Where it comes from.
    pub kind: WantedKind,
    /// The switch, which may be known to the switch process alone.
    pub switch: String,
}

/// Where a wanted device comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantedKind {
    /// It is there.
    Netdev,
    /// It is to be made: a tap, by which the host's own stack takes part.
    Internal,
    /// It is to be made: the end of tunnels.
    Tunnel(TunnelFacts),
}

/// From the switch.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// Part of the answer to a request for addresses: those that come before others.
    Addresses { id: u64, fdb: FdbReport },
    /// The answer to a request.
    Reply { id: u64, result: Result<Answer, Fault> },
    /// A guest's connection is over; `why` is a sentence without a full stop.
    Detached { name: String, attachment: u64, why: String },
    /// The attached descriptors, with these numbers, belong to a session from now on.
    Keep { attachment: u64, numbers: Vec<u32> },
    /// The saved session for a successor; `numbers` are all descriptors that belong to it.
    Kept { attachment: u64, session: Value, numbers: Vec<u32> },
    /// Datapaths as clients of the datapath socket made them: a successor restores them.
    Datapaths(Value),
    /// A controller wants a port that the switch does not have. Answered by [`Order::AddPort`] or [`Order::Denied`].
    Wanted(WantedDevice),
    /// It is no longer wanted.
    Released { name: String },
    /// A guest's VMM was refused something, and the connection goes on.
    Refused { name: String, why: String },
    /// The controller process was asked about packets, and nothing has come from it since.
    Unanswered,
    /// The layers of its sandbox, before it met any guest.
    Sandbox(Vec<Layer>),
    /// The switch made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// The switch cannot go on and ends.
    Failed { why: String },
}

impl Report {
    /// Whether it shows that the main thread is at work: sessions have threads of their own.
    pub fn is_of_main_thread(&self) -> bool {
        !matches!(self, Self::Keep { .. } | Self::Kept { .. } | Self::Detached { .. } | Self::Refused { .. })
    }
}

/// The answer to an order.
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
    Explained(Box<Explained>),
    /// Of orders, reports and sessions: `STATE_VERSION`. Programs of before do not know [`Order::Prepare`] or [`Order::Scheduler`], or write
    /// no flows into the memory of [`Order::Restore`], and say nothing of it.
    Knows {
        version: u64,
        #[serde(default)]
        prepares: bool,
        #[serde(default)]
        keeps_flows: bool,
        #[serde(default)]
        sees_scheduler: bool,
        /// It knows [`Order::SchedTrace`].
        #[serde(default)]
        traces_decisions: bool,
        /// Its version, for people; empty before it was told.
        #[serde(default)]
        program: String,
        /// The keys that a vnic may have there; none before they were told.
        #[serde(default)]
        vnic_keys: Vec<String>,
    },
    /// Sessions that cannot be gone on with, of those that were to be.
    WentOn {
        refused: Vec<(u64, Fault)>,
    },
    /// So many addresses were forgotten.
    Flushed(usize),
}
