//! `lasthop ovs run`: Open vSwitch's two daemons in the foreground, in a directory of their own.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lasthop_dpif::client::{Client, ClientError};
use log::{error, info};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::programs::{Programs, find};
use crate::{DATABASE_VARIABLE, divert};
use lasthop_api::rundir::{datapath_socket, option};
use lasthop_api::silence::{self, is_vain, no_answer};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::timespec;
use lasthop_runtime::signals::Signals;

/// How long daemons may take to start, and to end before they are killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two checks of the daemons.
const LOOK: Duration = Duration::from_millis(100);
/// Pause between the death of the daemon and its next start.
const PAUSE: Duration = Duration::from_secs(1);
/// The relay's name in messages.
const RELAY: &str = "the relay of the database";

/// The directories of Open vSwitch.
#[derive(Clone, Debug)]
pub struct Places {
    /// Sockets and process numbers (`OVS_RUNDIR`).
    pub run: PathBuf,
    /// Its configuration.
    pub database: PathBuf,
    /// The words after `lasthop ovs relay` that say how vnics of interfaces are made, if they are.
    pub vhost_user: Option<Vec<String>>,
}

impl Places {
    /// In the switch's run directory, unless a database elsewhere is named.
    pub fn new(dir: &Path, database: Option<PathBuf>, vhost_user: Option<Vec<String>>) -> Self {
        let run = dir.join("ovs");
        Self { database: database.unwrap_or_else(|| run.join("conf.db")), run, vhost_user }
    }

    fn relay_socket(&self) -> PathBuf {
        self.run.join("relay.sock")
    }

    fn server_socket(&self) -> PathBuf {
        self.run.join("db.sock")
    }

    fn remote(&self) -> String {
        format!("unix:{}", self.server_socket().display())
    }

    /// Removes the files of earlier daemons, one of which may have been killed; keeps a database elsewhere.
    fn clear(&self) {
        // Files that cannot be removed now are removed at the next start.
        if !self.database.starts_with(&self.run) {
            let _ = fs::remove_dir_all(&self.run);
            return;
        }
        for entry in fs::read_dir(&self.run).into_iter().flatten().flatten() {
            let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
            if is_socket || entry.path().extension().is_some_and(|extension| extension == "pid") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn pid_file(&self) -> PathBuf {
        self.run.join("ovs-vswitchd.pid")
    }
}

/// Runs until a signal ends it (SIGTERM, Ctrl-C); then ports and flows are removed, too.
///
/// # Errors
/// If programs are missing, no switch answers in `dir`, or a daemon does not start.
pub fn run(dir: &Path, places: &Places) -> Result<(), Fault> {
    Client::connect_unless(&datapath_socket(dir), is_vain).map_err(|error| no_switch(dir, &error))?;
    let programs = Programs::find()?;
    // Until here there is nothing to end: a signal just ends this process.
    let mut signals = Signals::take()?;
    let mut daemons = Daemons::start(dir, places, &programs, &mut signals)?;
    let run = places.run.display();
    info!(
        "Open vSwitch {} runs; its tools find it, and its logs, with: export OVS_RUNDIR={run} OVS_LOGDIR={run}",
        programs.version
    );
    let ended = daemons.watch(&mut signals);
    daemons.end();
    ended
}

fn no_switch(dir: &Path, error: &ClientError) -> Fault {
    if matches!(error, ClientError::Late) {
        return no_answer(dir, silence::PATIENCE);
    }
    let path = datapath_socket(dir);
    Fault::socket(format!(
        "no switch answers at {}: {error}; start one first: lasthop{} run --controller external",
        path.display(),
        option(dir)
    ))
}

/// The database's server and the switch's daemon.
struct Daemons<'a> {
    dir: &'a Path,
    places: &'a Places,
    programs: &'a Programs,
    server: Child,
    relay: Option<Child>,
    daemon: Child,
}

impl<'a> Daemons<'a> {
    fn start(
        dir: &'a Path,
        places: &'a Places,
        programs: &'a Programs,
        signals: &mut Signals,
    ) -> Result<Self, Fault> {
        prepare(places, programs)?;
        let mut server = start_server(places, programs)?;
        let relay = await_file(&places.server_socket(), &mut server, "ovsdb-server", signals)
            .and_then(|()| initialize(places, programs))
            .and_then(|()| {
                let words = places.vhost_user.as_deref();
                words.map(|words| start_relay(dir, places, words, signals)).transpose()
            });
        let started = relay.and_then(|mut relay| match start_daemon(dir, places, programs, signals) {
            Ok(daemon) => Ok((relay, daemon)),
            Err(fault) => {
                if let Some(relay) = &mut relay {
                    end(relay, RELAY);
                }
                Err(fault)
            }
        });
        match started {
            Ok((relay, daemon)) => Ok(Self { dir, places, programs, server, relay, daemon }),
            Err(fault) => {
                end(&mut server, "ovsdb-server");
                Err(fault)
            }
        }
    }

