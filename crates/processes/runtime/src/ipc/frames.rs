//! Frames without a socket: converts bytes and descriptors to frames and back.

use lasthop_foreign::ForeignFd;
use std::collections::VecDeque;
use thiserror::Error;

/// Largest frame, in bytes: all counters of 1024 ports, or a full forwarding table of 16384 addresses, several times.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Descriptors with one frame: a guest's connection; or a port's and up to three for each of its 32 queues. The system allows
/// 253 (unix(7), SCM_MAX_FD).
pub const FRAME_FDS_MAX: usize = 128;
/// Most bytes that wait for a peer that does not read: several times those of a start with 1024 ports and all their
/// guests.
pub(crate) const QUEUE_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;
/// Length and number of descriptors.
const HEADER_BYTES: usize = 8;

/// A fault in bytes from the other process.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    #[error("a frame with {0} descriptors")]
    TooManyFds(usize),
    #[error("a frame without the descriptors that it announces")]
    FdsMissing,
    #[error("descriptors that belong to no frame")]
    FdsLeft,
    #[error("more than {QUEUE_BYTES_MAX} bytes wait for a process that does not read them")]
    QueueFull,
}

/// One message.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) payload: Vec<u8>,
    /// The descriptors that were sent with it. `None` if some were lost because the receiver had no room for them.
    pub(crate) fds: Option<Vec<ForeignFd>>,
}

/// Descriptors of one read, which belong to one frame.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) fds: Vec<ForeignFd>,
    /// Whether further ones were lost.
    pub(crate) is_cut: bool,
}

/// Assembles frames from a socket's bytes.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    bytes: Vec<u8>,
    fds: VecDeque<Arrived>,
}

impl FrameReader {
    /// Adds the result of one read. Lost descriptors keep their place, or a frame would get those of the next one.
    pub(crate) fn push(&mut self, bytes: &[u8], fds: Option<Arrived>) {
        self.bytes.extend_from_slice(bytes);
        self.fds.extend(fds);
    }

    /// The next complete frame, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((length, fds)) = self.header() else { return self.unfinished() };
        check(length, fds)?;
        if self.bytes.len() < HEADER_BYTES + length {
            return self.unfinished();
        }
        let fds = self.fds_of_frame(fds)?;
        let payload = self.bytes[HEADER_BYTES..HEADER_BYTES + length].to_vec();
        self.bytes.drain(..HEADER_BYTES + length);
        Ok(Some(Frame { payload, fds }))
    }

    /// Called if no frame is complete: checks that there are no descriptors except those of the incomplete frame.
    fn unfinished(&self) -> Result<Option<Frame>, FrameError> {
        let count = self.fds.front().map_or(0, |arrived| arrived.fds.len());
        match () {
            () if self.fds.len() > 1 => Err(FrameError::FdsLeft),
            () if count > FRAME_FDS_MAX => Err(FrameError::TooManyFds(count)),
            () => Ok(None),
        }
    }

    /// The `count` descriptors that the next frame announces.
    fn fds_of_frame(&mut self, count: usize) -> Result<Option<Vec<ForeignFd>>, FrameError> {
        if count == 0 {
            return Ok(Some(Vec::new()));
        }
        match self.fds.pop_front() {
            Some(Arrived { is_cut: true, .. }) => Ok(None),
            Some(Arrived { fds, .. }) if fds.len() == count => Ok(Some(fds)),
            _ => Err(FrameError::FdsMissing),
        }
    }

    fn header(&self) -> Option<(usize, usize)> {
        let (length, rest) = self.bytes.split_first_chunk::<4>()?;
        let fds = rest.first_chunk::<4>()?;
        Some((u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*fds) as usize))
    }
}

/// Frames that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct FrameWriter {
    frames: VecDeque<Outgoing>,
    /// Bytes of all frames, including the parts already sent.
    len_bytes: usize,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<ForeignFd>,
    precedence: Precedence,
}

/// Whether a frame may overtake earlier ones once the system refuses their descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// Before those that can wait, and after the others.
    Ahead,
    /// After all others.
    CanWait,
}

impl FrameWriter {
    /// Adds a frame after the others.
    pub(crate) fn push(
        &mut self,
        payload: &[u8],
        fds: Vec<ForeignFd>,
        precedence: Precedence,
    ) -> Result<(), FrameError> {
        let bytes = frame(payload, fds.len())?;
        if self.len_bytes + bytes.len() > QUEUE_BYTES_MAX {
            return Err(FrameError::QueueFull);
        }
        self.len_bytes += bytes.len();
        self.frames.push_back(Outgoing { bytes, sent: 0, fds, precedence });
        Ok(())
    }

