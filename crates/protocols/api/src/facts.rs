//! The facts that a running switch tells of itself and of its guests, as JSON has it (docs/user/control-api.md, "doctor").

use std::collections::BTreeMap;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::port::PortCommon;
use crate::report::{ControlClient, Ended, FdbLine, PortReport, PortStatus, SandboxReport};
use crate::sched::SchedReport;

/// The answer to "doctor": facts of one moment, no judgement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The supervisor and the switch process.
    pub switch: SwitchFacts,
    /// The controller process; none if no switch needs it.
    #[serde(default)]
    pub controller: Option<ControllerFacts>,
    /// Of those from outside; none if no switch is for them, or there is no switch process.
    #[serde(default)]
    pub external: Option<ExternalFacts>,
    /// One per vhost-user port.
    pub vnics: Vec<VnicFacts>,
    /// Ports over devices and taps, without their counters in the switch.
    #[serde(default)]
    pub ports: Vec<PortStatus>,
    /// The forwarding tables.
    pub fdb: Vec<FdbLine>,
    /// Addresses that changed ports.
    pub moves: Vec<MoveFacts>,
}

/// The supervisor and the switch process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SwitchFacts {
    /// The version of the program.
    pub version: String,
    /// Of `lasthop run`.
    pub pid: u32,
    /// None while it is being started again.
    pub switch_pid: Option<u32>,
    /// Since the switch process was started.
    pub up_ms: Option<u64>,
    /// Times that it had to be started again.
    pub restarts: u64,
    /// How the last switch process ended.
    pub last_end: Option<Ended>,
    /// Why the switch process cannot be asked, if it does not answer.
    #[serde(default)]
    pub deaf: Option<String>,
    /// The module of the default switch.
    pub module: String,
    /// The number of workers.
    pub workers: usize,
    /// The CPUs that the workers may use, as a list; none if they are not bound.
    pub cpus: Option<String>,
    /// The sandboxes of the inner processes.
    #[serde(default)]
    pub sandboxes: Vec<SandboxReport>,
    /// The view of the host's scheduler, without counters; none if it is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedReport>,
}

/// The controller process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerFacts {
    /// None while it is being started again.
    pub pid: Option<u32>,
    /// Since it was started.
    pub up_ms: Option<u64>,
    /// Times that it had to be started again.
    pub restarts: u64,
    /// How the last controller process ended.
    pub last_end: Option<Ended>,
    /// It answered in time when it was asked.
    pub has_answered: bool,
    /// Counters of events, of all its switches together.
    pub counters: BTreeMap<String, u64>,
}

/// Switches with `controller = "external"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalFacts {
    /// Their names.
    pub switches: Vec<String>,
    /// One of them drops misses without a controller (fail mode `secure`).
    pub is_secure: bool,
    /// A client takes packets that match no flow.
    pub is_asked: bool,
    /// The processes that do.
    #[serde(default)]
    pub clients: Vec<ControlClient>,
}

/// One vhost-user port, from its socket to its counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VnicFacts {
    /// Its settings and its state.
    pub port: PortStatus,
    /// The module of its switch.
    pub module: String,
    /// Its connection to a VMM.
    pub connection: ConnectionFacts,
    /// None without a guest.
    pub session: Option<SessionFacts>,
    /// None while there is no switch process.
    pub counters: Option<PortReport>,
}

/// The connection to a VMM, as the supervisor has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionFacts {
    /// For how long there has been a front end; none if there is none.
    pub attached_ms: Option<u64>,
    /// The process at the other end, if the system tells.
    pub peer_pid: Option<i32>,
    /// For vnics that connect: why that fails.
    pub waits_because: Option<String>,
    /// The same as the system's error number.
    pub waits_errno: Option<i32>,
    /// How the last connection ended.
    pub last_end: Option<Ended>,
    /// Guests sent away since there was one already.
    pub refused_guests: u64,
    /// When the last one was.
    pub refused_ago_ms: Option<u64>,
}

