//! A process in a sandbox that attempts one thing, and its end.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::fs::readlinkat;
use rustix::thread::capabilities as capability_sets;
use serde::{Deserialize, Serialize};

use crate::ipc::Channel;
use crate::sandbox::{
    ForbiddenCall, KeptFds, Layer, ProcessRole, SandboxMode, enter, landlock, namespaces, privileges, sys,
};

/// Exit statuses of an inmate.
pub(super) const NO_SUCH_CALL: i32 = 3;
pub(super) const OTHER_ERROR: i32 = 4;
pub(super) const NOT_HERE: i32 = 5;
/// A placeholder for the inmate's own id among the arguments of a call.
pub(super) const OWN_PROCESS: usize = usize::MAX - 4096;

const ATTEMPT: &str = "LASTHOP_INMATE";
const ROLE: &str = "LASTHOP_INMATE_ROLE";

/// The message of a process that made a forbidden call.
#[derive(Debug, Serialize, Deserialize)]
enum RefusalMessage {
    Forbidden(ForbiddenCall),
}

/// An attempt of an inmate.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) name: &'static str,
    words: String,
    role: ProcessRole,
}

/// The end of an inmate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Status(i32),
    /// With the name of the call that it reported.
    BySigsys(Option<String>),
    Otherwise(String),
}

impl Attempt {
    /// An attempt of a system call in the switch process's sandbox.
    pub(super) fn call(name: &'static str, number: libc::c_long, arguments: [usize; 6]) -> Self {
        let arguments = arguments.map(|argument| argument.to_string()).join(" ");
        Self { name, words: format!("call {number} {arguments}"), role: ProcessRole::Switch }
    }

    /// One of the cases in `attempt` below.
    pub(super) fn named(name: &'static str) -> Self {
        Self { name, words: name.to_owned(), role: ProcessRole::Switch }
    }

    /// The same in the driver process's sandbox.
    pub(super) fn by_driver(self) -> Self {
        Self { role: ProcessRole::Driver, ..self }
    }

    /// Starts an inmate that attempts it.
    pub(super) fn make(&self) -> End {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([
            "--exact",
            "sandbox::tests::inmate::inmate",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(ATTEMPT, OsString::from(&self.words)).env("RUST_BACKTRACE", "1");
        command.env(ROLE, format!("{:?}", self.role));
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().expect("an inmate");
        drop(command);
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Status(code),
            (_, Some(libc::SIGSYS)) => End::BySigsys(last_words(ours)),
            _ => End::Otherwise(status.to_string()),
        }
    }
}

fn last_words(ours: UnixStream) -> Option<String> {
    let mut channel: Channel<(), RefusalMessage> = Channel::new(ours.into()).expect("a channel");
    channel.receive().expect("received");
    match channel.take() {
        Some((RefusalMessage::Forbidden(call), _)) => {
            crate::sandbox::name_of(call.number.into()).map(str::to_owned)
        }
        other => panic!("last words: {other:?}"),
    }
}

#[test]
#[ignore = "other tests start it, in a process of its own"]
fn inmate() {
    let Ok(words) = std::env::var(ATTEMPT) else { return };
    std::process::exit(attempt(&words));
}

fn attempt(words: &str) -> i32 {
    match words {
        "landlock" => landlock_alone(),
        "root" => root_alone(),
        "capabilities" => capabilities_alone(),
        "panic" => {
            confine();
            let _ = std::panic::catch_unwind(|| panic!("to be told"));
            0
        }
        "threads" => {
            confine();
            let threads = (0..4).map(|number| std::thread::spawn(move || vec![number; 1 << 20].len()));
            threads.map(|thread| i32::from(thread.join().expect("no panic") != 1 << 20)).sum()
        }
        call => system_call(call),
    }
}

fn confine() {
    let is_driver = std::env::var(ROLE).is_ok_and(|role| role == "Driver");
    let role = if is_driver { ProcessRole::Driver } else { ProcessRole::Switch };
    let stdin = std::io::stdin();
    let layers =
        enter(role, SandboxMode::Auto, &KeptFds { channel: stdin.as_fd() }, RefusalMessage::Forbidden);
    let layers = layers.expect("nothing is required");
    assert!(layers.iter().any(|layer: &Layer| layer.on && layer.name == "system calls"), "{layers:?}");
}

fn system_call(words: &str) -> i32 {
    let mut numbers = words.split(' ').skip(1).map(|word| word.parse::<usize>().expect("a number"));
    let number = numbers.next().expect("a call") as libc::c_long;
    let own = std::process::id() as usize;
    let mut argument = || numbers.next().expect("six arguments");
    let arguments = std::array::from_fn(|_| match argument() {
        OWN_PROCESS => own,
        argument => argument,
    });
    confine();
    match sys::call(number, arguments) {
        Ok(_) => 0,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => NO_SUCH_CALL,
        Err(_) => OTHER_ERROR,
    }
}

fn landlock_alone() -> i32 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    privileges::renounce_new().expect("renounced");
    let Ok(covers) = landlock::restrict() else { return NOT_HERE };
    assert_eq!(fs::File::open("/etc/passwd").expect_err("denied").kind(), ErrorKind::PermissionDenied);
    assert_eq!(fs::read_dir("/").expect_err("denied").kind(), ErrorKind::PermissionDenied);
    if covers.contains("TCP") {
        let refused = std::net::TcpStream::connect(address).expect_err("denied");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }
    0
}

fn root_alone() -> i32 {
    let names = namespaces::descriptor_names().expect("there is a /proc");
    if namespaces::empty_root(&namespaces::separate()).is_err() {
        return NOT_HERE;
    }
    assert_eq!(fs::File::open("/etc/passwd").expect_err("nothing").kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_dir("/").expect("the root").count(), 0);
    assert!(fs::File::create("/file").is_err());
    let name = |path: &str| readlinkat(&names, path, Vec::new());
    assert!(name("0").expect("standard input").to_bytes().starts_with(b"socket:"));
    assert!(name("../exe").is_err() && name("../../1/exe").is_err(), "there is no way up");
    0
}

fn capabilities_alone() -> i32 {
    let dropped = privileges::drop_all().expect("dropped");
    privileges::renounce_new().expect("renounced");
    let sets = capability_sets(None).expect("told");
    assert!((sets.effective | sets.permitted | sets.inheritable).is_empty());
    let status = fs::read_to_string("/proc/thread-self/status").expect("told");
    assert!(status.contains("CapAmb:\t0000000000000000") && status.contains("NoNewPrivs:\t1"), "{status}");
    // An ordinary user may not empty the bounding set.
    assert_eq!(status.contains("CapBnd:\t0000000000000000"), dropped == "none, in any set", "{status}");
    0
}
