//! One client of the control socket: lines in, lines out, one request at a time.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use lasthop_engine::peer_user;
use lasthop_foreign::{ForeignFd, discard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, Shutdown, send, shutdown};

use lasthop_api::rpc::{REQUEST_BYTES_MAX, write_answer};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::Interest;

/// A client that reads nothing of its answer for this time is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// A client must never make us wait. O_NONBLOCK alone is not enough: the switch process may have a copy of the connection,
/// and can clear that flag for both.
const NEVER_WAIT: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// Bytes of one read.
const READ_BYTES: usize = 4096;

/// A connection to the control socket.
#[derive(Debug)]
pub(crate) struct Client {
    stream: ForeignFd,
    /// Whether it belongs to root or our own user, and not only to the control group.
    pub(crate) is_owner: bool,
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// Whether one of its requests is unanswered.
    is_waiting: bool,
    /// Whether it has ended its side of the connection.
    is_done: bool,
    /// Whether it has gone: its remaining lines are executed, and answers are dropped.
    has_left: bool,
    /// Whether it is closed once its output is written.
    is_closing: bool,
    /// When it is dropped if it reads nothing.
    reads_until: Option<Instant>,
    /// When it connected, or was answered last.
    served: Instant,
}

impl Client {
    pub(crate) fn new(stream: ForeignFd) -> std::io::Result<Self> {
        ioctl_fionbio(&stream, true)?;
        let own = rustix::process::geteuid().as_raw();
        let is_owner = peer_user(stream.as_fd()).is_some_and(|user| user == 0 || user == own);
        let (input, output) = Default::default();
        Ok(Self {
            stream,
            is_owner,
            input,
            output,
            is_waiting: false,
            is_done: false,
            has_left: false,
            is_closing: false,
            reads_until: None,
            served: Instant::now(),
        })
    }

    /// Reads all available bytes. After an error the client has to be dropped.
    pub(crate) fn read(&mut self) -> std::io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        while self.wants_read() {
            match discard(self.stream.as_fd(), &mut bytes, RecvFlags::DONTWAIT, self.stream.origin()) {
                Ok((_, true)) => {
                    // No request takes descriptors. They may take long to close, and the connection is closed only
                    // after them.
                    let _ = shutdown(&self.stream, Shutdown::Both);
                    return Err(ErrorKind::InvalidData.into());
                }
                Ok((0, _)) => self.is_done = true,
                Ok((count, _)) => self.input.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next request line; `None` while the previous one is unanswered.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        if self.is_waiting || self.is_closing || !self.output.is_empty() {
            return None;
        }
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            self.check_length();
            return None;
        };
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        self.is_waiting = true;
        Some(line)
    }

    fn check_length(&mut self) {
        if self.input.len() >= REQUEST_BYTES_MAX {
            self.input.clear();
            self.is_closing = true;
            let why = format!("a request is at most {REQUEST_BYTES_MAX} bytes long");
            let fault = Fault::new(Kind::Request, why);
            self.output = write_answer(&serde_json::Value::Null, &Err(fault)).into();
        }
    }

    /// It has gone. Lines that it sent are still executed, one at a time as before.
    pub(crate) fn leave(&mut self) {
        (self.is_done, self.has_left) = (true, true);
        self.output.clear();
        self.reads_until = None;
    }

    /// Whether it has gone, so that its connection is not watched any more.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Refuses a client.
    pub(crate) fn refuse(&mut self, fault: Fault) {
        let line = write_answer(&serde_json::Value::Null, &Err(fault));
        // A new connection has room for it; an error means that the client has gone.
        let _ = send(&self.stream, &line, NEVER_WAIT);
    }

