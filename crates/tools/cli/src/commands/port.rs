//! `lasthop port`, and `lasthop vnic`, its old name for vhost-user ports.

use std::process::ExitCode;
use std::str::FromStr;

use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::output::{print, print_json};
use crate::show::{self, StateWord};
use lasthop_api::port::{BackendKind, PortSpec, VnicForm, change};
use lasthop_api::report::{PortFilter, PortStatus, PortStatusList, SetReport};
use lasthop_doctor::remedy::addressed;
use lasthop_runtime::fault::Fault;

use super::ask::{ApiRequest, is_one};
use super::client::ask;
use super::pattern::Pattern;
use super::vmm_format::VmmFormat;

/// A port in the form of `lasthop port` or `lasthop vnic`.
pub(super) trait FormOfPort:
    FromStr<Err = Fault> + Into<PortSpec> + Clone + Send + Sync + 'static
{
}

impl FormOfPort for PortSpec {}
impl FormOfPort for VnicForm {}

#[derive(Debug, Subcommand)]
pub(super) enum PortCommand<P: FormOfPort> {
    /// Make ports
    Add {
        /// The name of each, and options
        ///
        /// backend=vhost-user (a guest's socket), tap (a tap, created if missing), or a network device, by auto (the
        /// default), af_packet or af_xdp.
        ///
        /// Ports of every backend: switch=NAME [default: default], queues=N (pairs), features-off=CSUM+TSO4 (not offered to
        /// the guest), vlan=VID (untagged), trunk=VID+VID-VID (tagged), native=VID (untagged on a trunk), isolated=true (no packets
        /// to or from other isolated ports), guard=mac+ip+arp+dhcp and addresses=ADDRESS+ADDRESS+dhcp (checks of the guest's claims; dhcp: also addresses that DHCP servers give), groups=NAME+NAME (for
        /// rules), storm-broadcast=N, storm-multicast=N, storm-unknown=N (packets per second from the port that
        /// may be flooded; 0, the default, is no limit).
        ///
        /// vhost-user: socket=PATH, mode=listen (the switch makes the socket) or connect (the VMM does), mac=ADDRESS
        /// (static), mtu=BYTES, memory-max=SIZE (of all of the guest's memory, default 1T), link=down (nothing passes),
        /// socket-mode=0660, socket-owner=USER, socket-group=GROUP (who may attach), vcpus=auto, none, name:BEGINNING or N+N
        /// (threads of the VMM that are the guest's vCPUs, for the view of the scheduler).
        ///
        /// Devices: device=DEVICE [default: NAME], host=shared|off|port (other users of the device's packets), transit=true
        /// (packets may go to other uplinks with transit), link-tracking=true (guests have a link only while an uplink has
        /// one), qdisc-bypass=true, packet-ring=false, uplink=false (no wire, but another VMM's tap).
        ///
        /// Taps: tap=TAP [default: NAME], address=ADDRESS/LEN+ADDRESS/LEN, mac=ADDRESS, mtu=BYTES.
        #[arg(value_name = "NAME[,KEY=VALUE]...", required = true)]
        ports: Vec<P>,
    },
    /// Change ports while they are in use
    Set {
        /// The ports, and last the changes; * and ? stand for letters of names: 'vm0*'
        ///
        /// At once: vlan=VID, trunk=VID+VID-VID, native=VID, isolated=true|false, guard=mac+ip+arp+dhcp,
        /// addresses=ADDRESS+ADDRESS+dhcp, groups=NAME+NAME, storm-broadcast=N, storm-multicast=N, storm-unknown=N; of vhost-user ports also link=down|up, mac=ADDRESS, memory-max=SIZE, socket-mode=0660,
        /// socket-owner=USER, socket-group=GROUP, vcpus=THREADS. When a guest attaches next: mtu=BYTES,
        /// features-off=CSUM+TSO4. KEY=none resets a key to its default
        #[arg(value_names = ["NAME", "KEY=VALUE[,KEY=VALUE]"], num_args = 2.., required = true)]
        words: Vec<String>,
    },
    /// Remove ports: guests are disconnected, devices are left as they are, taps made by the switch are removed
    Del {
        /// The ports; * and ? stand for letters: 'vm0*'
        #[arg(required = true)]
        names: Vec<Pattern>,
    },
    /// List ports
    List {
        /// Only these ports; * and ? stand for letters: 'vm0*'
        #[arg(value_parser = Pattern::of_ports)]
        names: Vec<Pattern>,
        /// Only ports of this kind
        #[arg(long, value_name = "vhost-user|device|tap")]
        backend: Option<BackendKind>,
        /// Only ports in one of these states, by a word of the table: running, 'no guest', 'link down', ...
        #[arg(long, value_name = "STATE[,STATE]", value_delimiter = ',')]
        state: Vec<StateWord>,
    },
    /// Show ports, or the options of a VMM to attach a guest
    Show {
        /// The ports; * and ? stand for letters: 'vm0*'
        #[arg(required = true)]
        names: Vec<Pattern>,
        #[command(flatten)]
        paste: VmmFormat,
    },
}

