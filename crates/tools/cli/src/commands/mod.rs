//! The command line, and the parts of the program that it starts.

mod acl;
mod apply;
mod ask;
mod bench;
mod calibrate;
mod capture;
mod client;
mod conntrack;
mod explain;
mod flow;
mod generate;
mod ovs;
mod pattern;
mod port;
mod profile;
mod run;
mod vmm_format;
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use lasthop_module_api::{Mac, Vid};

use crate::show::Sort;
use lasthop_api::fdb::{StaticEntry, unicast};
use lasthop_api::polling::{Hysteresis, PollCpus};
use lasthop_api::port::{Name, PortSpec, VnicForm};
use lasthop_api::sched::{PolicyChange, QueuePlace};
use lasthop_api::settings::{Settings, SwitchSettings};
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_api::{CONTROLLER_ROLE, DRIVER_ROLE, SWITCH_ROLE, rundir};
use lasthop_doctor::remedy::addressed;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::logging::{self, LogFormat, LogLevel};
use lasthop_runtime::sandbox;

use pattern::Pattern;
use port::{PortCommand, PortWords};

/// Lasthop, a software switch for virtual machines: guests attach by vhost-user, and their packets are copied once,
/// from the sender's memory to the receiver's.
#[derive(Debug, Parser)]
#[command(name = "lasthop", version, max_term_width = 100)]
struct Cli {
    /// Run directory [default: /run/lasthop as root, $XDG_RUNTIME_DIR/lasthop otherwise]
    #[arg(long, global = true, value_name = "RUNDIR")]
    dir: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a switch until a signal ends it (SIGTERM, Ctrl-C)
    Run(Box<RunArgs>),
    /// Make, change, remove and show ports: for guests (vhost-user), over network devices and taps
    #[command(subcommand)]
    Port(PortCommand<PortSpec>),
    /// The old name of `port`, for vhost-user ports only; a later version removes it
    #[command(subcommand)]
    Vnic(PortCommand<VnicForm>),
    /// Make, remove and list switches: ports of different switches never exchange a packet
    #[command(subcommand)]
    Switch(SwitchCommand),
    /// Show which worker serves which queue, and move queues; show the view of the host's scheduler, and set its policies
    #[command(subcommand)]
    Sched(SchedCommand),
    /// Look for mistakes in a configuration file, all at once, without running it
    Check {
        /// The file [default: /etc/lasthop/lasthop.toml, the service's]
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Write the file's JSON Schema instead, for an editor
        #[arg(long, conflicts_with = "config")]
        schema: bool,
    },
    /// Change the running switch to match a configuration file, port by port; unchanged ports are left alone
    ///
    /// Exit status: 0 if the switch matches the file, 1 if something failed, 3 if they differ: with --dry-run, or because a setting
    /// needs a restart.
    Apply {
        /// The file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Only print the steps
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the configuration of the running switch
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show and change the forwarding tables
    #[command(subcommand)]
    Fdb(FdbCommand),
    /// Show and change the rules about connections
    #[command(subcommand)]
    Acl(acl::AclCommand),
    /// Show the flows of switches with the module "flow"
    #[command(subcommand)]
    Flow(flow::FlowCommand),
    /// Show and end the connections that flows with ct actions track
    #[command(subcommand)]
    Conntrack(conntrack::ConntrackCommand),
    /// Have Open vSwitch's own daemon control the switch, unmodified
    #[command(subcommand)]
    Ovs(ovs::OvsCommand),
    /// Show the VLANs of the ports
    #[command(subcommand)]
    Vlan(VlanCommand),
    /// Show packet counters, drops with their reasons, and whether every packet is accounted for
    Stats {
        /// Only these ports; * and ? stand for letters: 'vm0*'
        names: Vec<Pattern>,
        /// Exit with 1 unless every received packet is delivered, dropped for a reason, or waiting
        #[arg(long)]
        check: bool,
        /// Show counters and load of the worker threads instead
        #[arg(long, conflicts_with_all = ["check", "names", "watch"])]
        workers: bool,
        /// Print in the format of Prometheus, for node_exporter's textfile collector
        #[arg(long, conflicts_with_all = ["check", "workers", "watch", "json"])]
        prometheus: bool,
        /// Show packets, bits and drops per second, again and again [default: every second]
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "check")]
        watch: Option<watch::Interval>,
        /// The order of lines [default: name; with --watch in a terminal: rate]
        #[arg(long, value_enum, conflicts_with_all = ["check", "workers", "prometheus"])]
        sort: Option<Sort>,
    },
    /// Capture packets with the reason of their drop, as pcapng: lasthop capture vm1 | tcpdump -nr -
    Capture(capture::CaptureArgs),
    /// Show the decisions on a packet, without sending it: lasthop explain --from vm1 'tcp,nw_dst=10.0.0.2,tp_dst=443'
    ///
    /// The code that switches packets decides, and nothing changes: no counter, no address, no flow, no connection. A packet is written as
    /// Open vSwitch's flows are: a protocol (ip, tcp, udp, icmp, arp, ipv6, tcp6, udp6, icmp6, sctp) and fields (dl_src, dl_dst, dl_vlan,
    /// nw_src, nw_dst, tp_src, tp_dst, ...). Without dl_src it comes from the port's guest, without dl_dst it is a broadcast.
    ///
    /// Exit status: 0 if a port gets it, 1 if something failed, 3 if it is dropped, 4 if the control plane decides, or it waits for the
    /// other fragments of its packet.
    Explain(explain::ExplainArgs),
    /// Measure the switch's time: cycles for a packet by stage, CPU time by process
    ///
    /// The switch keeps working. In some rounds it reads the CPU's time stamp counter around each stage. Guests are not
    /// affected. One profile runs at a time.
    Profile(profile::ProfileArgs),
    /// Say why a guest has no network
    ///
    /// Checks each link from the port's socket to its drops, the switch and its host. The first line names the broken link, with
    /// the remedy. Exits with 1 if something is broken, else with 0; a vhost-user port without a guest is broken.
    Doctor {
        /// Only these ports; * and ? stand for letters: 'vm0*'
        #[arg(value_parser = Pattern::of_ports)]
        names: Vec<Pattern>,
        /// Check the switch itself and not its guests, for monitoring: exits with 0, with 1 after a warning, with 2 if
        /// something is broken or there is no switch
        #[arg(long, conflicts_with = "names")]
        switch: bool,
    },
    /// Measure switches, back ends in turns: runs the program lasthop-bench beside this one (lasthop-bench --help)
    #[command(disable_help_flag = true)]
    Bench {
        /// Options of lasthop-bench
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Replace the running switch process by one of another program; guests stay attached
    ///
    /// The supervisor stays. A program that cannot be run, or that has another version of the kept state, is refused, and
    /// nothing changes.
    Upgrade {
        /// The new lasthop [default: the file at the path that `lasthop run` was started from]
        binary: Option<PathBuf>,
    },
    /// Show the version of this program and of the running switch
    Version,
    /// Write the script that completes this command line in a shell
    Completions { shell: generate::Shell },
    /// Write manual pages into a directory
    Man {
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// The switch process (for `lasthop run` only)
    #[command(hide = true, name = SWITCH_ROLE)]
    SwitchProcess {
        #[command(flatten)]
        settings: SwitchSettings,
        #[command(flatten)]
        log: LogArgs,
    },
    /// The process that serves device ports (for `lasthop run` only)
    #[command(hide = true, name = DRIVER_ROLE)]
    DriverProcess {
        #[arg(long = "hysteresis-us", default_value_t)]
        hysteresis: Hysteresis,
        #[arg(long, default_value = "spare")]
        busy_poll_cpus: PollCpus,
        #[arg(long, default_value = "auto")]
        sandbox: sandbox::SandboxMode,
        #[command(flatten)]
        log: LogArgs,
    },
    /// The process that decides for switches of module flow (for `lasthop run` only)
    #[command(hide = true, name = CONTROLLER_ROLE)]
    ControllerProcess {
        #[arg(long, default_value = "auto")]
        sandbox: sandbox::SandboxMode,
        #[command(flatten)]
        log: LogArgs,
    },
}

#[derive(Clone, Debug, Args)]
struct RunArgs {
    /// Configuration file; flags add to it and override it
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A switch besides "default", which always exists: NAME[,module=flow|bridge|dummy]
    /// [,fdb-entries=N][,controller=embedded|external|none] (may be repeated)
    #[arg(long = "switch", value_name = "NAME[,KEY=VALUE]...")]
    switches: Vec<SwitchSpec>,
    /// A port of any backend: NAME[,backend=vhost-user|auto|af_packet|af_xdp|tap][,KEY=VALUE]..., as for port add (may be repeated)
    #[arg(long = "port", value_name = "NAME[,KEY=VALUE]...")]
    ports: Vec<PortSpec>,
    /// A port for a guest: --port with backend=vhost-user. NAME[,switch=NAME][,socket=PATH][,mode=listen|connect]
    /// [,mac=ADDRESS][,queues=N][,mtu=N] [,memory-max=64G][,features-off=CSUM+TSO4]
    /// [,storm-broadcast=N][,storm-multicast=N][,storm-unknown=N] [,vlan=VID][,trunk=VID+VID-VID][,native=VID]
    /// [,isolated=true][,link=down] [,socket-mode=0660] [,socket-owner=USER][,socket-group=GROUP][,vcpus=THREADS] (may be
    /// repeated)
    #[arg(long = "vnic", value_name = "NAME[,KEY=VALUE]...", value_parser = lasthop_api::port::vnic)]
    vnics: Vec<PortSpec>,
    /// A network device as a port: DEVICE[,backend=auto|af_packet|af_xdp][,queues=N][,host=shared|off|port] [,transit=true]
    /// [,link-tracking=true][,qdisc-bypass=true][,packet-ring=false][,uplink=false], and keys of ports of every backend (may be repeated)
    #[arg(long = "uplink", value_name = "DEVICE[,KEY=VALUE]...", value_parser = lasthop_api::port::uplink)]
    uplinks: Vec<PortSpec>,
    /// A port for the host itself, with addresses: NAME=ADDRESS/LEN[+ADDRESS/LEN][,KEY=VALUE]... (may be repeated)
    #[arg(long = "host-port", value_name = "NAME[=ADDRESS/LEN]...", value_parser = lasthop_api::port::host_port)]
    host_ports: Vec<PortSpec>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Clone, Copy, Debug, Args)]
