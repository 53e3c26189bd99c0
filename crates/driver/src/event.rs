use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::PortId;

/// Something that whoever attached a port has to see to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// The device is gone: what the switch sends is dropped until there is another one.
    DeviceGone {
        /// The port.
        port: PortId,
        /// What happened.
        why: String,
    },
    /// The connection to the switch is gone, or is of no use any more: nothing passes until there is another one.
    SwitchGone {
        /// The port.
        port: PortId,
        /// What happened.
        why: String,
    },
}

/// An event, and which generation of the port it is of: what was replaced meanwhile need not be reported.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) generation: u64,
    pub(crate) event: DriverEvent,
}

/// Where I/O threads leave reports.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    reports: Sender<Report>,
    bell: Arc<OwnedFd>,
}

/// Where they are taken from.
#[derive(Debug)]
pub(crate) struct Reports {
    reports: Receiver<Report>,
    bell: Arc<OwnedFd>,
}

/// Both ends.
pub(crate) fn reports() -> std::io::Result<(Reporter, Reports)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (sender, receiver) = channel();
    Ok((Reporter { reports: sender, bell: Arc::clone(&bell) }, Reports { reports: receiver, bell }))
}

impl Reporter {
    pub(crate) fn report(&self, report: Report) {
        // Nobody is there to read when the driver ends.
        let _ = self.reports.send(report);
        // Fails only when the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl Reports {
    /// Readable when there may be reports.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn take(&self) -> Option<Report> {
        if let Ok(report) = self.reports.try_recv() {
            return Some(report);
        }
        // Silenced before the last look: who reports after it rings again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.reports.try_recv().ok()
    }
}
