//! Accounts the memory of one table's flows until no thread holds them, including removed flows that are remembered or
//! still read.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lasthop_flow::{Action, Match, Ufid};

use crate::InstallError;
use crate::bounds::FLOW_DATA_BYTES_MAX;

/// A flow in the form in which it was installed.
#[derive(Debug)]
pub struct FlowSpec {
    /// Its UFID, if the control plane gave one.
    pub ufid: Option<Ufid>,
    /// Its match.
    pub matching: Match,
    /// Its actions.
    pub actions: Vec<Action>,
    /// Packets never match it: the control plane only tests whether such a flow is supported.
    pub is_probe: bool,
}

/// Bytes of one table's flows, without their fixed parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowMemory(Arc<AtomicUsize>);

/// An installed flow. Its memory is accounted until the last reference is dropped.
#[derive(Debug)]
pub struct Installed {
    flow: FlowSpec,
    bytes: usize,
    flow_memory: FlowMemory,
}

impl FlowMemory {
    /// Accounts a flow.
    pub(crate) fn enter(&self, flow: FlowSpec) -> Result<Arc<Installed>, InstallError> {
        let bytes = Action::memory_bytes(&flow.actions) + flow.matching.bytes_behind();
        // The installing thread has the table's lock; other threads only decrease this.
        if self.0.load(Ordering::Relaxed) + bytes > FLOW_DATA_BYTES_MAX {
            return Err(InstallError::NoRoom("flows' actions and data take 256 MiB; remove flows first"));
        }
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(Arc::new(Installed { flow, bytes, flow_memory: self.clone() }))
    }

    /// Bytes in use.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Installed {
    /// Bytes of a flow without its fixed part.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Deref for Installed {
    type Target = FlowSpec;

    fn deref(&self) -> &FlowSpec {
        &self.flow
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.flow_memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