struct LogArgs {
    /// Form of the log on standard error: text, or one JSON object a line with time, level, process, target and message (json)
    #[arg(long, value_name = "text|json", default_value = "text")]
    log_format: LogFormat,
    /// Least level of lines in the log
    #[arg(long, value_name = "error|warn|info|debug", default_value_t)]
    log_level: LogLevel,
}

impl LogArgs {
    fn set(self) {
        logging::set(self.log_format, self.log_level);
    }
}

#[derive(Debug, Subcommand)]
enum SwitchCommand {
    /// Make a switch
    Add {
        /// Its name, and options: module=flow, bridge or dummy [default: flow], fdb-entries=N [default: 16384],
        /// controller=embedded, external or none [default: embedded], fail-mode=standalone or secure [default: standalone; secure if external] (both of
        /// module flow)
        #[arg(value_name = "NAME[,KEY=VALUE]...")]
        switch: SwitchSpec,
    },
    /// Change a switch while guests are attached to it
    Set {
        /// The switch
        name: SwitchName,
        /// Changes: module=flow, bridge or dummy, fdb-entries=N, controller=embedded, external or none,
        /// fail-mode=standalone or secure. A change of module forgets learned addresses and flows
        #[arg(value_name = "KEY=VALUE[,KEY=VALUE]...")]
        keys: String,
    },
    /// Remove switches that have no ports
    Del {
        /// The switches
        #[arg(required = true, value_name = "NAME")]
        names: Vec<SwitchName>,
    },
    /// List all switches
    List,
}