    /// Whether it has gone and left nothing to do.
    pub(crate) fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        let is_polled = poll(&mut polled, Some(&Timespec::default())).is_ok();
        let is_over = is_polled && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        is_over && !self.is_waiting && self.input.is_empty() && self.has_read_all()
    }

    /// Answers the current request with `line`; an empty line for a notification.
    pub(crate) fn answer(&mut self, line: Vec<u8>) {
        self.is_waiting = false;
        self.output = line.into();
        self.served = Instant::now();
    }

    /// Since when it has been idle, if all its requests are done.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let is_idle = !self.is_waiting && self.output.is_empty() && !self.input.contains(&b'\n');
        (is_idle && self.has_read_all()).then_some(self.served)
    }

    fn has_read_all(&self) -> bool {
        ioctl_fionread(&self.stream).is_ok_and(|unread| unread == 0)
    }

    /// Writes as much as the socket takes at once. The rest follows as the client reads: a long table delays no other
    /// client. After an error it has left.
    pub(crate) fn write(&mut self, now: Instant) {
        if self.has_left {
            self.output.clear();
        }
        if self.output.is_empty() {
            return; // it may have gone, but its request still has to be executed
        }
        match send(&self.stream, self.output.as_slices().0, NEVER_WAIT) {
            Ok(count) => {
                self.output.drain(..count);
                self.reads_until = None;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return self.leave(),
        }
        if self.output.is_empty() {
            self.reads_until = None;
        } else {
            self.reads_until.get_or_insert(now + PATIENCE);
        }
    }

    /// Duplicates the connection, for the switch process; `None` if the client has gone.
    pub(crate) fn share(&self) -> Option<std::io::Result<ForeignFd>> {
        (!self.has_left).then(|| self.stream.try_clone())
    }

    /// Whether nothing remains to be done for it.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let is_silent = !self.is_waiting && self.output.is_empty();
        let has_line = self.input.contains(&b'\n');
        is_silent && (self.is_closing || (self.is_done && !has_line))
            || self.reads_until.is_some_and(|end| end <= now)
    }

    /// When [`Self::is_over`] may become true by itself.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.reads_until
    }

    fn wants_read(&self) -> bool {
        !self.is_done && !self.is_closing && self.input.len() < REQUEST_BYTES_MAX
    }

    /// A client with an unanswered request is not read from.
    pub(crate) fn interest(&self) -> Interest {
        let write = !self.output.is_empty();
        Interest { read: self.wants_read() && !self.is_waiting && !write, write }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (UnixStream, Client) {
        let (theirs, ours) = UnixStream::pair().expect("a pair");
        (theirs, Client::new(ours.into()).expect("a client"))
    }

    #[test]
    fn requests_are_taken_one_by_one() {
        let (mut theirs, mut client) = pair();
        theirs.write_all(b"one\ntwo\nthr").expect("written");
        client.read().expect("read");
        assert_eq!(client.next_line(), Some(b"one".to_vec()));
        assert_eq!(client.next_line(), None);
        client.answer(b"1\n".to_vec());
        assert_eq!(client.next_line(), None, "the answer is not out yet");
        client.write(Instant::now());
        assert_eq!(client.next_line(), Some(b"two".to_vec()));
        client.answer(Vec::new());
        assert_eq!(client.next_line(), None);
        assert!(!client.is_over(Instant::now()));
    }

    #[test]
    fn a_client_that_says_no_more_gets_its_answer_first() {
        let (mut theirs, mut client) = pair();
        theirs.write_all(b"one\n").expect("written");
        theirs.shutdown(std::net::Shutdown::Write).expect("shut");
        client.read().expect("read");
        assert!(!client.is_over(Instant::now()));
        client.next_line().expect("a line");
        assert!(!client.is_over(Instant::now()));
        client.answer(b"1\n".to_vec());
        client.write(Instant::now());
        assert!(client.is_over(Instant::now()));
    }

    #[test]
    fn lines_of_a_client_that_is_gone_are_taken_one_by_one() {
        let (mut theirs, mut client) = pair();
        assert!(!client.is_gone());
        theirs.write_all(b"one\ntwo\nthr").expect("written");
        drop(theirs);
        assert!(!client.is_gone(), "it has said something");
        client.read().expect("read");
        client.leave();
        for line in [b"one", b"two"] {
            assert!(!client.is_over(Instant::now()));
            assert_eq!((client.next_line(), client.next_line()), (Some(line.to_vec()), None));
            assert!(!client.is_gone() && !client.is_over(Instant::now()), "its request is under way");
            client.answer(b"1\n".to_vec());
            client.write(Instant::now());
        }
        assert_eq!(client.next_line(), None);
        assert!(client.is_over(Instant::now()));
        let (theirs, client) = pair();
        drop(theirs);
        assert!(client.is_gone());
    }

    #[test]
    fn an_endless_line_ends_the_connection_with_an_answer() {
        let (mut theirs, mut client) = pair();
        theirs.set_nonblocking(true).expect("set");
        while client.wants_read() {
            let _ = theirs.write(&[b'x'; READ_BYTES]);
            client.read().expect("read");
            assert_eq!(client.next_line(), None);
        }
        assert!(client.is_closing && client.input.is_empty());
        client.write(Instant::now());
        assert!(client.is_over(Instant::now()));
    }

    #[test]
    fn a_connection_that_another_process_made_blocking_makes_nobody_wait() {
        let (_theirs, mut client) = pair();
        let copy = client.share().expect("it is there").expect("a copy");
        ioctl_fionbio(&copy, false).expect("set");
        client.read().expect("nothing");
        client.answer(vec![b'x'; 8 << 20]);
        client.write(Instant::now());
        client.write(Instant::now());
        assert!(!client.has_left() && !client.output.is_empty());
        client.refuse(Fault::new(Kind::Limit, "no room".to_owned()));
    }

    #[test]
    fn a_client_that_does_not_read_is_dropped() {
        let (_theirs, mut client) = pair();
        let now = Instant::now();
        client.answer(vec![b'x'; 8 << 20]);
        client.write(now);
        assert_eq!(client.due(), Some(now + PATIENCE));
        assert!(!client.is_over(now) && client.is_over(now + PATIENCE));
    }
}
