//! A router in a namespace of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The side on which a frame enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

pub(crate) struct Router {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The kernel's verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routed {
    /// The same as a `ct_state` field.
    pub(crate) state: u32,
    /// The frame as it came out.
    pub(crate) frame: Vec<u8>,
}

impl Router {
    /// Returns `None` if this machine cannot have one.
    #[expect(clippy::print_stdout, reason = "tests say what they leave out")]
    pub(crate) fn start(nat: &str) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/router.py");
        let has = |program: &str| {
            Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        if !has("nft") || !has("ip") || !has("python3") {
            println!("skipped: it needs nft, ip and python3");
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(["--net", "python3"]).arg(script).arg(nat);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let to = child.stdin.take()?;
        let from = BufReader::new(child.stdout.take()?);
        let mut router = Self { child, to, from };
        if router.read().as_deref() != Some("ready") {
            println!("skipped: no namespace with connection tracking (root? nf_conntrack?)");
            return None;
        }
        Some(router)
    }

    fn read(&mut self) -> Option<String> {
        let mut line = String::new();
        self.from.read_line(&mut line).ok().filter(|len| *len > 0)?;
        Some(line.trim_end().to_owned())
    }

    fn ask(&mut self, what: &str, value: &str) -> String {
        writeln!(self.to, "{what} {value}").expect("the router listens");
        self.read().expect("the router answers")
    }

    /// Sends a frame through the router; `None` if it was dropped.
    pub(crate) fn pass(&mut self, side: Side, frame: &[u8]) -> Option<Routed> {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let what = if side == Side::Left { "left" } else { "right" };
        let answer = self.ask(what, &hex);
        assert_ne!(answer, "stuck");
        if answer == "-" {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(&answer[at..at + 2], 16).expect("hex");
        let frame: Vec<u8> = (0..answer.len()).step_by(2).map(byte).collect();
        let state = match frame[15] >> 2 {
            1 => 0x30,
            2 => 0x21,
            3 => 0x22,
            4 => 0x2a,
            5 => 0x24,
            6 => 0x2c,
            other => panic!("no state {other}"),
        };
        Some(Routed { state, frame })
    }

    /// The words of the line in /proc/net/nf_conntrack about the connection of a client's port.
    pub(crate) fn entry(&mut self, port: u16) -> Option<Vec<String>> {
        let answer = self.ask("entry", &port.to_string());
        (answer != "-").then(|| answer.split_whitespace().map(str::to_owned).collect())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
