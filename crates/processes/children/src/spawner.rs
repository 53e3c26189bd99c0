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
//!
//! The kernel refuses SCM_RIGHTS while others of this user have too many descriptors in flight. The thread copies them out of the main
//! thread's table then (pidfd_getfd(2)). That is the second way, since containers' filters of system calls may refuse it.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use log::warn;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use lasthop_runtime::fault::Fault;
use lasthop_runtime::{notify, signals};

use crate::slice_boost::without_boost;
use crate::sys;

/// The program of a process, and its arguments.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) program: PathBuf,
    pub(crate) words: Vec<OsString>,
}

/// How the thread gets the standard descriptors of a process.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    /// They are in the thread's socket.
    Sent,
    /// They have these numbers in the main thread's table.
    Copied([RawFd; 2]),
}

/// The way to the thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Spawner {
    jobs: SyncSender<(Job, Transfer)>,
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
        let fds = [input, errors];
        let transfer = match self.send(&fds) {
            Ok(()) => Transfer::Sent,
            Err(Errno::TOOMANYREFS) => Transfer::Copied(fds.map(|fd| fd.as_raw_fd())),
            Err(error) => return Err(error.into()),
        };
        self.start_job(job, transfer)
    }

    fn send(&self, fds: &[BorrowedFd<'_>; 2]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(fds));
        sendmsg(&self.descriptors, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// The descriptors stay open meanwhile: the caller has them until the process is started.
    fn start_job(&self, job: Job, transfer: Transfer) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.jobs.send((job, transfer)).map_err(|_| gone())?;
        self.started.recv().map_err(|_| gone())?
    }
}

/// All that the thread does. Each command and its rest stay here: its descriptors are in this table.
fn serve(socket: OwnedFd, jobs: &Receiver<(Job, Transfer)>, started: &SyncSender<io::Result<Child>>) {
    // A handler writes to a descriptor, which this table lacks: a signal that came to this thread would be lost. Processes
    // inherit this, and unblock signals first.
    signals::block();
    if let Err(error) = sys::unshare_descriptors(&socket) {
        warn!(
            "a control client may delay starts of inner processes: no table of descriptors for them alone: {error}"
        );
    }
    while let Ok((job, transfer)) = jobs.recv() {
        let fds = match transfer {
            Transfer::Sent => receive(&socket),
            Transfer::Copied(numbers) => copy(numbers),
        };
        let child = fds.and_then(|(input, errors)| spawn(&job, input, errors));
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

fn copy([input, errors]: [RawFd; 2]) -> io::Result<(OwnedFd, OwnedFd)> {
    let main_thread = pidfd_open(getpid(), PidfdFlags::empty())?;
    let copied = |number| pidfd_getfd(&main_thread, number, PidfdGetfdFlags::empty());
    Ok((copied(input)?, copied(errors)?))
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
    use std::time::{Duration, Instant};

    use super::*;

    fn check_descriptors(start: impl FnOnce(&Spawner, Job, [BorrowedFd<'_>; 2]) -> io::Result<Child>) {
        let spawner = Spawner::start().expect("a thread");
        let (mut told, errors) = io::pipe().expect("a pipe");
        let (input, _) = UnixStream::pair().expect("a pair");
        // A descriptor that would be inherited.
        let _open = rustix::io::dup(std::fs::File::open("/dev/null").expect("a file")).expect("a copy");
        let words = ["-c", "ls /proc/self/fd >&2"].map(OsString::from).to_vec();
        let job = Job { program: "/bin/sh".into(), words };
        let mut child = start(&spawner, job, [input.as_fd(), errors.as_fd()]).expect("started");
        drop(errors);
        let mut listed = String::new();
        told.read_to_string(&mut listed).expect("text");
        assert!(child.wait().expect("an end").success());
        let numbers: Vec<&str> = listed.split_whitespace().collect();
        // The fourth is the directory that is being listed.
        assert_eq!(numbers, ["0", "1", "2", "3"]);
    }

    #[test]
    fn the_thread_handles_no_signal() {
        let _spawner = Spawner::start().expect("a thread");
        // Those of other tests, too, which may have just begun.
        let has_unblocked = || {
            let threads = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
            let statuses =
                threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
            let spawners: Vec<String> =
                statuses.filter(|status| status.contains("Name:\tspawner\n")).collect();
            let handles = |status: &String| {
                let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
                u64::from_str_radix(mask.trim(), 16).expect("a number") >> (libc::SIGTERM - 1) & 1 == 0
            };
            spawners.is_empty() || spawners.iter().any(handles)
        };
        let until = Instant::now() + Duration::from_secs(20);
        while has_unblocked() {
            assert!(Instant::now() < until, "it would handle SIGTERM");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_has_its_standard_descriptors_and_no_others() {
        check_descriptors(|spawner, job, [input, errors]| spawner.spawn(job, input, errors));
    }

    #[test]
    fn descriptors_that_cannot_be_sent_are_copied() {
        check_descriptors(|spawner, job, fds| {
            spawner.start_job(job, Transfer::Copied(fds.map(|fd| fd.as_raw_fd())))
        });
    }
}
