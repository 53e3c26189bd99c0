//! What flows take of the memory that one table may have, for as long as anybody has them: also those that are gone and are
//! remembered, or waited for.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lasthop_flow::Action;

use crate::InstallError;
use crate::bounds::FLOW_DATA_BYTES_MAX;
use crate::table::Flow;

/// Bytes that flows of one table have, besides what each has.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowMemory(Arc<AtomicUsize>);

/// A flow that was entered. What it takes is free again when nobody has it any more.
#[derive(Debug)]
pub struct Installed {
    flow: Flow,
    bytes: usize,
    flow_memory: FlowMemory,
}

impl FlowMemory {
    /// Enters a flow.
    pub(crate) fn enter(&self, flow: Flow) -> Result<Arc<Installed>, InstallError> {
        let bytes = Action::memory_bytes(&flow.actions) + flow.matching.bytes_behind();
        // Whoever enters has the table's lock; others only give back.
        if self.0.load(Ordering::Relaxed) + bytes > FLOW_DATA_BYTES_MAX {
            return Err(InstallError::NoRoom("flows' actions and data take 256 MiB; remove flows first"));
        }
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(Arc::new(Installed { flow, bytes, flow_memory: self.clone() }))
    }

    /// Bytes that are taken.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Installed {
    /// What it takes, besides what each flow does.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Deref for Installed {
    type Target = Flow;

    fn deref(&self) -> &Flow {
        &self.flow
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.flow_memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
