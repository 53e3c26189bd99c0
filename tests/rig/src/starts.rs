//! Starts of processes beside descriptors whose last close has to be the switch's.
//!
//! A new process has copies of all its parent's descriptors until exec(2) closes them. So if a test sends a descriptor
//! and closes its own copy, another test of the same program that starts a process may have the last copy. Such
//! descriptors and starts wait for each other.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;

/// The number of living [`NoStarts`].
static HOLDERS: Mutex<usize> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();
/// A descriptor number higher than those of tests: exec(2) closes descriptors in order, so this one last.
const HIGH: i32 = 1000;

/// Prevents starts of processes while it lives. Its thread must not start any either.
pub struct NoStarts(());

impl NoStarts {
    pub fn begin() -> Self {
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

/// As [`Command::spawn`]; afterwards the process has no copies of this one's descriptors.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    let none = FEWER.wait_while(holders, |holders| *holders > 0).unwrap_or_else(PoisonError::into_inner);
    let (mut its_end, copy) = io::pipe()?;
    let last = fcntl_dupfd_cloexec(&copy, HIGH)?;
    drop(copy);
    let child = command.spawn()?;
    drop(last);
    // Earlier, exec(2) has let this process continue, but may not have closed all copies.
    let _ = its_end.read(&mut [0])?;
    drop(none);
    Ok(child)
}

/// As [`Command::output`].
pub fn output(command: &mut Command) -> io::Result<Output> {
    spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
}

/// As [`Command::status`].
pub fn status(command: &mut Command) -> io::Result<ExitStatus> {
    spawn(command)?.wait()
}
