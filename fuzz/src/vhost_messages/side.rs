//! The session under test: its state machine alone, or behind a socket.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lasthop_vhost::message::{HEADER_BYTES, MessageHeader, VhostMessage};
use lasthop_vhost::{Protocol, Session, SessionEnd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::recorder::Recorder;

/// File descriptors that one message of ours may carry: more than a session takes.
pub(super) const FDS_MAX: usize = 10;

pub(super) enum Side {
    Direct(Protocol<Recorder>),
    Socket { session: Session<Recorder>, front: UnixStream },
}

impl Side {
    pub(super) fn new(through_socket: bool, recorder: Recorder) -> Self {
        if !through_socket {
            return Self::Direct(Protocol::new(recorder));
        }
        let (front, back) = UnixStream::pair().expect("a pair of sockets");
        front.set_nonblocking(true).expect("our own socket");
        let session = Session::new(back.into(), recorder).expect("our own socket");
        Self::Socket { session, front }
    }

    /// The session's answer to a message; on a socket, one that comes in two pieces.
    pub(super) fn tell(
        &mut self,
        message: &VhostMessage,
        fds: Vec<OwnedFd>,
        cut: usize,
    ) -> Result<Option<VhostMessage>, SessionEnd> {
        let (session, front) = match self {
            Self::Direct(protocol) => {
                return protocol.handle(message, fds.into_iter().map(Into::into).collect());
            }
            Self::Socket { session, front } => (session, front),
        };
        await_closes(session);
        let bytes = message.encode();
        let (first, second) = bytes.split_at(cut.clamp(1, bytes.len()));
        send(front, first, &fds)?;
        drop(fds);
        if !second.is_empty() {
            session.ready()?;
            assert!(reply(front).is_none(), "a reply to half a message");
            send(front, second, &[])?;
        }
        session.ready()?;
        let told = reply(front);
        assert!(reply(front).is_none(), "two replies to one message");
        Ok(told)
    }

    /// Bytes that need not be messages; replies are thrown away.
    pub(super) fn send_garbage(&mut self, bytes: &[u8]) -> Result<(), SessionEnd> {
        let Self::Socket { session, front } = self else { return Ok(()) };
        await_closes(session);
        send(front, bytes, &[])?;
        session.ready()?;
        while reply(front).is_some() {}
        Ok(())
    }
}

/// A session takes nothing while too many descriptors that it was sent wait to be closed by other threads.
fn await_closes(session: &Session<Recorder>) {
    while session.socket().origin().is_full() {
        std::thread::sleep(Duration::from_micros(100));
    }
}

pub(super) fn send(front: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(front, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next reply, which comes whole.
fn reply(front: &mut UnixStream) -> Option<VhostMessage> {
    let mut bytes = [0; HEADER_BYTES];
    front.read_exact(&mut bytes).ok()?;
    let MessageHeader { request, flags, size } =
        MessageHeader::decode(bytes).check().expect("a reply has a good header");
    let mut body = vec![0; size as usize];
    front.read_exact(&mut body).expect("a reply is as long as it says");
    Some(VhostMessage { request, flags, body })
}
