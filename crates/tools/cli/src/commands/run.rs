//! `lasthop run`: combines file and flags.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use log::{error, warn};

use lasthop_api::acl;
use lasthop_api::fdb::check_entries;
use lasthop_api::port::{self, check_members, check_unique};
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches;
use lasthop_config::Config;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::logging;
use lasthop_runtime::notify::Manager;
use lasthop_supervisor::{Inherited, RunSettings};

use super::RunArgs;

/// Exit status of a service with a wrong file or wrong flags (sysexits.h, `EX_CONFIG`): another start would not help.
const WRONG_SETTINGS: u8 = 78;
/// Pause before a wrong file is read again, while guests wait.
const READ_PAUSE: Duration = Duration::from_millis(500);
/// Time by which service managers are asked to extend the start.
const WAIT: Duration = Duration::from_secs(10);
/// Shortest time from the start to a failure while guests wait. With it, failures in an interval stay below the unit's
/// `StartLimitBurst=`, at which the service manager would close the kept descriptors.
const FAILED_START: Duration = Duration::from_secs(4);

/// Runs a switch in `dir` until a signal ends it; reports its state to the service manager.
pub(super) fn run(dir: PathBuf, args: &RunArgs) -> Result<ExitCode, Fault> {
    let start = Instant::now();
    args.log.set();
    logging::set_process("supervisor");
    let inherited = Inherited::take();
    let mut manager = Manager::of_environment();
    let guests_wait = manager.is_there() && !inherited.is_empty();
    let settings = match told(&dir, args) {
        Err(_) if guests_wait => told_at_last(&dir, args, &manager),
        Err(fault) if manager.is_there() => {
            manager.tell_end(&fault.message);
            error!("{fault}");
            return Ok(ExitCode::from(WRONG_SETTINGS));
        }
        Err(fault) => return Err(fault),
        Ok(settings) => settings,
    };
    let Err(fault) = lasthop_supervisor::run(settings, &mut manager, inherited) else {
        return Ok(ExitCode::SUCCESS);
    };
    manager.tell_end(&fault.message);
    if !guests_wait {
        return Err(fault);
    }
    error!("{fault}");
    std::thread::sleep(FAILED_START.saturating_sub(start.elapsed()));
    Ok(ExitCode::FAILURE)
}

/// Waits until the settings of file and flags are right: if this process ended, the service manager would disconnect
/// guests after some futile restarts.
fn told_at_last(dir: &Path, args: &RunArgs, manager: &Manager) -> RunSettings {
    let mut said = String::new();
    loop {
        let fault = match told(dir, args) {
            Ok(settings) => return settings,
            Err(fault) => fault,
        };
        let why = format!("{fault}; guests wait until that is right");
        manager.tell_wait(&why, WAIT);
        if why != said {
            warn!("{why}");
            said = why;
        }
        std::thread::sleep(READ_PAUSE);
    }
}

/// The settings of the file and the flags.
fn told(dir: &Path, args: &RunArgs) -> Result<RunSettings, Fault> {
    let file = args.config.as_deref().map(lasthop_config::read).transpose()?.unwrap_or_default();
    let here =
        std::env::current_dir().map_err(|error| Fault::internal("find the current directory", error))?;
    let RunArgs { settings: asked, switches, ports, vnics, uplinks, host_ports, .. } = args.clone();
    let ports = vnics.into_iter().chain(ports).chain(uplinks).chain(host_ports);
    let ports = ports.map(|port| port.based_at(&here)).collect();
    let flags = Config { settings: asked, switches, ports, ..Config::default() };
    settings(dir.to_path_buf(), file, flags)
}

