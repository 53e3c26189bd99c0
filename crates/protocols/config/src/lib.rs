//! The configuration file, TOML.
//!
//! **Purpose.** [`read`] gives the configuration that a file says, [`read_all`] all mistakes in it at once, [`json_schema`] its
//! form for editors. [`plan`] says which steps lead from a running switch to a file.
//!
//! **Contract.** A mistake names its line and the remedy. Keys that a file leaves out have the defaults of the command line.
//!
//! **Not checked.** Whether sockets, devices and users exist: that shows when they are used.
//!
//! **Threading.** None. A file is read as a whole, up to a bound.
//!
//! ```toml
//! module = "flow"
//! cpus = "0-1"
//! workers = 2
//!
//! [[switch]]
//! name = "storage"
//! module = "dummy"
//!
//! [[port]]
//! name = "vm1"
//! backend = "vhost-user"
//! mac = "02:00:00:00:00:01"
//! vlan = 5
//!
//! [[port]]
//! name = "eth1"
//!
//! [[fdb]]
//! mac = "02:00:00:00:00:02"
//! port = "vm1"
//!
//! [[acl]]
//! port = "vm1"
//! direction = "ingress"
//! action = "deny"
//! ```
//!
//! # Examples
//!
//! ```
//! let schema = lasthop_config::json_schema();
//! assert!(schema.contains("\"storm-broadcast\""));
//! ```

#![forbid(unsafe_code)]

mod conflicts;
pub mod kept;
mod mistakes;
pub mod plan;
mod schema;

pub use mistakes::Mistake;
pub use schema::json_schema;

use std::path::Path;

use lasthop_module_api::{PORTS_MAX, SWITCHES_MAX};
use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use lasthop_api::acl::{self, ACL_RULES_MAX, AclRule};
use lasthop_api::cpus::CpuList;
use lasthop_api::device_patterns::DevicePatterns;
use lasthop_api::fdb::{STATIC_ENTRIES_MAX, StaticEntry};
use lasthop_api::modules::{FdbEntries, ModuleName};
use lasthop_api::offload_bounds::OffloadBounds;
use lasthop_api::pair_flows::PairFlows;
use lasthop_api::placement::{PlacementBatches, PlacementMode};
use lasthop_api::polling::{Hysteresis, PollCpus};
use lasthop_api::port::{KeyFault, PortKeys, PortSpec, VnicForm};
use lasthop_api::sched::{SharesMode, ViewMode};
use lasthop_api::settings::{HugePages, ReceiveSteering, Settings, StandbyMode, TunnelGro};
use lasthop_api::switches::{ControllerKind, FailMode, SwitchName, SwitchSpec};
use lasthop_api::upcalls::UpcallBounds;
use lasthop_api::workers::Workers;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::sandbox::SandboxMode;

/// Largest file, in bytes: room for 1024 ports with everything said.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Ports of a file: all but the switch's own one.
const FILE_PORTS_MAX: usize = PORTS_MAX - 1;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Settings of the whole switch.
    pub settings: Settings,
    /// Those that were named, beside the default one.
    pub switches: Vec<SwitchSpec>,
    /// Ports of every backend.
    pub ports: Vec<PortSpec>,
    /// Static entries of the forwarding table.
    pub fdb: Vec<StaticEntry>,
    /// Rules about connections, in their order.
    pub acl: Vec<AclRule>,
}

impl Config {
    /// The default switch and those that were named.
    pub fn all_switches(&self) -> Vec<SwitchSpec> {
        let module = self.settings.module.clone().unwrap_or_default();
        let Settings { fdb_entries, controller, fail_mode, .. } = self.settings;
        let default = SwitchSpec::default_of(module, fdb_entries, controller, fail_mode);
        std::iter::once(default).chain(self.switches.iter().cloned()).collect()
    }

