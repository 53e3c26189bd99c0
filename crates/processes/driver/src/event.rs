//! Events from I/O threads to the owner of a port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::DevicePortId;

/// An event that the owner of a port has to handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// The device is gone: frames from the switch are dropped until there is another one.
    DeviceGone {
        /// The port.
        port: DevicePortId,
        /// The reason.
        why: String,
    },
    /// The connection to the switch is gone, or is of no use any more: nothing passes until there is another one.
    SwitchGone {
        /// The port.
        port: DevicePortId,
        /// The reason.
        why: String,
    },
}

/// An event, and the generation of the port that it is about: events of replaced generations are not
/// reported.
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
        // The reader is gone when the driver ends.
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
        // Cleared before the last look: a later report sets it again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.reports.try_recv().ok()
    }
}