/// Flags override the file; their switches and ports follow the file's.
fn settings(dir: PathBuf, file: Config, flags: Config) -> Result<RunSettings, Fault> {
    let asked = flags.settings.over(file.settings);
    let (control_group, datapath_devices) = (asked.control_group.clone(), asked.datapath_devices.clone());
    let (shares, standby) = (asked.shares.unwrap_or_default(), asked.standby.unwrap_or_default());
    let (placement, placement_batches) =
        (asked.placement.unwrap_or_default(), asked.placement_batches.unwrap_or_default());
    let (scheduler_view, tunnel_gro) =
        (asked.scheduler_view.unwrap_or_default(), asked.tunnel_gro.unwrap_or_default());
    let switch = SwitchSettings::new(asked)?;
    let named = file.switches.into_iter().chain(flags.switches);
    let switches: Vec<_> = std::iter::once(switch.default_switch()).chain(named).collect();
    switches::check_all(&switches)?;
    let ports: Vec<_> = file.ports.into_iter().chain(flags.ports).collect();
    check_unique(&ports)?;
    (1..ports.len()).try_for_each(|at| port::check_beside(&ports[at], &ports[..at]))?;
    check_members(&switches, &ports)?;
    check_entries(&file.fdb, &ports)?;
    for port in &ports {
        acl::check_switch_of(&file.acl, &switches, port)?;
    }
    let (fdb, acl) = (file.fdb, file.acl);
    Ok(RunSettings {
        dir,
        control_group,
        datapath_devices,
        scheduler_view,
        placement,
        placement_batches,
        shares,
        standby,
        tunnel_gro,
        switch,
        switches,
        ports,
        fdb,
        acl,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::modules::FdbEntries;
    use lasthop_api::settings::Settings;
    use lasthop_api::workers::Workers;

    fn asking(settings: Settings) -> Config {
        Config { settings, ..Config::default() }
    }

    fn config(module: Option<&str>, vnics: &[&str]) -> Config {
        let ports = vnics.iter().map(|vnic| port::vnic(vnic).expect("a vnic")).collect();
        let module = module.map(|name| name.parse().expect("a module"));
        Config { ports, ..asking(Settings { module, ..Settings::default() }) }
    }

    fn together(file: Config, flags: Config) -> Result<RunSettings, Fault> {
        settings(PathBuf::from("/d"), file, flags)
    }

    #[test]
    fn flags_override_and_extend_the_file() {
        let run = together(config(Some("dummy"), &["a"]), config(Some("bridge"), &["b"])).expect("valid");
        assert_eq!(run.switch.module.as_str(), "bridge");
        assert_eq!(run.ports.iter().map(|port| port.name().as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let run = together(config(Some("dummy"), &[]), config(None, &[])).expect("valid");
        assert_eq!(run.switch.module.as_str(), "dummy");
        let with = |workers| asking(Settings { workers: Some(Workers(workers)), ..Settings::default() });
        assert_eq!(together(with(3), with(4)).expect("valid").switch.workers, Workers(4));
        assert_eq!(together(with(3), Config::default()).expect("valid").switch.workers, Workers(3));
    }

    #[test]
    fn vnics_of_the_flags_may_be_in_switches_of_the_file() {
        let file = || {
            let red = "red,module=dummy".parse().expect("a switch");
            let settings = Settings { fdb_entries: Some(FdbEntries(128)), ..Settings::default() };
            Config { settings, switches: vec![red], ..config(None, &["a"]) }
        };
        let run = together(file(), config(None, &["b,switch=red"])).expect("valid");
        let switches: Vec<_> =
            run.switches.iter().map(|switch| (switch.name.as_str(), switch.table())).collect();
        assert_eq!(switches, [("default", Some(128)), ("red", None)]);
        let message = |flags| together(file(), flags).expect_err("refused").message;
        assert!(message(config(None, &["b,switch=rad"])).contains("did you mean \"red\""));
        assert!(message(file()).contains("a switch \"red\" already"));
    }

    #[test]
    fn a_dummy_needs_no_table() {
        let run = together(
            config(Some("dummy"), &[]),
            asking(Settings { fdb_entries: Some(FdbEntries(64)), ..Settings::default() }),
        );
        assert_eq!(run.expect("valid").switches[0].table(), None);
    }

    #[test]
    fn a_name_twice_is_refused() {
        let fault = together(config(None, &["a"]), config(None, &["a"])).expect_err("twice");
        assert!(fault.message.contains("two ports \"a\""), "{fault}");
    }
}
