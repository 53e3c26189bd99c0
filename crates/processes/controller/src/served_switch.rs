//! The state of a switch that is served.

use std::collections::BTreeMap;

use crate::bounds::{COUNTING_NS, PORTS_NS};
use crate::config::SwitchConfig;
use crate::requests::{Purpose, Sent};
use crate::stats::ControllerStats;
use crate::switch::Switch;

/// The stage of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its datapath has to be made, or was requested.
    Absent,
    /// Its ports and flows are being listed.
    Adopting,
    Serving,
}

/// One kind of list that is requested from the datapath repeatedly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListRequest {
    due_ns: Option<u64>,
    /// Whether a request is pending.
    is_asked: bool,
}

impl ListRequest {
    /// When to request it, if no request is pending.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| !self.is_asked)
    }

    /// Requests the list at `at_ns` at latest.
    pub(crate) fn want(&mut self, at_ns: u64) {
        self.due_ns = Some(self.due_ns.map_or(at_ns, |due_ns| due_ns.min(at_ns)));
    }

    /// Whether to request it now; then the request is pending.
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        let is_due = self.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if is_due {
            *self = Self { is_asked: true, due_ns: None };
        }
        is_due
    }

    /// Notes the end of the list. A request made meanwhile is still due.
    pub(crate) fn end(&mut self) {
        self.is_asked = false;
    }
}

/// A switch and the state of its requests.
#[derive(Debug)]
pub(crate) struct ServedSwitch {
    pub(crate) switch: Switch,
    pub(crate) stage: Stage,
    /// Changes whenever its datapath may be another one.
    pub(crate) epoch: u64,
    /// Index of its datapath in this epoch.
    pub(crate) datapath: i32,
    /// When the next step is due; not while a list is pending.
    pub(crate) ports: ListRequest,
    pub(crate) counters: ListRequest,
    /// Whether packets have passed since the last counters but one.
    pub(crate) is_busy: bool,
    pub(crate) again_due_ns: Option<u64>,
    /// Ports of the pending list.
    pub(crate) listed: BTreeMap<String, u32>,
    /// Ports whose misses come here.
    pub(crate) subscribed: BTreeMap<String, u32>,
}

impl ServedSwitch {
    pub(crate) fn new(config: &SwitchConfig, epoch: u64) -> Self {
        Self {
            switch: Switch::new(config),
            stage: Stage::Absent,
            epoch,
            datapath: 0,
            ports: ListRequest::default(),
            counters: ListRequest::default(),
            is_busy: false,
            again_due_ns: Some(0),
            listed: BTreeMap::new(),
            subscribed: BTreeMap::new(),
        }
    }

    pub(crate) fn disconnected(&mut self, epoch: u64) {
        self.switch.disconnected();
        (self.stage, self.epoch, self.datapath) = (Stage::Absent, epoch, 0);
        self.listed.clear();
        (self.ports, self.counters, self.again_due_ns) =
            (ListRequest::default(), ListRequest::default(), Some(0));
        self.is_busy = false;
        self.subscribed.clear();
    }

    pub(crate) fn stats(&self) -> ControllerStats {
        ControllerStats { ports: self.subscribed.len() as u64, ..ControllerStats::of(&self.switch) }
    }

    /// A request about this switch in its present epoch.
    pub(crate) fn sent(&self, purpose: Purpose) -> Sent {
        Sent { purpose, epoch: self.epoch }
    }

    pub(crate) fn due_ns(&self) -> Option<u64> {
        let (late_ns, leases) = (self.switch.late_ns(), &self.switch.leases);
        // Not while flows are checked: that causes turns, or waits for a reply, which causes one.
        let again_ns = self.again_due_ns.filter(|_| !self.switch.has_to_revalidate());
        let lease_dues = [leases.due_ns(), leases.told_due_ns()];
        let dues = [self.ports.due_ns(), self.counters.due_ns(), again_ns, late_ns].into_iter();
        dues.chain(lease_dues).flatten().min()
    }

    /// Notes that packets pass, so that counters and ports are read soon.
    pub(crate) fn is_used(&mut self, now_ns: u64) {
        self.counters.want(now_ns + COUNTING_NS);
        if !std::mem::replace(&mut self.is_busy, true) {
            self.ports.want(now_ns + PORTS_NS);
        }
    }

    /// Notes the end of the counters. Without traffic they are read when a flow or address may age out.
    pub(crate) fn counted(&mut self, now_ns: u64) {
        self.switch.end_round();
        self.switch.sweep(now_ns);
        self.check_some(now_ns);
    }

    /// Checks some flows for idleness after all counters were read. The next round may begin once all are checked.
    /// Returns whether there are more.
    pub(crate) fn check_some(&mut self, now_ns: u64) -> bool {
        if self.switch.is_checking() {
            self.switch.check_some(now_ns);
            if !self.switch.is_checking() {
                self.end_counting(now_ns);
            }
        }
        self.switch.is_checking()
    }

    fn end_counting(&mut self, now_ns: u64) {
        self.counters.end();
        self.is_busy = false;
        if self.switch.take_use() {
            self.is_used(now_ns);
        } else if let Some(due_ns) = self.switch.forgetting_due_ns() {
            self.counters.want(due_ns.max(now_ns + COUNTING_NS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_not_forgotten_while_a_list_is_on_its_way() {
        let mut list = ListRequest::default();
        assert!(list.due_ns().is_none() && !list.begin(u64::MAX));
        list.want(50);
        list.want(70);
        assert_eq!((list.due_ns(), list.begin(49), list.begin(50)), (Some(50), false, true));
        assert!(!list.begin(50), "it is on its way");
        list.want(60);
        assert_eq!(list.due_ns(), None);
        list.end();
        assert_eq!((list.due_ns(), list.begin(60)), (Some(60), true));
        list.end();
        assert_eq!(list.due_ns(), None);
    }
}
