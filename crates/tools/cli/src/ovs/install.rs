//! Makes the system's own Open vSwitch service use the switch, by a drop-in for its unit.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

use super::programs::{self, Programs};
use super::{PRELOAD_VARIABLE, SOCKET_VARIABLE};
use lasthop_api::rundir::datapath_socket;
use lasthop_runtime::fault::Fault;

/// The directory of the administrator's units.
const UNITS: &str = "/etc/systemd/system";
const DROP_IN: &str = "ovs-vswitchd.service.d/lasthop.conf";
/// Exists if systemd runs the system.
const SYSTEMD: &str = "/run/systemd/system";

/// The drop-in and its path.
#[derive(Debug)]
pub(crate) struct Unit {
    path: PathBuf,
}

/// The result of a change.
#[derive(Debug, Serialize)]
pub(crate) struct UnitChange {
    path: PathBuf,
    is_there: bool,
    was_there: bool,
}

impl Unit {
    /// The drop-in below `units`, or in systemd's directory.
    pub(crate) fn new(units: Option<&Path>) -> Self {
        Self { path: units.unwrap_or(Path::new(UNITS)).join(DROP_IN) }
    }

    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its text for the switch in `dir`.
    ///
    /// # Errors
    /// If programs or the library are missing.
    pub(crate) fn text(dir: &Path) -> Result<String, Fault> {
        let programs = Programs::find()?;
        Ok(drop_in(&programs.daemon, &programs::library()?, &datapath_socket(dir)))
    }

    /// Writes it.
    ///
    /// # Errors
    /// As [`Self::text`], and if it cannot be written.
    pub(crate) fn install(&self, dir: &Path) -> Result<UnitChange, Fault> {
        let text = Self::text(dir)?;
        let was_there = self.exists();
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).and_then(|()| fs::write(&self.path, text)).map_err(|error| {
            Fault::params(format!("cannot write {}: {error}; do this as root", self.path.display()))
        })?;
        reload()?;
        Ok(UnitChange { path: self.path.clone(), is_there: true, was_there })
    }

    /// Removes it.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub(crate) fn uninstall(&self) -> Result<UnitChange, Fault> {
        let was_there = match fs::remove_file(&self.path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                let path = self.path.display();
                return Err(Fault::params(format!("cannot remove {path}: {error}; do this as root")));
            }
        };
        if let Some(directory) = self.path.parent() {
            // Others may have drop-ins in the directory.
            let _ = fs::remove_dir(directory);
        }
        reload()?;
        Ok(UnitChange { path: self.path.clone(), is_there: false, was_there })
    }
}

impl UnitChange {
    pub(crate) fn text(&self) -> String {
        let path = self.path.display();
        match (self.is_there, self.was_there) {
            (true, _) => format!(
                "wrote {path}\nOpen vSwitch uses the switch after: systemctl restart openvswitch-switch"
            ),
            (false, true) => format!(
                "removed {path}\nOpen vSwitch uses the kernel again after: systemctl restart openvswitch-switch"
            ),
            (false, false) => format!("{path} was not there"),
        }
    }
}

/// The daemon is started without `ovs-ctl`, which refuses to start it on kernels without the datapath's module.
fn drop_in(daemon: &Path, library: &Path, socket: &Path) -> String {
    let [daemon, library, socket] = [daemon, library, socket].map(|path| path.display().to_string());
    format!(
        "# Open vSwitch with Lasthop as its datapath. Written by: lasthop ovs install; taken away by: lasthop ovs uninstall
[Unit]
Wants=lasthop.service
After=lasthop.service

[Service]
PIDFile=/run/openvswitch/ovs-vswitchd.pid
ExecStart=
ExecStart=/usr/bin/env {PRELOAD_VARIABLE}={library} {SOCKET_VARIABLE}={socket} {daemon} unix:/run/openvswitch/db.sock \
-vconsole:emer -vsyslog:err -vfile:info --mlockall --no-chdir --log-file=/var/log/openvswitch/ovs-vswitchd.log \
--pidfile=/run/openvswitch/ovs-vswitchd.pid --detach
# It has no reload of its own; a restart keeps known flows going.
ExecReload=
"
    )
}

/// Has systemd read its units again, if it is running.
fn reload() -> Result<(), Fault> {
    if !Path::new(SYSTEMD).exists() {
        return Ok(());
    }
    let status = Command::new("systemctl").arg("daemon-reload").stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Fault::params("systemd did not read its units again; do: systemctl daemon-reload")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_gets_the_library_and_nobody_else_does() {
        let text = drop_in(Path::new("/sbin/ovs-vswitchd"), Path::new("/g.so"), Path::new("/run/l/d.sock"));
        let starts: Vec<&str> = text.lines().filter(|line| line.starts_with("ExecStart=")).collect();
        assert_eq!(starts[0], "ExecStart=", "the unit's own is taken back first");
        let wanted =
            "ExecStart=/usr/bin/env LD_PRELOAD=/g.so LASTHOP_DATAPATH=/run/l/d.sock /sbin/ovs-vswitchd ";
        assert!(starts[1].starts_with(wanted), "{text}");
        assert!(!text.contains("Environment="), "ExecStop's shell would get it, too");
    }

    #[test]
    fn what_was_installed_goes_without_a_trace() {
        let units = tempfile::tempdir().expect("a directory");
        let unit = Unit::new(Some(units.path()));
        fs::create_dir_all(unit.path.parent().expect("below units")).expect("writable");
        fs::write(&unit.path, "x").expect("writable");
        assert!(unit.uninstall().expect("it is there").was_there);
        assert!(!unit.uninstall().expect("not there is fine").was_there);
        assert_eq!(fs::read_dir(units.path()).expect("readable").count(), 0);
    }
}
