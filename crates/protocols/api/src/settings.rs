//! Settings that need a restart: as requested, and as the switch process uses them.

use std::str::FromStr;

use clap::Args;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::sandbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::device_patterns::DevicePatterns;
use crate::modules::{FdbEntries, ModuleName};
use crate::names::either;
use crate::offload_bounds::OffloadBounds;
use crate::pair_flows::PairFlows;
use crate::placement::{PlacementBatches, PlacementMode};
use crate::polling::{Hysteresis, PollCpus};
use crate::sched::{SharesMode, ViewMode};
use crate::switches::{ControllerKind, FailMode, SwitchSpec};
use crate::upcalls::UpcallBounds;
use crate::workers::Workers;

/// Settings from the file or from flags. In a report, the settings of the running switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Module of the switch "default", which decides where its packets go: flow, bridge or dummy [default: flow]
    #[arg(long)]
    pub module: Option<ModuleName>,
    /// CPUs that workers may use, as in 0-3,6 [default: all]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Slots of the forwarding table of the switch "default"; addresses behind one port take at most a quarter [default: 16384]
    #[arg(long, value_name = "N")]
    pub fdb_entries: Option<FdbEntries>,
    /// Controller of the switch "default", with module flow: the built-in one (embedded), a client of the datapath socket such as
    /// ovs-vswitchd (external), or none [default: embedded]
    #[arg(long, value_name = "embedded|external|none")]
    #[serde(default)]
    pub controller: Option<ControllerKind>,
    /// Packets without a flow in the switch "default", while its controller is away: forward as a bridge (standalone), or drop
    /// (secure) [default: standalone; secure with --controller external]
    #[arg(long, value_name = "standalone|secure")]
    #[serde(default)]
    pub fail_mode: Option<FailMode>,
    /// Limits of each port for packets on the way to the controller: packets, KiB, and packets a second per worker (0: no
    /// limit); packets beyond are dropped as no_flow [default: packets=256,kib=256,rate=20000]
    #[arg(long, value_name = "packets=N,kib=N,rate=N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upcalls: Option<UpcallBounds>,
    /// Threads that move packets, 1 to 64; under light load only the first one works [default: one for each CPU of --cpus; without
    /// it 2, or 1 with fewer than 4 CPUs]
    #[arg(long, value_name = "N")]
    pub workers: Option<Workers>,
    /// Longest busy-poll before a worker thread sleeps, in microseconds, 0 to 10000. It polls only while that pays; a larger value
    /// saves wake-ups where answers take long [default: 200]
    #[arg(long, value_name = "N")]
    #[serde(default)]
    pub hysteresis_us: Option<Hysteresis>,
    /// CPUs on which threads busy-poll: those that no other thread computes on (spare), or all (any) [default: spare]
    #[arg(long, value_name = "spare|any")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_poll_cpus: Option<PollCpus>,
    /// Sandbox of the switch, driver and controller process: as much as this kernel allows (auto), everything or no start
    /// (strict), none (off) [default: auto]
    #[arg(long, value_name = "auto|strict|off")]
    pub sandbox: Option<sandbox::SandboxMode>,
    /// Group, by name or number, whose members may use the control socket, besides the switch's own user [default: none]
    #[arg(long, value_name = "GROUP")]
    #[serde(default)]
    pub control_group: Option<String>,
    /// Network devices that an outside controller may use as ports, and taps that it may request, by name, as in eth1,br*
    /// [default: all if a switch has controller=external, else none]
    #[arg(long, value_name = "NAMES")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datapath_devices: Option<DevicePatterns>,
    /// Have workers look and yield by the state of the host's scheduler while a guest is attached, where the kernel permits that
    /// (auto), or never (off) [default: off]
    #[arg(long, value_name = "auto|off")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_view: Option<ViewMode>,
    /// CPUs of helpers, a thread each: they copy large frames for workers while nothing else wants their CPU. Together with the
    /// workers 64 at most. Takes --scheduler-view auto, and `lasthop sched set offload=on` [default: none]
    #[arg(long, value_name = "LIST")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper_cpus: Option<CpuList>,
    /// Frames that helpers copy, of this many bytes on average; how many may wait for them; the part of the machine that has to be
    /// idle; how far from the receiver it may be; and when the receiver is signalled [default: bytes=32768,packets=32,idle=group,reach=all,signals=visit]
    #[arg(long, value_name = "bytes=N,packets=N,idle=group|cpu,reach=llc|node|all,signals=visit|frame")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadBounds>,
    /// Threads that are brought into one last-level cache with those that they pass packets to: none (off), Lasthop's (own), and also
    /// guests' vCPUs, within the CPUs that they are allowed (guests) [default: off]
    #[arg(long, value_name = "off|own|guests")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementMode>,
    /// Batches of packets in 30 ms from which on two threads belong together [default: 150]
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_batches: Option<PlacementBatches>,
    /// CPU shares: each thread for itself (none), all processes in a cgroup of their own (group), and threads without packets
    /// lend half of their share to those with packets (steal) [default: none]
    #[arg(long, value_name = "none|group|steal")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<SharesMode>,
    /// Keep a second switch process that continues with all guests as soon as the first dies (on), or start one then (off)
    /// [default: off]
    #[arg(long, value_name = "on|off")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyMode>,
    /// Join packets out of Geneve and VXLAN tunnels on receipt, so that guests get large frames: where the kernel coalesces datagrams
    /// (auto), or never (off) [default: auto]
    #[arg(long, value_name = "auto|off")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel_gro: Option<TunnelGro>,
    /// Ask the kernel for huge pages for the memory of many connections (auto), or never (off) [default: auto]
    #[arg(long, value_name = "auto|off")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// Receive queue of a flow's packets to a guest with several queues: that of the queue pair from which the guest sends the flow
    /// (auto), or by the flow's hash alone (off) [default: auto]
    #[arg(long, value_name = "auto|off")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_steering: Option<ReceiveSteering>,
    /// Flows of a port from which on the embedded controller makes a flow for each address, not for each pair of addresses, so that
    /// packets of new pairs are no misses; 200000 for never [default: 1024]
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair_flows: Option<PairFlows>,
}

