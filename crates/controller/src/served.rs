//! A switch that is served, and how far that is.

use std::collections::BTreeMap;

use crate::bounds::{COUNTING_NS, PORTS_NS};
use crate::config::SwitchConfig;
use crate::errand::{Errand, Sent};
use crate::look::Look;
use crate::stats::Stats;
use crate::switch::Switch;

/// How far it is with a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its datapath is to be made, or was asked for.
    Absent,
    /// Its ports and flows are looked at.
    Adopting,
    Serving,
}

#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) switch: Switch,
    pub(crate) stage: Stage,
    /// Another number whenever its datapath may be another one.
    pub(crate) life: u64,
    /// Of what is found in this life.
    pub(crate) datapath: i32,
    /// When the next step is due; while a list is on its way it is not.
    pub(crate) ports: Look,
    pub(crate) counters: Look,
    /// Packets have passed since the counters were read for the last time but one.
    pub(crate) is_busy: bool,
    pub(crate) again_due_ns: Option<u64>,
    /// Ports that the list on its way has.
    pub(crate) listed: BTreeMap<String, u32>,
    /// Ports whose misses come here.
    pub(crate) subscribed: BTreeMap<String, u32>,
}

impl Served {
    pub(crate) fn new(config: &SwitchConfig, life: u64) -> Self {
        Self {
            switch: Switch::new(config),
            stage: Stage::Absent,
            life,
            datapath: 0,
            ports: Look::default(),
            counters: Look::default(),
            is_busy: false,
            again_due_ns: Some(0),
            listed: BTreeMap::new(),
            subscribed: BTreeMap::new(),
        }
    }

    pub(crate) fn disconnected(&mut self, life: u64) {
        self.switch.disconnected();
        (self.stage, self.life, self.datapath) = (Stage::Absent, life, 0);
        self.listed.clear();
        (self.ports, self.counters, self.again_due_ns) = (Look::default(), Look::default(), Some(0));
        self.is_busy = false;
        self.subscribed.clear();
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { ports: self.subscribed.len() as u64, ..Stats::of(&self.switch) }
    }

    /// A request about this switch as it is.
    pub(crate) fn sent(&self, errand: Errand) -> Sent {
        Sent { errand, life: self.life }
    }

    pub(crate) fn due_ns(&self) -> Option<u64> {
        let late_ns = self.switch.late_ns();
        [self.ports.due_ns(), self.counters.due_ns(), self.again_due_ns, late_ns].into_iter().flatten().min()
    }

    /// Packets pass, so there is something to count and a reason to see that all ports are as they are thought to be.
    pub(crate) fn is_used(&mut self, now_ns: u64) {
        self.counters.want(now_ns + COUNTING_NS);
        if !std::mem::replace(&mut self.is_busy, true) {
            self.ports.want(now_ns + PORTS_NS);
        }
    }

    /// All counters were told. While nothing passes they are read when something may have to be forgotten.
    pub(crate) fn counted(&mut self, now_ns: u64) {
        self.switch.end_round(now_ns);
        self.switch.sweep(now_ns);
        self.counters.end();
        self.is_busy = false;
        if self.switch.take_use() {
            self.is_used(now_ns);
        } else if let Some(due_ns) = self.switch.forgetting_due_ns() {
            self.counters.want(due_ns.max(now_ns + COUNTING_NS));
        }
    }
}
