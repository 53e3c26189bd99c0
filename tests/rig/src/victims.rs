//! Two guests that talk next to a misbehaving front end, and an operator who watches them.

use std::process::Command;
use std::time::{Duration, Instant};

use lasthop_frontend::{Guest, GuestOptions};

use super::guests::{ONE, TWO, WAIT, frame, guest, running, send};
use super::{Switch, eventually, program};

const SPARE: [u8; 6] = [0x02, 0, 0, 0, 0, 3];
/// First bytes of source addresses that are new in each frame.
const FRESH: [u8; 2] = [0x02, 0xfe];
const FRAME_BYTES: usize = 60;

/// Durations of repeated operations.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// The 99th percentile.
    pub fn p99(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
    }

    pub fn worst(&self) -> Duration {
        self.0.iter().copied().max().unwrap_or_default()
    }

    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// Two guests on vnics `one` and `two`, and a vnic `spare` for a later one.
pub struct Victims {
    pub switch: Switch,
    pub one: Guest,
    pub two: Guest,
    /// Number of frames that either has sent.
    sent: [u64; 2],
    number: u32,
}

impl Victims {
    /// With further vnics, for attackers.
    pub fn beside(vnics: &[&str]) -> Self {
        Self::beside_with(vnics, &[])
    }

    /// The same with more arguments for `lasthop run`.
    pub fn beside_with(vnics: &[&str], words: &[&str]) -> Self {
        Self::beside_by(Command::new(program()), vnics, words)
    }

    /// The same with a command that starts `lasthop` and appends arguments.
    pub fn beside_by(command: Command, vnics: &[&str], words: &[&str]) -> Self {
        // With fixed addresses, so that no frame is flooded to a vnic without a guest. `one` has none: it sends new
        // flows, each from a new address.
        let mut all = vec!["--vnic", "one", "--vnic", "two,mac=02:00:00:00:00:02", "--vnic", "spare"];
        all.extend(vnics.iter().flat_map(|vnic| ["--vnic", vnic]));
        all.extend(words);
        let switch = Switch::start_by(command, &all);
        let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
        let mut victims = Self { switch, one, two, sent: [0; 2], number: 0 };
        // From now on the address of `one` is known.
        victims.there(ONE);
        victims
    }

    /// One sends a frame from an address, and the other one receives it.
    fn there(&mut self, from: [u8; 6]) -> Duration {
        self.number += 1;
        self.sent[0] += 1;
        let took = exchange(&mut self.one, &mut self.two, &frame(TWO, from, self.number, FRAME_BYTES));
        took.unwrap_or_else(|| self.fail())
    }

    fn back(&mut self) -> Duration {
        self.number += 1;
        self.sent[1] += 1;
        let took = exchange(&mut self.two, &mut self.one, &frame(ONE, TWO, self.number, FRAME_BYTES));
        took.unwrap_or_else(|| self.fail())
    }

    /// A frame did not arrive: reports its loss with the counters.
    fn fail(&self) -> ! {
        panic!("no frame came: {}, {}", self.switch.port("one"), self.switch.port("two"))
    }

    /// Frames of known flows, there and back; returns the time of each round.
    pub fn talk(&mut self, rounds: usize) -> Times {
        Times((0..rounds).map(|_| self.there(ONE) + self.back()).collect())
    }

    /// Frames that are the first of their flow: with module `flow` each goes to the controller.
    pub fn talk_anew(&mut self, rounds: usize) -> Times {
        let fresh = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            [FRESH[0], FRESH[1], a, b, c, d]
        };
        Times((0..rounds).map(|_| self.there(fresh(self.number + 1))).collect())
    }

    /// The duration of a command.
    pub fn operate(&self) -> Duration {
        let start = Instant::now();
        self.switch.ask(&["stats", "--check"]).ok();
        start.elapsed()
    }

    /// Another guest attaches, sends a frame and leaves; returns the time until its frame arrived.
    pub fn attach_another(&mut self) -> Duration {
        let start = Instant::now();
        let mut spare = guest(&self.switch, "spare", SPARE);
        self.number += 1;
        let came = exchange(&mut spare, &mut self.two, &frame(TWO, SPARE, self.number, FRAME_BYTES));
        assert!(came.is_some(), "no frame came: {}", self.switch.port("spare"));
        let took = start.elapsed();
        drop(spare);
        let left = || (self.switch.port("spare")["state"] == "waiting for guest").then_some(());
        eventually("the other guest's end", left);
        took
    }

    /// Another switch process takes over, and the guests are not affected.
    pub fn upgrade(&mut self) -> Duration {
        let (before, start) = (self.switch.switch_pid(), Instant::now());
        self.switch.ask(&["upgrade"]).ok();
        let took = start.elapsed();
        // The previous one may still be ending.
        eventually("another process", || (self.switch.switch_pid()? != before?).then_some(()));
        took
    }

    /// Checks everything once, so that any damage shows.
    pub fn assert_unharmed(&mut self) {
        self.talk(10);
        self.talk_anew(10);
        self.operate();
        self.attach_another();
        self.assert_conserved();
    }

    /// Each frame was counted once, and none was dropped.
    pub fn assert_conserved(&self) {
        self.switch.ask(&["stats", "--check"]).ok();
        for (vnic, sent) in [("one", self.sent[0]), ("two", self.sent[1])] {
            let port = self.switch.port(vnic);
            assert_eq!(port["rx_packets"], sent, "{port}");
            // Those that went to a controller came back from it.
            let returned = port["injected"].as_u64().expect("a count");
            assert_eq!(port["forwarded"].as_u64(), Some(sent + returned), "{port}");
            assert_eq!(port["rx_drops"], serde_json::json!({}), "{port}");
        }
    }

    /// A normal guest can attach where a bad one was.
    pub fn assert_free(&mut self, vnic: &str) {
        let options = GuestOptions { mac: SPARE, ..GuestOptions::default() };
        let path = self.switch.path(&format!("{vnic}.sock"));
        let attached = || Guest::connect(&path, options.clone()).ok();
        let mut guest = eventually("the port is free", attached);
        running(&self.switch, vnic);
        self.number += 1;
        let came = exchange(&mut guest, &mut self.two, &frame(TWO, SPARE, self.number, FRAME_BYTES));
        assert!(came.is_some(), "no frame came: {}", self.switch.port(vnic));
    }
}

/// Sends a frame and waits until it arrives; returns the time, or `None` if it does not.
fn exchange(from: &mut Guest, to: &mut Guest, sent: &[u8]) -> Option<Duration> {
    let start = Instant::now();
    send(from, sent);
    let mut received = Vec::new();
    // Frames that others flood arrive here, too.
    while received != sent {
        while to.recv(0, &mut received).expect("a sound ring").is_none() {
            if !to.wait(Some(WAIT)).expect("connected") {
                return None;
            }
        }
    }
    Some(start.elapsed())
}
