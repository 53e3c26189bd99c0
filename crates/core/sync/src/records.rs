//! A ring of records of any length, from one thread to another one.

use std::collections::TryReserveError;

use crate::sync::{Arc, AtomicU64, AtomicUsize, Ordering};

/// Words of a record's head: its length in bytes, and two of its writer's.
const HEAD_WORDS: usize = 3;
/// Bytes of a word.
const WORD_BYTES: usize = size_of::<u64>();

/// A bounded ring of records, from one thread to another. Neither side waits; a record that does not fit is refused.
///
/// ```text
///   words   ... | len | head | head | bytes, padded to words | len | head | ...
///               ^ read                                        ^ written
/// ```
///
/// The words are relaxed atomics: the store of `written` publishes them, the store of `read` returns them.
#[derive(Debug)]
struct Ring {
    words: Box<[AtomicU64]>,
    written: Line,
    read: Line,
}

/// A position, in words since the beginning, on its own cache lines: writer and reader run on different cores.
#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicUsize);

/// The writing end.
#[derive(Debug)]
pub struct RecordWriter {
    ring: Arc<Ring>,
    written: usize,
    /// The reader's position when it was read last.
    read: usize,
}

/// The reading end.
#[derive(Debug)]
pub struct RecordReader {
    ring: Arc<Ring>,
    read: usize,
}

/// Creates a ring of at least `bytes`, rounded up to a power of two of words. All of its memory is touched, so the
/// writer causes no page fault.
///
/// # Errors
/// There is not enough memory.
pub fn records(bytes: usize) -> Result<(RecordWriter, RecordReader), TryReserveError> {
    let count = bytes.div_ceil(WORD_BYTES).next_power_of_two();
    let mut words = Vec::new();
    words.try_reserve_exact(count)?;
    words.resize_with(count, || AtomicU64::new(0));
    let line = || Line(AtomicUsize::new(0));
    let ring = Arc::new(Ring { words: words.into_boxed_slice(), written: line(), read: line() });
    Ok((RecordWriter { ring: Arc::clone(&ring), written: 0, read: 0 }, RecordReader { ring, read: 0 }))
}

impl Ring {
    #[inline]
    fn word(&self, position: usize) -> &AtomicU64 {
        &self.words[position & (self.words.len() - 1)]
    }

    /// The places of `count` words from a position on: up to the ring's end, and from its beginning.
    fn pieces(&self, position: usize, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let start = position & (self.words.len() - 1);
        let end = (start + count).min(self.words.len());
        (&self.words[start..end], &self.words[..count - (end - start)])
    }

    fn store(&self, position: usize, value: u64) {
        self.word(position).store(value, Ordering::Relaxed);
    }

    fn load(&self, position: usize) -> u64 {
        self.word(position).load(Ordering::Relaxed)
    }
}