    /// Runs until a signal comes. Restarts a daemon that dies, like Open vSwitch's own monitor.
    fn watch(&mut self, signals: &mut Signals) -> Result<(), Fault> {
        while !comes_within(signals, LOOK)? {
            if let Some(status) = ended(&mut self.server) {
                return Err(Fault::refused(format!("ovsdb-server ended ({status}); see its messages above")));
            }
            self.renew_relay(signals)?;
            let Some(status) = ended(&mut self.daemon) else { continue };
            error!("ovs-vswitchd ended ({status}); it is started again");
            if comes_within(signals, PAUSE)? {
                break;
            }
            self.daemon = start_daemon(self.dir, self.places, self.programs, signals)?;
        }
        Ok(())
    }

    /// Starts the relay again if it died. The daemon connects to it again by itself.
    fn renew_relay(&mut self, signals: &mut Signals) -> Result<(), Fault> {
        let (Some(relay), Some(words)) = (&mut self.relay, &self.places.vhost_user) else { return Ok(()) };
        let Some(status) = ended(relay) else { return Ok(()) };
        error!("{RELAY} ended ({status}); it is started again");
        *relay = start_relay(self.dir, self.places, words, signals)?;
        Ok(())
    }

    /// Ends them in order: the daemon removes its ports and flows, then the database ends.
    fn end(&mut self) {
        let mut exit = Command::new(&self.programs.control);
        exit.args(["--timeout=5", "--target=ovs-vswitchd", "exit", "--cleanup"]);
        exit.env("OVS_RUNDIR", &self.places.run).stdin(Stdio::null()).stdout(Stdio::null());
        if ended(&mut self.daemon).is_none() {
            // A daemon that does not react is killed, whether it was asked or not.
            let asking = exit.spawn();
            end_after(&mut self.daemon, "ovs-vswitchd", PATIENCE, tell);
            let _ = asking.and_then(|mut asking| asking.wait());
        }
        if let Some(relay) = &mut self.relay {
            end(relay, RELAY);
        }
        end(&mut self.server, "ovsdb-server");
        self.places.clear();
    }
}

fn prepare(places: &Places, programs: &Programs) -> Result<(), Fault> {
    let cannot = |path: &Path, error| Fault::params(format!("cannot make {}: {error}", path.display()));
    fs::create_dir_all(&places.run).map_err(|error| cannot(&places.run, error))?;
    if let Some(directory) = places.database.parent() {
        fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
    }
    if UnixStream::connect(places.server_socket()).is_ok() {
        let run = places.run.display();
        return Err(Fault::refused(format!("Open vSwitch runs in {run} already; end that one first")));
    }
    // Left by a killed run.
    let _ = fs::remove_file(places.server_socket());
    if places.database.exists() {
        return Ok(());
    }
    let mut create = Command::new(&programs.database);
    create.arg("create").arg(&places.database).arg(&programs.schema);
    succeed(create, "make Open vSwitch's database")
}

fn start_server(places: &Places, programs: &Programs) -> Result<Child, Fault> {
    let mut server = tied(&programs.server);
    server.arg(&places.database).arg(format!("--remote=p{}", places.remote()));
    server.args(["-vconsole:warn", "-vsyslog:off", "--log-file", "--pidfile"]);
    spawn(server, places, "ovsdb-server")
}

fn initialize(places: &Places, programs: &Programs) -> Result<(), Fault> {
    let mut init = Command::new(&programs.tool);
    init.arg(format!("--db={}", places.remote())).args(["--timeout=20", "--no-wait", "init"]);
    succeed(init, "prepare Open vSwitch's database")
}

fn start_relay(dir: &Path, places: &Places, words: &[String], signals: &mut Signals) -> Result<Child, Fault> {
    // Left by a relay that died.
    let _ = fs::remove_file(places.relay_socket());
    let program = std::env::current_exe().map_err(|error| Fault::internal("find this program", error))?;
    let mut relay = tied(&program);
    relay.arg("--dir").arg(dir).args(["ovs", "relay"]).args(words);
    relay.arg("--database").arg(places.server_socket()).arg("--listen").arg(places.relay_socket());
    let mut relay = spawn(relay, places, RELAY)?;
    let started = await_file(&places.relay_socket(), &mut relay, RELAY, signals);
    if started.is_err() {
        end(&mut relay, RELAY);
    }
    started.map(|()| relay)
}

fn start_daemon(
    dir: &Path,
    places: &Places,
    programs: &Programs,
    signals: &mut Signals,
) -> Result<Child, Fault> {
    // Left by a daemon that died.
    let _ = fs::remove_file(places.pid_file());
    let mut daemon = tied(&programs.daemon);
    let remote = match places.vhost_user {
        Some(_) => format!("unix:{}", places.relay_socket().display()),
        None => places.remote(),
    };
    daemon.env(DATABASE_VARIABLE, places.remote());
    daemon.arg(remote).arg(format!("--pidfile={}", places.pid_file().display()));
    daemon.args(["-vconsole:warn", "-vsyslog:off", "--log-file"]);
    divert(&mut daemon, dir)?;
    let mut daemon = spawn(daemon, places, "ovs-vswitchd")?;
    let started = await_file(&places.pid_file(), &mut daemon, "ovs-vswitchd", signals);
    if started.is_err() {
        end(&mut daemon, "ovs-vswitchd");
    }
    started.map(|()| daemon)
}

/// A program that ends when this process does, if the system can do that.
fn tied(program: &Path) -> Command {
    let Some(setpriv) = find("setpriv") else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "TERM"]).arg(program);
    command
}

