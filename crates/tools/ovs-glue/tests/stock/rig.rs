//! A server in a thread, and programs that talk to it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread::JoinHandle;

use lasthop_dpif::datapath::{Datapath, DatapathId, FlowInstall};
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::server::{DatapathRecord, DatapathUpcall, Server};
use lasthop_dpif::socket::{Access, Connections};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const DPCTL: &str = "ovs-dpctl";

/// Whether there is a program to test.
pub(crate) fn has_dpctl() -> bool {
    let is_there = Command::new(DPCTL).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skipped(&format!("{DPCTL} is not installed (apt-get install openvswitch-switch)"));
    }
    is_there
}

#[expect(clippy::print_stdout, reason = "tests say what they leave out")]
pub(crate) fn skipped(why: &str) {
    println!("skipped: {why}");
}

/// The library. `cargo test` does not build it, since nothing links to it; `tools/test` builds it first.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let directory = test.parent().and_then(Path::parent).expect("below target");
    let library = directory.join("liblasthop_ovs_glue.so");
    assert!(
        library.exists(),
        "{} is not there; build it with: cargo build -p lasthop-ovs-glue",
        library.display()
    );
    library
}

/// Datapaths and ports as clients created them.
pub(crate) type Records = BTreeMap<DatapathId, DatapathRecord>;

/// A datapath in memory behind a socket, until it is dropped.
pub(crate) struct Rig {
    directory: tempfile::TempDir,
    /// Gets a byte for each miss; closing it ends the thread.
    wake: Option<OwnedFd>,
    misses: Option<Sender<DatapathUpcall>>,
    /// The thread says here that it serves no more; then it waits until this is closed, and closes its connections.
    silent: Option<Receiver<()>>,
    thread: Option<JoinHandle<(Records, MemoryDatapath)>>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut rig = Self { directory, wake: None, misses: None, silent: None, thread: None };
        rig.start(Server::new(), MemoryDatapath::new(), Vec::new());
        rig
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("datapath.sock")
    }

    pub(crate) fn start(&mut self, server: Server, datapath: MemoryDatapath, flows: Vec<FlowInstall>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let listener = listener.expect("a socket");
        // Left by an earlier server.
        let _ = std::fs::remove_file(self.socket());
        rustix::net::bind(&listener, &SocketAddrUnix::new(self.socket()).expect("short")).expect("free");
        rustix::net::listen(&listener, 16).expect("bound");
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let (misses, missed) = channel();
        // Without room: a message is taken, or its receiver is gone.
        let (silence, silent) = std::sync::mpsc::sync_channel(0);
        (self.wake, self.misses, self.silent) = (Some(wake), Some(misses), Some(silent));
        self.thread = Some(std::thread::spawn(move || {
            Served { listener, woken, missed, silence, datapath }.serve(server, flows)
        }));
    }

    /// The server takes no more requests, as a process that is stopped, until it ends.
    #[allow(dead_code, reason = "for the library's own tests")]
    pub(crate) fn stop_serving(&mut self) {
        self.wake = None;
        self.silent.as_ref().expect("it runs").recv().expect("it says so");
    }

    /// A packet for the control plane.
    pub(crate) fn miss(&self, upcall: DatapathUpcall) {
        self.misses.as_ref().expect("it runs").send(upcall).expect("it runs");
        rustix::io::write(self.wake.as_ref().expect("it runs"), &[0]).expect("a pipe");
    }

    /// Replaces the server process by another one that knows the same datapaths and ports. There is no server while
    /// `meanwhile` runs.
    pub(crate) fn restart_after(&mut self, meanwhile: impl FnOnce()) {
        let (records, _) = self.end();
        meanwhile();
        let (mut server, mut datapath) = (Server::new(), MemoryDatapath::new());
        assert_eq!(server.restore(records, &mut datapath), Vec::<String>::new());
        self.start(server, datapath, Vec::new());
    }

    /// Replaces the server process by another one that knows the same datapaths and ports.
    pub(crate) fn restart(&mut self, server: Server, datapath: MemoryDatapath, flows: Vec<FlowInstall>) {
        self.end();
        self.start(server, datapath, flows);
    }

    /// Ends the server and returns its last state.
    pub(crate) fn end(&mut self) -> (Records, MemoryDatapath) {
        (self.wake, self.silent) = (None, None);
        self.thread.take().expect("it runs").join().expect("it does not panic")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(DPCTL);
        command.args(["--timeout=20", "-voff"]).args(arguments);
        command.env("LASTHOP_DATAPATH", self.socket()).env("LD_PRELOAD", library());
        command.output().expect("it is installed")
    }

    /// The output of ovs-dpctl. It has to succeed.
    pub(crate) fn dpctl(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{DPCTL} {arguments:?}: {}: {error}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Its error message. It has to fail.
    pub(crate) fn dpctl_refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{DPCTL} {arguments:?} has to fail");
        String::from_utf8(output.stderr).expect("text")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}

/// The datapath that flows are put into by hand.
pub(crate) const FIRST: DatapathId = DatapathId(1);

/// The result of the thread.
struct Served {
    listener: OwnedFd,
    woken: OwnedFd,
    missed: Receiver<DatapathUpcall>,
    silence: SyncSender<()>,
    datapath: MemoryDatapath,
}

impl Served {
    fn serve(mut self, server: Server, flows: Vec<FlowInstall>) -> (Records, MemoryDatapath) {
        for flow in flows {
            self.datapath.flow_install(FIRST, flow).expect("another one");
        }
        let mut connections = Connections::new(server, Access::default()).expect("an epoll set");
        while self.turn(&mut connections) {}
        while self.silence.send(()).is_ok() {}
        (connections.server().records().clone(), self.datapath)
    }

    /// Waits for events and handles them; returns false at the end.
    fn turn(&mut self, connections: &mut Connections) -> bool {
        let fds = [self.listener.as_fd(), connections.fd(), self.woken.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, connections.has_more().then_some(&at_once)).expect("three descriptors");
        let woken = fds[2].revents();
        if woken.contains(PollFlags::IN) {
            rustix::io::read(&self.woken, [0].as_mut_slice()).expect("a pipe");
            for upcall in self.missed.try_iter() {
                let _ = connections.upcall(upcall, &mut self.datapath);
            }
        } else if !woken.is_empty() {
            return false;
        }
        while let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            connections.add(socket.into()).expect("one of ours");
        }
        connections.turn(&mut self.datapath).expect("an epoll set");
        true
    }
}
