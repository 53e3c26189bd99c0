//! Relays the lines that inner processes write to standard error: their log, and the last words of one that panics.
//!
//! Standard error of each process is a pipe. So lines of a compromised process are harmless and bounded: they start
//! with its name, and can neither control a terminal nor fill a disk. No process waits for room in the pipe: lines
//! without room are lost.

use std::io::{self, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::time::Instant;

use log::warn;
use rustix::fs::{OFlags, fcntl_setfl};

use lasthop_runtime::logging::{LINE_BYTES_MAX, Limiter, relay};
use lasthop_runtime::poller::{Interest, Poller};

/// Lines of one process in a second; a panic with its backtrace has fewer.
const LINES_PER_SECOND_MAX: u32 = 200;
/// Bytes that are read at a time: a full pipe.
const READ_BYTES: usize = 64 * 1024;
/// Number of pipes that are read: one for each process and for each stuck one. Further ones are ignored.
const PIPES_MAX: usize = 64;

/// The pipes of all inner processes.
#[derive(Debug, Default)]
pub(crate) struct LogRelay {
    pipes: Vec<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    name: &'static str,
    reader: PipeReader,
    /// An incomplete line.
    begun: Vec<u8>,
    limiter: Limiter,
}

impl LogRelay {
    /// Makes standard error for a process that is about to start.
    pub(crate) fn open(&mut self, name: &'static str, number: u64, poller: &Poller) -> io::Result<OwnedFd> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        if self.pipes.len() < PIPES_MAX {
            poller.add(&reader, number, Interest::READ).map_err(io::Error::other)?;
            let limiter = Limiter::new(LINES_PER_SECOND_MAX);
            self.pipes.push(Pipe { name, reader, begun: Vec::new(), limiter });
        }
        Ok(writer.into())
    }

    /// Logs the lines.
    pub(crate) fn hear(&mut self) {
        self.pipes.retain_mut(|pipe| pipe.hear(relay));
    }

    /// Whether a process may still write.
    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        !self.pipes.is_empty()
    }
}

impl Pipe {
    /// Reads once, and relays complete lines; returns false at the end.
    fn hear(&mut self, mut relay: impl FnMut(&str, &str)) -> bool {
        let mut bytes = vec![0; READ_BYTES];
        let read = match self.reader.read(&mut bytes) {
            Ok(0) => None,
            Ok(count) => Some(&bytes[..count]),
            Err(error) if is_passing(&error) => return true,
            Err(_) => None,
        };
        for part in read.unwrap_or(b"\n").split_inclusive(|byte| *byte == b'\n') {
            // Longer lines are truncated in the log, too.
            let room = LINE_BYTES_MAX + 1 - self.begun.len().min(LINE_BYTES_MAX + 1);
            self.begun.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.end_line(&mut relay);
            }
        }
        read.is_some()
    }

    fn end_line(&mut self, relay: &mut impl FnMut(&str, &str)) {
        let bytes = std::mem::take(&mut self.begun);
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches('\n');
        if text.is_empty() {
            return;
        }
        let Some(left_out) = self.limiter.admit(Instant::now()) else { return };
        if left_out > 0 {
            let name = self.name;
            warn!("{name}: {left_out} lines were left out, there were too many");
        }
        relay(self.name, text);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn opened() -> (LogRelay, File) {
        let poller = Poller::new().expect("a set");
        let mut relay = LogRelay::default();
        let writer = relay.open("a process", 1, &poller).expect("a pipe");
        (relay, File::from(writer))
    }

    /// Waits for the end: a process that another test is starting has a copy of the pipe until exec(2) closes it.
    fn wait_for_the_end(relay: &LogRelay) {
        let pipe = relay.pipes.first().expect("a pipe");
        let mut watched = [PollFd::new(&pipe.reader, PollFlags::empty())];
        poll(&mut watched, None).expect("hung up");
    }

    fn heard(relay: &mut LogRelay) -> (Vec<String>, bool) {
        let mut lines = Vec::new();
        let pipe = relay.pipes.first_mut().expect("a pipe");
        let is_open = pipe.hear(|name, line| lines.push(format!("{name}: {line}")));
        (lines, is_open)
    }

    #[test]
    fn lines_are_whole_bounded_and_end_with_the_process() {
        let (mut relay, mut writer) = opened();
        assert_eq!(heard(&mut relay), (vec![], true), "no process waits");
        writer.write_all(b"one\n\ntw").expect("written");
        assert_eq!(heard(&mut relay), (vec!["a process: one".to_owned()], true));
        writer.write_all(b"o\nthree\xff").expect("written");
        assert_eq!(heard(&mut relay), (vec!["a process: two".to_owned()], true));
        drop(writer);
        wait_for_the_end(&relay);
        assert_eq!(heard(&mut relay), (vec!["a process: three\u{fffd}".to_owned()], false), "last words");
    }

    #[test]
    fn a_process_that_writes_without_end_neither_waits_nor_fills_anything() {
        let (mut relay, mut writer) = opened();
        let full = std::iter::repeat_with(|| writer.write(&[b'x'; 4096])).find_map(Result::err);
        assert_eq!(full.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        assert_eq!(heard(&mut relay), (vec![], true));
        assert!(relay.pipes.iter().all(|pipe| pipe.begun.len() <= LINE_BYTES_MAX + 1));
        writer.write_all(b"\n").expect("room again");
        writer.write_all(&b"y\n".repeat(2 * LINES_PER_SECOND_MAX as usize)).expect("room");
        let (lines, _) = heard(&mut relay);
        assert_eq!(lines.len(), LINES_PER_SECOND_MAX as usize);
    }
}
