//! VLAN identifiers, and the VLANs that a port carries.

use std::fmt;
use std::str::FromStr;

/// VLAN identifiers that a frame may have: 0 means "none" and 4095 is reserved (IEEE 802.1Q-2022, table 9-2).
const VID_MIN: u16 = 1;
const VID_MAX: u16 = 4094;

/// No VLAN: untagged frames of ports without VLAN settings.
pub const NO_VID: u16 = 0;

/// A VLAN identifier, 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vid(u16);

impl Vid {
    /// The smallest and the largest identifier.
    pub const RANGE: std::ops::RangeInclusive<u16> = VID_MIN..=VID_MAX;

    /// The identifier as a number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Vid {
    type Error = String;

    fn try_from(number: u16) -> Result<Self, String> {
        let why = match number {
            VID_MIN..=VID_MAX => return Ok(Self(number)),
            0 => ": 0 is no VLAN",
            4095 => ": 4095 is reserved",
            _ => "",
        };
        Err(format!("{number} cannot be the number of a VLAN{why}; use {VID_MIN} to {VID_MAX}"))
    }
}

impl FromStr for Vid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u16>().ok()).flatten();
        number
            .ok_or_else(|| format!("\"{text}\" is not the number of a VLAN; use {VID_MIN} to {VID_MAX}"))?
            .try_into()
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of VLANs that is not empty: ascending ranges with gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet {
    ranges: Vec<(Vid, Vid)>,
}

impl VlanSet {
    /// Returns the set of all VLANs in `ranges`, each from its first to its last. They may overlap, in any order.
    ///
    /// # Errors
    /// A sentence if `ranges` is empty, or if a range ends before it starts.
    pub fn of(ranges: impl IntoIterator<Item = (Vid, Vid)>) -> Result<Self, String> {
        let mut sorted: Vec<_> = ranges.into_iter().collect();
        if let Some((first, last)) = sorted.iter().find(|(first, last)| last < first) {
            return Err(format!("\"{first}-{last}\" is no range of VLANs; write it as {last}-{first}"));
        }
        sorted.sort_unstable();
        let mut merged: Vec<(Vid, Vid)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some(before) if first.0 <= before.1.0 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        if merged.is_empty() {
            return Err("a list of VLANs names at least one, as in 10+20-29".to_owned());
        }
        Ok(Self { ranges: merged })
    }

    /// The ranges, ascending, each from its first to its last VLAN.
    #[must_use]
    pub fn ranges(&self) -> &[(Vid, Vid)] {
        &self.ranges
    }
}

/// Parses a range: `VID` or `VID-VID`.
///
/// # Errors
/// A sentence that names the error.
pub fn parse_vlan_range(text: &str) -> Result<(Vid, Vid), String> {
    match text.split_once('-') {
        Some((first, last)) => Ok((first.parse()?, last.parse()?)),
        None => text.parse().map(|vid| (vid, vid)),
    }
}

impl FromStr for VlanSet {
    type Err = String;

    /// `VID+VID-VID...`
    fn from_str(text: &str) -> Result<Self, String> {
        Self::of(text.split('+').map(parse_vlan_range).collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges.iter().enumerate() {
            let plus = if index > 0 { "+" } else { "" };
            if first == last { write!(f, "{plus}{first}")? } else { write!(f, "{plus}{first}-{last}")? }
        }
        Ok(())
    }
}

/// The VLANs that a port carries, and whether their frames are tagged there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortVlans {
    /// Frames pass unchanged: a tagged frame belongs to the VLAN of its tag, an untagged one to no VLAN.
    #[default]
    Any,
    /// The port carries one VLAN, untagged (an access port).
    Access(Vid),
    /// The port carries tagged frames (a trunk).
    Trunk {
        /// The VLANs; `None` means all.
        carried: Option<VlanSet>,
        /// The VLAN of untagged frames, which the port carries, too (the native VLAN). Without it untagged frames are
        /// not accepted.
        native: Option<Vid>,
    },
}

impl PortVlans {
    /// The VLAN of untagged frames; [`NO_VID`] if it has none.
    #[must_use]
    pub fn untagged_vid(&self) -> u16 {
        match self {
            Self::Any => NO_VID,
            Self::Access(vid) => vid.get(),
            Self::Trunk { native, .. } => native.map_or(NO_VID, Vid::get),
        }
    }

    /// Whether the port receives and sends frames of VLAN `vid`; [`NO_VID`] stands for frames of no VLAN.
    #[must_use]
    pub fn carries(&self, vid: u16) -> bool {
        let holds = |set: &VlanSet| set.ranges.iter().any(|(first, last)| (first.0..=last.0).contains(&vid));
        match self {
            Self::Any => true,
            Self::Access(own) => own.0 == vid,
            Self::Trunk { carried: Some(set), native } => {
                holds(set) || native.is_some_and(|own| own.0 == vid)
            }
            Self::Trunk { carried: None, .. } => (VID_MIN..=VID_MAX).contains(&vid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_sorted_and_merged() {
        for (text, shown) in [
            ("5", "5"),
            ("20-29+10", "10+20-29"),
            ("1-4094", "1-4094"),
            ("7+5+6+6", "5-7"),
            ("10-20+15-30+31", "10-31"),
            ("1-1", "1"),
        ] {
            assert_eq!(text.parse::<VlanSet>().expect(text).to_string(), shown);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("0", "0 is no VLAN"),
            ("4095", "4095 is reserved"),
            ("4096", "1 to 4094"),
            ("99999", "1 to 4094"),
            ("", "not the number"),
            ("10+", "not the number"),
            ("1-", "not the number"),
            ("+5", "not the number"),
            ("ten", "not the number"),
            ("10,20", "not the number"),
            ("29-20", "write it as 20-29"),
            ("5-6-7", "not the number"),
        ] {
            let error = text.parse::<VlanSet>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(VlanSet::of([]).is_err());
    }
}
