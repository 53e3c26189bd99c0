//! The new program's process in an upgrade: its capabilities, and the facts that it gets before guests wait for it.

use std::time::Duration;

use log::warn;

use lasthop_api::fdb::StaticEntry;
use lasthop_api::orders::{Order, Report, Request, SwitchPort, SwitchProgram};
use lasthop_api::port::{MemoryMax, Name, PortCommon};
use lasthop_api::switches::SwitchSpec;
use lasthop_children::RunningChild;
use lasthop_runtime::fault::Fault;
use lasthop_vhost::features as virtio;

use super::port_table::PortTable;
use super::ports::Ports;
use super::sessions::{SessionVersions, Sessions};
use super::switch_table::SwitchTable;

/// How often a new process gets sessions that changed while it was introduced. It gets later changes while guests wait.
const TURNS_MAX: u32 = 4;
/// How long a new process may fault guests' memory in beforehand; and again while the old one comes to rest, which
/// takes as long.
const TOUCH: Duration = Duration::from_millis(100);
const LAST_TOUCH: Duration = Duration::from_millis(1);
/// The same for one that stands by, each time sessions have changed: once a second at most.
const STANDBY_TOUCH: Duration = Duration::from_millis(10);

/// The process, until it takes over.
pub(super) type Successor = RunningChild<Request, Report>;

/// The facts that the new process gets before guests wait for it, and the ports that it refuses. The old one does not
/// have those either.
#[derive(Debug)]
pub(super) struct SuccessorSetup {
    told: SuccessorConfig,
    pub(super) refused: Vec<(u32, Fault)>,
    /// Sessions that it has prepared.
    pub(super) known: SessionVersions,
    /// How often it may still get sessions that have changed.
    turns_left: u32,
    pub(super) program: SwitchProgram,
}

impl SuccessorSetup {
    /// Sends the new process switches and ports and, if it `prepares`, sessions: guests do not wait yet.
    pub(super) fn make(
        successor: &mut Successor,
        program: SwitchProgram,
        ports: &mut Ports,
        switches: &SwitchTable,
    ) -> Self {
        let told = SuccessorConfig::new(&ports.table, switches);
        for (id, (order, port)) in (1..).zip(told.orders()) {
            let memory = port.and_then(|port| ports.counters.next_memory(port)).map(Into::into);
            let _ = successor.channel.send(&Request { id, order }, memory);
        }
        let (mut known, mut turns_left) = (SessionVersions::new(), 0);
        if program.prepares {
            ports.sessions.prepare(&ports.table, (successor, program.lacking()), &mut known);
            turns_left = TURNS_MAX;
        }
        send_know(successor);
        Self { told, refused: Vec::new(), known, turns_left, program }
    }

    /// Sends the new process sessions that have changed; returns whether it did. It faults the memory that guests use
    /// in at least once shortly before guests wait.
    pub(super) fn prepare_again(
        &mut self,
        successor: &mut Successor,
        sessions: &Sessions,
        ports: &PortTable,
    ) -> bool {
        let is_last = self.turns_left == 0;
        if is_last || !self.prepare(successor, sessions, ports) && self.turns_left < TURNS_MAX {
            return false;
        }
        self.turns_left -= 1;
        send_touch(successor, TOUCH);
        send_know(successor);
        true
    }

    /// Sends a process that waits for long the sessions that have changed, and has it fault guests' memory in; returns
    /// whether it did.
    pub(super) fn follow(
        &mut self,
        successor: &mut Successor,
        sessions: &Sessions,
        ports: &PortTable,
    ) -> bool {
        if !self.prepare(successor, sessions, ports) {
            return false;
        }
        send_touch(successor, STANDBY_TOUCH);
        send_know(successor);
        true
    }

    fn prepare(&mut self, successor: &mut Successor, sessions: &Sessions, ports: &PortTable) -> bool {
        sessions.prepare(ports, (successor, self.program.lacking()), &mut self.known)
    }

    /// Whether ports and switches are still those that the new process got.
    pub(super) fn is_current(&self, ports: &PortTable, switches: &SwitchTable) -> bool {
        self.told == SuccessorConfig::new(ports, switches)
    }

    /// Handles the new process's refusal of an order. Refusals that a restarted switch process may make, too, are
    /// accepted; any other one is returned.
    pub(super) fn note_refusal(&mut self, order: u64, fault: Fault, ports: &PortTable) -> Result<(), Fault> {
        match self.told.about(order) {
            Some(About::Entry) => warn!("{fault}"),
            Some(About::Port(port)) if ports.all.get(&port).is_some_and(|port| !port.is_known()) => {
                self.refused.push((port, fault));
            }
            _ => return Err(fault),
        }
        Ok(())
    }
}

