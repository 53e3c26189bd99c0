//! Finds Open vSwitch's programs on the system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lasthop_runtime::fault::Fault;

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
pub(super) struct Version {
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
pub(super) struct Programs {
    pub(super) server: PathBuf,
    pub(super) daemon: PathBuf,
    pub(super) tool: PathBuf,
    pub(super) control: PathBuf,
    pub(super) database: PathBuf,
    pub(super) schema: PathBuf,
    pub(super) version: Version,
}

impl Programs {
    /// Finds the system's programs.
    ///
    /// # Errors
    /// If one is missing or too old.
    pub(super) fn find() -> Result<Self, Fault> {
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
pub(super) fn find(name: &str) -> Option<PathBuf> {
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
}
