//! The switch process: started, and started again when it ends.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cli::SWITCH_ROLE;
use crate::clock::Pause;
use crate::config::SwitchSettings;
use crate::fault::Fault;
use crate::ipc::Channel;
use crate::orders::{Report, Request};

/// Pause before a switch that died is started again; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A switch that lived this long had no trouble with its start.
const SOUND_LIFE: Duration = Duration::from_secs(10);

/// A running switch process.
#[derive(Debug)]
pub(crate) struct Switch {
    child: Child,
    started: Instant,
    pub(crate) channel: Channel<Request, Report>,
    /// What it said when it could not go on.
    pub(crate) last_words: Option<String>,
}

impl Switch {
    /// Starts it, with one end of a socket pair as its standard input.
    pub(crate) fn start(settings: &SwitchSettings) -> Result<Self, Fault> {
        let failed = |error| Fault::internal("start the switch process", error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let channel = Channel::new(ours.into()).map_err(failed)?;
        // The file of this very program, also if another one took its path since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lasthop").arg(SWITCH_ROLE).arg("--module").arg(settings.module.as_str());
        command.arg("--workers").arg(settings.workers.0.to_string());
        if let Some(cpus) = &settings.cpus {
            command.arg("--cpus").arg(cpus.to_string());
        }
        if let Some(entries) = &settings.fdb_entries {
            command.arg("--fdb-entries").arg(entries.0.to_string());
        }
        // A group of its own: Ctrl-C is for the supervisor, which ends the switch in order.
        let command = command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, started: Instant::now(), channel, last_words: None })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes sure that it has ended, and says how.
    fn end(&mut self) -> String {
        // It has closed the channel, so there is nothing left that it could do.
        let _ = self.child.kill();
        let how = self.child.wait().map_or_else(|error| error.to_string(), describe);
        match self.last_words.take() {
            Some(words) => format!("{how}: {words}"),
            None => how,
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.end();
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The switch process over all its lives.
#[derive(Debug)]
pub(crate) struct Lives {
    settings: SwitchSettings,
    current: Option<Switch>,
    /// When the next one is started, if there is none.
    next: Option<Instant>,
    pause: Pause,
    starts: u64,
    /// How the last one ended, and when.
    last_end: Option<(String, Instant)>,
}

impl Lives {
    pub(crate) fn new(settings: SwitchSettings) -> Self {
        Self {
            settings,
            current: None,
            next: None,
            pause: Pause::new(PAUSE_MIN, PAUSE_MAX),
            starts: 0,
            last_end: None,
        }
    }

    /// The process that runs now.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.current.as_ref().map(Switch::pid)
    }

    /// For how long it has been running.
    pub(crate) fn up(&self) -> Option<Duration> {
        self.current.as_ref().map(|switch| switch.started.elapsed())
    }

    /// Times that it was started again.
    pub(crate) fn restarts(&self) -> u64 {
        self.starts.saturating_sub(1)
    }

    /// How the last one ended, and how long ago.
    pub(crate) fn last_end(&self) -> Option<(String, Duration)> {
        self.last_end.as_ref().map(|(how, when)| (how.clone(), when.elapsed()))
    }

    pub(crate) fn settings(&self) -> &SwitchSettings {
        &self.settings
    }

    pub(crate) fn current(&mut self) -> Option<&mut Switch> {
        self.current.as_mut()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.current.is_some()
    }

    /// When [`Self::start`] is to be called.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Starts a switch.
    pub(crate) fn start(&mut self) -> Result<&mut Switch, Fault> {
        self.next = None;
        let switch = Switch::start(&self.settings)?;
        self.starts += 1;
        Ok(self.current.insert(switch))
    }

    /// The switch is gone: says how it ended.
    pub(crate) fn bury(&mut self) -> String {
        let Some(mut switch) = self.current.take() else { return "was not running".to_owned() };
        if switch.started.elapsed() >= SOUND_LIFE {
            self.pause.reset();
        }
        let how = switch.end();
        self.last_end = Some((how.clone(), Instant::now()));
        how
    }

    /// Plans the next start; returns the pause until then.
    pub(crate) fn plan(&mut self) -> Duration {
        let pause = self.pause.take();
        self.next = Some(Instant::now() + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_described_by_signal_or_status() {
        assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by signal 9");
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "ended with status 3");
    }
}
