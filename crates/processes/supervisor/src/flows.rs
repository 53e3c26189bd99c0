//! The memory in which a switch process leaves its flows and connections to the next one. The supervisor holds it and does not look into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use log::warn;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use serde_json::Value;

use lasthop_api::orders::{CONNECTION_AREAS, CONNECTION_MEMORY_BYTES, FLOW_MEMORY_BYTES, Order};
use lasthop_fd_store::{RecordKey, RecordStore};
use lasthop_runtime::fault::Fault;

use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;

/// A process that dies so soon after it got the flows may have died of one of them: that of a packet that comes every few seconds, too.
const YOUNG: Duration = Duration::from_secs(10);
/// A process that dies this soon has done next to nothing else.
const VERY_YOUNG: Duration = Duration::from_millis(250);
/// Counts of deaths in a row after which the next process begins without flows; they come back by misses then.
const COUNT_MAX: u32 = 6;

/// How a switch process was found dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// It ended by itself.
    Own,
    /// It was killed, by an operator or for want of memory: that is hardly the fault of a flow.
    Killed,
    /// It was ended since it did not answer. That takes longer to find out than any life counts as young.
    Hung,
}

impl Death {
    /// How much the death of a process counts that had the flows for `life`.
    fn count(self, life: Duration) -> u32 {
        match self {
            Self::Hung => 2,
            Self::Own if life < VERY_YOUNG => 2,
            Self::Own if life < YOUNG => 1,
            Self::Killed if life < VERY_YOUNG => 1,
            Self::Own | Self::Killed => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct KeptFlows {
    memory: OwnedFd,
    /// When the present process got them.
    handed: Option<Instant>,
    /// Of deaths in a row.
    count: u32,
}

impl KeptFlows {
    fn open() -> io::Result<Self> {
        let memory = memfd_create("lasthop-flows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // Pages are there once they are written to.
        ftruncate(&memory, FLOW_MEMORY_BYTES + CONNECTION_AREAS * CONNECTION_MEMORY_BYTES)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self::of_kept(memory))
    }

    /// Flows that another supervisor kept.
    pub(super) fn of_kept(memory: OwnedFd) -> Self {
        Self { memory, handed: None, count: 0 }
    }

    /// A switch process gets them.
    fn hand_over(&mut self, now: Instant) -> io::Result<OwnedFd> {
        self.handed = Some(now);
        self.memory.try_clone()
    }

    /// The switch process is dead. False: it may have died of a flow, as those before it.
    fn survive(&mut self, death: Death, now: Instant) -> bool {
        // One that never got them did not die of them.
        let Some(handed) = self.handed.take() else { return true };
        let count = death.count(now.saturating_duration_since(handed));
        self.count = if count == 0 { 0 } else { self.count + count };
        self.count < COUNT_MAX
    }
}

impl AsFd for KeptFlows {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Datapaths of clients, and their flows, for the next switch process.
#[derive(Debug, Default)]
pub(super) struct SavedDatapaths {
    /// The last report of a switch process about datapaths.
    pub(super) told: Option<Value>,
    /// The memory in which switch processes leave flows.
    pub(super) flows: Option<KeptFlows>,
}

impl SavedDatapaths {
    /// Tells a fresh switch process, which has all ports, of datapaths and flows, before it has any guest.
    pub(super) fn restore(&mut self, switch: &mut SwitchProcess, store: &mut RecordStore) {
        if self.flows.is_none() {
            // Without memory, flows come back by misses.
            self.flows = KeptFlows::open().ok();
            store.is_late(RecordKey::Head);
        }
        let told = self.told.clone().unwrap_or_default();
        let memory = self.flows.as_mut().and_then(|flows| flows.hand_over(Instant::now()).ok());
        switch.order_with(
            Order::Restore(told),
            memory.into_iter().map(Into::into).collect(),
            OrderPurpose::DatapathsRestored,
            None,
        );
    }

    /// A switch process has datapaths and flows again. A process without the memory of flows does not record changes of them: they are
    /// forgotten at once, or a flow that is deleted now would come back with the next process.
    pub(super) fn restored(&mut self, result: Result<(), Fault>, store: &mut RecordStore) {
        if let Err(fault) = result {
            self.forget_flows(store);
            warn!(
                "{fault}; the flows of the last switch process come back by misses, and so will those of this one"
            );
        }
    }

    /// The switch process is dead.
    pub(super) fn judge(&mut self, switch: &SwitchProcess, store: &mut RecordStore) {
        let death = match () {
            () if switch.was_ended_for_silence() => Death::Hung,
            () if switch.process.was_killed() => Death::Killed,
            () => Death::Own,
        };
        if self.flows.as_mut().is_some_and(|flows| !flows.survive(death, Instant::now())) {
            self.forget_flows(store);
            warn!(
                "switch processes died again and again soon after they got the flows of the one before; the next one begins without flows"
            );
        }
    }

    /// Drops the memory of flows, so that the next process begins without them.
    pub(super) fn forget_flows(&mut self, store: &mut RecordStore) {
        self.flows = None;
        store.is_late(RecordKey::Head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of deaths after which flows are forgotten, if each process has them for so long and dies so.
    fn deaths(life: Duration, death: Death) -> Option<usize> {
        let (mut flows, mut now) = (KeptFlows::open().expect("memory"), Instant::now());
        (1..100).find(|_| {
            flows.hand_over(now).expect("a copy");
            now += life;
            !flows.survive(death, now)
        })
    }

    #[test]
    fn flows_are_forgotten_after_some_deaths_soon_after_they_were_handed_over() {
        let seconds = Duration::from_secs;
        assert_eq!(deaths(Duration::ZERO, Death::Own), Some(3));
        assert_eq!(deaths(Duration::from_millis(300), Death::Own), Some(6));
        assert_eq!(deaths(seconds(9), Death::Own), Some(6));
        assert_eq!(deaths(seconds(10), Death::Own), None, "it did not die of them");
        assert_eq!(deaths(Duration::ZERO, Death::Killed), Some(6));
        assert_eq!(deaths(Duration::from_millis(300), Death::Killed), None, "nor was it killed by them");
        assert_eq!(deaths(seconds(12), Death::Hung), Some(3));
        assert_eq!(deaths(seconds(3600), Death::Hung), Some(3));
    }

    #[test]
    fn a_life_that_is_long_enough_or_was_without_flows_does_not_count() {
        let (mut flows, now) = (KeptFlows::open().expect("memory"), Instant::now());
        for _ in 0..3 {
            for _ in 0..2 {
                flows.hand_over(now).expect("a copy");
                assert!(flows.survive(Death::Own, now));
            }
            for _ in 0..9 {
                assert!(flows.survive(Death::Own, now), "it did not get them");
            }
            flows.hand_over(now).expect("a copy");
            assert!(flows.survive(Death::Own, now + YOUNG));
        }
    }
}