/// The command by which ports are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortWords {
    /// Ports of every backend.
    Port,
    /// The old name: vhost-user ports only, and reports in their old form.
    Vnic,
}

impl PortWords {
    fn method(self, verb: &str) -> String {
        match self {
            Self::Port => format!("port.{verb}"),
            Self::Vnic => format!("vnic.{verb}"),
        }
    }

    /// The key of the ports in a list.
    fn list_key(self) -> &'static str {
        match self {
            Self::Port => "ports",
            Self::Vnic => "vnics",
        }
    }
}

impl ApiRequest {
    pub(super) fn port<P: FormOfPort>(
        &self,
        words: PortWords,
        command: PortCommand<P>,
    ) -> Result<ExitCode, Fault> {
        match command {
            PortCommand::Add { ports } => self.add(words, ports.into_iter().map(Into::into).collect()),
            PortCommand::Set { words: names_and_keys } => self.set(words, &names_and_keys),
            PortCommand::Del { names } => self.del(words, &names),
            PortCommand::List { names, backend, state } => self.list(words, &names, backend, &state),
            PortCommand::Show { names, paste } => {
                let each = self.port_names(words, &names)?;
                let method = words.method("show");
                let each = each.iter().map(|name| ask(&self.dir, &method, &json!({"name": name})));
                let each = each.collect::<Result<Vec<Value>, Fault>>()?;
                match paste.is_for_vmm() {
                    true => self.paste(&each, is_one(&names), &paste),
                    false => self.show_answers(&each, is_one(&names), show::port),
                }
            }
        }
    }

    fn list(
        &self,
        words: PortWords,
        patterns: &[Pattern],
        backend: Option<BackendKind>,
        states: &[StateWord],
    ) -> Result<ExitCode, Fault> {
        let params = match (words, backend) {
            (PortWords::Port, backend) => json!(PortFilter { backend }),
            (PortWords::Vnic, None | Some(BackendKind::VhostUser)) => json!({}),
            (PortWords::Vnic, Some(kind)) => {
                let why = format!(
                    "vnics have the backend vhost-user; use: lasthop port list --backend {}",
                    kind.name()
                );
                return Err(Fault::params(why));
            }
        };
        let names = self.present(patterns)?;
        let mut answer: Value = ask(&self.dir, &words.method("list"), &params)?;
        let is_wanted = |port: &Value| -> Result<bool, Fault> {
            let port: PortStatus = read(port)?;
            let has_state = states.is_empty() || states.iter().any(|state| state.is_of(&port));
            Ok(has_state && (names.is_empty() || names.contains(&port.name)))
        };
        let is_whole = names.is_empty() && states.is_empty() && backend.is_none();
        if !is_whole && let Some(ports) = answer.get_mut(words.list_key()).and_then(Value::as_array_mut) {
            let wanted = ports.iter().map(is_wanted).collect::<Result<Vec<bool>, Fault>>()?;
            let mut wanted = wanted.into_iter();
            ports.retain(|_| wanted.next().unwrap_or(true));
        }
        self.show_answer(answer, |list: &PortStatusList| match list.ports.is_empty() && !is_whole {
            true => addressed("no port is like that; all of them: lasthop port list", &self.dir),
            false => show::port_list(list),
        })
    }

