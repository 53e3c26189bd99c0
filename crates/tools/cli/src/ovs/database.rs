//! Finds the database of the Open vSwitch that controls this switch.

use std::path::{Path, PathBuf};
use std::process::Command;

use lasthop_api::rundir::datapath_socket;
use lasthop_runtime::procfs;

use super::processes::daemons;
use super::{DATABASE_VARIABLE, output_of, programs};

/// The default of Open vSwitch's tools without OVS_RUNDIR.
const DEFAULT: &str = "unix:/var/run/openvswitch/db.sock";

/// A database, by the word after `--db=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Database(String);

impl Database {
    /// The database of the Open vSwitch whose datapath is the switch in `dir`. Looks in the directory `asked`, else in
    /// OVS_RUNDIR like its tools, else asks the running ovs-vswitchd. `None` without any.
    pub(super) fn find(dir: &Path, asked: Option<&Path>) -> Option<Self> {
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
    pub(super) fn ask(&self, words: &[&str]) -> Option<String> {
        let mut command = Command::new(programs::find("ovs-vsctl")?);
        command.args(["--timeout=5", &format!("--db={}", self.0)]).args(words);
        output_of(command)
    }

    /// `ovs-vsctl`, with the option by which it finds this database.
    pub(super) fn tool(&self) -> String {
        if self.0 == DEFAULT { "ovs-vsctl".to_owned() } else { format!("ovs-vsctl --db={}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
