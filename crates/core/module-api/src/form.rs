//! The tags of VLAN frames when a port receives and sends them, for all modules.

use crate::{NO_VID, TagEdit};

/// The form in which a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagForm {
    /// A frame of no VLAN, which is not edited.
    AsItIs,
    /// Without its tag.
    Untagged,
    /// With the tag of its VLAN.
    Tagged,
}

impl TagForm {
    /// The form of frames of VLAN `vid` at a port that carries it; the port's untagged frames belong to `untagged_vid`.
    #[inline]
    #[must_use]
    pub fn of(vid: u16, untagged_vid: u16) -> Self {
        match vid {
            NO_VID => Self::AsItIs,
            _ if vid == untagged_vid => Self::Untagged,
            _ => Self::Tagged,
        }
    }
}

/// The form in which a frame was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameTag {
    /// Without a tag.
    None,
    /// With a priority tag (VID 0), which belongs to the VLAN of untagged frames (IEEE 802.1Q-2022, 6.9.1).
    PriorityOnly,
    /// With the tag of a VLAN.
    Vlan,
}

impl FrameTag {
    /// The edit that turns a frame of VLAN `vid` into `form`.
    #[inline]
    #[must_use]
    pub fn edit(self, form: TagForm, vid: u16) -> Option<TagEdit> {
        match (form, self) {
            (TagForm::AsItIs, _) | (TagForm::Untagged, Self::None) | (TagForm::Tagged, Self::Vlan) => None,
            (TagForm::Untagged, _) => Some(TagEdit::Pop),
            (TagForm::Tagged, Self::None) => Some(TagEdit::Push(vid)),
            (TagForm::Tagged, Self::PriorityOnly) => Some(TagEdit::Rename(vid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_in_and_out_has_its_edit() {
        let edits = |tag: FrameTag| {
            [TagForm::AsItIs, TagForm::Untagged, TagForm::Tagged].map(|form| tag.edit(form, 7))
        };
        assert_eq!(edits(FrameTag::None), [None, None, Some(TagEdit::Push(7))]);
        assert_eq!(edits(FrameTag::PriorityOnly), [None, Some(TagEdit::Pop), Some(TagEdit::Rename(7))]);
        assert_eq!(edits(FrameTag::Vlan), [None, Some(TagEdit::Pop), None]);
    }

    #[test]
    fn only_the_vlan_of_untagged_frames_leaves_without_a_tag() {
        assert_eq!(
            [0, 7, 8].map(|vid| TagForm::of(vid, 7)),
            [TagForm::AsItIs, TagForm::Untagged, TagForm::Tagged]
        );
        assert_eq!(TagForm::of(0, NO_VID), TagForm::AsItIs);
    }
}
