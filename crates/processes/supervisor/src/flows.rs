//! The memory in which a switch process leaves its flows and connections to the next one. The supervisor keeps it
//! without reading it.

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

/// Age of a switch process below which one of the flows that it took over may have killed it, even a flow with a packet
/// every few seconds.
const YOUNG: Duration = Duration::from_secs(10);
/// Age below which the process has hardly done anything else.
const VERY_YOUNG: Duration = Duration::from_millis(250);
/// Sum of the weights of deaths in a row after which the next process starts without flows; misses bring them back.
const COUNT_MAX: u32 = 6;

/// Bytes of all datapaths as JSON. More would not fit the record for the next supervisor.
const DATAPATHS_BYTES_MAX: usize = lasthop_fd_store::TEXT_BYTES_MAX;

/// How a switch process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// It ended by itself.
    Own,
    /// It was killed, by an operator or for lack of memory: a flow is hardly the cause.
    Killed,
    /// It was ended since it did not answer. Noticing that takes longer than a process is young.
    Hung,
}

impl Death {
    /// The weight of a death after the process had the flows for `life`.
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
    /// Sum of the weights of deaths in a row.
    count: u32,
}

impl KeptFlows {
    fn open() -> io::Result<Self> {
        let memory = memfd_create("lasthop-flows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // Pages are allocated when they are written.
        ftruncate(&memory, FLOW_MEMORY_BYTES + CONNECTION_AREAS * CONNECTION_MEMORY_BYTES)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self::of_kept(memory))
    }

    /// Flows that another supervisor kept.
    pub(super) fn of_kept(memory: OwnedFd) -> Self {
        Self { memory, handed: None, count: 0 }
    }

    /// Passes them to a switch process.
    fn hand_over(&mut self, now: Instant) -> io::Result<OwnedFd> {
        self.handed = Some(now);
        self.memory.try_clone()
    }

    /// Handles the death of the switch process: forgets its flows if they may have caused several deaths. Returns false if a flow may have killed it and those before it.
    fn survive(&mut self, death: Death, now: Instant) -> bool {
        // A process that never got them did not die of them.
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

/// Clients' datapaths and their flows, for the next switch process.
#[derive(Debug, Default)]
pub(super) struct SavedDatapaths {
    /// The last report of a switch process about datapaths.
    pub(super) told: Option<Value>,
    /// The memory in which switch processes leave flows.
    pub(super) flows: Option<KeptFlows>,
}

impl SavedDatapaths {
    /// Keeps a report of the switch process. One that is too long is not kept, nor is an earlier one: it is out of date.
    pub(super) fn keep(&mut self, told: Value, store: &mut RecordStore) {
        let bytes = told.to_string().len();
        self.told = (bytes <= DATAPATHS_BYTES_MAX).then_some(told);
        if self.told.is_none() {
            warn!(
                limited = true;
                "datapaths of {bytes} bytes are too many to be kept: should the switch process die, their control plane makes them anew"
            );
        }
        store.is_late(RecordKey::Head);
    }

    /// Passes datapaths and flows to a new switch process that has all ports, before it has any guest.
    pub(super) fn restore(&mut self, switch: &mut SwitchProcess, store: &mut RecordStore) {
        if self.flows.is_none() {
            // Without memory, misses bring flows back.
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

    /// Handles a switch process's reply about datapaths and flows. If it does not have the memory of flows, it does not
    /// record changes: that memory is dropped at once, or a flow that is deleted now would come back with the next
    /// process.
    pub(super) fn restored(&mut self, result: Result<(), Fault>, store: &mut RecordStore) {
        if let Err(fault) = result {
            self.forget_flows(store);
            warn!(
                "{fault}; the flows of the last switch process come back by misses, and so will those of this one"
            );
        }
    }

    /// Handles the death of the switch process.
    pub(super) fn forget_if_fatal(&mut self, switch: &SwitchProcess, store: &mut RecordStore) {
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

    /// Drops the memory of flows, so that the next process starts without them.
    pub(super) fn forget_flows(&mut self, store: &mut RecordStore) {
        self.flows = None;
        store.is_late(RecordKey::Head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of deaths after which flows are dropped, if each process lives and dies in this way.
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

    #[test]
    fn datapaths_that_no_record_has_room_for_are_not_kept() {
        let (mut datapaths, mut store) = (SavedDatapaths::default(), RecordStore::default());
        let text = |bytes: usize| Value::String("x".repeat(bytes - 2));
        datapaths.keep(text(DATAPATHS_BYTES_MAX), &mut store);
        assert!(datapaths.told.is_some(), "as long as they may be");
        datapaths.keep(text(DATAPATHS_BYTES_MAX + 1), &mut store);
        assert_eq!(datapaths.told, None);
    }
}
