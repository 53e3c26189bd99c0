//! The facts that a running switch tells of itself and of its guests, as JSON has it (docs/user/control-api.md, "doctor").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::port::DevicePortReport;
use crate::report::{FdbLine, PortReport, SandboxReport, VnicReport};

/// The answer to "doctor": facts of one moment, no judgement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) switch: SwitchFacts,
    /// The controller process; none if no switch needs it.
    #[serde(default)]
    pub(crate) controller: Option<ControllerFacts>,
    /// Of those from outside; none if no switch is for them, or there is no switch process.
    #[serde(default)]
    pub(crate) external: Option<ExternalFacts>,
    pub(crate) vnics: Vec<VnicFacts>,
    /// Ports over devices and taps, without their counters in the switch.
    #[serde(default)]
    pub(crate) ports: Vec<DevicePortReport>,
    pub(crate) fdb: Vec<FdbLine>,
    pub(crate) moves: Vec<MoveFacts>,
}

/// The supervisor and the switch process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SwitchFacts {
    pub(crate) version: String,
    /// Of `lasthop run`.
    pub(crate) pid: u32,
    /// None while it is being started again.
    pub(crate) switch_pid: Option<u32>,
    /// Since the switch process was started.
    pub(crate) up_ms: Option<u64>,
    /// Times that it had to be started again.
    pub(crate) restarts: u64,
    pub(crate) last_end: Option<Ended>,
    /// Why the switch process cannot be asked, if it does not answer.
    #[serde(default)]
    pub(crate) deaf: Option<String>,
    pub(crate) module: String,
    pub(crate) workers: usize,
    pub(crate) cpus: Option<String>,
    /// What the inner processes have given up.
    #[serde(default)]
    pub(crate) sandboxes: Vec<SandboxReport>,
}

/// The controller process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControllerFacts {
    /// None while it is being started again.
    pub(crate) pid: Option<u32>,
    /// Since it was started.
    pub(crate) up_ms: Option<u64>,
    /// Times that it had to be started again.
    pub(crate) restarts: u64,
    pub(crate) last_end: Option<Ended>,
    /// It told what it knows when it was asked, in time.
    pub(crate) has_answered: bool,
    /// Counters of events, of all its switches together.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Switches with `controller = "external"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExternalFacts {
    pub(crate) switches: Vec<String>,
    /// One of them drops what it cannot ask about.
    pub(crate) is_secure: bool,
    /// A client takes packets that match no flow.
    pub(crate) is_asked: bool,
    /// The processes that do.
    #[serde(default)]
    pub(crate) clients: Vec<ControlClient>,
}

/// A process that is connected to the control interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControlClient {
    /// None if the system does not tell, as of one in a container.
    pub(crate) pid: Option<i32>,
    /// Its name, as in its `comm` (proc(5)).
    pub(crate) name: Option<String>,
    /// Since it connected to this switch process.
    pub(crate) connected_ms: u64,
}

impl ControlClient {
    /// `ovs-vswitchd (process 4711), connected for 3 min`
    pub(crate) fn text(&self) -> String {
        let name = self.name.as_deref().unwrap_or("a process of another namespace");
        let pid = self.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        format!("{name}{pid}, connected for {}", super::words::time(self.connected_ms))
    }
}

/// Something that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) why: String,
    pub(crate) ago_ms: u64,
}

/// One vnic, from its socket to its counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VnicFacts {
    #[serde(flatten)]
    pub(crate) vnic: VnicReport,
    /// The module of its switch.
    pub(crate) module: String,
    pub(crate) connection: ConnectionFacts,
    /// None without a guest.
    pub(crate) session: Option<SessionFacts>,
    /// None while there is no switch process.
    pub(crate) counters: Option<PortReport>,
}