fn spawn(mut command: Command, places: &Places, name: &str) -> Result<Child, Fault> {
    command
        .env("OVS_RUNDIR", &places.run)
        .env("OVS_LOGDIR", &places.run)
        .current_dir(&places.run)
        .stdin(Stdio::null());
    command.spawn().map_err(|error| Fault::params(format!("cannot start {name}: {error}")))
}

fn succeed(mut command: Command, what: &str) -> Result<(), Fault> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| Fault::internal(what, error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Fault::params(format!("cannot {what}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Waits until a daemon has made the file that says that it is ready, or a signal comes.
fn await_file(path: &Path, daemon: &mut Child, name: &str, signals: &mut Signals) -> Result<(), Fault> {
    let until = Instant::now() + PATIENCE;
    while !path.exists() {
        if let Some(status) = ended(daemon) {
            return Err(Fault::refused(format!("{name} ended ({status}); see its messages above")));
        }
        if Instant::now() >= until {
            return Err(Fault::refused(format!("{name} did not start within {} s", PATIENCE.as_secs())));
        }
        if comes_within(signals, LOOK)? {
            return Err(Fault::refused(format!("a signal came before {name} had started")));
        }
    }
    Ok(())
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().ok().flatten()
}

fn end(child: &mut Child, name: &str) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid.filter(|_| ended(child).is_none()) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::TERM);
        end_after(child, name, PATIENCE, tell);
    }
}

/// Waits for its end, and kills it if that takes too long. After a tenth of `patience`, `say` is told about the wait.
fn end_after(child: &mut Child, name: &str, patience: Duration, mut say: impl FnMut(String)) {
    let (start, pid) = (Instant::now(), child.id());
    let mut is_told = false;
    while ended(child).is_none() {
        let waited = start.elapsed();
        if !is_told && waited >= patience / 10 {
            let rest = (patience - patience / 10).as_secs();
            say(format!("{name} (process {pid}) has not ended yet; it is killed in {rest} s unless it does"));
            is_told = true;
        }
        if waited >= patience {
            say(format!("{name} (process {pid}) hangs, and is killed"));
            // It may have ended meanwhile.
            let _ = child.kill().and_then(|()| child.wait());
            return;
        }
        std::thread::sleep(LOOK);
    }
}

fn tell(text: String) {
    info!("{text}");
}

/// Whether a signal came within some time.
fn comes_within(signals: &mut Signals, time: Duration) -> Result<bool, Fault> {
    match poll(&mut [PollFd::new(&*signals, PollFlags::IN)], Some(&timespec(time))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(signals.came()),
        Err(error) => Err(Fault::internal("wait for signals", error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_daemon_that_does_not_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut signals = Signals::take().expect("signals");
        let mut daemon = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        kill_process(rustix::process::getpid(), Signal::TERM).expect("signalled");
        let fault = await_file(&dir.path().join("none"), &mut daemon, "sleep", &mut signals);
        end(&mut daemon, "sleep");
        let told = fault.expect_err("it is not there").message;
        assert_eq!(told, "a signal came before sleep had started");
    }

    #[test]
    fn the_wait_for_a_daemon_that_hangs_is_told_and_ends() {
        let mut daemon = Command::new("sleep").arg("600").spawn().expect("sleep runs");
        let mut said = Vec::new();
        end_after(&mut daemon, "sleep", Duration::from_millis(300), |text| said.push(text));
        assert!(ended(&mut daemon).is_some(), "it still runs");
        assert_eq!(said.len(), 2, "{said:?}");
        let process = format!("sleep (process {})", daemon.id());
        assert!(said.iter().all(|text| text.starts_with(&process)), "{said:?}");
        assert!(said[0].contains("has not ended yet") && said[1].contains("killed"), "{said:?}");
    }

    #[test]
    fn a_daemon_that_ended_is_not_waited_for() {
        let mut daemon = Command::new("true").spawn().expect("true runs");
        daemon.wait().expect("it ends");
        end_after(&mut daemon, "true", PATIENCE, |text| panic!("{text}"));
    }

    #[test]
    fn what_daemons_that_were_killed_leave_goes_and_the_database_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let places = Places::new(dir.path(), None, None);
        fs::create_dir(&places.run).expect("writable");
        for name in ["conf.db", ".conf.db.~lock~", "ovs-vswitchd.pid"] {
            fs::write(places.run.join(name), "x").expect("writable");
        }
        // Socket files stay when the listener has ended.
        drop(UnixListener::bind(places.run.join("br0.mgmt")).expect("a socket"));
        places.clear();
        assert_eq!(names(&places.run), [".conf.db.~lock~", "conf.db"]);
        let elsewhere = Places::new(dir.path(), Some(dir.path().join("conf.db")), None);
        elsewhere.clear();
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}
