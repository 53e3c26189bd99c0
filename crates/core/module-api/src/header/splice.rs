//! Inserts headers into an image and removes them. Payload never moves; offsets in the metadata follow.

use lasthop_wire::gso::FRAME_BYTES_MAX;

use super::Header;
use crate::DropReason;

impl Header {
    /// Inserts `bytes` at `at`.
    ///
    /// # Errors
    /// [`DropReason::TooLong`] if the frame or its image would be too long, [`DropReason::ActionImpossible`] if the
    /// image ends before `at`, [`DropReason::BadCsum`] if its checksum starts before `at`. Nothing has changed then.
    pub fn insert(&mut self, at: usize, bytes: &[u8]) -> Result<(), DropReason> {
        let (len, more) = (usize::from(self.len), bytes.len());
        if self.frame_len_bytes() as usize + more > FRAME_BYTES_MAX as usize || len + more > self.room() {
            return Err(DropReason::TooLong);
        }
        self.check_splice(at, at)?;
        // Both values are below 256.
        let more_bytes = more as u16;
        self.move_splice(at, |offset| offset.checked_add(more_bytes))?;
        self.bytes.copy_within(at..len, at + more);
        self.bytes[at..at + more].copy_from_slice(bytes);
        self.set_image_len(self.len + more_bytes);
        Ok(())
    }

    /// Removes `count` bytes from `at` on.
    ///
    /// # Errors
    /// [`DropReason::ActionImpossible`] if the image ends inside them, [`DropReason::BadCsum`] if the frame's checksum
    /// starts before their end. Nothing has changed then.
    pub fn remove(&mut self, at: usize, count: usize) -> Result<(), DropReason> {
        self.check_splice(at, at + count)?;
        let fewer = count as u16; // below 256
        self.move_splice(at, |offset| offset.checked_sub(fewer))?;
        self.bytes.copy_within(at + count..usize::from(self.len), at);
        self.set_image_len(self.len - fewer);
        Ok(())
    }

    /// Replaces the `count` bytes of payload at `at` by `bytes`. The image must hold the whole frame. Offsets of
    /// headers and checksums do not change, since they precede the payload.
    ///
    /// # Errors
    /// [`DropReason::ActionImpossible`] if the image does not hold the whole frame or ends inside these bytes;
    /// [`DropReason::TooLong`] if the result would be too long. Nothing has changed then.
    pub fn replace(&mut self, at: usize, count: usize, bytes: &[u8]) -> Result<(), DropReason> {
        let (len, end) = (usize::from(self.len), at + count);
        if self.frame_len != u32::from(self.len) || end > len {
            return Err(DropReason::ActionImpossible);
        }
        let new_len = len - count + bytes.len();
        if new_len > self.room() {
            return Err(DropReason::TooLong);
        }
        self.bytes.copy_within(end..len, at + bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.set_image_len(new_len as u16); // below 256
        Ok(())
    }

    fn check_splice(&self, at: usize, end: usize) -> Result<(), DropReason> {
        if end > usize::from(self.len) || at > end {
            return Err(DropReason::ActionImpossible);
        }
        let is_summed = self.offload.needs_csum() && usize::from(self.offload.csum_start) < end;
        if is_summed { Err(DropReason::BadCsum) } else { Ok(()) }
    }

    fn move_splice(&mut self, at: usize, to: impl Fn(u16) -> Option<u16>) -> Result<(), DropReason> {
        let headers_end = self.offload.hdr_len;
        self.move_offload(to)?;
        // Headers that end before the edited bytes do not move.
        if usize::from(headers_end) <= at {
            self.offload.hdr_len = headers_end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lasthop_wire::Offload;

    use super::*;
    use crate::header::{CSUM, IMAGE_BYTES};

    #[test]
    fn payload_is_replaced_by_more_or_less_of_it() {
        let mut header = Header::new(&[7; 60], 60, CSUM);
        header.bytes_mut()[54..].copy_from_slice(b"abcdef");
        assert_eq!(header.replace(55, 2, b"12345"), Ok(()));
        assert_eq!((&header.bytes()[53..], header.frame_len_bytes()), (&b"\x07a12345def"[..], 63));
        assert_eq!(header.replace(54, 9, b"x"), Ok(()));
        assert_eq!((&header.bytes()[54..], header.offload), (&b"x"[..], CSUM));
        assert_eq!(header.replace(54, 2, b""), Err(DropReason::ActionImpossible));
        assert_eq!(header.replace(54, 1, &[0; IMAGE_BYTES]), Err(DropReason::TooLong));
        let mut part = Header::new(&[7; 60], 61, CSUM);
        assert_eq!(part.replace(54, 1, b"y"), Err(DropReason::ActionImpossible));
    }

    #[test]
    fn inserted_bytes_can_be_removed() {
        let plain = Header::new(&[7; 60], 1000, CSUM);
        let mut header = plain;
        header.insert(14, &[1, 2, 3, 4]).expect("there is room");
        assert_eq!(header.bytes()[12..20], [7, 7, 1, 2, 3, 4, 7, 7]);
        assert_eq!((header.frame_len_bytes(), header.covers_bytes(), header.bytes().len()), (1004, 60, 64));
        assert_eq!((header.offload.csum_start, header.offload.hdr_len), (38, 58));
        header.remove(14, 4).expect("it is there");
        assert_eq!((header.bytes(), header.offload, header.frame_len_bytes()), (plain.bytes(), CSUM, 1000));
    }

    #[test]
    fn a_tunnel_s_header_has_its_own_room() {
        let mut header = Header::new(&[7; 128], 1000, CSUM);
        assert!(!header.has_tunnel() && header.tunnel().is_empty());
        assert_eq!(header.set_tunnel(&[1; 90]), Ok(()));
        assert_eq!(header.set_tunnel(&[1; 97]), Err(DropReason::TooLong));
        assert_eq!(header.set_tunnel(&[2; 92]), Ok(()));
        assert_eq!(
            (header.tunnel(), header.bytes(), header.covers_bytes()),
            (&[2; 92][..], &[7; 128][..], 128)
        );
        assert_eq!(header.insert(14, &[0; 5]), Err(DropReason::TooLong));
        assert_eq!(header.insert(14, &[0; 4]), Ok(()));
        assert_eq!((header.tunnel(), header.frame_len_bytes()), (&[2; 92][..], 1004));
        assert_eq!((header.set_tunnel(&[]), header.has_tunnel()), (Ok(()), false));
        header.fill(60, 60);
        assert!(!header.has_tunnel());
    }

    #[test]
    fn an_invalid_request_changes_nothing() {
        let mut header = Header::new(&[7; 60], 60, CSUM);
        assert_eq!(header.insert(0, &[0; IMAGE_BYTES - 59]), Err(DropReason::TooLong));
        assert_eq!(header.insert(35, &[0; 4]), Err(DropReason::BadCsum));
        assert_eq!(header.remove(32, 4), Err(DropReason::BadCsum));
        assert_eq!(header.remove(58, 4), Err(DropReason::ActionImpossible));
        assert_eq!((header.bytes(), header.offload), (&[7; 60][..], CSUM));
        let mut long = Header::new(&[7; 14], FRAME_BYTES_MAX - 3, Offload::default());
        assert_eq!(long.insert(14, &[0; 4]), Err(DropReason::TooLong));
    }
}