/// Has it report its version once it has executed all orders before.
pub(super) fn send_know(successor: &mut Successor) {
    let _ = successor.channel.send(&Request { id: 0, order: Order::Know }, None);
}

/// Has it fault guests' memory in, for this long at most.
fn send_touch(successor: &mut Successor, patience: Duration) {
    let order = Order::Touch { for_us: patience.as_micros() as u64 };
    let _ = successor.channel.send(&Request { id: 0, order }, None);
}

/// The keys of vnics that were added before programs reported which they know.
const LATER_KEYS: &[&str] = &["memory-max"];

/// Has a process of this program fault guests' memory in while the old one comes to rest.
pub(super) fn prepare_last(program: &SwitchProgram, successor: &mut Successor) {
    if program.prepares {
        send_touch(successor, LAST_TOUCH);
    }
}

/// Why a process of this program cannot have all ports and guests.
pub(super) fn lacks_for(program: &SwitchProgram, ports: &Ports) -> Option<String> {
    let Ports { table, sessions, .. } = ports;
    let vnic =
        || table.all.values().find_map(|port| lacks_for_vnic(program, &port.as_told(&port.spec).common));
    let guest = || {
        sessions
            .guests_features()
            .find_map(|(number, used)| lacks_for_guest(program, table.all.get(&number)?.spec.name(), used))
    };
    vnic().or_else(guest)
}

/// Why it cannot have a vnic: it does not know one of the keys or features there, and would end with the order that has
/// the vnic.
fn lacks_for_vnic(program: &SwitchProgram, port: &PortCommon) -> Option<String> {
    let is_known = |key: &str| match program.vnic_keys.is_empty() {
        true => !LATER_KEYS.contains(&key),
        false => program.vnic_keys.iter().any(|known| known == key),
    };
    let key = port.keys_told().into_iter().find(|key| !is_known(key));
    let key = key.or_else(|| {
        let unknown = !port.features_off.mask_without() & program.lacking();
        (unknown != 0).then(|| format!("features-off={}", virtio::names(unknown).replace(' ', "+")))
    })?;
    let remedy = match key.as_str() {
        "memory-max" => format!(
            "set the default first: lasthop port set {} memory-max={}",
            port.name,
            MemoryMax::default()
        ),
        _ => format!("make the port anew without {key}"),
    };
    Some(format!(
        "port {} has {key}, which that program, {}, does not know; upgrade to a later one, or {remedy}",
        port.name,
        program.described()
    ))
}

/// Why it cannot continue the session of a guest of port `name`: the guest negotiated features that it does not know,
/// and its driver would lose its rings.
fn lacks_for_guest(program: &SwitchProgram, name: &Name, negotiated: u64) -> Option<String> {
    let unknown = negotiated & program.lacking();
    (unknown != 0).then(|| {
        let (names, program) = (virtio::names(unknown), program.described());
        format!(
            "the guest of port {name} uses {names}, which that program, {program}, does not know; upgrade to a later one, or have \
             the guest's front end connect again without (packed=off at QEMU's device)"
        )
    })
}

/// The facts for a new process. They are out of date once any of them changes.
#[derive(Debug, PartialEq)]
struct SuccessorConfig {
    switches: Vec<SwitchSpec>,
    ports: Vec<(u32, SwitchPort)>,
    entries: Vec<StaticEntry>,
}

/// The subject of an order of a successor's setup.
enum About {
    Switch,
    Port(u32),
    Entry,
}

impl SuccessorConfig {
    fn new(ports: &PortTable, switches: &SwitchTable) -> Self {
        let told = ports.all.iter().map(|(number, port)| (*number, port.as_told(&port.spec)));
        Self {
            switches: switches.all.clone(),
            ports: told.collect(),
            entries: switches.static_entries.clone(),
        }
    }

    /// The subject of the order with this number, from 1; `None` if there is no such order.
    fn about(&self, number: u64) -> Option<About> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        let switches = self.switches.iter().filter(|spec| !spec.name.is_default()).count();
        let Some(place) = place.checked_sub(switches) else { return Some(About::Switch) };
        match self.ports.get(place) {
            Some((port, _)) => Some(About::Port(*port)),
            None => (place - self.ports.len() < self.entries.len()).then_some(About::Entry),
        }
    }

    /// The orders with these facts, those of a port with its number.
    fn orders(&self) -> impl Iterator<Item = (Order, Option<u32>)> {
        // The options of the process include the default one.
        let switches = self.switches.iter().filter(|spec| !spec.name.is_default());
        let switches = switches.map(|spec| (Order::AddSwitch(spec.clone()), None));
        let ports = self.ports.iter().map(|(number, port)| (Order::AddPort(port.clone()), Some(*number)));
        let entries = self.entries.iter().map(|entry| (Order::FdbAdd(entry.clone()), None));
        switches.chain(ports).chain(entries)
    }
}
