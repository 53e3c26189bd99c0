//! `lasthop profile`: how a running switch spends its time.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use lasthop_api::facts::Facts;
use lasthop_api::profile::{PROFILE_EVERY, ProfileReport, ProfileSpec};
use lasthop_api::report::VersionReport;
use lasthop_runtime::fault::{Fault, Kind};

use super::ask::ApiRequest;
use super::client;
use crate::show;
use crate::usage::{ProfileAnswer, UsageLook, WatchedProcess};

/// Longest wait for a profile beyond its duration.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest report in bytes: ten times that of all ports at all workers.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// How to profile.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// How long to sample, 1 to 60 seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 5)]
    seconds: u64,
    /// Sample one round of this number, at random
    #[arg(long, value_name = "N", default_value_t = PROFILE_EVERY)]
    every: u32,
    /// Also draw bars by port and stage into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Begun {}

impl ApiRequest {
    /// Profiles the switch, and shows the result.
    pub(super) fn profile(&self, args: &ProfileArgs) -> Result<ExitCode, Fault> {
        let spec = ProfileSpec { duration_s: args.seconds, every: Some(args.every) };
        spec.check()?;
        let (processes, switch_pid) = self.processes()?;
        let (stream, Begun {}) = client::begin(&self.dir, "profile", &spec)?;
        let before = UsageLook::now(&processes);
        let stages = read_report(stream, Duration::from_secs(args.seconds) + PATIENCE, switch_pid)?;
        let (processes, uncounted) = (before.since(), before.uncounted);
        let answer = ProfileAnswer { stages, processes, uncounted };
        if let Some(path) = &args.svg {
            std::fs::write(path, show::profile_svg(&answer.stages)).map_err(|error| {
                Fault::new(Kind::Internal, format!("cannot write {}: {error}", path.display()))
            })?;
        }
        self.show(&answer, show::profile)
    }

    /// The switch's own processes and its guests, and the number of the switch process.
    fn processes(&self) -> Result<(Vec<WatchedProcess>, Option<u32>), Fault> {
        let facts: Facts = client::ask(&self.dir, "doctor", &json!({}))?;
        let version: VersionReport = client::ask(&self.dir, "version", &json!({}))?;
        let own = [
            ("supervisor", Some(facts.switch.pid)),
            ("switch", facts.switch.switch_pid),
            ("driver", version.driver_pid),
            ("controller", facts.controller.as_ref().and_then(|controller| controller.pid)),
        ];
        let own = own.into_iter().filter_map(|(name, pid)| {
            Some(WatchedProcess { name: name.to_owned(), pid: i32::try_from(pid?).ok()?, is_counted: true })
        });
        let mut all: Vec<WatchedProcess> = own.collect();
        for vnic in &facts.vnics {
            let name = vnic.name();
            let Some(pid) = vnic.connection.peer_pid else { continue };
            match all.iter_mut().find(|process| process.pid == pid) {
                // A guest with several vnics.
                Some(process) => process.name += &format!("+{name}"),
                None => {
                    let name = format!("guest {name}");
                    all.push(WatchedProcess { name, pid, is_counted: false });
                }
            }
        }
        Ok((all, facts.switch.switch_pid))
    }
}

/// Reads the line at the end of the profile.
fn read_report(
    stream: BufReader<UnixStream>,
    patience: Duration,
    switch_pid: Option<u32>,
) -> Result<ProfileReport, Fault> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Fault::new(Kind::SwitchDown, "the switch process did not end the profile in time; see its log")
        }
        _ => Fault::internal("read the profile", error),
    };
    stream.get_ref().set_read_timeout(Some(patience)).map_err(failed)?;
    let mut line = String::new();
    match stream.take(REPORT_BYTES_MAX).read_line(&mut line) {
        // A reset connection has ended, too.
        Err(error) if error.kind() != ErrorKind::ConnectionReset => return Err(failed(error)),
        _ => {}
    }
    if line.is_empty() {
        let process = switch_pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        let why = format!("the switch process{process} ended amid the profile; see its log, and try again");
        return Err(Fault::new(Kind::SwitchDown, why));
    }
    serde_json::from_str(&line).map_err(|error| Fault::internal("understand the profile", error))
}
