//! Frames over a real socket, never blocking.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use lasthop_foreign::{ForeignFd, Shortage};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::poller::Interest;

use super::frames::{Arrived, FRAME_FDS_MAX, FrameError, FrameReader, FrameWriter, Precedence};

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 * 1024;
/// Reads in a row before the caller does other work.
const READS_MAX: usize = 16;
/// Room for the descriptors of one message.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FRAME_FDS_MAX));

/// One end: sends `Out`, receives `In`.
#[derive(Debug)]
pub struct Channel<Out, In> {
    socket: ForeignFd,
    reader: FrameReader,
    writer: FrameWriter,
    /// Set after a lack of memory or of another resource, which concerns all messages.
    shortage: Shortage,
    /// Set after a refusal of messages with descriptors.
    fds_shortage: Shortage,
    arrived: VecDeque<(In, Option<Vec<ForeignFd>>)>,
    /// Whether the other side reads so little that the channel has ended.
    is_overrun: bool,
    out: PhantomData<Out>,
}

impl<Out: Serialize, In: DeserializeOwned> Channel<Out, In> {
    /// Makes a channel of one end of a socket pair, which becomes non-blocking.
    pub fn new(socket: ForeignFd) -> io::Result<Self> {
        fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        let (reader, writer, shortage, fds_shortage) = Default::default();
        let arrived = VecDeque::new();
        let is_overrun = false;
        Ok(Self { socket, reader, writer, shortage, fds_shortage, arrived, is_overrun, out: PhantomData })
    }

    /// Queues a message with its descriptors, and sends while the socket takes bytes. A message that is too long, or
    /// has too many descriptors, is an error of kind `InvalidInput`, and the channel stays usable.
    ///
    /// A message by which more than `QUEUE_BYTES_MAX` would wait ends the channel, as if the other side was gone: that
    /// side could not get everything any more that it needs.
    pub fn send(&mut self, message: &Out, fds: impl IntoIterator<Item = ForeignFd>) -> io::Result<()> {
        self.send_to(Precedence::Ahead, message, fds)
    }

    /// Like [`send`](Self::send), for a message that later ones may overtake: those sent by `send` without descriptors
    /// do not wait for it while the system refuses descriptors. Messages sent in this way keep their order.
    pub fn send_patiently(
        &mut self,
        message: &Out,
        fds: impl IntoIterator<Item = ForeignFd>,
    ) -> io::Result<()> {
        self.send_to(Precedence::CanWait, message, fds)
    }

    fn send_to(
        &mut self,
        precedence: Precedence,
        message: &Out,
        fds: impl IntoIterator<Item = ForeignFd>,
    ) -> io::Result<()> {
        let payload = serde_json::to_vec(message)?;
        let fds = fds.into_iter().collect();
        match self.writer.push(&payload, fds, precedence) {
            Err(FrameError::QueueFull) => {
                self.is_overrun = true;
                self.writer = FrameWriter::default();
            }
            pushed => pushed.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
        }
        self.flush()
    }

    /// Whether the other side has read so little that the channel has ended.
    pub fn is_overrun(&self) -> bool {
        self.is_overrun
    }

