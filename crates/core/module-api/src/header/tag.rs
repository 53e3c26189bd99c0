//! The outer VLAN tag of a frame (IEEE 802.1Q-2022, 9.6), read and edited in its header image; payload never moves.
//!
//! ```text
//!   untagged   | destination 6 | source 6 |                       | EtherType 2 | ...
//!   tagged     | destination 6 | source 6 | 0x8100 2 | PCP DEI VID 2 | EtherType 2 | ...
//! ```

use lasthop_wire::gso::FRAME_BYTES_MAX;
use lasthop_wire::headers::{ETHERTYPE_VLAN, MACS_BYTES};

use super::Header;
use crate::DropReason;

/// Bytes of a tag.
pub const TAG_BYTES: u16 = 4;
/// The VID in a TCI; the other bits are priority (PCP) and drop eligibility (DEI).
const TCI_VID: u16 = 0x0fff;
/// Bytes of a tagged frame up to the EtherType that follows the tag.
const TAGGED_BYTES: usize = MACS_BYTES + TAG_BYTES as usize + 2;
/// Bytes of an untagged frame up to the end of its EtherType.
const UNTAGGED_BYTES: usize = MACS_BYTES + 2;

/// An edit of a frame's outer tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagEdit {
    /// Insert a tag with priority 0 before the EtherType.
    Push(u16),
    /// Change the VID of the tag; the priority stays.
    Rename(u16),
    /// Remove the tag with its priority.
    Pop,
}

impl Header {
    /// Returns the VID of the outer tag of a frame whose first EtherType is that of a tag; 0 is a priority tag.
    ///
    /// # Errors
    /// [`DropReason::TooShort`] if the frame ends in its tag, [`DropReason::BadCsum`] if completing its checksum would
    /// overwrite the tag or bytes before it.
    pub fn tag_vid(&self) -> Result<u16, DropReason> {
        let tagged = self.bytes().first_chunk::<TAGGED_BYTES>().ok_or(DropReason::TooShort)?;
        self.check_csum(TAGGED_BYTES)?;
        Ok(u16::from_be_bytes([tagged[14], tagged[15]]) & TCI_VID)
    }

    /// Returns the image of the same frame with its outer tag edited. The metadata follows: checksum start, header
    /// length.
    ///
    /// # Errors
    /// The reason that there is no such frame: [`DropReason::TooLong`], [`DropReason::TooShort`],
    /// [`DropReason::BadCsum`], or [`DropReason::VlanNested`] if removing the tag would expose an inner tag that the
    /// sender chose.
    pub fn edited(&self, edit: TagEdit) -> Result<Self, DropReason> {
        match edit {
            TagEdit::Push(vid) => self.pushed(vid & TCI_VID),
            TagEdit::Rename(vid) => self.renamed(vid & TCI_VID),
            TagEdit::Pop => self.popped(),
        }
    }

    fn pushed(&self, vid: u16) -> Result<Self, DropReason> {
        let len = usize::from(self.len);
        if len < UNTAGGED_BYTES {
            return Err(DropReason::TooShort);
        }
        let grown = self.frame_len_bytes() + u32::from(TAG_BYTES);
        if grown > FRAME_BYTES_MAX || len + usize::from(TAG_BYTES) > self.room() {
            return Err(DropReason::TooLong);
        }
        self.check_csum(UNTAGGED_BYTES)?;
        let mut out = *self;
        out.bytes.copy_within(MACS_BYTES..len, MACS_BYTES + usize::from(TAG_BYTES));
        out.set_image_len(out.len + TAG_BYTES);
        out.put_tag(vid);
        out.move_offload(|offset| offset.checked_add(TAG_BYTES))?;
        Ok(out)
    }

    fn renamed(&self, vid: u16) -> Result<Self, DropReason> {
        self.tag_vid()?;
        let mut out = *self;
        let priority = u16::from_be_bytes([self.bytes[14], self.bytes[15]]) & !TCI_VID;
        out.put_tag(priority | vid);
        Ok(out)
    }

    fn popped(&self) -> Result<Self, DropReason> {
        self.tag_vid()?;
        if self.bytes[16..18] == ETHERTYPE_VLAN.to_be_bytes() {
            return Err(DropReason::VlanNested);
        }
        let mut out = *self;
        out.bytes.copy_within(MACS_BYTES + usize::from(TAG_BYTES)..usize::from(self.len), MACS_BYTES);
        out.set_image_len(out.len - TAG_BYTES);
        out.move_offload(|offset| offset.checked_sub(TAG_BYTES))?;
        Ok(out)
    }

