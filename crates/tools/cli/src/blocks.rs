//! Splits a stream of pcapng into blocks, so that output never ends within one, and counts them.

use lasthop_api::pcapng::{ENHANCED_PACKET, INTERFACE_STATISTICS, ISB_IFDROP};

/// Longest block, in bytes: a frame of the largest snap length, with its header.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Type, length, and length again.
const BLOCK_BYTES_MIN: usize = 12;
/// Bytes of an interface's statistics before the options.
const STATISTICS_HEAD_BYTES: usize = 20;

/// A stream that is read in pieces.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    pending: Vec<u8>,
    /// Number of packets written.
    pub(crate) packets: u64,
    /// Packets that the switch could not capture, once it has reported them.
    pub(crate) lost: Option<u64>,
}

impl Blocks {
    /// Takes the next piece, and returns the blocks that are complete now. `Err` if the bytes are no pcapng of ours.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Result<Vec<u8>, String> {
        self.pending.extend_from_slice(piece);
        let mut end = 0;
        while let Some(len) = self.block_len(end)? {
            self.count(end, len);
            end += len;
        }
        Ok(self.pending.drain(..end).collect())
    }

    /// Length of the block at `at`, if its header has arrived.
    fn block_len(&self, at: usize) -> Result<Option<usize>, String> {
        let Some(len) = self.word(at + 4) else { return Ok(None) };
        let len = len as usize;
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&len) || !len.is_multiple_of(4) {
            return Err(format!("the switch sent a block of {len} bytes"));
        }
        Ok((self.pending.len() - at >= len).then_some(len))
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.pending.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    fn count(&mut self, at: usize, len: usize) {
        match self.word(at) {
            Some(ENHANCED_PACKET) => self.packets += 1,
            Some(INTERFACE_STATISTICS) => {
                let options = self.pending.get(at + STATISTICS_HEAD_BYTES..at + len - 4).unwrap_or_default();
                *self.lost.get_or_insert_default() += lost(options);
            }
            _ => {}
        }
    }
}

/// The option `isb_ifdrop`.
fn lost(mut options: &[u8]) -> u64 {
    while let Some((&[code_low, code_high, len_low, len_high], rest)) = options.split_first_chunk() {
        let code = u16::from_le_bytes([code_low, code_high]);
        let len = usize::from(u16::from_le_bytes([len_low, len_high]));
        if code == ISB_IFDROP {
            return rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        }
        options = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    0
}

#[cfg(test)]
mod tests {
    use lasthop_engine::{CaptureDirection, CapturedFrame};

    use super::*;
    use lasthop_api::pcapng::{self, Statistics};

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        pcapng::begin(&mut file, &["a".to_owned(), "b".to_owned()], 100);
        for len in [0, 1, 60, 100] {
            let captured = CapturedFrame {
                time_ns: 1,
                interface: 0,
                direction: CaptureDirection::Inbound,
                len_bytes: 1000,
                dropped: None,
            };
            pcapng::packet(&mut file, &captured, &vec![1; len]);
        }
        for (interface, lost) in [(0, 5), (1, 7)] {
            pcapng::statistics(&mut file, interface, &Statistics { lost, ..Statistics::default() });
        }
        file
    }

    #[test]
    fn pieces_of_any_length_make_the_same_whole_blocks() {
        let file = file();
        for piece in [1, 3, 100, 10_000] {
            let mut blocks = Blocks::default();
            let mut out = Vec::new();
            for bytes in file.chunks(piece) {
                out.extend(blocks.take(bytes).expect("sound"));
            }
            assert_eq!((out == file, blocks.packets, blocks.lost), (true, 4, Some(12)));
        }
    }

    #[test]
    fn a_block_that_is_cut_off_is_not_passed_on() {
        let file = file();
        let mut blocks = Blocks::default();
        let out = blocks.take(&file[..file.len() - 1]).expect("sound");
        assert!(out.len() < file.len() - 1);
        assert_eq!(blocks.lost, Some(5));
    }

    #[test]
    fn what_is_no_pcapng_is_refused() {
        assert!(Blocks::default().take(&[0; 8]).is_err());
        assert!(Blocks::default().take(b"{\"jsonrpc\":").is_err());
    }
}
