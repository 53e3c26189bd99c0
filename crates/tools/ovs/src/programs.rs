//! Finds Open vSwitch on the system: programs, running daemons, their databases, and the library that diverts them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lasthop_api::rundir::datapath_socket;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::procfs;

use crate::{DATABASE_VARIABLE, PRELOAD_VARIABLE, SOCKET_VARIABLE, output_of};

/// The oldest version that was tried.
const TRIED: Version = Version { major: 3, minor: 1 };
/// Older versions have no upcalls by CPU (added in 2.16), which restarts of the switch process need.
const OLDEST: Version = Version { major: 2, minor: 16 };
/// Directories of the administrator's programs, which a user's PATH may lack.
const ADMIN_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// The database's schema, below the prefix of the installation.
const SCHEMA: &str = "share/openvswitch/vswitch.ovsschema";
/// The prefixes of packages and `make install`.
const PREFIXES: [&str; 2] = ["/usr", "/usr/local"];

/// A version of Open vSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The programs of Open vSwitch that a switch needs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) server: PathBuf,
    pub(crate) daemon: PathBuf,
    pub(crate) tool: PathBuf,
    pub(crate) control: PathBuf,
    pub(crate) database: PathBuf,
    pub(crate) schema: PathBuf,
    pub(crate) version: Version,
}

impl Programs {
    /// Finds the system's programs.
    ///
    /// # Errors
    /// If one is missing or too old.
    pub(crate) fn find() -> Result<Self, Fault> {
        let daemon = need("ovs-vswitchd")?;
        let version = version(&daemon)?;
        if version < OLDEST {
            return Err(Fault::params(format!(
                "{} is Open vSwitch {version}; {OLDEST} or newer is needed, {TRIED} was tried",
                daemon.display()
            )));
        }
        let schema = schemas(&daemon).find(|schema| schema.is_file());
        Ok(Self {
            server: need("ovsdb-server")?,
            tool: need("ovs-vsctl")?,
            control: need("ovs-appctl")?,
            database: need("ovsdb-tool")?,
            schema: schema.ok_or_else(|| missing("vswitch.ovsschema"))?,
            daemon,
            version,
        })
    }
}

/// Possible paths of the database's schema: one of another version lacks columns, so the daemon's own comes first.
fn schemas(daemon: &Path) -> impl Iterator<Item = PathBuf> {
    let own = daemon.ancestors().nth(2).map(Path::to_path_buf);
    own.into_iter().chain(PREFIXES.map(PathBuf::from)).map(|prefix| prefix.join(SCHEMA))
}

/// Finds a program by its name.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(ADMIN_DIRECTORIES.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