    fn put_tag(&mut self, tci: u16) {
        let [high, low] = tci.to_be_bytes();
        let [kind, of_tag] = ETHERTYPE_VLAN.to_be_bytes();
        self.bytes[MACS_BYTES..MACS_BYTES + usize::from(TAG_BYTES)]
            .copy_from_slice(&[kind, of_tag, high, low]);
    }

    /// A checksum starts behind the link header. Otherwise it could overwrite bytes that the module's decision used.
    fn check_csum(&self, link_bytes: usize) -> Result<(), DropReason> {
        let inside = self.offload.needs_csum() && usize::from(self.offload.csum_start) < link_bytes;
        if inside { Err(DropReason::BadCsum) } else { Ok(()) }
    }

    pub(super) fn move_offload(&mut self, to: impl Fn(u16) -> Option<u16>) -> Result<(), DropReason> {
        if self.offload.needs_csum() {
            self.offload.csum_start = to(self.offload.csum_start).ok_or(DropReason::BadCsum)?;
        }
        // The field is a hint, and zero means that there is none.
        if self.offload.hdr_len != 0 {
            self.offload.hdr_len = to(self.offload.hdr_len).unwrap_or(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lasthop_wire::Offload;

    use super::*;
    use crate::header::CSUM;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    fn header(behind_macs: &[u8], frame_len: u32, offload: Offload) -> Header {
        let bytes = [&MACS[..], behind_macs].concat();
        Header::new(&bytes, frame_len, offload)
    }

    #[test]
    fn a_tag_is_pushed_in_front_of_the_ethertype_and_popped_again() {
        let plain = header(&[8, 0, 1, 2, 3], 1000, CSUM);
        let tagged = plain.edited(TagEdit::Push(0x123)).expect("there is room");
        assert_eq!(tagged.bytes()[12..], [0x81, 0, 0x01, 0x23, 8, 0, 1, 2, 3]);
        assert_eq!(
            (tagged.frame_len_bytes(), tagged.covers_bytes(), tagged.tag_vid()),
            (1004, 17, Ok(0x123))
        );
        assert_eq!((tagged.offload.csum_start, tagged.offload.hdr_len), (38, 58));
        let popped = tagged.edited(TagEdit::Pop).expect("it has a tag");
        assert_eq!((popped.bytes(), popped.offload), (plain.bytes(), CSUM));
        assert_eq!((popped.frame_len_bytes(), popped.covers_bytes()), (1000, 17));
    }

    #[test]
    fn a_tag_keeps_its_priority_with_another_vid() {
        let tagged = header(&[0x81, 0, 0xb0, 5, 8, 0], 64, Offload::default());
        let renamed = tagged.edited(TagEdit::Rename(0xabc)).expect("it has a tag");
        assert_eq!(renamed.bytes()[12..], [0x81, 0, 0xba, 0xbc, 8, 0]);
        assert_eq!((renamed.frame_len_bytes(), renamed.offload), (64, Offload::default()));
    }

    #[test]
    fn a_tag_that_hides_another_is_not_taken_out() {
        let nested = header(&[0x81, 0, 0, 5, 0x81, 0, 0, 9, 8, 0], 64, Offload::default());
        assert_eq!(nested.edited(TagEdit::Pop).err(), Some(DropReason::VlanNested));
        let service = header(&[0x81, 0, 0, 5, 0x88, 0xa8, 0, 9, 8, 0], 64, Offload::default());
        assert!(service.edited(TagEdit::Pop).is_ok());
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        let whole = |len| header(&[8, 0], len, Offload::default()).edited(TagEdit::Push(1)).err();
        assert_eq!(whole(FRAME_BYTES_MAX - 4), None);
        assert_eq!(whole(FRAME_BYTES_MAX - 3), Some(DropReason::TooLong));
        let torn = header(&[0x81, 0, 0, 5, 8], 17, Offload::default());
        assert_eq!(torn.tag_vid(), Err(DropReason::TooShort));
        assert_eq!(torn.edited(TagEdit::Pop).err(), Some(DropReason::TooShort));
        let csum = |csum_start| Offload { csum_start, ..CSUM };
        for (start, push, pop) in [(13, false, false), (14, true, false), (17, true, false), (18, true, true)]
        {
            assert_eq!(header(&[8, 0, 0, 0], 99, csum(start)).edited(TagEdit::Push(1)).is_ok(), push);
            assert_eq!(header(&[0x81, 0, 0, 5, 8, 0], 99, csum(start)).edited(TagEdit::Pop).is_ok(), pop);
        }
        assert_eq!(
            header(&[8, 0], 65_549, csum(u16::MAX - 3)).edited(TagEdit::Push(1)).err(),
            Some(DropReason::BadCsum)
        );
    }
}
