//! The facts about a running switch and its guests, in their JSON form (docs/user/control-api.md, "doctor").

use std::collections::BTreeMap;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::port::PortCommon;
use crate::report::{ControlClient, Ended, FdbLine, PortReport, PortStatus, SandboxReport};
use crate::sched::SchedReport;

/// The answer to "doctor": facts at one time, without a judgement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The supervisor and the switch process.
    pub switch: SwitchFacts,
    /// The controller process; `None` if no switch needs it.
    #[serde(default)]
    pub controller: Option<ControllerFacts>,
    /// External controllers; `None` if no switch has one, or there is no switch process.
    #[serde(default)]
    pub external: Option<ExternalFacts>,
    /// One entry for each vhost-user port.
    pub vnics: Vec<VnicFacts>,
    /// Ports over devices and taps; supervisors of before leave their counters in the switch out.
    #[serde(default)]
    pub ports: Vec<PortStatus>,
    /// The forwarding tables.
    pub fdb: Vec<FdbLine>,
    /// Addresses that moved between ports.
    pub moves: Vec<MoveFacts>,
}

/// The supervisor and the switch process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SwitchFacts {
    /// The version of the program.
    pub version: String,
    /// Of `lasthop run`.
    pub pid: u32,
    /// `None` while it is being restarted.
    pub switch_pid: Option<u32>,
    /// Time since the switch process started.
    pub up_ms: Option<u64>,
    /// Number of restarts.
    pub restarts: u64,
    /// The end of the last switch process.
    pub last_end: Option<Ended>,
    /// Why the switch process cannot be asked, if it does not answer.
    #[serde(default)]
    pub deaf: Option<String>,
    /// The module of the default switch.
    pub module: String,
    /// The number of workers.
    pub workers: usize,
    /// The CPUs of the workers, as a list; `None` if they are not bound.
    pub cpus: Option<String>,
    /// The workers whose CPU others have for long, so that they poll little now.
    #[serde(default)]
    pub scarce_workers: Vec<usize>,
    /// The sandboxes of the inner processes.
    #[serde(default)]
    pub sandboxes: Vec<SandboxReport>,
    /// The view of the host's scheduler, without counters; `None` if it is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedReport>,
}

/// The controller process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerFacts {
    /// `None` while it is being restarted.
    pub pid: Option<u32>,
    /// Time since it started.
    pub up_ms: Option<u64>,
    /// Number of restarts.
    pub restarts: u64,
    /// The end of the last controller process.
    pub last_end: Option<Ended>,
    /// Whether it answered in time.
    pub has_answered: bool,
    /// Counters of all its switches together.
    pub counters: BTreeMap<String, u64>,
}

/// Switches with `controller = "external"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalFacts {
    /// Their names.
    pub switches: Vec<String>,
    /// Whether one of them drops misses without a controller (fail mode `secure`).
    pub is_secure: bool,
    /// Whether a client receives misses.
    pub is_asked: bool,
    /// The processes that do.
    #[serde(default)]
    pub clients: Vec<ControlClient>,
}

/// A vhost-user port, from its socket to its counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VnicFacts {
    /// Its settings and its state.
    pub port: PortStatus,
    /// The module of its switch.
    pub module: String,
    /// Its connection to a VMM.
    pub connection: ConnectionFacts,
    /// `None` without a guest.
    pub session: Option<SessionFacts>,
    /// `None` while there is no switch process.
    pub counters: Option<PortReport>,
}

/// The connection to a VMM, as the supervisor sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionFacts {
    /// Time since a front end attached; `None` if there is none.
    pub attached_ms: Option<u64>,
    /// The process at the other end, if the system tells.
    pub peer_pid: Option<i32>,
    /// Why a vnic that connects cannot.
    pub waits_because: Option<String>,
    /// The system's error number for that.
    pub waits_errno: Option<i32>,
    /// The end of the last connection.
    pub last_end: Option<Ended>,
    /// Number of guests refused because there was one already.
    pub refused_guests: u64,
    /// Time since the last refusal.
    pub refused_ago_ms: Option<u64>,
}

