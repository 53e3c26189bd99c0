//! Starts of processes, beside descriptors whose last close is to be the switch's.
//!
//! A process that is started has copies of all descriptors of its parent until exec(2) closes them. So a test that sends a descriptor, and
//! gives up its own copy, cannot say whose close is the last one while another test of the same program starts a process. Such descriptors
//! and starts wait for each other.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;

/// How many [`NoStarts`] there are.
static HOLDERS: Mutex<usize> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();
/// The number of a descriptor that exec(2) closes after those of tests: it closes them in order.
const HIGH: i32 = 1000;

/// No process is started while there is one. Its thread must not start any either.
pub(crate) struct NoStarts(());

impl NoStarts {
    pub(crate) fn begin() -> Self {
        // Held during a start.
        *HOLDERS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }
}

impl Drop for NoStarts {
    fn drop(&mut self) {
        *HOLDERS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FEWER.notify_all();
    }
}

/// As [`Command::spawn`], and the process has no copies of this one's descriptors any more.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    let none = FEWER.wait_while(holders, |holders| *holders > 0).unwrap_or_else(PoisonError::into_inner);
    let (mut its_end, copy) = io::pipe()?;
    let last = fcntl_dupfd_cloexec(&copy, HIGH)?;
    drop(copy);
    let child = command.spawn()?;
    drop(last);
    // Earlier, exec(2) has let this process continue, but may not have closed all.
    let _ = its_end.read(&mut [0])?;
    drop(none);
    Ok(child)
}

/// As [`Command::output`].
pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
    spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
}

/// As [`Command::status`].
pub(crate) fn status(command: &mut Command) -> io::Result<ExitStatus> {
    spawn(command)?.wait()
}
