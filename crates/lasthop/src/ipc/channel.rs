//! Frames over a real socket, never blocking, but for the pauses of a system that has no memory for them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use lasthop_control::shortage::Shortage;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frames::{Arrived, FRAME_FDS_MAX, FrameReader, FrameWriter};

/// Read at a time, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// Reads before the caller looks at other things again.
const READS_MAX: usize = 16;
/// Room for the descriptors of one message.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FRAME_FDS_MAX));

/// One end: sends `Out`, receives `In`.
#[derive(Debug)]
pub(crate) struct Channel<Out, In> {
    socket: OwnedFd,
    reader: FrameReader,
    writer: FrameWriter,
    shortage: Shortage,
    arrived: VecDeque<(In, Option<Vec<OwnedFd>>)>,
    out: PhantomData<Out>,
}

impl<Out: Serialize, In: DeserializeOwned> Channel<Out, In> {
    /// A channel over one end of a socket pair, which becomes non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        let (reader, writer, shortage) = Default::default();
        Ok(Self { socket, reader, writer, shortage, arrived: VecDeque::new(), out: PhantomData })
    }

    /// Queues a message with descriptors and sends what goes out at once. A message that is too long, or has too many
    /// descriptors, is an error of kind `InvalidInput`, and the channel goes on.
    pub(crate) fn send(&mut self, message: &Out, fds: impl IntoIterator<Item = OwnedFd>) -> io::Result<()> {
        let payload = serde_json::to_vec(message)?;
        let fds = fds.into_iter().collect();
        self.writer
            .push(&payload, fds)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.flush()
    }

    /// Sends what the socket takes. While the system has no memory for it, each call takes a pause: what waits is to be flushed again,
    /// as the socket says that it has room.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.flush_by(send_part)
    }

    fn flush_by(
        &mut self,
        mut send: impl FnMut(&OwnedFd, &[u8], &[OwnedFd]) -> rustix::io::Result<usize>,
    ) -> io::Result<()> {
        while let Some((bytes, fds)) = self.writer.front() {
            match send(&self.socket, bytes, fds) {
                Ok(count) => {
                    self.writer.advance(count);
                    self.shortage.end();
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::NOBUFS) => {
                    std::thread::sleep(self.shortage.hit(Instant::now()));
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether something waits for room in the socket.
    pub(crate) fn wants_write(&self) -> bool {
        !self.writer.is_empty()
    }

    /// Reads what is there, up to a bound. False once the other side has gone; what it sent before is still to be
    /// taken with [`Self::take`].
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
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

    /// The next message that has arrived, with its descriptors; none if this process had no room for all of them.
    pub(crate) fn take(&mut self) -> Option<(In, Option<Vec<OwnedFd>>)> {
        self.arrived.pop_front()
    }
}

impl<Out, In> AsFd for Channel<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_part(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) -> rustix::io::Result<usize> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        // The room is for as many as a frame may have.
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// One read brings the descriptors of one frame at most (unix(7)). Of those that it should have brought and for which this
/// process has no room, the system tells that there were some.
fn receive_part(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<Arrived>)> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
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
        UnixStream::from(fd).write_all(b"x").expect("written");
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
        one.writer.push(b"\"late\"", Vec::new()).expect("queued");
        for tries in 1..=3 {
            let mut sent = 0;
            let short = |_: &OwnedFd, _: &[u8], _: &[OwnedFd]| {
                sent += 1;
                Err(Errno::NOBUFS)
            };
            one.flush_by(short).expect("nobody has gone");
            assert_eq!((sent, one.wants_write()), (1, true), "try {tries}");
            assert!(one.shortage.due().is_some(), "the next pause is a longer one");
        }
        one.flush().expect("sent");
        assert!(!one.wants_write() && one.shortage.due().is_none());
        assert!(other.receive().expect("received"));
        assert!(matches!(other.take(), Some((text, _)) if text == "late"));
    }

    #[test]
    fn the_last_words_of_a_side_that_went_away_are_heard() {
        let (mut one, mut other) = pair();
        one.send(&"bye".to_owned(), None).expect("sent");
        drop(one);
        assert!(!other.receive().expect("the end"));
        assert!(matches!(other.take(), Some((text, _)) if text == "bye"));
    }
}