/// One vhost-user session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SessionFacts {
    /// Messages of the front end.
    pub messages: u64,
    /// Virtio features that the switch offers.
    pub offered: Vec<String>,
    /// Features that the guest's driver acknowledged; empty before it runs.
    pub features: Vec<String>,
    /// Features of vhost-user that both sides have.
    pub protocol_features: Vec<String>,
    /// The device status (virtio 1.2, 2.1), for front ends that report it.
    pub status: u8,
    /// Messages that were refused.
    pub refused: u64,
    /// Messages that were ignored.
    pub ignored: u64,
    /// The memory that its guest shares.
    pub memory: MemoryFacts,
    /// One entry for each virtqueue.
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
    /// Bytes of its files that were allocated when they were mapped.
    pub filled_bytes: u64,
    /// Whether a file was truncated.
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

/// A virtqueue: the front end's settings and its progress.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RingFacts {
    /// Even for receive rings, odd for transmit rings.
    pub index: u16,
    /// Entries of the ring.
    pub entries: u16,
    /// Whether the front end set its addresses.
    pub placed: bool,
    /// Whether the front end started it.
    pub started: bool,
    /// Whether it has no kick descriptor and is polled.
    pub polled: bool,
    /// Whether it has a call descriptor.
    pub has_call: bool,
    /// Whether the front end enabled it.
    pub enabled: bool,
    /// Whether the switch runs it.
    pub running: bool,
    /// The guest's fault that stopped it.
    pub error: Option<String>,
    /// Its home worker.
    pub worker: Option<usize>,
    /// Kicks received since it started.
    pub kicks: u64,
    /// Its positions; `None` if it does not run, or a worker was using it.
    pub progress: Option<ProgressFacts>,
}

/// Positions of a ring, modulo 65536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressFacts {
    /// The driver's available index.
    pub available: u16,
    /// Number of heads that the switch fetched of these.
    pub taken: u16,
    /// The used index: heads that the switch returned.
    pub used: u16,
    /// Packets that wait for a receive ring's buffers, or fetched chains of a transmit ring that were not returned.
    pub waiting: usize,
    /// Whether the guest of a receive ring let packets expire and has not moved since.
    pub stalled: bool,
}

/// An address that moved between ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFacts {
    /// The address.
    pub mac: String,
    /// Name of its last port.
    pub from: String,
    /// Name of its present port.
    pub to: String,
    /// Number of moves since it is watched.
    pub count: u32,
    /// Time since the last move, in milliseconds.
    pub age_ms: u64,
}

impl MoveFacts {
    /// Merges moves of one address between the same two ports: the controller saw some, and the bridge that replaced it the
    /// others.
    #[must_use]
    pub fn merged(moves: Vec<Self>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for moved in moves {
            let pair = [&moved.from, &moved.to];
            let is_same = |known: &&mut Self| {
                known.mac == moved.mac && pair.contains(&&known.from) && pair.contains(&&known.to)
            };
            match all.iter_mut().find(is_same) {
                Some(known) => {
                    let count = known.count.saturating_add(moved.count);
                    let latest = if moved.age_ms < known.age_ms { moved } else { known.clone() };
                    *known = Self { count, ..latest };
                }
                None => all.push(moved),
            }
        }
        all.sort_by_key(|moved| std::cmp::Reverse(moved.count));
        all
    }
}

/// The switch process's part of [`Facts`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    /// By name of the vnic.
    pub sessions: Vec<(String, SessionFacts)>,
    /// Counters of the ports.
    pub ports: Vec<PortReport>,
    /// The workers whose CPU others have for long.
    #[serde(default)]
    pub scarce_workers: Vec<usize>,
    /// The forwarding tables.
    pub fdb: Vec<FdbLine>,
    /// Addresses that moved between ports.
    pub moves: Vec<MoveFacts>,
    /// Whether an external client receives misses.
    #[serde(default)]
    pub is_asked: bool,
    /// The numbers under which their connections were passed.
    #[serde(default)]
    pub callers: Vec<u64>,
}

impl Facts {
    /// Whether a switch has an external controller.
    pub fn is_for_outside(&self, switch: &str) -> bool {
        self.external.as_ref().is_some_and(|external| external.switches.iter().any(|name| name == switch))
    }
}

impl VnicFacts {
    /// Its settings except those of the backend.
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
