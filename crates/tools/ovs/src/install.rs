//! Makes the system's own Open vSwitch service use the switch, by a drop-in for its unit.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::programs::{self, Programs};
use crate::{DATABASE_VARIABLE, PRELOAD_VARIABLE, SOCKET_VARIABLE};
use lasthop_api::rundir::datapath_socket;
use lasthop_runtime::fault::Fault;

/// The directory of the administrator's units.
const UNITS: &str = "/etc/systemd/system";
const DROP_IN: &str = "ovs-vswitchd.service.d/lasthop.conf";
/// The unit of the relay between ovs-vswitchd and its database. The Debian package removes it by this name, too
/// (dist/debian/prerm).
const RELAY: &str = "lasthop-ovs-relay.service";
const DATABASE: &str = "/run/openvswitch/db.sock";
const RELAYED: &str = "/run/openvswitch/lasthop-relay.sock";
/// The commands after which the kernel's datapath can have the names of devices and the devices that ours had: a
/// datapath stays when the daemon ends.
const BACK: &str = "systemctl stop openvswitch-switch; lasthop ovs exec ovs-dpctl del-dp ovs-system; systemctl start openvswitch-switch";
/// The device of the kernel's datapath, or our tap for it, which has this file.
const KERNEL_DATAPATH: &str = "/sys/class/net/ovs-system";
const OF_TAP: &str = "tun_flags";
/// Exists if systemd runs the system.
const SYSTEMD: &str = "/run/systemd/system";

/// The drop-in and its path, and that of the relay's unit.
#[derive(Debug)]
pub struct Unit {
    path: PathBuf,
    relay: PathBuf,
}

/// The result of a change.
#[derive(Debug, Serialize)]
pub struct UnitChange {
    path: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay: Option<PathBuf>,
    is_there: bool,
    was_there: bool,
}

impl Unit {
    /// The drop-in below `units`, or in systemd's directory.
    pub fn new(units: Option<&Path>) -> Self {
        let units = units.unwrap_or(Path::new(UNITS));
        Self { path: units.join(DROP_IN), relay: units.join(RELAY) }
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its text for the switch in `dir`, and that of the relay's unit if there is to be one, with the words after
    /// `lasthop ovs relay` that say how vnics are made.
    ///
    /// # Errors
    /// If programs or the library are missing.
    pub fn texts(dir: &Path, vhost_user: Option<&[String]>) -> Result<(String, Option<String>), Fault> {
        let programs = Programs::find()?;
        let program = std::env::current_exe().map_err(|error| Fault::internal("find this program", error))?;
        let relay = vhost_user.map(|words| relay(&program, dir, words));
        let text = drop_in(&programs.daemon, &programs::library()?, &datapath_socket(dir), relay.is_some());
        Ok((text, relay))
    }

    /// Writes them.
    ///
    /// # Errors
    /// As [`Self::texts`], and if they cannot be written.
    pub fn install(&self, dir: &Path, vhost_user: Option<&[String]>) -> Result<UnitChange, Fault> {
        let (text, relay) = Self::texts(dir, vhost_user)?;
        let was_there = self.exists();
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).and_then(|()| fs::write(&self.path, text)).map_err(|error| {
            Fault::params(format!("cannot write {}: {error}; do this as root", self.path.display()))
        })?;
        match &relay {
            Some(text) => fs::write(&self.relay, text).map_err(|error| {
                Fault::params(format!("cannot write {}: {error}; do this as root", self.relay.display()))
            })?,
            None => drop(self.remove_relay()?),
        }
        reload()?;
        let relay = relay.map(|_| self.relay.clone());
        Ok(UnitChange { path: self.path.clone(), relay, is_there: true, was_there })
    }

    /// Removes them.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn uninstall(&self) -> Result<UnitChange, Fault> {
        let was_there = remove(&self.path)?;
        let relay = self.remove_relay()?.then(|| self.relay.clone());
        if let Some(directory) = self.path.parent() {
            // Others may have drop-ins in the directory.
            let _ = fs::remove_dir(directory);
        }
        reload()?;
        Ok(UnitChange { path: self.path.clone(), relay, is_there: false, was_there })
    }

    /// Ends the relay, too: ovs-vswitchd works without its database until it is restarted.
    fn remove_relay(&self) -> Result<bool, Fault> {
        let was_there = remove(&self.relay)?;
        if was_there && Path::new(SYSTEMD).exists() {
            // It may have ended.
            let _ = Command::new("systemctl").args(["stop", RELAY]).stdin(Stdio::null()).status();
        }
        Ok(was_there)
    }
}

/// Removes a file; whether it was there.
fn remove(path: &Path) -> Result<bool, Fault> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => {
            Err(Fault::params(format!("cannot remove {}: {error}; do this as root", path.display())))
        }
    }
}

impl UnitChange {
    /// The result as a sentence, with the next step.
    pub fn text(&self) -> String {
        let relay = self.relay.iter().map(|path| format!(" and {}", path.display()));
        let path = format!("{}{}", self.path.display(), relay.collect::<String>());
        match (self.is_there, self.was_there) {
            (true, _) => format!(
                "wrote {path}\nOpen vSwitch uses the switch after: systemctl restart openvswitch-switch"
            ),
            (false, true) => format!("removed {path}\nOpen vSwitch uses the kernel again after: {BACK}"),
            (false, false) => format!("{path} was not there"),
        }
    }
}