    /// Ports and static entries that the module of their switch refuses.
    pub fn refused_by_modules(&self) -> Vec<Fault> {
        let switches = self.all_switches();
        let ports = self.ports.iter().filter_map(|port| conflicts::check_module_of(port, &switches).err());
        let entry = |entry: &StaticEntry| conflicts::check_table_for(entry, &self.ports, &switches).err();
        ports.chain(self.fdb.iter().filter_map(entry)).collect()
    }

    /// The same, with the fail mode of switches that have ports with rules: they do not forward while their controller is away, unless the
    /// file says so, and then the rules are refused.
    fn secured(mut self) -> Self {
        let switches = self.all_switches();
        let keeps_rules = |name: &SwitchName| {
            switches.iter().any(|switch| switch.name == *name && switch.has_embedded_controller())
        };
        let has_rules = |port: &&PortSpec| {
            port.common.policy.guard.is_on()
                || self.acl.iter().any(|rule| rule.protects(port.name().as_str(), &port.common.policy.groups))
        };
        let ruled = self.ports.iter().filter(has_rules).map(|port| &port.common.switch);
        for name in ruled.filter(|name| keeps_rules(name)) {
            let fail_mode = match self.switches.iter_mut().find(|switch| switch.name == *name) {
                Some(switch) => &mut switch.fail_mode,
                None => &mut self.settings.fail_mode,
            };
            fail_mode.get_or_insert(FailMode::Secure);
        }
        self
    }
}