    /// Of several ports each is told when it is made, so that a refused one does not hide those before it.
    fn add(&self, words: PortWords, ports: Vec<PortSpec>) -> Result<ExitCode, Fault> {
        let here =
            std::env::current_dir().map_err(|error| Fault::internal("find the current directory", error))?;
        let is_one = ports.len() == 1;
        let mut made: Vec<Value> = Vec::new();
        for port in ports {
            let answer: Value = ask(&self.dir, &words.method("add"), &port.based_at(&here))?;
            match self.json {
                true => made.push(answer),
                false => print(&show::port_added(&read(&answer)?))?,
            }
        }
        match self.json {
            true => self.show_each(&made, is_one, |_| String::new()),
            false => Ok(ExitCode::SUCCESS),
        }
    }

    /// The last word has the changes; those before it are names.
    fn set(&self, words: PortWords, names_and_keys: &[String]) -> Result<ExitCode, Fault> {
        let Some((keys, names)) = names_and_keys.split_last() else { return Ok(ExitCode::SUCCESS) };
        let names = names.iter().map(|name| name.parse()).collect::<Result<Vec<Pattern>, Fault>>()?;
        let mut all = Vec::new();
        for name in self.port_names(words, &names)? {
            let mut params = change::parse_keys(&name.parse()?, keys)?;
            params.insert("name".to_owned(), json!(name));
            all.push(ask::<SetReport>(&self.dir, &words.method("set"), &params)?);
        }
        self.show_each(&all, is_one(&names), show::port_set)
    }

    fn del(&self, words: PortWords, names: &[Pattern]) -> Result<ExitCode, Fault> {
        for name in self.port_names(words, names)? {
            ask::<Value>(&self.dir, &words.method("del"), &json!({"name": name}))?;
            if !self.json {
                print(&format!("deleted {name}"))?;
            }
        }
        if self.json {
            print_json(&true)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The names of the selected ports.
    fn port_names(&self, words: PortWords, patterns: &[Pattern]) -> Result<Vec<String>, Fault> {
        self.names_of(&words.method("list"), patterns)
    }

    /// With `--json` prints an answer as it came.
    fn show_answer<T: DeserializeOwned>(
        &self,
        answer: Value,
        text: impl Fn(&T) -> String,
    ) -> Result<ExitCode, Fault> {
        match self.json {
            true => self.show(&answer, |_| String::new()),
            false => print(&text(&read(&answer)?)).map(|()| ExitCode::SUCCESS),
        }
    }

    fn show_answers(
        &self,
        answers: &[Value],
        is_one: bool,
        text: impl Fn(&PortStatus) -> String,
    ) -> Result<ExitCode, Fault> {
        if self.json {
            return self.show_each(answers, is_one, |_| String::new());
        }
        let ports = answers.iter().map(read).collect::<Result<Vec<PortStatus>, Fault>>()?;
        self.show_each(&ports, is_one, text)
    }

    /// The text for a VMM.
    fn paste(&self, answers: &[Value], is_one: bool, paste: &VmmFormat) -> Result<ExitCode, Fault> {
        let ports = answers.iter().map(read).collect::<Result<Vec<PortStatus>, Fault>>()?;
        self.show_for_vmm(&ports, is_one, paste)
    }
}

/// Parses an answer of a switch of this version.
fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, Fault> {
    T::deserialize(answer)
        .map_err(|error| Fault::internal("read the answer of a switch that is of another version", error))
}