/// Whether the kernel's datapath still has its devices, as after a daemon that used it.
pub(crate) fn has_kernel_datapath() -> bool {
    let device = Path::new(KERNEL_DATAPATH);
    device.exists() && !device.join(OF_TAP).exists()
}

/// The daemon is started without `ovs-ctl`, which refuses to start it on kernels without the datapath's module.
fn drop_in(daemon: &Path, library: &Path, socket: &Path, is_relayed: bool) -> String {
    let (relay, remote) = if is_relayed { (RELAY, RELAYED) } else { ("", DATABASE) };
    let services = ["lasthop.service", relay].join(" ");
    let services = services.trim_end();
    let [daemon, library, socket] = [daemon, library, socket].map(|path| path.display().to_string());
    format!(
        "# Open vSwitch with Lasthop as its datapath. Written by: lasthop ovs install; taken away by: lasthop ovs uninstall
[Unit]
Wants={services}
After={services}

[Service]
PIDFile=/run/openvswitch/ovs-vswitchd.pid
# Datapaths stay when the daemon ends; that of the kernel would keep its ports.
ExecStartPre=-/bin/sh -c 'if [ -e {KERNEL_DATAPATH} ] && [ ! -e {KERNEL_DATAPATH}/{OF_TAP} ]; then exec ovs-dpctl --timeout=10 del-dp ovs-system; fi'
ExecStart=
ExecStart=/usr/bin/env {PRELOAD_VARIABLE}={library} {SOCKET_VARIABLE}={socket} {DATABASE_VARIABLE}=unix:{DATABASE} {daemon} unix:{remote} \
-vconsole:emer -vsyslog:err -vfile:info --mlockall --no-chdir --log-file=/var/log/openvswitch/ovs-vswitchd.log \
--pidfile=/run/openvswitch/ovs-vswitchd.pid --detach
# It has no reload of its own; a restart keeps known flows going.
ExecReload=
"
    )
}

/// The relay ends with ovs-vswitchd. Its vnics stay until their interfaces go.
fn relay(program: &Path, dir: &Path, words: &[String]) -> String {
    let (program, dir, words) = (program.display(), dir.display(), words.join(" "));
    format!(
        "# Vnics of Lasthop for Open vSwitch's vhost-user ports. Written by: lasthop ovs install; taken away by: lasthop ovs uninstall
[Unit]
Description=Vnics of Lasthop for interfaces of Open vSwitch
After=ovsdb-server.service lasthop.service
PartOf=ovs-vswitchd.service

[Service]
ExecStart={program} --dir {dir} ovs relay {words} --database {DATABASE} --listen {RELAYED}
Restart=always
RestartSec=100ms
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=/run
ProtectHome=yes
RestrictAddressFamilies=AF_UNIX
MemoryDenyWriteExecute=yes
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
        let drop_in = |is_relayed| {
            drop_in(
                Path::new("/sbin/ovs-vswitchd"),
                Path::new("/g.so"),
                Path::new("/run/l/d.sock"),
                is_relayed,
            )
        };
        let text = drop_in(false);
        let starts: Vec<&str> = text.lines().filter(|line| line.starts_with("ExecStart=")).collect();
        assert_eq!(starts[0], "ExecStart=", "the unit's own is taken back first");
        let first = text.find("ExecStartPre=-/bin/sh").expect("the kernel's datapath goes");
        assert!(Some(first) < text.find("ExecStart="), "{text}");
        let wanted = "ExecStart=/usr/bin/env LD_PRELOAD=/g.so LASTHOP_DATAPATH=/run/l/d.sock LASTHOP_OVSDB=unix:/run/openvswitch/db.sock \
             /sbin/ovs-vswitchd unix:/run/openvswitch/db.sock ";
        assert!(starts[1].starts_with(wanted), "{text}");
        assert!(!text.contains("Environment="), "ExecStop's shell would get it, too");
        assert!(!text.contains("relay"), "the daemon has the database itself");
        let text = drop_in(true);
        assert!(text.contains("\nWants=lasthop.service lasthop-ovs-relay.service\n"), "{text}");
        assert!(text.contains(" /sbin/ovs-vswitchd unix:/run/openvswitch/lasthop-relay.sock "), "{text}");
    }

    #[test]
    fn what_was_installed_goes_without_a_trace() {
        let units = tempfile::tempdir().expect("a directory");
        let unit = Unit::new(Some(units.path()));
        fs::create_dir_all(unit.path.parent().expect("below units")).expect("writable");
        fs::write(&unit.path, "x").expect("writable");
        fs::write(&unit.relay, "x").expect("writable");
        assert!(unit.uninstall().expect("it is there").was_there);
        assert!(!unit.uninstall().expect("not there is fine").was_there);
        assert_eq!(fs::read_dir(units.path()).expect("readable").count(), 0);
    }
}