fn need(name: &str) -> Result<PathBuf, Fault> {
    find(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Fault {
    Fault::params(format!("{name} is not installed; on Debian: apt install openvswitch-switch"))
}

fn version(daemon: &Path) -> Result<Version, Fault> {
    let output = Command::new(daemon).arg("--version").stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| Fault::params(format!("cannot run {}: {error}", daemon.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| {
        Fault::params(format!("{} --version does not tell a version: {}", daemon.display(), text.trim()))
    })
}

/// `ovs-vswitchd (Open vSwitch) 3.1.0`
fn parse(text: &str) -> Option<Version> {
    let word = text.lines().next()?.split_whitespace().next_back()?;
    let mut numbers = word.split('.').map(str::parse);
    Some(Version { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
}

const NAME: &str = "liblasthop_ovs_glue.so";
/// Names the library if it is installed elsewhere.
const VARIABLE: &str = "LASTHOP_OVS_GLUE";

/// Its path: from the environment, beside this program, or in the `lib/lasthop` that belongs to this program's `bin`.
pub(crate) fn library() -> Result<PathBuf, Fault> {
    let program = std::env::current_exe().map_err(|error| Fault::internal("find this program", error))?;
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let places = places(named, &program);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| missing_library(&places))
}

fn places(named: Option<PathBuf>, program: &Path) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let bin = program.parent().unwrap_or(Path::new("/"));
    let installed = bin.parent().map(|prefix| prefix.join("lib/lasthop").join(NAME));
    std::iter::once(bin.join(NAME)).chain(installed).collect()
}

fn missing_library(places: &[PathBuf]) -> Fault {
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Fault::params(format!(
        "the library for Open vSwitch's programs is not at {}; install it (make install, or the package), build it \
         (cargo build --release -p lasthop-ovs-glue), or name it by {VARIABLE}",
        looked.join(" or ")
    ))
}

/// Default socket of the library (`ovs-glue`).
const SOCKET: &str = "/run/lasthop/datapath.sock";

/// A running ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Daemon {
    pub(crate) pid: i32,
    /// The switch's socket for its library; `None` if it has no library and uses the kernel.
    pub(crate) socket: Option<PathBuf>,
}

/// Readable daemons that could use the switch whose control interface is at `own`. Daemons in other network and mount
/// namespaces see neither its devices nor its socket, and the same path may be another switch's there.
pub(crate) fn daemons(own: &Path) -> Vec<Daemon> {
    let is_ours = |daemon: &Daemon| daemon.socket.as_deref() == Some(own) && procfs::sees(daemon.pid, own);
    let is_beside = |daemon: &Daemon| ["net", "mnt"].iter().all(|kind| is_shared(daemon.pid, kind));
    let is_near = |daemon: &Daemon| is_ours(daemon) || is_beside(daemon);
    procfs::pids().filter_map(daemon).filter(is_near).collect()
}

/// Whether a process shares a namespace with this one.
fn is_shared(pid: i32, kind: &str) -> bool {
    let namespace = |dir: PathBuf| std::fs::read_link(dir.join("ns").join(kind)).ok();
    namespace(procfs::dir(pid)) == namespace(procfs::dir("self"))
}

fn daemon(pid: i32) -> Option<Daemon> {
    // Its binary for DPDK has a longer name.
    if !procfs::text(pid, "comm")?.starts_with("ovs-vswitchd") {
        return None;
    }
    Some(Daemon { pid, socket: socket(&procfs::text(pid, "environ")?) })
}

fn socket(environment: &str) -> Option<PathBuf> {
    let value = |name: &str| procfs::variable(environment, name);
    value(PRELOAD_VARIABLE).filter(|libraries| libraries.contains("lasthop_ovs_glue"))?;
    Some(value(SOCKET_VARIABLE).unwrap_or(SOCKET).into())
}

/// The default of Open vSwitch's tools without OVS_RUNDIR.
const DEFAULT: &str = "unix:/var/run/openvswitch/db.sock";

/// A database, by the word after `--db=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Database(String);

impl Database {
    /// The database of the Open vSwitch whose datapath is the switch in `dir`. Looks in the directory `asked`, else in
    /// OVS_RUNDIR like its tools, else asks the running ovs-vswitchd. `None` without any.
    pub(crate) fn find(dir: &Path, asked: Option<&Path>) -> Option<Self> {
        let variable = std::env::var_os("OVS_RUNDIR").filter(|value| !value.is_empty());
        Self::choose(asked, variable.map(PathBuf::from).as_deref(), || {
            let socket = datapath_socket(dir);
            let daemon =
                daemons(&socket).into_iter().find(|daemon| daemon.socket.as_ref() == Some(&socket))?;
            let words = procfs::text(daemon.pid, "cmdline").unwrap_or_default();
            Some(Self::of(&words, &procfs::text(daemon.pid, "environ").unwrap_or_default()))
        })
    }

    fn choose(
        asked: Option<&Path>,
        variable: Option<&Path>,
        running: impl FnOnce() -> Option<Self>,
    ) -> Option<Self> {
        asked.or(variable).map(Self::within).or_else(running)
    }

    fn within(run: &Path) -> Self {
        Self(format!("unix:{}", run.join("db.sock").display()))
    }

    /// The database of a daemon with these arguments and this environment, as in `cmdline` and `environ`.
    fn of(words: &str, environment: &str) -> Self {
        if let Some(remote) = procfs::variable(environment, DATABASE_VARIABLE) {
            return Self(remote.to_owned());
        }
        if let Some(remote) = words.split('\0').skip(1).find(|word| word.starts_with("unix:")) {
            return Self(remote.to_owned());
        }
        match procfs::variable(environment, "OVS_RUNDIR") {
            Some(run) => Self::within(Path::new(run)),
            None => Self(DEFAULT.to_owned()),
        }
    }

    /// The answer of `ovs-vsctl` to `words`; `None` if it is not installed, or fails.
    pub(crate) fn ask(&self, words: &[&str]) -> Option<String> {
        let mut command = Command::new(find("ovs-vsctl")?);
        command.args(["--timeout=5", &format!("--db={}", self.0)]).args(words);
        output_of(command)
    }

    /// `ovs-vsctl`, with the option by which it finds this database.
    pub(crate) fn tool(&self) -> String {
        if self.0 == DEFAULT { "ovs-vsctl".to_owned() } else { format!("ovs-vsctl --db={}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let debian = parse("ovs-vswitchd (Open vSwitch) 3.1.0\nDPDK 22.11.5\n").expect("a version");
        assert_eq!(debian, TRIED);
        assert!(parse("ovs-vswitchd (Open vSwitch) 2.9.8").expect("a version") < OLDEST);
        assert!(parse("ovs-vswitchd (Open vSwitch) 2.17.9").expect("a version") > OLDEST);
        assert_eq!((parse(""), parse("no such option")), (None, None));
    }

    #[test]
    fn the_plan_of_the_database_is_that_of_the_daemon() {
        let found: Vec<PathBuf> = schemas(Path::new("/opt/ovs/sbin/ovs-vswitchd")).collect();
        assert_eq!(found[0], Path::new("/opt/ovs/share/openvswitch/vswitch.ovsschema"));
        assert_eq!(found[1], Path::new("/usr/share/openvswitch/vswitch.ovsschema"));
        assert_eq!(schemas(Path::new("ovs-vswitchd")).count(), 2, "a program without a path has no prefix");
    }

    #[test]
    fn what_is_not_there_is_named_with_its_package() {
        assert!(need("no-such-program").expect_err("not there").to_string().contains("apt install"));
    }

    #[test]
    fn it_is_beside_the_program_or_where_it_is_installed() {
        let found = places(None, Path::new("/usr/bin/lasthop"));
        assert_eq!(found, [Path::new("/usr/bin").join(NAME), Path::new("/usr/lib/lasthop").join(NAME)]);
        let named = places(Some(PathBuf::from("/opt/glue.so")), Path::new("/usr/bin/lasthop"));
        assert_eq!(named, [PathBuf::from("/opt/glue.so")]);
        assert!(missing_library(&named).to_string().contains("/opt/glue.so"));
    }

    #[test]
    fn the_environment_tells_whose_datapath_it_has() {
        let library = "HOME=/\0LD_PRELOAD=/usr/lib/lasthop/liblasthop_ovs_glue.so\0";
        let diverted = format!("{library}LASTHOP_DATAPATH=/run/x.sock\0");
        assert_eq!(socket(&diverted), Some(PathBuf::from("/run/x.sock")));
        assert_eq!(socket(library), Some(PathBuf::from(SOCKET)));
        assert_eq!(socket("LD_PRELOAD=/usr/lib/other.so\0LASTHOP_DATAPATH=/run/x.sock\0"), None);
        assert_eq!(socket("HOME=/\0"), None);
    }

    #[test]
    fn a_directory_that_is_named_comes_before_the_running_daemon() {
        let running = || Some(Database("unix:/daemon.sock".to_owned()));
        let choose = |asked: Option<&str>, variable: Option<&str>| {
            Database::choose(asked.map(Path::new), variable.map(Path::new), running).expect("one of them").0
        };
        assert_eq!(choose(Some("/asked"), Some("/variable")), "unix:/asked/db.sock");
        assert_eq!(choose(None, Some("/variable")), "unix:/variable/db.sock");
        assert_eq!(choose(None, None), "unix:/daemon.sock");
        assert_eq!(Database::choose(None, None, || None), None, "the kernel's Open vSwitch is not asked");
    }

    #[test]
    fn a_daemon_has_the_database_of_its_argument_or_directory() {
        let environment = "HOME=/\0OVS_RUNDIR=/run/x\0";
        let of = |words: &str, environment: &str| Database::of(words, environment).0;
        assert_eq!(of("ovs-vswitchd\0unix:/run/y.sock\0--pidfile\0", environment), "unix:/run/y.sock");
        assert_eq!(of("ovs-vswitchd\0--pidfile\0", environment), "unix:/run/x/db.sock");
        assert_eq!(of("ovs-vswitchd\0", "HOME=/\0"), DEFAULT);
        let relayed = "LASTHOP_OVSDB=unix:/run/y.sock\0";
        assert_eq!(of("ovs-vswitchd\0unix:/run/relay.sock\0", relayed), "unix:/run/y.sock");
        assert_eq!(Database(DEFAULT.to_owned()).tool(), "ovs-vsctl");
    }
}