/// The file of lasthop run, check and apply (TOML).
// The settings stand here once more, since a flattened table has no unknown keys.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(title = "Lasthop configuration")]
struct File {
    /// The module of the switch default, which decides where its packets go.
    module: Option<ModuleName>,
    /// CPUs that workers may use; all if left out.
    #[schemars(extend("examples" = ["0-3,6"]))]
    cpus: Option<CpuList>,
    /// Slots of the forwarding table of the switch default, of which the addresses behind one port take a quarter at most.
    fdb_entries: Option<FdbEntries>,
    /// The controller that gets packets without a flow in the switch default, with module flow.
    #[schemars(extend("default" = ControllerKind::default()))]
    controller: Option<ControllerKind>,
    /// Packets without a flow in the switch default, while its controller is away; secure with controller = external if left out.
    #[schemars(extend("default" = FailMode::Standalone))]
    fail_mode: Option<FailMode>,
    /// Limits of each port for packets on the way to the controller: packets (1 to 4096), KiB of them (128 to 2048), packets a second and worker (0: no limit).
    upcalls: Option<UpcallBounds>,
    /// Threads that move packets. If left out: one for each of cpus; without it 2, or 1 with fewer than 4 CPUs.
    workers: Option<Workers>,
    /// Longest time in microseconds for which a worker polls for packets before it sleeps.
    hysteresis_us: Option<Hysteresis>,
    /// CPUs on which threads busy-poll: those that no other thread computes on, or all.
    #[schemars(extend("default" = PollCpus::default()))]
    busy_poll_cpus: Option<PollCpus>,
    /// The sandbox of the inner processes: all layers that this kernel supports, all layers or no start, or none.
    #[schemars(with = "String", extend("enum" = SandboxMode::ALL.map(SandboxMode::as_str), "default" = SandboxMode::default()))]
    sandbox: Option<SandboxMode>,
    /// Group, by name or number, whose members may use the control socket, beside the switch's own user.
    #[schemars(length(min = 1), extend("examples" = ["lasthop"]))]
    control_group: Option<String>,
    /// Network devices that an external controller may use as ports, and taps that it may create; * stands for any part of a name. If left out: all if a switch has controller = external, else none.
    #[schemars(extend("examples" = [["eth1", "br*"]]))]
    datapath_devices: Option<DevicePatterns>,
    /// Workers poll and yield by the state of the host's scheduler while a guest is attached, where the kernel permits that.
    #[schemars(extend("default" = ViewMode::default()))]
    scheduler_view: Option<ViewMode>,
    /// CPUs of helpers, which copy large frames while nothing else wants their CPU; takes scheduler-view = "auto" and the policy offload.
    #[schemars(extend("examples" = ["2-3"]))]
    helper_cpus: Option<CpuList>,
    /// Frames that helpers copy: of this many bytes on average (1536 to 65536), how many may wait for them (2 to 256), the part of the machine that has to be idle, and the farthest CPU.
    offload: Option<OffloadBounds>,
    /// Threads that are brought into one last-level cache with those that they pass packets to: none, Lasthop's own, or guests' vCPUs as well.
    #[schemars(extend("default" = PlacementMode::default()))]
    placement: Option<PlacementMode>,
    /// Batches of packets in 30 ms from which on two threads belong together.
    placement_batches: Option<PlacementBatches>,
    /// CPU shares: each thread for itself, all processes in a cgroup of their own, or there with threads without packets that lend half of their share to those with packets.
    #[schemars(extend("default" = SharesMode::default()))]
    shares: Option<SharesMode>,
    /// A second switch process waits for the end of the first, and then continues with all guests.
    #[schemars(extend("default" = StandbyMode::default()))]
    standby: Option<StandbyMode>,
    /// Packets out of Geneve and VXLAN tunnels are joined on receipt, where the kernel coalesces datagrams.
    #[schemars(extend("default" = TunnelGro::default()))]
    tunnel_gro: Option<TunnelGro>,
    /// The kernel is asked for huge pages for the memory of many connections.
    #[schemars(extend("default" = HugePages::default()))]
    huge_pages: Option<HugePages>,
    /// A flow's packets go to the receive queue of the queue pair from which the guest sends the flow.
    #[schemars(extend("default" = ReceiveSteering::default()))]
    receive_steering: Option<ReceiveSteering>,
    /// Flows of a port from which on the embedded controller makes a flow for each address, not for each pair of addresses.
    pair_flows: Option<PairFlows>,
    /// Switches besides default, which always exists, [[switch]] each.
    #[serde(default)]
    #[schemars(with = "Vec<SwitchSpec>", length(max = SWITCHES_MAX - 1))]
    switch: Vec<Spanned<SwitchSpec>>,
    /// Ports with the backend vhost-user, by their old name: write [[port]] and backend = "vhost-user".
    #[serde(default)]
    #[schemars(with = "Vec<VnicForm>", length(max = FILE_PORTS_MAX), extend("deprecated" = true))]
    vnic: Vec<Spanned<PortKeys>>,
    /// Ports for guests, and over network devices and taps, [[port]] each.
    #[serde(default)]
    #[schemars(with = "Vec<PortKeys>", length(max = FILE_PORTS_MAX))]
    port: Vec<Spanned<PortKeys>>,
    /// Static entries of the forwarding table, [[fdb]] each.
    #[serde(default)]
    #[schemars(with = "Vec<StaticEntry>", length(max = STATIC_ENTRIES_MAX))]
    fdb: Vec<Spanned<StaticEntry>>,
    /// Rules about connections, [[acl]] each: the first one that applies decides; without one the connection is allowed.
    #[serde(default)]
    #[schemars(with = "Vec<AclRule>", length(max = ACL_RULES_MAX))]
    acl: Vec<Spanned<AclRule>>,
}

/// Reads the file at `path`. Relative socket paths in it start at its directory.
pub fn read(path: &Path) -> Result<Config, Fault> {
    read_all(path)?.map_err(|mistakes| {
        let shown = path.display();
        let more = match mistakes.len() {
            0 | 1 => String::new(),
            count => format!(" ({} more; see all with: lasthop check -c {shown})", count - 1),
        };
        let first = mistakes.first().map(ToString::to_string).unwrap_or_default();
        Fault::params(format!("{shown}:{first}{more}"))
    })
}

