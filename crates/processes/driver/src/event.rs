//! Events from I/O threads to the owner of a port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::DevicePortId;

/// An event that the owner of a port has to handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// The device is gone: frames from the switch are dropped until there is another device.
    DeviceGone {
        /// The port.
        port: DevicePortId,
        /// The reason.
        why: String,
    },
    /// As [`Self::DeviceGone`], but the device is there: its packet sockets receive no more frames by rings, and the next ones
    /// should have none.
    RingStopped {
        /// The port.
        port: DevicePortId,
        /// The reason.
        why: String,
    },
    /// The connection to the switch is gone or useless: no frame passes until there is another one.
    SwitchGone {
        /// The port.
        port: DevicePortId,
        /// The reason.
        why: String,
    },
}

/// An event, and the generation of its port: events of replaced generations are not reported.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) generation: u64,
    pub(crate) event: DriverEvent,
}

/// The sending end, for I/O threads.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    reports: Sender<Report>,
    bell: Arc<OwnedFd>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Reports {
    reports: Receiver<Report>,
    bell: Arc<OwnedFd>,
}

/// Makes both ends.
pub(crate) fn reports() -> std::io::Result<(Reporter, Reports)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (sender, receiver) = channel();
    Ok((Reporter { reports: sender, bell: Arc::clone(&bell) }, Reports { reports: receiver, bell }))
}

impl Reporter {
    pub(crate) fn report(&self, report: Report) {
        // The receiver is gone when the driver ends.
        let _ = self.reports.send(report);
        self.ring();
    }

    /// Makes the receiver look.
    pub(crate) fn ring(&self) {
        // The write only fails if the eventfd is readable already.
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
        // Cleared before the last check: a later report sets it again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.reports.try_recv().ok()
    }
}