/// Whether a second switch process waits for the end of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum StandbyMode {
    /// While the switch serves.
    On,
    /// Never: a process is started when the last one has ended.
    #[default]
    Off,
}

impl StandbyMode {
    /// Whether there is one.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

impl FromStr for StandbyMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        either("standby", text, [("on", Self::On), ("off", Self::Off)])
    }
}

impl Settings {
    /// Merges both; this one has precedence.
    pub fn over(self, other: Self) -> Self {
        Self {
            module: self.module.or(other.module),
            cpus: self.cpus.or(other.cpus),
            fdb_entries: self.fdb_entries.or(other.fdb_entries),
            controller: self.controller.or(other.controller),
            fail_mode: self.fail_mode.or(other.fail_mode),
            upcalls: self.upcalls.or(other.upcalls),
            workers: self.workers.or(other.workers),
            hysteresis_us: self.hysteresis_us.or(other.hysteresis_us),
            busy_poll_cpus: self.busy_poll_cpus.or(other.busy_poll_cpus),
            sandbox: self.sandbox.or(other.sandbox),
            control_group: self.control_group.or(other.control_group),
            datapath_devices: self.datapath_devices.or(other.datapath_devices),
            scheduler_view: self.scheduler_view.or(other.scheduler_view),
            helper_cpus: self.helper_cpus.or(other.helper_cpus),
            offload: self.offload.or(other.offload),
            placement: self.placement.or(other.placement),
            placement_batches: self.placement_batches.or(other.placement_batches),
            shares: self.shares.or(other.shares),
            standby: self.standby.or(other.standby),
            tunnel_gro: self.tunnel_gro.or(other.tunnel_gro),
            huge_pages: self.huge_pages.or(other.huge_pages),
            receive_steering: self.receive_steering.or(other.receive_steering),
            pair_flows: self.pair_flows.or(other.pair_flows),
        }
    }
}