/// The connection to a VMM, as the supervisor has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ConnectionFacts {
    /// For how long there has been a front end; none if there is none.
    pub(crate) attached_ms: Option<u64>,
    /// The process at the other end, if the system tells.
    pub(crate) peer_pid: Option<i32>,
    /// For vnics that connect: why that fails.
    pub(crate) waits_because: Option<String>,
    /// The same as the system's error number.
    pub(crate) waits_errno: Option<i32>,
    /// How the last connection ended.
    pub(crate) last_end: Option<Ended>,
    /// Guests sent away since there was one already.
    pub(crate) refused_guests: u64,
    /// When the last one was.
    pub(crate) refused_ago_ms: Option<u64>,
}

/// One vhost-user session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SessionFacts {
    /// Messages of the front end.
    pub(crate) messages: u64,
    pub(crate) offered: Vec<String>,
    /// Acknowledged by the guest's driver; none before it runs.
    pub(crate) features: Vec<String>,
    pub(crate) protocol_features: Vec<String>,
    /// The device status (virtio 1.2, 2.1), for front ends that tell it.
    pub(crate) status: u8,
    pub(crate) refused: u64,
    pub(crate) ignored: u64,
    pub(crate) memory: MemoryFacts,
    pub(crate) rings: Vec<RingFacts>,
}

/// The memory that a guest shares.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MemoryFacts {
    pub(crate) regions: usize,
    pub(crate) bytes: u64,
    /// memfd, tmpfs, hugetlbfs.
    pub(crate) kinds: Vec<String>,
    /// Bytes of its files that had memory when they were mapped.
    pub(crate) filled_bytes: u64,
    /// A file was cut short.
    pub(crate) is_dead: bool,
    #[serde(default)]
    pub(crate) files: Vec<FileFacts>,
}

/// A file, as stat(2) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileFacts {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// One virtqueue: what the front end told, and how far it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RingFacts {
    /// Even ones carry to the guest, odd ones from it.
    pub(crate) index: u16,
    pub(crate) entries: u16,
    pub(crate) placed: bool,
    /// The front end started it.
    pub(crate) started: bool,
    pub(crate) polled: bool,
    pub(crate) has_call: bool,
    pub(crate) enabled: bool,
    /// The switch runs it.
    pub(crate) running: bool,
    pub(crate) error: Option<String>,
    pub(crate) worker: Option<usize>,
    pub(crate) kicks: u64,
    pub(crate) progress: Option<ProgressFacts>,
}

/// Positions of a ring, modulo 65536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProgressFacts {
    pub(crate) available: u16,
    pub(crate) taken: u16,
    pub(crate) used: u16,
    pub(crate) waiting: usize,
    pub(crate) stalled: bool,
}

/// An address that changed ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MoveFacts {
    pub(crate) mac: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) count: u32,
    pub(crate) age_ms: u64,
}

/// The switch process's share of [`Facts`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Inspection {
    pub(crate) sessions: Vec<(String, SessionFacts)>,
    pub(crate) ports: Vec<PortReport>,
    pub(crate) fdb: Vec<FdbLine>,
    pub(crate) moves: Vec<MoveFacts>,
    /// A client from outside takes packets of no flow.
    #[serde(default)]
    pub(crate) is_asked: bool,
    /// The numbers under which their connections were handed over.
    #[serde(default)]
    pub(crate) askers: Vec<u64>,
}

impl Facts {
    /// Whether somebody from outside decides about packets of a switch.
    pub(crate) fn is_for_outside(&self, switch: &str) -> bool {
        self.external.as_ref().is_some_and(|external| external.switches.iter().any(|name| name == switch))
    }
}

impl VnicFacts {
    pub(crate) fn name(&self) -> &str {
        &self.vnic.name
    }

    /// Whether the guest's driver has acknowledged a feature.
    pub(crate) fn has(&self, feature: &str) -> bool {
        self.session.as_ref().is_some_and(|session| session.features.iter().any(|name| name == feature))
    }
}

impl RingFacts {
    pub(crate) fn is_to_guest(&self) -> bool {
        self.index.is_multiple_of(2)
    }
}