    /// The next output: bytes of one frame, and the descriptors that go with its first byte.
    pub(crate) fn front(&self) -> Option<(&[u8], &[ForeignFd])> {
        self.frames.front().map(|frame| (&frame.bytes[frame.sent..], frame.fds.as_slice()))
    }

    /// Moves the first frame that may overtake before those that can wait. Returns false if there is none, or if it has
    /// descriptors, too.
    pub(crate) fn overtake(&mut self) -> bool {
        // A frame whose descriptors wait has not begun, so no other bytes get between its own.
        let is_begun = self.frames.front().is_some_and(|frame| frame.sent > 0);
        let next = self.frames.iter().position(|frame| frame.precedence == Precedence::Ahead);
        let next = next.filter(|&at| !is_begun && self.frames[at].fds.is_empty());
        if let Some(frame) = next.and_then(|at| self.frames.remove(at)) {
            self.frames.push_front(frame);
        }
        next.is_some()
    }

    /// Removes `count` sent bytes from the front, and the descriptors.
    pub(crate) fn advance(&mut self, count: usize) {
        let Some(frame) = self.frames.front_mut() else { return };
        frame.sent += count;
        frame.fds.clear();
        if frame.sent >= frame.bytes.len() {
            self.len_bytes -= frame.bytes.len();
            self.frames.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Encodes a frame that is sent with `fds` descriptors.
pub(crate) fn frame(payload: &[u8], fds: usize) -> Result<Vec<u8>, FrameError> {
    check(payload.len(), fds)?;
    let header = [payload.len() as u32, fds as u32].map(u32::to_le_bytes);
    Ok([header.as_flattened(), payload].concat())
}

fn check(length: usize, fds: usize) -> Result<(), FrameError> {
    match () {
        () if length > FRAME_BYTES_MAX => Err(FrameError::TooLong(length)),
        () if fds > FRAME_FDS_MAX => Err(FrameError::TooManyFds(fds)),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use proptest::prelude::*;

    use super::*;

    fn fd() -> ForeignFd {
        OwnedFd::from(std::fs::File::open("/dev/null").expect("a descriptor")).into()
    }

    fn header(length: u32, fds: u32) -> Vec<u8> {
        [length.to_le_bytes(), fds.to_le_bytes()].concat()
    }

    fn whole(fds: Vec<ForeignFd>) -> Option<Arrived> {
        (!fds.is_empty()).then_some(Arrived { fds, is_cut: false })
    }

    fn count(frame: &Frame) -> Option<usize> {
        frame.fds.as_ref().map(Vec::len)
    }

    #[test]
    fn descriptors_come_out_with_their_frame_only() {
        let mut writer = FrameWriter::default();
        writer.push(b"first", vec![], Precedence::Ahead).expect("small");
        writer.push(b"second", vec![fd(), fd(), fd()], Precedence::Ahead).expect("small");
        let mut reader = FrameReader::default();
        while let Some((bytes, fds)) = writer.front() {
            let count = bytes.len().min(3);
            let fds: Vec<_> = fds.iter().map(|fd| fd.try_clone().expect("a copy")).collect();
            reader.push(&bytes[..count], whole(fds));
            writer.advance(count);
        }
        let first = reader.next().expect("valid").expect("whole");
        assert_eq!((first.payload.as_slice(), count(&first)), (b"first".as_slice(), Some(0)));
        let second = reader.next().expect("valid").expect("whole");
        assert_eq!((second.payload.as_slice(), count(&second)), (b"second".as_slice(), Some(3)));
        assert!(reader.next().expect("valid").is_none());
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_room_comes_back() {
        let mut writer = FrameWriter::default();
        let payload = vec![0; FRAME_BYTES_MAX - HEADER_BYTES];
        for _ in 0..QUEUE_BYTES_MAX / FRAME_BYTES_MAX {
            writer.push(&payload, vec![], Precedence::Ahead).expect("room");
        }
        assert_eq!(writer.push(b"", vec![], Precedence::Ahead), Err(FrameError::QueueFull));
        writer.advance(FRAME_BYTES_MAX - 1);
        assert_eq!(
            writer.push(b"", vec![], Precedence::Ahead),
            Err(FrameError::QueueFull),
            "the first frame is whole still"
        );
        writer.advance(1);
        writer.push(&payload, vec![], Precedence::Ahead).expect("room");
        assert_eq!(writer.push(b"", vec![], Precedence::Ahead), Err(FrameError::QueueFull));
    }

    #[test]
    fn frames_ahead_overtake_those_that_can_wait_and_keep_their_order() {
        let mut writer = FrameWriter::default();
        assert!(!writer.overtake(), "there is none");
        writer.push(b"news 1", vec![fd()], Precedence::CanWait).expect("small");
        assert!(!writer.overtake(), "it can wait");
        writer.push(b"answer 1", vec![], Precedence::Ahead).expect("small");
        writer.push(b"news 2", vec![], Precedence::CanWait).expect("small");
        writer.push(b"answer 2", vec![], Precedence::Ahead).expect("small");
        writer.push(b"answer 3", vec![fd()], Precedence::Ahead).expect("small");
        writer.push(b"answer 4", vec![], Precedence::Ahead).expect("small");
        let mut sent = Vec::new();
        let mut send_front = |writer: &mut FrameWriter| {
            let bytes = writer.front().expect("a frame").0.to_vec();
            writer.advance(1);
            assert!(bytes.len() == 1 || !writer.overtake(), "a frame that has begun is sent to its end");
            writer.advance(bytes.len() - 1);
            sent.push(String::from_utf8(bytes[HEADER_BYTES..].to_vec()).expect("text"));
        };
        while writer.overtake() {
            send_front(&mut writer);
        }
        while !writer.is_empty() {
            send_front(&mut writer);
        }
        assert_eq!(sent, ["answer 1", "answer 2", "news 1", "news 2", "answer 3", "answer 4"]);
        assert_eq!(writer.len_bytes, 0);
    }

    #[test]
    fn lost_descriptors_are_not_taken_for_those_of_the_next_frame() {
        let mut reader = FrameReader::default();
        reader.push(&header(0, 2), Some(Arrived { fds: vec![fd()], is_cut: true }));
        reader.push(&header(0, 1), whole(vec![fd()]));
        let mut arrived = || count(&reader.next().expect("valid").expect("whole"));
        assert_eq!([arrived(), arrived()], [None, Some(1)]);
    }

    #[test]
    fn what_breaks_the_rules_is_an_error() {
        let result = |bytes: &[u8], fds: Vec<ForeignFd>| {
            let mut reader = FrameReader::default();
            reader.push(bytes, whole(fds));
            reader.next().map(|frame| frame.is_some())
        };
        let too_long = FRAME_BYTES_MAX + 1;
        assert_eq!(result(&header(too_long as u32, 0), vec![]), Err(FrameError::TooLong(too_long)));
        let too_many = FRAME_FDS_MAX + 1;
        assert_eq!(result(&header(0, too_many as u32), vec![]), Err(FrameError::TooManyFds(too_many)));
        assert_eq!(result(&header(0, 1), vec![]), Err(FrameError::FdsMissing));
        assert_eq!(result(&header(0, 2), vec![fd()]), Err(FrameError::FdsMissing));
        let mut reader = FrameReader::default();
        reader.push(b"", whole(vec![fd()]));
        reader.push(b"", whole(vec![fd()]));
        assert_eq!(reader.next().map(|frame| frame.is_some()), Err(FrameError::FdsLeft));
        let mut reader = FrameReader::default();
        reader.push(&header(100, 1), whole(vec![fd()]));
        assert_eq!(reader.next().map(|frame| frame.is_some()), Ok(false), "it is not whole");
        reader.push(b"x", whole(vec![fd()]));
        assert_eq!(reader.next().map(|frame| frame.is_some()), Err(FrameError::FdsLeft));
        let surplus = (0..too_many).map(|_| fd()).collect();
        assert_eq!(result(b"x", surplus), Err(FrameError::TooManyFds(too_many)));
        assert_eq!(result(&header(0, 0), vec![]), Ok(true));
        let fds = (0..too_many).map(|_| fd()).collect();
        assert_eq!(
            FrameWriter::default().push(b"", fds, Precedence::Ahead),
            Err(FrameError::TooManyFds(too_many))
        );
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..8),
            cut in 1usize..20,
        ) {
            let mut writer = FrameWriter::default();
            for payload in &payloads {
                writer.push(payload, vec![], Precedence::Ahead).expect("small");
            }
            let mut reader = FrameReader::default();
            let mut arrived = Vec::new();
            while let Some((bytes, _)) = writer.front() {
                let count = bytes.len().min(cut);
                reader.push(&bytes[..count], None);
                writer.advance(count);
                while let Some(frame) = reader.next().expect("valid") {
                    arrived.push(frame.payload);
                }
            }
            prop_assert_eq!(arrived, payloads);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes, None);
            while let Ok(Some(_)) = reader.next() {}
        }
    }
}