/// One vhost-user session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SessionFacts {
    /// Messages of the front end.
    pub messages: u64,
    /// Virtio features that the switch offers.
    pub offered: Vec<String>,
    /// Acknowledged by the guest's driver; none before it runs.
    pub features: Vec<String>,
    /// Features of vhost-user that both sides have.
    pub protocol_features: Vec<String>,
    /// The device status (virtio 1.2, 2.1), for front ends that tell it.
    pub status: u8,
    /// Messages that were refused.
    pub refused: u64,
    /// Messages that were ignored.
    pub ignored: u64,
    /// The memory that its guest shares.
    pub memory: MemoryFacts,
    /// One per virtqueue.
    pub rings: Vec<RingFacts>,
}

/// The memory that a guest shares.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// The number of regions.
    pub regions: usize,
    /// Bytes of all regions.
    pub bytes: u64,
    /// memfd, tmpfs, hugetlbfs.
    pub kinds: Vec<String>,
    /// Bytes of its files that had memory when they were mapped.
    pub filled_bytes: u64,
    /// A file was cut short.
    pub is_dead: bool,
    /// The files of the regions.
    #[serde(default)]
    pub files: Vec<FileFacts>,
}

/// A file, as stat(2) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// The file system's device number (`st_dev`).
    pub device: u64,
    /// The number of the inode (`st_ino`).
    pub inode: u64,
}

/// One virtqueue: the front end's settings, and how far it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RingFacts {
    /// Even ones carry to the guest, odd ones from it.
    pub index: u16,
    /// Entries of the ring.
    pub entries: u16,
    /// The front end told its addresses.
    pub placed: bool,
    /// The front end started it.
    pub started: bool,
    /// It has no kick descriptor and is polled.
    pub polled: bool,
    /// It has a call descriptor.
    pub has_call: bool,
    /// The front end enabled it.
    pub enabled: bool,
    /// The switch runs it.
    pub running: bool,
    /// The fault of its guest that stopped it.
    pub error: Option<String>,
    /// The worker that is its home.
    pub worker: Option<usize>,
    /// Kicks that were heard since it started.
    pub kicks: u64,
    /// Its positions; none if it does not run, or a worker was at it just then.
    pub progress: Option<ProgressFacts>,
}

/// Positions of a ring, modulo 65536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressFacts {
    /// The driver's available index: heads that it made available.
    pub available: u16,
    /// Heads that the switch took of them.
    pub taken: u16,
    /// The used index: heads that the switch gave back.
    pub used: u16,
    /// Packets that wait for a receive ring's buffers, or chains of a transmit ring that were not given back.
    pub waiting: usize,
    /// The guest of a receive ring let packets expire and has not moved since.
    pub stalled: bool,
}

/// An address that changed ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFacts {
    /// The address.
    pub mac: String,
    /// The name of the port where it was, the last time that it moved.
    pub from: String,
    /// The name of the port where it is since.
    pub to: String,
    /// Times that it moved since it is watched.
    pub count: u32,
    /// The time since the last move, in milliseconds.
    pub age_ms: u64,
}

/// The switch process's share of [`Facts`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    /// By the name of the vnic.
    pub sessions: Vec<(String, SessionFacts)>,
    /// Counters of the ports.
    pub ports: Vec<PortReport>,
    /// The forwarding tables.
    pub fdb: Vec<FdbLine>,
    /// Addresses that changed ports.
    pub moves: Vec<MoveFacts>,
    /// A client from outside takes packets of no flow.
    #[serde(default)]
    pub is_asked: bool,
    /// The numbers under which their connections were handed over.
    #[serde(default)]
    pub askers: Vec<u64>,
}

impl Facts {
    /// Whether a switch has an external controller.
    pub fn is_for_outside(&self, switch: &str) -> bool {
        self.external.as_ref().is_some_and(|external| external.switches.iter().any(|name| name == switch))
    }
}

impl VnicFacts {
    /// Its settings but those of the backend.
    pub fn common(&self) -> &PortCommon {
        &self.port.settings.common
    }

    /// The path of its socket in use.
    pub fn socket(&self) -> &Path {
        self.port.guest.as_ref().map_or(Path::new(""), |guest| &guest.socket)
    }

    pub fn name(&self) -> &str {
        &self.port.name
    }

    /// Whether the guest's driver has acknowledged a feature.
    pub fn has(&self, feature: &str) -> bool {
        self.session.as_ref().is_some_and(|session| session.features.iter().any(|name| name == feature))
    }
}

impl RingFacts {
    pub fn is_to_guest(&self) -> bool {
        self.index.is_multiple_of(2)
    }
}