/// The configuration of the switch process; module and table are the default switch's.
#[derive(Clone, Debug, Args)]
pub struct SwitchSettings {
    #[arg(long)]
    pub module: ModuleName,
    #[arg(long)]
    pub cpus: Option<CpuList>,
    #[arg(long)]
    pub fdb_entries: Option<FdbEntries>,
    #[arg(long)]
    pub controller: Option<ControllerKind>,
    #[arg(long)]
    pub fail_mode: Option<FailMode>,
    #[arg(long)]
    pub upcalls: Option<UpcallBounds>,
    #[arg(long, default_value = "1")]
    pub workers: Workers,
    #[arg(long = "hysteresis-us", default_value_t)]
    pub hysteresis: Hysteresis,
    #[arg(long, default_value = "spare")]
    pub busy_poll_cpus: PollCpus,
    #[arg(long, default_value = "auto")]
    pub sandbox: sandbox::SandboxMode,
    #[arg(long, default_value = "auto")]
    pub huge_pages: HugePages,
    #[arg(long, default_value = "auto")]
    pub receive_steering: ReceiveSteering,
    #[arg(long)]
    pub helper_cpus: Option<CpuList>,
    #[arg(long)]
    pub offload: Option<OffloadBounds>,
    /// For the controller process, which is told by orders.
    #[arg(skip)]
    pub pair_flows: PairFlows,
}

impl SwitchSettings {
    /// The given settings, completed by defaults.
    ///
    /// # Errors
    /// One sentence that names CPUs that this process may not use.
    pub fn new(asked: Settings) -> Result<Self, Fault> {
        let Settings {
            module,
            cpus,
            fdb_entries,
            controller,
            fail_mode,
            upcalls,
            workers,
            hysteresis_us,
            busy_poll_cpus,
            sandbox,
            control_group: _,
            datapath_devices: _,
            scheduler_view: _,
            helper_cpus,
            offload,
            placement: _,
            placement_batches: _,
            shares: _,
            standby: _,
            tunnel_gro: _,
            huge_pages,
            receive_steering,
            pair_flows,
        } = asked;
        cpus.as_ref().map_or(Ok(()), |cpus| cpus.check("cpus"))?;
        helper_cpus.as_ref().map_or(Ok(()), |cpus| cpus.check("helper-cpus"))?;
        let workers = workers.unwrap_or_else(|| Workers::for_cpus(cpus.as_ref()));
        workers.check_beside(helper_cpus.as_ref())?;
        Ok(Self {
            module: module.unwrap_or_default(),
            workers,
            cpus,
            fdb_entries,
            controller,
            fail_mode,
            upcalls,
            hysteresis: hysteresis_us.unwrap_or_default(),
            busy_poll_cpus: busy_poll_cpus.unwrap_or_default(),
            sandbox: sandbox.unwrap_or_default(),
            huge_pages: huge_pages.unwrap_or_default(),
            receive_steering: receive_steering.unwrap_or_default(),
            helper_cpus,
            offload,
            pair_flows: pair_flows.unwrap_or_default(),
        })
    }

    /// Sets the default switch.
    pub fn set_default_switch(&mut self, spec: &SwitchSpec) {
        self.module = spec.module.clone();
        self.fdb_entries = spec.fdb_entries;
        (self.controller, self.fail_mode) = (Some(spec.controller), spec.fail_mode);
    }

    /// The default switch.
    pub fn default_switch(&self) -> SwitchSpec {
        SwitchSpec::default_of(self.module.clone(), self.fdb_entries, self.controller, self.fail_mode)
    }
}

/// Whether packets out of tunnels are joined on receipt (generic receive offload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum TunnelGro {
    /// Where the kernel coalesces datagrams.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FromStr for TunnelGro {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        either("tunnel-gro", text, [("auto", Self::Auto), ("off", Self::Off)])
    }
}

/// Which receive queue a flow's packets to a guest with several queues go to (virtio 1.2, 5.1.6.5.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ReceiveSteering {
    /// That of the queue pair from which the guest sends the flow; before it does, one by the flow's hash.
    #[default]
    Auto,
    /// Always one by the flow's hash.
    Off,
}

impl FromStr for ReceiveSteering {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        either("receive-steering", text, [("auto", Self::Auto), ("off", Self::Off)])
    }
}

/// Whether the switch process asks for huge pages for its own memory. Guests choose the pages of theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum HugePages {
    /// For many connections, where the kernel has them.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FromStr for HugePages {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        either("huge-pages", text, [("auto", Self::Auto), ("off", Self::Off)])
    }
}