#[derive(Debug, Subcommand)]
enum SchedCommand {
    /// Show which worker serves which queue, whether there is a view, the threads of each guest, and how often each policy decided
    Show {
        /// Show, for each receive queue of a guest, whether its vCPU runs, and near which CPU its packets should be
        #[arg(long)]
        table: bool,
    },
    /// Show the last decisions of each worker, the oldest first
    Trace,
    /// Move a queue (a receive and a transmit ring) to another worker while its guest runs; it stays there until the guest detaches
    Move {
        /// The queue: a vnic or port, and the number of its queue from 0 if it has several
        #[arg(value_name = "VNIC[:QUEUE]")]
        queue: QueuePlace,
        /// The number of the worker, from 0
        worker: usize,
    },
    /// Measure which CPUs share caches, for placement and helpers: sysfs may be wrong in a virtual machine. Takes a few ms for each pair
    /// of CPUs and repetition, on CPUs that should be idle
    Calibrate(calibrate::CalibrateArgs),
    /// Set a policy until the service ends
    Set {
        /// The policy, look, yield, second-signal, notify, transmit-timer, offload, movement or gathering, and its mode: on, off, or auto (on, if measurements showed a gain); or
        /// shares=none, group or steal; or placement=off, own or guests
        #[arg(value_name = "POLICY=MODE")]
        change: PolicyChange,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print it as a configuration file, for a later start: lasthop config show > FILE
    Show,
}

#[derive(Debug, Subcommand)]
enum FdbCommand {
    /// Show which address is behind which port, and in which VLAN
    Show {
        /// Only addresses of this switch
        #[arg(long, value_name = "NAME")]
        switch: Option<SwitchName>,
    },
    /// Enter a static address: packets to it go to the port, and no other may send from it
    Add(FdbEntryArgs),
    /// Remove a static address
    Del(FdbEntryArgs),
    /// Forget learned addresses: all, or those of one port, one VLAN
    Flush {
        /// Only addresses learned from this port
        #[arg(long, alias = "vnic", value_name = "NAME")]
        port: Option<Name>,
        /// Only addresses learned in this VLAN
        #[arg(long, value_name = "VID")]
        vlan: Option<Vid>,
    },
}

#[derive(Debug, Args)]
struct FdbEntryArgs {
    /// The address
    #[arg(value_parser = unicast)]
    mac: Mac,
    /// The port behind which it is
    port: Name,
    /// The VLAN that it is in [default: all that the port carries]
    #[arg(long, value_name = "VID")]
    vlan: Option<Vid>,
}

impl From<FdbEntryArgs> for StaticEntry {
    fn from(FdbEntryArgs { mac, port, vlan }: FdbEntryArgs) -> Self {
        Self { mac, vlan, port }
    }
}

#[derive(Debug, Subcommand)]
enum VlanCommand {
    /// Show the VLANs of each port, and the untagged ones
    Show,
}

/// The part of the program that a command line starts.
#[derive(Debug)]
pub enum Part {
    /// The process that moves packets between guests.
    SwitchProcess(SwitchSettings),
    /// The process that serves device ports.
    DriverProcess {
        /// How long a thread polls for further frames before it sleeps, and on which CPUs.
        polling: (Hysteresis, PollCpus),
        /// How strict its sandbox is.
        sandbox: sandbox::SandboxMode,
    },
    /// The process that decides for switches of module flow.
    ControllerProcess {
        /// How strict its sandbox is.
        sandbox: sandbox::SandboxMode,
    },
    /// A user's command: the supervisor, or a request to a running one.
    Command(Box<Invocation>),
}

/// A command with the options of all commands.
#[derive(Debug)]
pub struct Invocation {
    dir: Option<PathBuf>,
    json: bool,
    command: Command,
}

/// Parses the command line, and sets up the log of inner processes. Ends the process after an error or a request for
/// help.
#[must_use]
pub fn parse() -> Part {
    let Cli { dir, json, command } = Cli::parse();
    match command {
        Command::SwitchProcess { settings, log } => {
            log.set();
            Part::SwitchProcess(settings)
        }
        Command::DriverProcess { hysteresis, busy_poll_cpus, sandbox, log } => {
            log.set();
            Part::DriverProcess { polling: (hysteresis, busy_poll_cpus), sandbox }
        }
        Command::ControllerProcess { sandbox, log } => {
            log.set();
            Part::ControllerProcess { sandbox }
        }
        command => Part::Command(Box::new(Invocation { dir, json, command })),
    }
}

impl Invocation {
    /// Runs the command.
    ///
    /// # Errors
    /// One sentence for the user.
    pub fn run(self) -> Result<ExitCode, Fault> {
        let Self { dir, json, command } = self;
        match command {
            Command::Bench { words } => bench::run(&words, json),
            Command::Check { schema: true, .. } => apply::schema(),
            Command::Check { config, .. } => apply::check(config.as_deref(), dir.as_deref(), json),
            Command::Completions { shell } => generate::completions(shell),
            Command::Man { out } => generate::man(&out),
            command => with_directory(command, dir.as_deref(), json),
        }
    }
}

/// Runs commands that start or ask a switch.
fn with_directory(command: Command, dir: Option<&Path>, json: bool) -> Result<ExitCode, Fault> {
    let dir = match (&command, rundir::choose(dir)) {
        // The version is known without a switch.
        (Command::Version, Err(_)) => PathBuf::new(),
        (_, dir) => dir?,
    };
    answer(command, ask::ApiRequest { dir: dir.clone(), json })
        .map_err(|fault| Fault { message: addressed(&fault.message, &dir), ..fault })
}

fn answer(command: Command, question: ask::ApiRequest) -> Result<ExitCode, Fault> {
    match command {
        Command::Run(args) => run::run(question.dir, &args),
        Command::Apply { config, dry_run } => question.apply(&config, dry_run),
        Command::Port(command) => question.port(PortWords::Port, command),
        Command::Vnic(command) => question.port(PortWords::Vnic, command),
        Command::Switch(command) => question.switch(command),
        Command::Sched(command) => question.sched(command),
        Command::Config(ConfigCommand::Show) => question.config(),
        Command::Fdb(command) => question.fdb(command),
        Command::Acl(command) => question.acl(command),
        Command::Flow(command) => question.flow(command),
        Command::Conntrack(command) => question.conntrack(command),
        Command::Ovs(command) => question.ovs(command),
        Command::Vlan(VlanCommand::Show) => question.vlan(),
        Command::Stats { workers: true, .. } => question.workers(),
        Command::Stats { names, prometheus: true, .. } => question.prometheus(&names),
        Command::Capture(args) => question.capture(&args),
        Command::Stats { names, watch: Some(interval), sort, .. } => question.watch(&names, interval, sort),
        Command::Stats { names, check, sort, .. } => question.stats(&names, check, sort),
        Command::Explain(args) => question.explain(&args),
        Command::Profile(args) => question.profile(&args),
        Command::Doctor { switch: true, .. } => question.doctor_of_switch(),
        Command::Doctor { names, .. } => question.doctor(&names),
        Command::Upgrade { binary } => question.upgrade(binary),
        // The other commands are handled elsewhere.
        _ => question.version(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_in_remedies_name_the_switch() {
        let alone = ["run", "check", "bench", "completions", "man"];
        let command = Cli::command();
        let all =
            command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
        let mut asking: Vec<&str> = all.filter(|name| !alone.contains(name)).collect();
        asking.sort_unstable();
        assert_eq!(asking, lasthop_doctor::remedy::COMMANDS);
    }

    /// The help texts of a command and its subcommands.
    fn help_texts(command: &clap::Command) -> Vec<String> {
        let of_arguments = command.get_arguments().flat_map(|argument| {
            let values = argument.get_possible_values();
            let of_values = values.iter().filter_map(|value| value.get_help().map(ToString::to_string));
            let of_argument = [argument.get_help(), argument.get_long_help()].into_iter().flatten();
            of_argument.map(ToString::to_string).chain(of_values).collect::<Vec<_>>()
        });
        let own = [command.get_about(), command.get_long_about()].into_iter().flatten();
        let below = command.get_subcommands().flat_map(help_texts);
        own.map(ToString::to_string).chain(of_arguments).chain(below).collect()
    }

    #[test]
    fn help_is_in_sentences_with_a_subject() {
        let texts = help_texts(&Cli::command());
        assert!(texts.len() > 100, "{}", texts.len());
        let sentences = texts.iter().flat_map(|text| text.split(". ").flat_map(str::lines));
        let wrong: Vec<_> = sentences
            .filter(|sentence| {
                let word = sentence.split_whitespace().next().unwrap_or_default().trim_end_matches(':');
                ["What", "Who", "Whom", "Whose", "Whoever", "Whatever", "Nobody", "Somebody"].contains(&word)
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn global_options_go_before_and_after_the_command() {
        for words in
            [["lasthop", "--dir", "/d", "--json", "stats"], ["lasthop", "stats", "--json", "--dir", "/d"]]
        {
            let cli = Cli::try_parse_from(words).expect("valid");
            assert_eq!((cli.dir, cli.json), (Some(PathBuf::from("/d")), true));
        }
    }

    #[test]
    fn counters_can_be_sorted_once_and_again_and_again() {
        let parsed =
            |words: &[&str]| Cli::try_parse_from([&["lasthop", "stats", "--sort", "drops"], words].concat());
        assert!(parsed(&[]).is_ok() && parsed(&["vm*", "--watch"]).is_ok() && parsed(&["--json"]).is_ok());
        for words in ["--check", "--workers", "--prometheus"] {
            assert!(parsed(&[words]).is_err(), "{words} has no lines of ports");
        }
    }

    #[test]
    fn a_mistake_in_a_port_shows_its_remedy() {
        let error = Cli::try_parse_from(["lasthop", "run", "--vnic", "a,mak=1"]).expect_err("no such option");
        assert!(error.to_string().contains("did you mean \"mac\""), "{error}");
        for command in ["port", "vnic"] {
            let error =
                Cli::try_parse_from(["lasthop", command, "add", "a,mak=1"]).expect_err("no such option");
            assert!(error.to_string().contains("did you mean \"mac\""), "{error}");
        }
    }
}
