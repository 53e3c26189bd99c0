//! `lasthop capture`: passes the switch's stream on to a file or a pipe, whole blocks at a time, and tells what was lost.

use std::fs::File;
use std::io::{BufReader, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Deserialize;
use serde_json::json;

use crate::capture::blocks::Blocks;
use crate::capture::{CaptureSpec, Sighting};
use crate::fault::{Fault, Kind};
use crate::log::say;
use crate::output::print_json;
use crate::signals::Signals;
use crate::vnic::Name;

use super::client;

/// Read at a time, in bytes.
const READ_BYTES: usize = 256 << 10;

/// What to capture, and where to.
#[derive(Debug, Args)]
pub(super) struct CaptureArgs {
    /// Vnics, each an interface of the file
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<Name>,
    /// All vnics that there are now
    #[arg(long)]
    all: bool,
    /// What to capture, as seen by the switch [default: in,out,drop]
    #[arg(short = 'Q', long, value_enum, value_delimiter = ',', value_name = "LIST")]
    direction: Vec<Sighting>,
    /// Write pcapng to this file; - is standard output, which may be a pipe but no terminal [default: -]
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after so many packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Capture so many bytes of each packet, at most [default: 262144, which is all of it]
    #[arg(short, long, value_name = "BYTES")]
    snaplen: Option<u32>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
}

impl CaptureArgs {
    fn spec(&self) -> CaptureSpec {
        CaptureSpec {
            names: self.names.iter().map(ToString::to_string).collect(),
            directions: self.direction.clone(),
            snaplen: self.snaplen.filter(|bytes| *bytes > 0), // 0 is all, as for tcpdump
            count: self.count,
            duration_s: self.duration,
        }
    }

    /// The file to be written; none for standard output.
    fn file(&self) -> Option<&Path> {
        self.write.as_deref().filter(|path| *path != Path::new("-"))
    }

    fn check(&self) -> Result<(), Fault> {
        self.spec().check()?;
        if self.file().is_some() || !std::io::stdout().is_terminal() {
            return Ok(());
        }
        let name = self.names.first().map_or_else(|| "--all".to_owned(), ToString::to_string);
        Err(Fault::params(format!(
            "a capture is not for a terminal; show it with: lasthop capture {name} | tcpdump -nr -, or keep it with: lasthop capture {name} -w FILE"
        )))
    }
}

#[derive(Deserialize)]
struct Begun {
    interfaces: Vec<String>,
}

/// How a capture came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The switch has sent all of it.
    Stream,
    /// Nobody wants any more of it.
    Output,
}

/// Captures from the switch that runs in `dir`.
pub(super) fn run(dir: &Path, args: &CaptureArgs, json: bool) -> Result<ExitCode, Fault> {
    args.check()?;
    let signals = Signals::take()?;
    let started = Instant::now();
    let (stream, Begun { interfaces }) = client::begin(dir, "capture", &args.spec())?;
    let (output, name): (Box<dyn Output>, _) = match args.file() {
        Some(path) => (Box::new(create(path)?), path.display().to_string()),
        None => (Box::new(std::io::stdout()), "standard output".to_owned()),
    };
    say!("capturing {}; Ctrl-C ends it", interfaces.join(", "));
    let mut relay = Relay { stream, signals, output, name, blocks: Blocks::default(), is_interrupted: false };
    let end = relay.run()?;
    let is_due = args.count.is_some_and(|count| relay.blocks.packets >= count)
        || args.duration.is_some_and(|seconds| started.elapsed() >= Duration::from_secs(seconds));
    relay.summarize(end, is_due, json && args.file().is_some())
}

/// Something to write to and to watch.
trait Output: Write + AsFd {}
impl<T: Write + AsFd> Output for T {}

fn create(path: &Path) -> Result<File, Fault> {
    File::create(path)
        .map_err(|error| Fault::new(Kind::Internal, format!("cannot create {}: {error}", path.display())))
}

struct Relay {
    stream: BufReader<UnixStream>,
    signals: Signals,
    output: Box<dyn Output>,
    name: String,
    blocks: Blocks,
    is_interrupted: bool,
}

impl Relay {
    fn run(&mut self) -> Result<End, Fault> {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            // What came along with the answer is not seen by polling.
            if self.stream.buffer().is_empty() && !self.wait()? {
                return Ok(End::Output);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(End::Stream),
                Ok(count) => {
                    if !self.pass_on(&bytes[..count])? {
                        return Ok(End::Output);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::internal("read the capture", error)),
            }
        }
    }

    /// Waits for more of the stream. A signal asks the switch for its end; false: nobody wants any more.
    fn wait(&mut self) -> Result<bool, Fault> {
        loop {
            let mut polled = [
                PollFd::new(self.stream.get_ref(), PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.output, PollFlags::empty()),
            ];
            match poll(&mut polled, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Fault::internal("wait for the capture", error)),
            }
            let [stream, signal, output] = polled.map(|source| source.revents());
            if output.intersects(PollFlags::ERR) {
                return Ok(false);
            }
            if !signal.is_empty() && self.signals.came() {
                if std::mem::replace(&mut self.is_interrupted, true) {
                    return Ok(false); // once more: without the end
                }
                // Fails only when the other side is gone, which is the end as well.
                let _ = self.stream.get_ref().shutdown(Shutdown::Write);
            }
            if !stream.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Writes whole blocks; false: nobody reads them.
    fn pass_on(&mut self, piece: &[u8]) -> Result<bool, Fault> {
        let odd = |why: String| Fault::new(Kind::Internal, format!("cannot read the capture: {why}"));
        let blocks = self.blocks.take(piece).map_err(odd)?;
        match self.output.write_all(&blocks).and_then(|()| self.output.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Fault::new(Kind::Internal, format!("cannot write to {}: {error}", self.name))),
        }
    }

    fn summarize(&self, end: End, is_due: bool, json: bool) -> Result<ExitCode, Fault> {
        let Blocks { packets, lost, .. } = self.blocks;
        if end == End::Stream && lost.is_none() {
            return Err(Fault::new(
                Kind::SwitchDown,
                format!("the switch process ended amid the capture; {packets} packets are in {}", self.name),
            ));
        }
        if end == End::Stream && !is_due && !self.is_interrupted {
            say!("the capture is over: its vnics were deleted, or the switch has ended");
        }
        let lost = lost.unwrap_or_default();
        if json {
            print_json(&json!({"packets": packets, "lost": lost}))?;
            return Ok(ExitCode::SUCCESS);
        }
        let remedy =
            if lost > 0 { ": the reader was too slow for them; --snaplen takes less of each" } else { "" };
        say!("{packets} packets captured, {lost} lost{remedy}");
        Ok(ExitCode::SUCCESS)
    }
}
