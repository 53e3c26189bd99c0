//! Running captures. Each has a thread that reads the workers' records and writes them to its client; it never waits
//! long for either.
//!
//! ```text
//!   workers ──records──> look, pop (oldest first) ──pcapng──> out ──send──> client's connection
//!                             no record: sleeps TICK            client slow: out stays full, records fill, frames are lost
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_engine::Capture;
use lasthop_foreign::{ForeignFd, discard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, send, shutdown};

use lasthop_api::pcapng::{self, Statistics};
use lasthop_runtime::fault::Fault;

/// How often a capture without frames polls for some.
const TICK: Duration = Duration::from_millis(2);
/// Bytes that are written at a time. If the client has not taken them, nothing more is read from the workers.
const OUT_BYTES_MAX: usize = 256 << 10;
/// How long the end of a capture waits for a client that reads nothing.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Same when the switch ends.
const STOP_PATIENCE: Duration = Duration::from_millis(200);
/// Niceness of a capture's thread, so that on a busy machine the capture loses frames before the workers lose time.
const NICENESS: i32 = 10;

/// The client's request and the reply to it.
#[derive(Debug)]
pub(super) struct Terms {
    /// Names of the interfaces.
    pub(super) names: Vec<String>,
    pub(super) snap_len_bytes: u32,
    pub(super) count: Option<u64>,
    pub(super) duration: Option<Duration>,
    /// Sent before the capture.
    pub(super) greeting: Vec<u8>,
}

/// All captures of the switch. Dropping it ends them.
#[derive(Default)]
pub(super) struct Captures(Vec<Running>);

struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Captures {
    /// Runs `capture` until it ends or its client is gone.
    pub(super) fn begin(&mut self, capture: Capture, client: ForeignFd, terms: Terms) -> Result<(), Fault> {
        self.0.retain(|running| !running.thread.is_finished());
        let stop = Arc::new(AtomicBool::new(false));
        let stream = Stream::new(capture, client, terms, Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || stream.run())
            .map_err(|error| Fault::internal("start a thread for the capture", error))?;
        self.0.push(Running { stop, thread });
        Ok(())
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        self.0.iter().for_each(|running| running.stop.store(true, Ordering::Relaxed));
        for running in self.0.drain(..) {
            let _ = running.thread.join();
        }
    }
}

/// The state of the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    /// The client reads.
    There,
    /// The client wants no more frames, and waits for the end.
    Done,
    /// The client does not read any more.
    Gone,
}

struct Stream {
    capture: Capture,
    client: ForeignFd,
    state: Client,
    stop: Arc<AtomicBool>,
    started_ns: u64,
    /// `None` without an end, or with one beyond the clock's range.
    until: Option<Instant>,
    /// Frames written, by interface.
    written: Vec<u64>,
    /// Number of frames until the end.
    left: u64,
    out: Vec<u8>,
    frame: Vec<u8>,
}

impl Drop for Stream {
    /// Shuts the connection down, so that the client sees the end: the supervisor has a copy of it.
    fn drop(&mut self) {
        let _ = shutdown(&self.client, Shutdown::Both);
    }
}

impl Stream {
    fn new(capture: Capture, client: ForeignFd, mut terms: Terms, stop: Arc<AtomicBool>) -> Self {
        let mut out = std::mem::take(&mut terms.greeting);
        pcapng::begin(&mut out, &terms.names, terms.snap_len_bytes);
        Self {
            started_ns: capture.now_ns(),
            capture,
            client,
            state: Client::There,
            stop,
            until: terms.duration.and_then(|duration| Instant::now().checked_add(duration)),
            written: vec![0; terms.names.len()],
            left: terms.count.unwrap_or(u64::MAX),
            out,
            frame: Vec::new(),
        }
    }

    fn run(mut self) {
        let _ = rustix::process::setpriority_process(None, NICENESS);
        while !self.is_over() {
            self.capture.look();
            let any = self.read_frames();
            self.write();
            if !any || !self.out.is_empty() {
                self.wait(TICK);
            }
        }
        self.finish();
    }

    fn is_over(&self) -> bool {
        self.state != Client::There
            || self.left == 0
            || self.until.is_some_and(|until| until <= Instant::now())
            || self.stop.load(Ordering::Relaxed)
            || self.capture.is_over()
    }

    /// Reads the workers' records while there is room; returns whether there were any.
    fn read_frames(&mut self) -> bool {
        let mut any = false;
        while self.left > 0
            && self.out.len() < OUT_BYTES_MAX
            && let Some(captured) = self.capture.pop(&mut self.frame)
        {
            pcapng::packet(&mut self.out, &captured, &self.frame);
            if let Some(written) = self.written.get_mut(usize::from(captured.interface)) {
                *written += 1;
            }
            self.left -= 1;
            any = true;
        }
        any
    }

    /// Writes as much as the client takes now; returns whether it took any.
    fn write(&mut self) -> bool {
        let mut sent = 0;
        while sent < self.out.len() {
            match send(&self.client, &self.out[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.state = Client::Gone;
                    break;
                }
            }
        }
        self.out.drain(..sent);
        sent > 0
    }

    /// Waits up to `time` until the client takes or sends something.
    fn wait(&mut self, time: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.state == Client::There);
        wanted.set(PollFlags::OUT, !self.out.is_empty());
        let mut polled = [PollFd::new(&self.client, wanted)];
        if poll(&mut polled, Some(&timeout)).is_err() {
            return;
        }
        let events = polled[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            self.state = Client::Gone;
        } else if events.contains(PollFlags::IN) {
            self.hear();
        }
    }

    /// Reads from the client. The only message is the end of its stream: it wants no more frames.
    fn hear(&mut self) {
        let (mut ignored, origin) = ([0; 512], self.client.origin());
        let heard = discard(self.client.as_fd(), &mut ignored, RecvFlags::DONTWAIT, origin);
        self.state = match heard {
            Ok((0, _)) => Client::Done,
            // The connection takes no more bytes.
            Ok((_, true)) => Client::Gone,
            _ => self.state,
        };
    }

    /// Ends the capture: the client gets the captured frames and the statistics.
    fn finish(mut self) {
        self.capture.stop();
        let mut progress = Instant::now();
        let mut is_ended = false;
        while self.state != Client::Gone && progress.elapsed() < self.patience() {
            if !self.read_frames() && !is_ended && self.out.len() < OUT_BYTES_MAX {
                self.write_statistics();
                is_ended = true;
            }
            if self.write() {
                progress = Instant::now();
            }
            if is_ended && self.out.is_empty() {
                return;
            }
            if !self.out.is_empty() {
                self.wait(TICK);
            }
        }
    }

    fn patience(&self) -> Duration {
        if self.stop.load(Ordering::Relaxed) { STOP_PATIENCE } else { END_PATIENCE }
    }

    fn write_statistics(&mut self) {
        let (start_ns, end_ns) = (self.started_ns, self.capture.now_ns());
        for (interface, written) in (0..).zip(&self.written) {
            let lost = self.capture.lost(interface);
            let known = Statistics { start_ns, end_ns, received: written + lost, lost };
            pcapng::statistics(&mut self.out, interface, &known);
        }
    }
}
