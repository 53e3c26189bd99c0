//! `lasthop capture`: writes the switch's stream to a file or a pipe, in complete blocks, and reports lost frames.

use std::fs::File;
use std::io::{BufReader, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use log::info;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::Blocks;
use crate::output::print_json;
use lasthop_api::capture::{CaptureEvent, CaptureSpec};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::signals::Signals;

use super::ask::ApiRequest;
use super::client;
use super::pattern::{PORT_LIST, Pattern};

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 << 10;
/// A writable pipe has room for this many bytes (pipe(7): PIPE_BUF).
const PIPE_BYTES: usize = 4096;
/// How long an interrupted capture waits for a reader that takes nothing.
const LAST_PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The ports to capture, and the output.
#[derive(Debug, Args)]
pub(super) struct CaptureArgs {
    /// Vnics, each an interface of the file; * and ? stand for letters: 'vm0*'
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all", value_parser = Pattern::of_ports)]
    names: Vec<Pattern>,
    /// All present vnics
    #[arg(long)]
    all: bool,
    /// Events to capture, as seen by the switch [default: in,out,drop]
    #[arg(short = 'Q', long, value_enum, value_delimiter = ',', value_name = "LIST")]
    direction: Vec<CaptureEvent>,
    /// Write pcapng to this file; - is standard output, which may be a pipe but no terminal [default: -]
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after this number of packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Capture at most this number of bytes of each packet [default: 262144, the whole packet]
    #[arg(short, long, value_name = "BYTES")]
    snaplen: Option<u32>,
    /// End after this number of seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
}

impl CaptureArgs {
    /// With the names of the selected vnics; empty for all.
    fn spec(&self, names: Vec<String>) -> CaptureSpec {
        CaptureSpec {
            names,
            directions: self.direction.clone(),
            snaplen: self.snaplen.filter(|bytes| *bytes > 0), // 0 is all, as for tcpdump
            count: self.count,
            duration_s: self.duration,
        }
    }

    /// The output file; `None` for standard output.
    fn file(&self) -> Option<&Path> {
        self.write.as_deref().filter(|path| *path != Path::new("-"))
    }

    fn check(&self) -> Result<(), Fault> {
        self.spec(Vec::new()).check()?;
        if self.file().is_some() || !std::io::stdout().is_terminal() {
            return Ok(());
        }
        let name = self.names.first().map_or_else(|| "--all".to_owned(), Pattern::quoted);
        Err(Fault::params(format!(
            "a capture is not for a terminal; show it with: lasthop capture {name} | tcpdump -nr -, or keep it with: lasthop capture {name} -w FILE"
        )))
    }
}

#[derive(Deserialize)]
struct Begun {
    interfaces: Vec<String>,
}

/// Why a capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The switch sent the whole stream.
    Stream,
    /// The reader takes no more.
    Output,
}

impl ApiRequest {
    /// Captures until the end that `args` ask for.
    pub(super) fn capture(&self, args: &CaptureArgs) -> Result<ExitCode, Fault> {
        args.check()?;
        let spec = args.spec(self.names_of(PORT_LIST, &args.names)?);
        run(&self.dir, args, &spec, self.json)
    }
}

/// Captures from the switch in `dir`.
fn run(dir: &Path, args: &CaptureArgs, spec: &CaptureSpec, json: bool) -> Result<ExitCode, Fault> {
    let started = Instant::now();
    let (stream, Begun { interfaces }) = client::begin(dir, "capture", spec)?;
    let (output, name) = match args.file() {
        Some(path) => (create(path)?, path.display().to_string()),
        None => (standard_output()?, "standard output".to_owned()),
    };
    // Only now: opening a pipe without a reader blocks, and Ctrl-C has to end that.
    let signals = Signals::take()?;
    info!("capturing {}; Ctrl-C ends it", interfaces.join(", "));
    let piece_bytes = piece_bytes(&output);
    let blocks = Blocks::default();
    let mut capture =
        CaptureStream { stream, signals, output, piece_bytes, name, blocks, is_interrupted: false };
    let end = capture.run()?;
    let is_due = args.count.is_some_and(|count| capture.blocks.packets >= count)
        || args.duration.is_some_and(|seconds| started.elapsed() >= Duration::from_secs(seconds));
    capture.summarize(end, is_due, json && args.file().is_some())
}

/// Standard output without a buffer.
fn standard_output() -> Result<File, Fault> {
    let fd = std::io::stdout().as_fd().try_clone_to_owned();
    fd.map(File::from).map_err(|error| Fault::internal("write to standard output", error))
}

/// How many bytes a writable output takes without blocking: a file takes any number.
fn piece_bytes(output: &File) -> usize {
    let is_file = output.metadata().is_ok_and(|meta| meta.is_file());
    if is_file { READ_BYTES } else { PIPE_BYTES }
}

fn create(path: &Path) -> Result<File, Fault> {
    File::create(path)
        .map_err(|error| Fault::new(Kind::Internal, format!("cannot create {}: {error}", path.display())))
}

struct CaptureStream {
    stream: BufReader<UnixStream>,
    signals: Signals,
    output: File,
    piece_bytes: usize,
    name: String,
    blocks: Blocks,
    is_interrupted: bool,
}

impl CaptureStream {
    fn run(&mut self) -> Result<End, Fault> {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            // Polling does not see data that arrived with the answer.
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

    /// Waits for more of the stream. A signal asks the switch to end it. Returns false if no more is wanted.
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
            if !signal.is_empty() && !self.interrupt() {
                return Ok(false);
            }
            if !stream.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Asks the switch to end the stream after a signal. Returns false at the second signal: then the end is not
    /// awaited.
    fn interrupt(&mut self) -> bool {
        if !self.signals.came() {
            return true;
        }
        // This only fails if the other side is gone, which is also the end.
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
        !std::mem::replace(&mut self.is_interrupted, true)
    }

    /// Waits until the output is writable; returns false if it does not become so in time.
    fn wait_for_room(&mut self) -> Result<bool, Fault> {
        loop {
            let patience = self.is_interrupted.then_some(&LAST_PATIENCE);
            let mut polled =
                [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.output, PollFlags::OUT)];
            match poll(&mut polled, patience) {
                Ok(0) => return Ok(false),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Fault::internal("wait for the capture's reader", error)),
            }
            let [signal, output] = polled.map(|source| source.revents());
            if !signal.is_empty() && !self.interrupt() {
                return Ok(false);
            }
            if !output.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Writes complete blocks; returns false if the reader is gone.
    fn pass_on(&mut self, piece: &[u8]) -> Result<bool, Fault> {
        let odd = |why: String| Fault::new(Kind::Internal, format!("cannot read the capture: {why}"));
        let blocks = self.blocks.take(piece).map_err(odd)?;
        for piece in blocks.chunks(self.piece_bytes) {
            if !self.wait_for_room()? {
                return Ok(false);
            }
            match self.output.write_all(piece) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
                Err(error) => {
                    return Err(Fault::new(
                        Kind::Internal,
                        format!("cannot write to {}: {error}", self.name),
                    ));
                }
            }
        }
        Ok(true)
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
            info!("the capture is over: its ports were deleted, or the switch has ended");
        }
        let lost = lost.unwrap_or_default();
        if json {
            print_json(&json!({"packets": packets, "lost": lost}))?;
            return Ok(ExitCode::SUCCESS);
        }
        let remedy =
            if lost > 0 { ": the reader was too slow for them; --snaplen takes less of each" } else { "" };
        info!("{packets} packets captured, {lost} lost{remedy}");
        Ok(ExitCode::SUCCESS)
    }
}
