//! The guest processes, and their answers.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use lasthop_rig::{eventually, signal};

/// The longest wait for an answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A guest's counts, in one life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) in_flight: u64,
    pub(crate) strayed: u64,
}

/// The arguments of all lives of all guests.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) guests: u8,
    pub(crate) seed: u64,
    pub(crate) run_dir: PathBuf,
}

/// A sequence of guest processes with the same number.
pub(crate) struct Member {
    number: u8,
    setting: Setting,
    life: u32,
    child: Child,
    answers: Receiver<String>,
    stopped: bool,
    /// Hang-ups that it met, in all lives.
    pub(crate) hangups: u64,
    /// Counts of its earlier lives, as far as they were read.
    past: Count,
    now: Count,
}

/// The vnic of guest `number`.
pub(crate) fn vnic(number: u8) -> String {
    format!("g{number}")
}

fn spawn(number: u8, life: u32, setting: &Setting) -> (Child, Receiver<String>) {
    let socket = setting.run_dir.join(format!("{}.sock", vnic(number)));
    let own = std::env::current_exe().expect("this program");
    let words = [u64::from(number), u64::from(setting.guests), u64::from(life), setting.seed];
    let mut command = Command::new(own);
    command.arg("guest").args(words.map(|word| word.to_string())).arg(socket);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, answers) = channel();
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    (child, answers)
}

impl Member {
    pub(crate) fn new(number: u8, setting: Setting) -> Self {
        let (child, answers) = spawn(number, 1, &setting);
        let (past, now) = (Count::default(), Count::default());
        Self { number, setting, life: 1, child, answers, stopped: false, hangups: 0, past, now }
    }

    /// Kills the process, in any state, and starts the next one.
    pub(crate) fn kill(&mut self) {
        self.check_alive();
        self.child.kill().expect("killed");
        self.child.wait().expect("our child");
        self.listen();
        self.past.sent += self.now.sent;
        self.past.received += self.now.received;
        self.past.strayed += self.now.strayed;
        self.now = Count::default();
        self.life += 1;
        self.stopped = false;
        (self.child, self.answers) = spawn(self.number, self.life, &self.setting);
    }

    pub(crate) fn stop(&mut self) {
        self.check_alive();
        signal(self.child.id(), Signal::STOP);
        self.stopped = true;
    }

    /// Continues it if it was stopped.
    pub(crate) fn go_on(&mut self) {
        if std::mem::take(&mut self.stopped) {
            signal(self.child.id(), Signal::CONT);
        }
    }

    /// Sends it an order, without waiting.
    pub(crate) fn order(&mut self, order: &str) {
        self.go_on();
        let told = writeln!(self.child.stdin.as_mut().expect("piped"), "{order}");
        if told.is_err() {
            self.check_alive();
        }
    }

    /// Checks that it has found no error so far.
    pub(crate) fn check_alive(&mut self) {
        let ended = self.child.try_wait().expect("our child");
        assert!(ended.is_none(), "guest {} found something wrong, see above: {ended:?}", self.number);
    }

    fn take(&mut self, line: &str) -> bool {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("hungup") => self.hangups += 1,
            Some("count") => {
                let mut next = || words.next().and_then(|word| word.parse().ok()).expect("a number");
                self.now = Count { sent: next(), received: next(), in_flight: next(), strayed: next() };
                return true;
            }
            _ => panic!("guest {} says {line}", self.number),
        }
        false
    }

    /// Reads its answers.
    pub(crate) fn listen(&mut self) {
        while let Ok(line) = self.answers.try_recv() {
            self.take(&line);
        }
    }

    /// Its counts in this life.
    pub(crate) fn count(&mut self) -> Count {
        self.order("count");
        let end = Instant::now() + PATIENCE;
        loop {
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    if self.take(&line) {
                        return self.now;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.check_alive(),
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.child.wait();
                    self.check_alive();
                }
            }
            assert!(Instant::now() < end, "guest {} does not answer", self.number);
        }
    }

    /// Frames sent, received and strayed in all lives, up to the last count of each.
    pub(crate) fn total(&self) -> Count {
        Count {
            sent: self.past.sent + self.now.sent,
            received: self.past.received + self.now.received,
            in_flight: 0,
            strayed: self.past.strayed + self.now.strayed,
        }
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        self.order("end");
        eventually("the end of a guest", || self.child.try_wait().expect("our child"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