/// Loads words from their places; both have the same length.
fn load_all(places: &[AtomicU64], words: &mut [[u8; WORD_BYTES]]) {
    for (place, word) in places.iter().zip(words) {
        *word = place.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// Stores words into their places; both have the same length.
fn store_all(places: &[AtomicU64], words: &[[u8; WORD_BYTES]]) {
    for (place, word) in places.iter().zip(words) {
        place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
}

impl RecordWriter {
    /// Appends a record and publishes it. Returns false if there is no room for it.
    pub fn push(&mut self, head: [u64; 2], bytes: &[u8]) -> bool {
        let words = HEAD_WORDS + bytes.len().div_ceil(WORD_BYTES);
        if !self.has_room(words) {
            return false;
        }
        let at = self.written;
        self.ring.store(at, bytes.len() as u64);
        self.ring.store(at.wrapping_add(1), head[0]);
        self.ring.store(at.wrapping_add(2), head[1]);
        let (first, second) = self.ring.pieces(at.wrapping_add(HEAD_WORDS), words - HEAD_WORDS);
        let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
        let (to_first, to_second) = whole.split_at(whole.len().min(first.len()));
        store_all(first, to_first);
        store_all(second, to_second);
        if !rest.is_empty() {
            let mut word = [0; WORD_BYTES];
            word[..rest.len()].copy_from_slice(rest);
            self.ring.store(at.wrapping_add(words - 1), u64::from_ne_bytes(word));
        }
        self.written = at.wrapping_add(words);
        self.ring.written.0.store(self.written, Ordering::Release);
        true
    }

    /// Whether records of `bytes` bytes in total fit now, including their heads of 24 bytes and padding to whole words.
    pub fn has_room_for(&mut self, bytes: usize) -> bool {
        self.has_room(bytes.div_ceil(WORD_BYTES))
    }

    #[inline]
    fn has_room(&mut self, words: usize) -> bool {
        let room = |read: usize| self.ring.words.len() - self.written.wrapping_sub(read);
        if room(self.read) >= words {
            return true;
        }
        let read = self.ring.read.0.load(Ordering::Acquire);
        let fits = room(read) >= words;
        self.read = read;
        fits
    }
}

impl RecordReader {
    /// The head of the oldest record.
    #[must_use]
    pub fn head(&self) -> Option<[u64; 2]> {
        let written = self.ring.written.0.load(Ordering::Acquire);
        let at = self.read;
        (written != at).then(|| [self.ring.load(at.wrapping_add(1)), self.ring.load(at.wrapping_add(2))])
    }

    /// Takes the oldest record. Its bytes replace those in `out`.
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Option<[u64; 2]> {
        let head = self.head()?;
        let len = self.ring.load(self.read) as usize;
        let words = len.div_ceil(WORD_BYTES);
        let first = self.read.wrapping_add(HEAD_WORDS);
        out.resize(words * WORD_BYTES, 0);
        let (one, other) = self.ring.pieces(first, words);
        let (to_one, to_other) = out.as_chunks_mut::<WORD_BYTES>().0.split_at_mut(one.len());
        load_all(one, to_one);
        load_all(other, to_other);
        out.truncate(len);
        self.read = first.wrapping_add(words);
        self.ring.read.0.store(self.read, Ordering::Release);
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop(reader: &mut RecordReader) -> Option<([u64; 2], Vec<u8>)> {
        let mut bytes = vec![1, 2, 3];
        reader.pop(&mut bytes).map(|head| (head, bytes))
    }

    #[test]
    fn records_of_all_lengths_come_out_as_they_went_in() {
        let (mut writer, mut reader) = records(512).unwrap();
        for lap in 0..200_u64 {
            let bytes: Vec<u8> = (0..lap % 60).map(|byte| (byte * lap) as u8).collect();
            assert!(writer.push([lap, !lap], &bytes));
            assert!(writer.push([lap, 7], &[]));
            assert_eq!(reader.head(), Some([lap, !lap]));
            assert_eq!(pop(&mut reader), Some(([lap, !lap], bytes)));
            assert_eq!(pop(&mut reader), Some(([lap, 7], Vec::new())));
            assert_eq!((reader.head(), pop(&mut reader)), (None, None));
        }
    }

    #[test]
    fn records_without_room_are_refused_without_harm() {
        let (mut writer, mut reader) = records(64).unwrap();
        assert!(!writer.push([0; 2], &[0; 41]), "six words besides the head");
        assert!(writer.push([1; 2], &[1; 40]), "all of it");
        assert!(!writer.push([2; 2], &[]));
        assert_eq!(pop(&mut reader), Some(([1; 2], vec![1; 40])));
        assert!(writer.push([3; 2], &[]) && writer.push([4; 2], &[9]));
        assert!(!writer.push([5; 2], &[]));
        assert_eq!(pop(&mut reader), Some(([3; 2], Vec::new())));
        assert_eq!(pop(&mut reader), Some(([4; 2], vec![9])));
    }

    #[test]
    fn threads_see_whole_records_in_order() {
        const RECORDS: u64 = if cfg!(miri) { 100 } else { 50_000 };
        let (mut writer, mut reader) = records(2048).unwrap();
        let thread = std::thread::spawn(move || {
            for number in 0..RECORDS {
                while !writer.push([number, 0], &[number as u8; 100][..number as usize % 100]) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < RECORDS {
            let Some((head, bytes)) = pop(&mut reader) else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(head, [next, 0]);
            assert_eq!(bytes, vec![next as u8; next as usize % 100]);
            next += 1;
        }
        thread.join().unwrap();
    }
}
