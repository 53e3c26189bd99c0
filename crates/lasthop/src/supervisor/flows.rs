//! The memory in which a switch process leaves its flows to the next one. The supervisor holds it and does not look into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::log::say;
use crate::orders::Order;
use crate::switch::FLOW_MEMORY_BYTES;

use super::Supervisor;
use super::orders::What;
use super::store::Key;

/// Switch processes in a row that may die right after their start; then flows come back by misses: they may die of one of them.
const YOUNG_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct KeptFlows {
    memory: OwnedFd,
    /// Deaths in a row right after the start.
    young: u32,
}

impl KeptFlows {
    fn open() -> io::Result<Self> {
        let memory = memfd_create("lasthop-flows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // Pages are there once they are written to.
        ftruncate(&memory, FLOW_MEMORY_BYTES)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { memory, young: 0 })
    }

    /// Flows that another supervisor kept.
    pub(super) fn of_kept(memory: OwnedFd) -> Self {
        Self { memory, young: 0 }
    }

    /// The switch process is dead. False: it may have died of a flow.
    fn survive(&mut self, is_young: bool) -> bool {
        self.young = if is_young { self.young + 1 } else { 0 };
        self.young < YOUNG_MAX
    }
}

impl AsFd for KeptFlows {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Supervisor {
    /// Tells a fresh switch process, which has all ports, of datapaths and flows, before it has any guest.
    pub(super) fn restore_datapaths(&mut self) {
        if self.flows.is_none() {
            // Without memory, flows come back by misses.
            self.flows = KeptFlows::open().ok();
            self.store.is_late(Key::Head);
        }
        let told = self.datapaths.clone().unwrap_or_default();
        let memory = self.flows.as_ref().and_then(|flows| flows.memory.try_clone().ok());
        self.order_with(
            Order::Restore(told),
            memory.into_iter().map(Into::into).collect(),
            What::Restored,
            None,
        );
    }

    /// The switch process is dead, and lived but a moment if it `is_young`.
    pub(super) fn judge_flows(&mut self, is_young: bool) {
        if self.flows.as_mut().is_some_and(|flows| !flows.survive(is_young)) {
            self.forget_flows();
            say!(
                "the switch process died {YOUNG_MAX} times right after its start; the next one begins without flows"
            );
        }
    }

    /// Drops the memory of flows, so that the next process begins without them.
    pub(super) fn forget_flows(&mut self) {
        self.flows = None;
        self.store.is_late(Key::Head);
    }
}
