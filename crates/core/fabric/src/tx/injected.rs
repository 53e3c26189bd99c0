//! The ports at which frames of the port `internal` are counted.

use lasthop_module_api::PortId;

use crate::bounds::INTERNAL_FRAMES_MAX;

/// The port at which a frame is counted, and the number of its waiting copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectedFrame {
    pub(super) port: PortId,
    pub(super) waiting: u64,
}

/// Indexed by the head of the chain in the ring of the port `internal`.
#[derive(Debug)]
pub(super) struct InjectedFrames(pub(super) [InjectedFrame; INTERNAL_FRAMES_MAX as usize]);

impl Default for InjectedFrames {
    fn default() -> Self {
        Self([InjectedFrame { port: PortId::INTERNAL, waiting: 0 }; INTERNAL_FRAMES_MAX as usize])
    }
}

impl InjectedFrames {
    pub(super) fn of(&self, head: u16) -> PortId {
        self.0.get(usize::from(head)).map_or(PortId::INTERNAL, |account| account.port)
    }
}
