//! A text in memory that outlives this process, complete at any moment.
//!
//! ```text
//!   byte 0                               byte SLOT_BYTES
//!   count | bytes | check | text ...     count | bytes | check | text ...      the one that fits its check and counts more
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pread, pwrite};

/// Room for one text: several times that of a port with all its rings, or of all static addresses. Unused pages take no
/// memory.
const SLOT_BYTES: usize = 4 << 20;
const HEAD_BYTES: usize = 24;
/// Longest text of a record, in bytes.
pub const TEXT_BYTES_MAX: usize = SLOT_BYTES - HEAD_BYTES;

/// Two slots, which are written alternately: if a process is killed while it writes one, the other one remains.
#[derive(Debug)]
pub(crate) struct Record {
    file: OwnedFd,
    count: u64,
}

impl Record {
    /// Creates a record without a text.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self { file: memfd_create("lasthop-record", MemfdFlags::CLOEXEC)?, count: 0 })
    }

    /// Reads the text that another process wrote, and returns the record to continue. `None` if no text is complete.
    pub(crate) fn read(file: OwnedFd) -> Option<(Self, Vec<u8>)> {
        let (count, text) =
            (0..2).filter_map(|slot| read_slot(&file, slot)).max_by_key(|(count, _)| *count)?;
        Some((Self { file, count }, text))
    }

    /// Replaces the text. After an error the earlier text remains.
    pub(crate) fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(io::Error::other(format!("{} bytes are too many to be kept", text.len())));
        }
        let count = self.count + 1;
        let head = [count, text.len() as u64, check(count, text)].map(u64::to_le_bytes).concat();
        write_all(&self.file, &[&head, text].concat(), start_of(count % 2))?;
        self.count = count;
        Ok(())
    }
}

impl AsFd for Record {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn start_of(slot: u64) -> u64 {
    slot * SLOT_BYTES as u64
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_slot(file: &OwnedFd, slot: u64) -> Option<(u64, Vec<u8>)> {
    let start = start_of(slot);
    let head = read_exact(file, HEAD_BYTES, start)?;
    let word = |at: usize| head[8 * at..8 * at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
    let (count, len, sum) = (word(0), word(1), word(2));
    let len = usize::try_from(len).ok().filter(|len| *len <= TEXT_BYTES_MAX)?;
    let text = read_exact(file, len, start + HEAD_BYTES as u64)?;
    (count > 0 && check(count, &text) == sum).then_some((count, text))
}

fn read_exact(file: &OwnedFd, len: usize, at: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match pread(file, &mut bytes[done..], at + done as u64) {
            Ok(0) => return None,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(bytes)
}

/// FNV-1a over the count and the text, only to detect an incomplete text.
fn check(count: u64, text: &[u8]) -> u64 {
    let bytes = count.to_le_bytes();
    let all = bytes.iter().chain(text);
    all.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(record: &Record) -> Option<Vec<u8>> {
        let copy = record.file.try_clone().expect("a copy");
        Record::read(copy).map(|(_, text)| text)
    }

    #[test]
    fn the_last_text_is_read() {
        let mut record = Record::create().expect("memory");
        assert_eq!(read(&record), None);
        for text in ["one", "", "a third one", "two"] {
            record.write(text.as_bytes()).expect("written");
            assert_eq!(read(&record).as_deref(), Some(text.as_bytes()));
        }
        let (mut next, _) = Record::read(record.file).expect("a text");
        next.write(b"by the next process").expect("written");
        assert_eq!(read(&next).as_deref(), Some(&b"by the next process"[..]));
    }

    #[test]
    fn whoever_is_killed_while_writing_leaves_the_text_before() {
        let text = b"what was to be written";
        let head = [3, text.len() as u64, check(3, text)].map(u64::to_le_bytes).concat();
        let bytes = [&head, &text[..]].concat();
        for written in 0..=bytes.len() {
            let mut record = Record::create().expect("memory");
            record.write(b"long before, and longer than all others").expect("written");
            record.write(b"before").expect("written");
            write_all(&record.file, &bytes[..written], start_of(1)).expect("written");
            let expected = if written == bytes.len() { &text[..] } else { b"before" };
            assert_eq!(read(&record).as_deref(), Some(expected), "{written}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_the_last_text_holds() {
        let mut record = Record::create().expect("memory");
        record.write(b"short").expect("written");
        assert!(record.write(&vec![b'x'; SLOT_BYTES]).is_err());
        assert_eq!(read(&record).as_deref(), Some(&b"short"[..]));
    }

    #[test]
    fn what_is_no_record_is_none() {
        let file = memfd_create("other", MemfdFlags::CLOEXEC).expect("memory");
        write_all(&file, &[0xff; 4096], 0).expect("written");
        assert!(Record::read(file).is_none());
    }
}
