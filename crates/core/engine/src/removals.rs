//! Removal of ports. A worker that does not answer in time may delay it.
//!
//! ```text
//!   remove ──> leaving: not found ──all workers have answered──> module forgets it ──> number is free
//!                 └── no answer: an error; the next addition or removal of a port tries again ──┘
//! ```

use lasthop_module_api::PortId;

use crate::{Engine, EngineError};

impl Engine {
    /// Removes a port; its guest's rings are stopped first.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPort`]. [`EngineError::NoAnswer`]: the port is found no more, and the next addition or removal of
    /// a port completes this, or another call for it.
    pub fn remove_port(&self, port: PortId) -> Result<(), EngineError> {
        if !self.table().leave(port) {
            return Err(EngineError::NoSuchPort(port));
        }
        self.finish_removal(port)?;
        // This port is removed. The others still have an error of their own.
        let _ = self.finish_removals();
        Ok(())
    }

    /// Removes the port even if the module refused it: otherwise the module would refuse the number's next port.
    pub(crate) fn forget(&self, port: PortId) -> Result<(), EngineError> {
        self.table().leave(port);
        self.finish_removal(port)
    }

    /// Completes removals that workers delayed: their ports have numbers, and addresses at the module.
    pub(crate) fn finish_removals(&self) -> Result<(), EngineError> {
        let leaving = self.table().leaving();
        leaving.into_iter().try_for_each(|port| self.finish_removal(port))
    }

    /// Removes a port that is marked as leaving, so a session that is using it begins no further change.
    fn finish_removal(&self, port: PortId) -> Result<(), EngineError> {
        let _change = self.port_control.port_changes().control_change(port);
        if !self.table().leaving().contains(&port) {
            return Ok(()); // another thread has removed it
        }
        // Rings first: otherwise the module would learn again from a pending frame.
        self.port_control.remove_port(port)?;
        self.module.port_removed(port);
        self.late_workers.forget(port);
        self.table().release(port);
        Ok(())
    }
}
