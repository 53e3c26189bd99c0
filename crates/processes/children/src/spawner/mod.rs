//! The thread that starts inner processes. It has a descriptor table of its own.
//!
//! A new process has a copy of the descriptor table of the thread that starts it, until exec(2) closes that. The
//! supervisor's table may have descriptors of clients that are still to be closed, and a close may block for ever, for
//! example in a file system that does not answer. Then no process could be started. So those descriptors are in a table
//! that is not copied.
//!
//! ```text
//!   main thread ── descriptors for the process (SCM_RIGHTS) ──> this thread: standard descriptors and its socket ── fork, exec
//! ```

mod sys;

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use log::warn;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use lasthop_runtime::fault::Fault;
use lasthop_runtime::notify;

use crate::slice_boost::without_boost;

/// The program of a process, and its arguments.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) program: PathBuf,
    pub(crate) words: Vec<OsString>,
}

/// The main thread's end of the thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Spawner {
    jobs: SyncSender<Job>,
    started: Receiver<io::Result<Child>>,
    descriptors: UnixStream,
}

impl Spawner {
    /// Starts the thread, before there are descriptors from other processes.
    pub(crate) fn start() -> Result<Self, Fault> {
        let failed = |error| Fault::internal("start the thread that starts processes", error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (jobs, to_do) = sync_channel(0);
        let (done, started) = sync_channel(0);
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || serve(theirs.into(), &to_do, &done))
            .map_err(failed)?;
        Ok(Self { jobs, started, descriptors: ours })
    }

    /// Starts a process with these standard descriptors.
    pub(crate) fn spawn(&self, job: Job, input: BorrowedFd<'_>, errors: BorrowedFd<'_>) -> io::Result<Child> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [input, errors];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&self.descriptors, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.jobs.send(job).map_err(|_| gone())?;
        self.started.recv().map_err(|_| gone())?
    }
}

/// The thread's main function. Each command stays in it until it is dropped: its descriptors are in this table.
fn serve(socket: OwnedFd, jobs: &Receiver<Job>, started: &SyncSender<io::Result<Child>>) {
    if let Err(error) = sys::unshare_descriptors(&socket) {
        warn!(
            "a control client may delay starts of inner processes: no table of descriptors for them alone: {error}"
        );
    }
    while let Ok(job) = jobs.recv() {
        let child = receive(&socket).and_then(|(input, errors)| spawn(&job, input, errors));
        if started.send(child).is_err() {
            return;
        }
    }
}

fn receive(socket: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    // They are closed in this thread, which owns their table, and not by the threads that close other processes'
    // descriptors.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = fds.by_ref().flatten();
    let lost = || io::Error::other("there is no descriptor left");
    Ok((fds.next().ok_or_else(lost)?, fds.next().ok_or_else(lost)?))
}

fn spawn(job: &Job, input: OwnedFd, errors: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(&job.program);
    command.arg0("lasthop").args(&job.words);
    // A process group of its own: Ctrl-C goes to the supervisor, which ends its processes in order.
    let command = command
        .env_remove(notify::VARIABLE)
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_FDNAMES")
        .process_group(0)
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(errors);
    without_boost(|| command.spawn())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_process_has_its_standard_descriptors_and_no_others() {
        let spawner = Spawner::start().expect("a thread");
        let (mut told, errors) = io::pipe().expect("a pipe");
        let (input, _) = UnixStream::pair().expect("a pair");
        // A descriptor that would be inherited.
        let _open = rustix::io::dup(std::fs::File::open("/dev/null").expect("a file")).expect("a copy");
        let words = ["-c", "ls /proc/self/fd >&2"].map(OsString::from).to_vec();
        let job = Job { program: "/bin/sh".into(), words };
        let mut child = spawner.spawn(job, input.as_fd(), errors.as_fd()).expect("started");
        drop(errors);
        let mut listed = String::new();
        told.read_to_string(&mut listed).expect("text");
        assert!(child.wait().expect("an end").success());
        let numbers: Vec<&str> = listed.split_whitespace().collect();
        // The fourth is the directory that is being listed.
        assert_eq!(numbers, ["0", "1", "2", "3"]);
    }
}
