//! `lasthop doctor`: why a guest has no network, link by link.
//!
//! **Purpose.** [`examine`] finds out what is wrong with a switch, its guests and its host, and names the remedy.
//!
//! The switch reports facts (`facts`) at two times, so that moving rings differ from stopped ones. The asking process
//! judges them, and also examines the machine: sockets in the file system, command lines of front ends, limits.
//!
//! ```text
//!   socket - peer - negotiation - memory - rings - link - learning - drops      for each vnic (link/)
//!   switch, host                                                                once (host.rs)
//! ```
//!
//! **Contract.** Nothing is changed. Each remedy is a command that works as printed.
//!
//! **Not checked.** Facts of the host that a user may not read: then the finding says that it is not known.
//!
//! **Threading.** Each call belongs to one thread, and sleeps for less than a second.
#![forbid(unsafe_code)]

mod controller;
mod finding;
mod host;
mod link;
pub mod permissions;
mod ports;
mod processes;
pub mod remedy;
mod show;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use lasthop_runtime::fault::Fault;

use crate::remedy::addressed;
use finding::{Finding, State};
use lasthop_api::facts::{Facts, VnicFacts};
use lasthop_ovs::Bridges;
use link::{Case, Sockets};
use processes::Process;

/// Time between the two reads: an active guest sends or receives several times meanwhile, and the user does not wait
/// long.
const PAUSE: Duration = Duration::from_millis(400);

/// The scope of an examination.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// The switch and everything at it.
    All,
    /// The switch, and these vnics and ports.
    Ports(&'a [String]),
    /// The switch and its host, with any guests.
    Switch,
}

impl Scope<'_> {
    fn has(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Ports(only) => only.iter().any(|one| one == name),
            Self::Switch => false,
        }
    }
}

/// The result.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Nothing is broken.
    pub ok: bool,
    /// First those about switch and host, then each vnic's chain in its order.
    findings: Vec<Finding>,
    /// The facts behind the findings.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Facts>,
}

/// Examines the switch in `dir`, or a part of it; `look` requests its facts.
///
/// # Errors
/// If there is no such vnic. A missing switch is a finding.
pub fn examine(
    dir: &Path,
    scope: Scope<'_>,
    look: impl Fn() -> Result<Facts, Fault>,
) -> Result<Diagnosis, Fault> {
    let first = look();
    std::thread::sleep(if first.is_err() { Duration::ZERO } else { PAUSE });
    let mut processes = Process::of_interest();
    match first.and_then(|before| Ok((before, look()?))) {
        Ok((before, now)) => {
            let peers = now.vnics.iter().filter_map(|vnic| Process::read(vnic.connection.peer_pid?));
            processes.extend(peers.collect::<Vec<_>>());
            let bridges = now.external.as_ref().and_then(|_| Bridges::ask(dir));
            let mut diagnosis = diagnose(&before, now, scope, &processes, bridges.as_ref());
            diagnosis.address(dir);
            Ok(diagnosis)
        }
        Err(fault) => match host::unanswered(dir, &fault, &processes) {
            Some(finding) => Ok(Diagnosis { ok: false, findings: vec![finding], facts: None }),
            None => Err(fault),
        },
    }
}

fn diagnose(
    before: &Facts,
    now: Facts,
    scope: Scope<'_>,
    processes: &[Process],
    bridges: Option<&Bridges>,
) -> Diagnosis {
    let sockets = Sockets::of(processes, &now);
    let earlier: HashMap<&str, &VnicFacts> = before.vnics.iter().map(|vnic| (vnic.name(), vnic)).collect();
    let mut findings = host::findings(before, &now);
    let is_of_switch = matches!(scope, Scope::Switch);
    findings.extend(host::without_ports(&now).filter(|_| !is_of_switch));
    for vnic in now.vnics.iter().filter(|vnic| is_of_switch || scope.has(vnic.name())) {
        let before = earlier.get(vnic.name()).copied().unwrap_or(vnic);
        let case = Case { before, now: vnic, facts: &now, processes, sockets: &sockets, bridges };
        findings.extend(if is_of_switch { link::of_switch(&case) } else { link::chain(&case) });
    }
    for port in now.ports.iter().filter(|port| is_of_switch || scope.has(&port.name)) {
        let before = before.ports.iter().find(|earlier| earlier.name == port.name);
        findings.extend(ports::chain(before.unwrap_or(port), port, &now, is_of_switch));
    }
    let ok = findings.iter().all(|finding| finding.state != State::NotOk);
    Diagnosis { ok, findings, facts: Some(now) }
}

impl Diagnosis {
    /// Broken links first, then vnics without a guest, then warnings; each in the order of the chain.
    fn complaints(&self) -> Vec<&Finding> {
        let mut complaints: Vec<&Finding> =
            self.findings.iter().filter(|finding| finding.state < State::Unknown).collect();
        complaints.sort_by_key(|finding| (finding.state, finding.is_absence));
        complaints
    }

    /// Adds the switch's directory to remedies, so that they can be copied.
    fn address(&mut self, dir: &Path) {
        for remedy in self.findings.iter_mut().filter_map(|finding| finding.remedy.as_mut()) {
            *remedy = addressed(remedy, dir);
        }
    }

    /// All of it, for people.
    pub fn text(&self) -> String {
        show::text(self)
    }

    /// Like [`Self::text`], for an examination of the switch alone.
    pub fn text_of_switch(&self) -> String {
        show::text_of_switch(self)
    }

    /// 0 if all is well, 1 after a warning, 2 if something is broken: OK, WARNING and CRITICAL of monitoring systems.
    pub fn severity(&self) -> u8 {
        match self.complaints().first().map(|worst| worst.state) {
            Some(State::NotOk) => 2,
            Some(_) => 1,
            None => 0,
        }
    }

    /// Number of vnics, and of those with a guest.
    fn guests(&self) -> (usize, usize) {
        let vnics = self.facts.as_ref().map(|facts| &facts.vnics[..]).unwrap_or_default();
        (vnics.len(), vnics.iter().filter(|vnic| vnic.connection.attached_ms.is_some()).count())
    }
}