/// As [`read`]; with all mistakes of a file that can be read.
pub fn read_all(path: &Path) -> Result<Result<Config, Vec<Mistake>>, Fault> {
    let shown = path.display();
    let failed = |why: &dyn std::fmt::Display| Fault::params(format!("cannot read \"{shown}\": {why}"));
    let meta = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(failed(&format_args!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut config = match mistakes::collect(&text, parse) {
        Ok(config) => config,
        Err(mistakes) => return Ok(Err(mistakes)),
    };
    let base = std::path::absolute(path).map_err(|error| failed(&error))?;
    let base = base.parent().unwrap_or(Path::new("/"));
    config.ports = config.ports.into_iter().map(|port| port.based_at(base)).collect();
    Ok(Ok(config))
}

/// The configuration in `text`, or its first mistake.
fn parse(text: &str) -> Result<Config, Mistake> {
    let file: File = toml::from_str(text).map_err(|error| mistake(text, &error))?;
    let switches = distinct_switches(text, file.switch)?;
    let vnics = file.vnic.into_iter().map(|keys| (keys, PortKeys::vnic as Reading));
    let ports =
        distinct_ports(text, vnics.chain(file.port.into_iter().map(|keys| (keys, PortKeys::spec as _))))?;
    let settings = Settings {
        module: file.module,
        cpus: file.cpus,
        fdb_entries: file.fdb_entries,
        controller: file.controller,
        fail_mode: file.fail_mode,
        upcalls: file.upcalls,
        workers: file.workers,
        hysteresis_us: file.hysteresis_us,
        busy_poll_cpus: file.busy_poll_cpus,
        sandbox: file.sandbox,
        control_group: file.control_group,
        datapath_devices: file.datapath_devices,
        scheduler_view: file.scheduler_view,
        helper_cpus: file.helper_cpus,
        offload: file.offload,
        placement: file.placement,
        placement_batches: file.placement_batches,
        shares: file.shares,
        standby: file.standby,
        tunnel_gro: file.tunnel_gro,
        huge_pages: file.huge_pages,
        receive_steering: file.receive_steering,
        pair_flows: file.pair_flows,
    };
    let acl = checked_rules(text, file.acl)?;
    let fdb = distinct_entries(text, file.fdb, &ports)?;
    Ok(Config { settings, switches, ports, fdb, acl }.secured())
}

/// The rules, or the first one that is wrong.
fn checked_rules(text: &str, given: Vec<Spanned<AclRule>>) -> Result<Vec<AclRule>, Mistake> {
    let lines: Vec<usize> = given.iter().map(|rule| line_of(text, rule.span().start)).collect();
    let mut rules: Vec<AclRule> = given.into_iter().map(Spanned::into_inner).collect();
    acl::name_all(&mut rules);
    for (count, line) in (1..).zip(lines) {
        acl::check_rules(&rules[..count]).map_err(|fault| Mistake::new(line..=line, fault.message))?;
    }
    Ok(rules)
}

/// How the keys of a table become a port.
type Reading = fn(PortKeys) -> Result<PortSpec, KeyFault>;

/// The ports, or the first one that is wrong, or cannot be beside the others.
fn distinct_ports(
    text: &str,
    tables: impl Iterator<Item = (Spanned<PortKeys>, Reading)>,
) -> Result<Vec<PortSpec>, Mistake> {
    let mut distinct: Vec<PortSpec> = Vec::new();
    for (keys, read) in tables {
        let line = line_of(text, keys.span().start);
        let port = read(keys.into_inner()).map_err(|KeyFault { key, fault }| {
            let line = line_of_key(text, line, key);
            Mistake::new(line..=line, fault.message)
        })?;
        if port.made_by.is_some() {
            let line = line_of_key(text, line, "made-by");
            let why = "made-by is for programs that make ports, not for the file; leave it out";
            return Err(Mistake::new(line..=line, why.to_owned()));
        }
        conflicts::check_port(&port, &distinct).map_err(|fault| Mistake::new(line..=line, fault.message))?;
        distinct.push(port);
    }
    Ok(distinct)
}

/// The static entries, or the first one that its port cannot have, or that another port has.
fn distinct_entries(
    text: &str,
    entries: Vec<Spanned<StaticEntry>>,
    ports: &[PortSpec],
) -> Result<Vec<StaticEntry>, Mistake> {
    let mut distinct: Vec<StaticEntry> = Vec::with_capacity(entries.len());
    for entry in entries {
        conflicts::check_entry(entry.get_ref(), ports, &distinct).map_err(|fault| {
            let line = line_of(text, entry.span().start);
            Mistake::new(line..=line, fault.message)
        })?;
        distinct.push(entry.into_inner());
    }
    Ok(distinct)
}

/// The line of a key in the table that begins at line `heading`; that line if the key is not found.
fn line_of_key(text: &str, heading: usize, key: &str) -> usize {
    let lines = text.lines().enumerate().skip(heading);
    let mut table = lines.take_while(|(_, line)| !line.trim_start().starts_with("[["));
    let has_key = |line: &str| {
        let name = line.split('=').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
        name.replace('_', "-") == key
    };
    table.find(|(_, line)| has_key(line)).map_or(heading, |(at, _)| at + 1)
}

/// The switches, or the second one with a name.
fn distinct_switches(text: &str, switches: Vec<Spanned<SwitchSpec>>) -> Result<Vec<SwitchSpec>, Mistake> {
    let mut distinct: Vec<SwitchSpec> = Vec::with_capacity(switches.len());
    for switch in switches {
        let line = line_of(text, switch.span().start);
        conflicts::check_switch(switch.get_ref(), &distinct)
            .map_err(|fault| Mistake::new(line..=line, fault.message))?;
        distinct.push(switch.into_inner());
    }
    Ok(distinct)
}

fn mistake(text: &str, error: &toml::de::Error) -> Mistake {
    let span = error.span().unwrap_or_default();
    let lines = line_of(text, span.start)..=line_of(text, span.end.saturating_sub(1).max(span.start));
    Mistake::new(lines, mistakes::reworded(text, span, error.message()))
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::port::vnic;

    #[test]
    fn a_full_file_is_understood() {
        let text = "module = \"dummy\"\nsandbox = \"strict\"\ncontrol-group = \"kvm\"\ncpus = \"0-1\"\nfdb-entries = 4096\nworkers = 2\nhysteresis-us = 20\nhuge-pages = \"off\"\nreceive-steering = \"off\"\n[[switch]]\nname = \"red\"\n\
                    [[switch]]\nname = \"blue\"\nmodule = \"bridge\"\nfdb-entries = 128\n\
                    [[vnic]]\nname = \"a\"\n[[vnic]]\nname = \"b\"\nswitch = \"red\"\nsocket = \"s\"\n\
                    mode = \"connect\"\nmac = \"02:00:00:00:00:01\"\nqueues = 2\nmtu = 1400\nfeatures-off = [\"TSO\"]\nstorm-broadcast = 1000\n";
        let config = parse(text).expect("a good file");
        let settings = &config.settings;
        assert_eq!(settings.module.as_ref().map(ModuleName::as_str), Some("dummy"));
        assert_eq!(settings.cpus, Some(CpuList(vec![0, 1])));
        assert_eq!(settings.fdb_entries, Some(FdbEntries(4096)));
        assert_eq!((settings.workers, settings.hysteresis_us), (Some(Workers(2)), Some(Hysteresis(20))));
        assert_eq!(settings.sandbox, Some(SandboxMode::Strict));
        assert_eq!(settings.huge_pages, Some(HugePages::Off));
        assert_eq!(settings.receive_steering, Some(ReceiveSteering::Off));
        assert_eq!(settings.control_group.as_deref(), Some("kvm"));
        let specs: Vec<PortSpec> = [
            "a",
            "b,switch=red,socket=s,mode=connect,mac=02:00:00:00:00:01,queues=2,mtu=1400,features-off=TSO,storm-broadcast=1000",
        ]
        .map(|text| vnic(text).expect("a vnic"))
        .into();
        assert_eq!(config.ports, specs);
        // The words of today for the same ports.
        let today = text.replace("[[vnic]]", "[[port]]\nbackend = \"vhost-user\"");
        assert_eq!(parse(&today).expect("a good file"), config);
        let switches =
            ["red", "blue,module=bridge,fdb-entries=128"].map(|text| text.parse().expect("a switch"));
        assert_eq!(config.switches, switches);
    }

    #[test]
    fn vlans_and_static_entries_are_understood() {
        let text = "[[vnic]]\nname = \"a\"\nvlan = 5\nisolated = true\n[[vnic]]\nname = \"b\"\ntrunk = [10, \"20-29\"]\nnative = 99\n\
                    [[fdb]]\nmac = \"02:00:00:00:00:07\"\nvlan = 5\nport = \"a\"\n";
        let config = parse(text).expect("a good file");
        let specs =
            ["a,vlan=5,isolated=true", "b,trunk=10+20-29,native=99"].map(|text| vnic(text).expect("a vnic"));
        assert_eq!(config.ports, specs);
        assert_eq!(config.fdb.len(), 1);
        assert_eq!(config.fdb[0].port.as_str(), "a");
        let before = text.replace("port = ", "vnic = ");
        assert_eq!(parse(&before), Ok(config), "the key of before");
    }

    #[test]
    fn device_ports_are_understood() {
        let text = "[[port]]\nname = \"out\"\ndevice = \"eth1\"\nbackend = \"af_packet\"\nqueues = 2\nhost = \"off\"\ntransit = true\n\
                    link-tracking = true\nqdisc-bypass = true\npacket-ring = false\ntrunk = [5]\n\
                    [[port]]\nname = \"br0\"\ntap = \"br0\"\naddress = [\"192.0.2.1/24\", \"2001:db8::1/64\"]\nmtu = 9000\n\
                    [[fdb]]\nmac = \"02:00:00:00:00:07\"\nport = \"out\"\n";
        let config = parse(text).expect("a good file");
        let specs = [
            "out,device=eth1,backend=af_packet,queues=2,host=off,transit=true,link-tracking=true,qdisc-bypass=true,packet-ring=false,trunk=5",
            "br0,tap=br0,address=192.0.2.1/24+2001:db8::1/64,mtu=9000",
        ]
        .map(|text| text.parse().expect("a port"));
        assert_eq!(config.ports, specs);
    }

    #[test]
    fn an_empty_file_says_nothing() {
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn mistakes_have_a_line_and_a_remedy() {
        for (text, line, words) in [
            ("modul = \"bridge\"", 1, "did you mean \"module\""),
            ("\nmodule = \"brige\"", 2, "did you mean \"bridge\""),
            ("cpus = \"3-1\"", 1, "not a list of CPUs"),
            ("fdb-entries = 63", 1, "64 to 1048576"),
            ("fdb-entries = -1", 1, "64 to 1048576"),
            ("fdb_entries = 100", 1, "did you mean \"fdb-entries\""),
            ("workers = 65", 1, "workers must be a whole number from 1 to 64"),
            ("sandbox = \"on\"", 1, "none of auto, strict, off"),
            ("worker = 2", 1, "did you mean \"workers\""),
            ("hysteresis-us = -1", 1, "hysteresis-us must be a whole number of microseconds"),
            ("upcalls = \"rate=-1\"", 1, "rate=-1 is not a whole number"),
            ("hysteresis = 1", 1, "did you mean \"hysteresis-us\""),
            ("[[vnic]]\nname = \"a\"\nque = 1", 3, "unknown key \"que\""),
            ("[[vnic]]\nname = \"a\"\nqueus = 1", 3, "did you mean \"queues\""),
            ("[[vnic]]\nname = \"a\"\n\nmac = \"01:00:00:00:00:01\"", 4, "unicast"),
            ("[[vnic]]\nname = \"a\"\nqueues = 99", 3, "1 to 32"),
            ("workers = 1\n[vnic]\nname = \"a\"", 2, "write [[vnic]]"),
            ("hysteresis-us = \"200us\"", 1, "a whole number of microseconds"),
            ("[[vnic]]\nname = \"a\"\nqueues = \"2\"", 3, "queues must be a whole number from 1 to 32"),
            ("[[vnic]]\nname = \"a\"\nqueues = 70000", 3, "queues must be a whole number from 1 to 32"),
            ("[[vnic]]\nname = \"a\"\nmtu = 9", 3, "68 to 65535"),
            ("[[vnic]]\nname = \"a\"\nmtu = 1.5", 3, "mtu must be a whole number from 68 to 65535"),
            ("[[vnic]]\nname = \"internal\"", 2, "choose another"),
            ("[[vnic]]\nname = \"a\"\nmode = \"both\"", 3, "listen"),
            ("[[vnic]]\nmtu = 1500", 1, "name"),
            ("[[vnic]]\nname = \"a\"\nswitch = \"a b\"", 3, "name of a switch"),
            ("[[switch]]\nmodule = \"dummy\"", 1, "name"),
            ("[[switch]]\nname = \"a\"\nmodul = \"dummy\"", 3, "did you mean \"module\""),
            ("[[switch]]\nname = \"a\"\nmodule = \"dumy\"", 3, "did you mean \"dummy\""),
            ("[[switch]]\nname = \"a\"\nfdb-entries = 1", 3, "64 to 1048576"),
            ("[[switch]]\nname = \"a\"\n[[switch]]\nname = \"a\"", 3, "switch \"a\" already"),
            ("[[swich]]\nname = \"a\"", 1, "did you mean \"switch\""),
            ("[[vnic]]\nname = \"a\"\nvlan = 0", 3, "0 is no VLAN"),
            ("[[vnic]]\nname = \"a\"\nvlan = 4095", 3, "4095 is reserved"),
            ("[[vnic]]\nname = \"a\"\nvlan = \"5\"", 3, "without quotes"),
            ("[[vnic]]\nname = \"a\"\ntrunk = 10", 3, "as in [10,"),
            ("[[vnic]]\nname = \"a\"\n\ntrunk = [10, \"29-20\"]", 4, "write it as 20-29"),
            ("[[vnic]]\nname = \"a\"\nnative = 70000", 3, "1 to 4094"),
            ("\n[[vnic]]\nname = \"a\"\nvlan = 5\ntrunk = [6]", 5, "both vlan and trunk"),
            ("[[vnic]]\nname = \"a\"\nisolated = 1", 3, "isolated"),
            ("[[port]]\ndevice = \"eth1\"", 1, "name"),
            ("[[port]]\nname = \"eth1\"\nhosts = \"off\"", 3, "did you mean \"host\""),
            ("[[port]]\nname = \"eth1\"\nhost = \"of\"", 3, "did you mean \"off\""),
            ("[[port]]\nname = \"eth1\"\nbackend = \"af-packet\"", 3, "did you mean \"af_packet\""),
            ("[[port]]\nname = \"eth1\"\nqueues = 33", 3, "1 to 32"),
            ("[[port]]\nname = \"eth1\"\naddress = [\"192.0.2.1/24\"]", 3, "address is for taps"),
            ("[[port]]\nname = \"b\"\ntap = \"b\"\naddress = [\"192.0.2.1\"]", 4, "write it as"),
            ("[[vnic]]\nname = \"a\"\n[[port]]\nname = \"a\"", 3, "\"a\" already"),
            (
                "[[port]]\nname = \"a\"\n[[port]]\nname = \"b\"\ndevice = \"a\"",
                3,
                "the device \"a\" is that of port \"a\"",
            ),
            ("[[fdb]]\nmac = \"03:00:00:00:00:01\"\nvnic = \"a\"", 2, "unicast"),
            ("[[fdb]]\nmac = \"02:00:00:00:00:01\"\ndev = \"a\"", 3, "unknown key \"dev\""),
            ("[[fdb]]\nmac = \"02:00:00:00:00:01\"", 1, "port"),
            ("[[vnic]]\nname = \"a\"\n[[vnic]]\nname = \"a\"", 3, "\"a\" already"),
            ("module = ", 1, ""),
        ] {
            let mistake = parse(text).expect_err(text);
            assert_eq!(mistake.line, line, "{text}: {mistake}");
            assert!(mistake.message.contains(words), "{text}: {mistake}");
        }
    }

    #[test]
    fn an_entry_that_does_not_fit_its_port_is_named_in_its_line() {
        let text =
            "[[fdb]]\nmac = \"02:00:00:00:00:01\"\nport = \"a\"\nvlan = 6\n[[vnic]]\nname = \"a\"\nvlan = 5";
        let mistake = parse(text).expect_err(text);
        assert!(mistake.line == 1 && mistake.message.contains("does not carry VLAN 6"), "{mistake}");
    }

    #[test]
    fn keys_of_another_backend_are_named_in_their_line() {
        for (text, line, words) in [
            ("[[vnic]]\nname = \"a\"\nhost = \"off\"", 3, "host is for devices"),
            ("[[vnic]]\nbackend = \"tap\"\nname = \"a\"", 2, "make it a port"),
            ("[[vnic]]\nname = \"a\"\n\nmade-by = \"x\"", 4, "made-by is for programs"),
            ("[[port]]\nname = \"a\"\n\nsocket = \"a\"", 4, "socket is for vhost-user ports"),
            (
                "[[port]]\nname = \"a\"\n\"link_tracking\" = true\ntap = \"b\"",
                3,
                "link-tracking is for devices",
            ),
            (
                "[[port]]\nname = \"a\"\nbackend = \"vhost-user\"\nqueues = 1\nuplink = true\n[[port]]\nuplink = true",
                6,
                "missing field `name`",
            ),
            (
                "[[port]]\nname = \"a\"\nbackend = \"vhost-user\"\n\nuplink = true",
                5,
                "uplink is for devices and taps",
            ),
            (
                "[[port]]\nname = \"a\"\nbackend = \"vhost-user\"\nmemory-max = 1",
                4,
                "memory-max must be a size",
            ),
            ("[[port]]\nname = \"a\"\nbackend = \"vhost-user\"\nque = 1", 4, "unknown key \"que\""),
        ] {
            let mistake = parse(text).expect_err(text);
            assert_eq!(mistake.line, line, "{text}: {mistake}");
            assert!(mistake.message.contains(words), "{text}: {mistake}");
        }
    }

    #[test]
    fn a_wrong_type_is_told_with_the_key_and_the_form() {
        for (text, words) in [
            ("workers = \"3\"", "workers must be a whole number, without quotes"),
            ("cpus = 3", "cpus must be text in quotes: cpus = \"3\""),
            ("datapath-devices = \"eth0\"", "must be a list: datapath-devices = [\"eth0\"]"),
            ("[[vnic]]\nname = \"a\"\nlink = true", "link must be text in quotes"),
            ("[[port]]\nname = 1", "name must be text in quotes: name = \"1\""),
        ] {
            let mistake = parse(text).expect_err(text);
            assert!(mistake.message.contains(words), "{text}: {mistake}");
        }
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let text = "modul = \"bridge\"\nworkers = 99\n\n[[vnic]]\nname = \"a\"\nqueus = 2\nfeatures-off = [\n  \"TSOO\",\n]\n\
                    [[vnic]]\nmtu = 9000\n[[vnic]]\nname = \"a\"\n[[vnic]]\nname = \"b\"\nmtu = 1\nlink = \"don\"\n[[vnics]]\nx = 1\n";
        let found = mistakes::collect(text, parse).expect_err("full of mistakes");
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 6, 7, 10, 12, 16, 17, 18], "{found:?}");
    }

    #[test]
    fn a_file_of_nothing_but_mistakes_ends() {
        let found = mistakes::collect(&"nonsense\n".repeat(500), parse).expect_err("nonsense");
        assert_eq!(found.len(), mistakes::MISTAKES_MAX);
    }
}