    /// Sends while the socket takes bytes. If the system refuses, for lack of memory or because of too many descriptors
    /// in flight, nothing is tried until it is [`due`](Self::due).
    ///
    /// # Errors
    /// If the other side has gone.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_by(send_part)
    }

    fn flush_by(
        &mut self,
        mut send: impl FnMut(&ForeignFd, &[u8], &[ForeignFd]) -> rustix::io::Result<usize>,
    ) -> io::Result<()> {
        if self.is_overrun {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let now = Instant::now();
        self.shortage.take_over(now);
        self.fds_shortage.take_over(now);
        while self.refused_until().is_none() || self.overtake() {
            let Some((bytes, fds)) = self.writer.front() else { break };
            let has_fds = !fds.is_empty();
            let sent = send(&self.socket, bytes, fds);
            let shortage = if has_fds { &mut self.fds_shortage } else { &mut self.shortage };
            match sent {
                Ok(count) => {
                    shortage.end();
                    self.writer.advance(count);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error @ (Errno::PIPE | Errno::CONNRESET)) => return Err(error.into()),
                // No memory, or this user has too many descriptors in flight (ETOOMANYREFS). Both are transient.
                Err(_) => _ = shortage.hit(now),
            }
        }
        Ok(())
    }

    /// Moves a message without descriptors before the next one, whose descriptors are refused.
    fn overtake(&mut self) -> bool {
        self.shortage.due().is_none() && self.writer.overtake()
    }

    /// Whether messages wait to be sent.
    pub fn wants_write(&self) -> bool {
        !self.writer.is_empty()
    }

    /// Until when the next message waits after a refusal by the system.
    fn refused_until(&self) -> Option<Instant> {
        let (_, fds) = self.writer.front()?;
        self.shortage.due().or_else(|| self.fds_shortage.due().filter(|_| !fds.is_empty()))
    }

    /// When to call [`flush`](Self::flush) without an event, after a refusal by the system.
    pub fn due(&self) -> Option<Instant> {
        self.refused_until()
    }

    /// The events to wait for. Room is one of them only if the socket is the only reason to wait.
    pub fn interest(&self) -> Interest {
        Interest { read: true, write: self.wants_write() && self.refused_until().is_none() }
    }

    /// Reads available bytes, up to a bound. Returns false once the other side has gone; its last messages can still be
    /// read with [`Self::take`].
    pub fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            match receive_part(&self.socket, &mut bytes) {
                Ok((0, _)) => return Ok(false),
                Ok((count, fds)) => {
                    self.reader.push(&bytes[..count], fds);
                    self.decode()?;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn decode(&mut self) -> io::Result<()> {
        while let Some(frame) = self.reader.next().map_err(io::Error::other)? {
            self.arrived.push_back((serde_json::from_slice(&frame.payload)?, frame.fds));
        }
        Ok(())
    }

    /// The next message with its descriptors; these are `None` if this process had no room for all of them.
    pub fn take(&mut self) -> Option<(In, Option<Vec<ForeignFd>>)> {
        self.arrived.pop_front()
    }
}

impl<Out, In> AsFd for Channel<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_part(socket: &ForeignFd, bytes: &[u8], fds: &[ForeignFd]) -> rustix::io::Result<usize> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        // There is room for as many as a frame may have.
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// One read brings the descriptors of at most one frame (unix(7)). If this process has no room for some, the system
/// only tells that there were some.
fn receive_part(socket: &ForeignFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<Arrived>)> {
    let mut fds = Vec::new();
    let received =
        lasthop_foreign::receive(socket.as_fd(), bytes, RecvFlags::empty(), socket.origin(), &mut fds)?;
    let is_cut = received.is_cut;
    let arrived = (is_cut || !fds.is_empty()).then_some(Arrived { fds, is_cut });
    Ok((received.bytes, arrived))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    type Text = Channel<String, String>;

    fn pair() -> (Text, Text) {
        let (one, other) = UnixStream::pair().expect("a pair");
        (Text::new(one.into()).expect("a channel"), Text::new(other.into()).expect("a channel"))
    }

    #[test]
    fn messages_and_a_working_descriptor_arrive_in_order() {
        let (mut one, mut other) = pair();
        let (mut near, far) = UnixStream::pair().expect("a pair");
        one.send(&"a".to_owned(), None).expect("sent");
        one.send(&"b".to_owned(), Some(far.into())).expect("sent");
        assert!(other.receive().expect("received"));
        assert!(matches!(other.take(), Some((text, Some(fds))) if text == "a" && fds.is_empty()));
        let fd = other.take().and_then(|(_, fds)| fds?.pop()).expect("a descriptor");
        UnixStream::from(fd.into_trusted()).write_all(b"x").expect("written");
        let mut byte = [0];
        near.read_exact(&mut byte).expect("read");
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_message_larger_than_the_socket_takes_several_turns() {
        let (mut one, mut other) = pair();
        let text = "x".repeat(3 << 20);
        one.send(&text, None).expect("queued");
        assert!(one.wants_write());
        let arrived = loop {
            other.receive().expect("received");
            one.flush().expect("flushed");
            if let Some((arrived, _)) = other.take() {
                break arrived;
            }
        };
        assert!(arrived == text && !one.wants_write());
    }

    #[test]
    fn a_message_that_there_is_no_memory_for_waits_and_is_sent() {
        let (mut one, mut other) = pair();
        one.writer.push(b"\"late\"", Vec::new(), Precedence::Ahead).expect("queued");
        for refusal in [Errno::NOBUFS, Errno::NOMEM, Errno::TOOMANYREFS, Errno::PERM] {
            let mut sent = 0;
            let short = |_: &ForeignFd, _: &[u8], _: &[ForeignFd]| {
                sent += 1;
                Err(refusal)
            };
            one.flush_by(short).expect("the other side is there");
            assert_eq!((sent, one.wants_write(), one.interest().write), (1, true, false), "{refusal}");
            let due = one.due().expect("it is tried again");
            let early = |_: &ForeignFd, _: &[u8], _: &[ForeignFd]| {
                assert!(Instant::now() >= due, "not before");
                Err(refusal)
            };
            one.flush_by(early).expect("the other side is there");
            let due = one.due().expect("it is tried again");
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let gone = one.flush_by(|_, _, _| Err(Errno::PIPE)).expect_err("the end");
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
        one.flush().expect("sent");
        assert!(!one.wants_write() && one.shortage.due().is_none());
        assert!(other.receive().expect("received"));
        assert!(matches!(other.take(), Some((text, _)) if text == "late"));
    }

    #[test]
    fn messages_without_descriptors_do_not_wait_for_descriptors_that_are_refused() {
        let (mut one, mut other) = pair();
        let texts = |other: &mut Text| {
            assert!(other.receive().expect("received"));
            std::iter::from_fn(|| other.take()).map(|(text, _)| text).collect::<Vec<_>>()
        };
        let refuse_fds = |socket: &ForeignFd, bytes: &[u8], fds: &[ForeignFd]| match fds {
            [] => send_part(socket, bytes, fds),
            _ => Err(Errno::TOOMANYREFS),
        };
        let (_near, far) = UnixStream::pair().expect("a pair");
        let push = |one: &mut Text, text: &str, fds, precedence| {
            one.writer.push(format!("\"{text}\"").as_bytes(), fds, precedence).expect("queued");
        };
        push(&mut one, "session", vec![far.into()], Precedence::CanWait);
        push(&mut one, "of the session", vec![], Precedence::CanWait);
        push(&mut one, "answer", vec![], Precedence::Ahead);
        one.flush_by(refuse_fds).expect("the other side is there");
        assert_eq!(texts(&mut other), ["answer"]);
        assert!(one.due().is_some() && !one.interest().write, "time helps, and room does not");
        push(&mut one, "another", vec![], Precedence::Ahead);
        one.flush_by(refuse_fds).expect("the other side is there");
        assert_eq!(texts(&mut other), ["another"]);
        let due = one.due().expect("the session is tried again");
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        one.flush().expect("sent");
        assert_eq!(texts(&mut other), ["session", "of the session"]);
        assert!(!one.wants_write() && one.due().is_none());
    }

    #[test]
    fn answers_wait_for_room_in_the_socket_while_descriptors_are_refused() {
        let (mut one, mut other) = pair();
        let (_near, far) = UnixStream::pair().expect("a pair");
        one.writer.push(b"\"session\"", vec![far.into()], Precedence::CanWait).expect("queued");
        one.flush_by(|_, _, _| Err(Errno::TOOMANYREFS)).expect("the other side is there");
        assert!(one.due().is_some());
        one.writer.push(b"\"answer\"", vec![], Precedence::Ahead).expect("queued");
        one.flush_by(|_, _, _| Err(Errno::AGAIN)).expect("the other side is there");
        assert!(one.interest().write && one.due().is_none(), "the answer is next, and waits for room");
        one.flush_by(|_, _, _| Err(Errno::NOBUFS)).expect("the other side is there");
        assert!(!one.interest().write && one.due().is_some(), "there is no memory for any");
        while one.wants_write() {
            one.flush().expect("the other side is there");
        }
        assert!(other.receive().expect("received"));
        assert!(matches!(other.take(), Some((text, _)) if text == "answer"));
        assert!(matches!(other.take(), Some((text, Some(fds))) if text == "session" && fds.len() == 1));
    }

    #[test]
    fn a_side_that_does_not_read_ends_the_channel_at_a_bound() {
        let (mut one, mut other) = pair();
        let text = "x".repeat(1 << 20);
        let sent = (0..).map(|_| one.send(&text, None)).find_map(Result::err).expect("a bound");
        assert_eq!(sent.kind(), io::ErrorKind::BrokenPipe);
        assert!(one.is_overrun() && !one.wants_write(), "nothing waits any more");
        assert!(one.send(&"x".to_owned(), None).is_err());
        assert!(other.receive().expect("the rest of what was sent"));
    }

    #[test]
    fn the_last_words_of_a_side_that_went_away_are_heard() {
        let (mut one, mut other) = pair();
        one.send(&"bye".to_owned(), None).expect("sent");
        drop(one);
        // A thread of its own closes it, some time later.
        while other.receive().expect("the end") {
            std::thread::yield_now();
        }
        assert!(matches!(other.take(), Some((text, _)) if text == "bye"));
    }
}
