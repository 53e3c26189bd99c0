//! The module of the port `internal`: it executes packets that the control planes of all datapaths send, each with its
//! own actions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, Verdicts};

use crate::FlowModule;
use crate::execution::Execution;

/// Hands each packet of the port `internal` to the module that announced it.
#[derive(Debug, Default)]
pub struct Executions {
    /// Only its worker takes entries from here, and adds one right before: the lock is free.
    order: Mutex<VecDeque<Arc<FlowModule>>>,
}

impl Executions {
    /// Sets the actions of the next injected packet (`Fabric::inject`), and the module whose flows and ports they use.
    /// The caller is the worker that injects, and calls this right before. `ticket` is that of an earlier upcall of the
    /// packet: no packet of its flow overtakes it until [`FlowModule::done`], which must be called in every case.
    ///
    /// # Errors
    /// The reason not to send the packet: it was overtaken, or too many packets are announced.
    pub fn announce(
        &self,
        module: &Arc<FlowModule>,
        execution: Execution,
        ticket: u32,
    ) -> Result<(), DropReason> {
        if !module.begin(ticket) {
            return Err(DropReason::OutOfOrder);
        }
        module.execute_next(execution).map_err(|_| DropReason::NoFlow)?;
        self.order().push_back(Arc::clone(module));
        Ok(())
    }

    fn order(&self) -> MutexGuard<'_, VecDeque<Arc<FlowModule>>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Module for Executions {
    fn name(&self) -> &'static str {
        "executions"
    }

    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        for (packet, header) in batch.headers.iter().enumerate() {
            let module = self.order().pop_front();
            match module {
                Some(module) => module.execute_one(packet, header, now_ns, verdicts),
                None => verdicts.drop_packet(packet, DropReason::NoFlow),
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}
