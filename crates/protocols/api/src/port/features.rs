//! Virtio features by name (virtio 1.2, 5.1.3 and 6), which can be masked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const MTU: u64 = 1 << 3;
const MAC: u64 = 1 << 5;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const MRG_RXBUF: u64 = 1 << 15;
const STATUS: u64 = 1 << 16;
const MQ: u64 = 1 << 22;
const INDIRECT_DESC: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
const RING_PACKED: u64 = 1 << 34;
const IN_ORDER: u64 = 1 << 35;
const GUEST_USO4: u64 = 1 << 54;
const GUEST_USO6: u64 = 1 << 55;
const HOST_USO: u64 = 1 << 56;

/// Names of single features that can be masked.
const FEATURES: &[(&str, u64)] = &[
    ("CSUM", CSUM),
    ("GUEST_CSUM", GUEST_CSUM),
    ("MTU", MTU),
    ("MAC", MAC),
    ("GUEST_TSO4", GUEST_TSO4),
    ("GUEST_TSO6", GUEST_TSO6),
    ("GUEST_ECN", GUEST_ECN),
    ("HOST_TSO4", HOST_TSO4),
    ("HOST_TSO6", HOST_TSO6),
    ("HOST_ECN", HOST_ECN),
    ("MRG_RXBUF", MRG_RXBUF),
    ("STATUS", STATUS),
    ("MQ", MQ),
    ("INDIRECT_DESC", INDIRECT_DESC),
    ("EVENT_IDX", EVENT_IDX),
    ("RING_PACKED", RING_PACKED),
    ("IN_ORDER", IN_ORDER),
    ("GUEST_USO4", GUEST_USO4),
    ("GUEST_USO6", GUEST_USO6),
    ("HOST_USO", HOST_USO),
];

/// Names for both directions at once.
const GROUPS: &[(&str, u64)] = &[
    ("TSO4", GUEST_TSO4 | HOST_TSO4),
    ("TSO6", GUEST_TSO6 | HOST_TSO6),
    ("TSO", GUEST_TSO4 | HOST_TSO4 | GUEST_TSO6 | HOST_TSO6),
    ("ECN", GUEST_ECN | HOST_ECN),
    ("USO", GUEST_USO4 | GUEST_USO6 | HOST_USO),
];

/// The features that a feature needs (virtio 1.2, 5.1.3.1): the first needs at least one of the second.
const NEEDS: &[(u64, u64)] = &[
    (GUEST_TSO4, GUEST_CSUM),
    (GUEST_TSO6, GUEST_CSUM),
    (GUEST_USO4, GUEST_CSUM),
    (GUEST_USO6, GUEST_CSUM),
    (HOST_USO, CSUM),
    (HOST_TSO4, CSUM),
    (HOST_TSO6, CSUM),
    (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
    (HOST_ECN, HOST_TSO4 | HOST_TSO6),
];

/// Features as the user named them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(inline, extend("items" = { "enum": all_names() }, "default" = []))]
pub struct FeatureSet(Vec<String>);

impl FeatureSet {
    /// Checks names; case does not matter.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Fault> {
        names.into_iter().map(known).collect::<Result<_, _>>().map(Self)
    }

    /// The names, joined as on the command line.
    pub fn joined(&self) -> String {
        self.0.join("+")
    }

    /// The feature bits that may be offered without this set, and without features that need one of it.
    pub fn mask_without(&self) -> u64 {
        let left_out = self.0.iter().filter_map(|name| bits(name)).fold(0, |all, bits| all | bits);
        let mut mask = !left_out;
        for (feature, needed) in NEEDS {
            if mask & needed == 0 {
                mask &= !feature;
            }
        }
        mask
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<Vec<String>> for FeatureSet {
    type Error = Fault;

    fn try_from(names: Vec<String>) -> Result<Self, Fault> {
        Self::of(names.iter().map(String::as_str))
    }
}

impl From<FeatureSet> for Vec<String> {
    fn from(set: FeatureSet) -> Self {
        set.0
    }
}

/// The names of the features in `bits`; unnamed ones by number.
pub fn describe(bits: u64) -> Vec<String> {
    lasthop_vhost::features::names(bits).split_whitespace().map(str::to_owned).collect()
}

fn bits(name: &str) -> Option<u64> {
    FEATURES.iter().chain(GROUPS).find(|(known, _)| *known == name).map(|(_, bits)| *bits)
}

fn all_names() -> Vec<&'static str> {
    FEATURES.iter().chain(GROUPS).map(|(name, _)| *name).collect()
}

fn known(name: &str) -> Result<String, Fault> {
    let name = name.to_ascii_uppercase();
    if bits(&name).is_some() {
        return Ok(name);
    }
    let all = all_names();
    let offer = names::hint(&name, all.iter().copied());
    let list = all.join(", ");
    Err(Fault::params(format!("\"{name}\" is no feature that can be left out{offer} (there are {list})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(names: &[&str]) -> u64 {
        FeatureSet::of(names.iter().copied()).expect("known names").mask_without()
    }

    #[test]
    fn nothing_left_out_masks_nothing() {
        assert_eq!(mask(&[]), u64::MAX);
    }

    #[test]
    fn a_group_is_both_directions() {
        assert_eq!(!mask(&["TSO4"]), GUEST_TSO4 | HOST_TSO4);
        assert_eq!(!mask(&["tso"]), GUEST_TSO4 | HOST_TSO4 | GUEST_TSO6 | HOST_TSO6 | GUEST_ECN | HOST_ECN);
    }

    #[test]
    fn what_needs_a_feature_goes_with_it() {
        assert_eq!(!mask(&["CSUM"]), CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO);
        assert_eq!(!mask(&["GUEST_TSO4"]), GUEST_TSO4);
    }

    #[test]
    fn an_unknown_feature_is_refused_with_a_close_one() {
        let fault = FeatureSet::of(["CSUMM"]).expect_err("no such feature");
        assert!(fault.message.contains("did you mean \"CSUM\""), "{fault}");
        assert!(FeatureSet::of(["VERSION_1"]).is_err());
    }

    #[test]
    fn names_mean_the_same_when_shown() {
        for (name, bits) in FEATURES {
            assert_eq!(describe(*bits), [*name]);
        }
    }

    #[test]
    fn negotiated_features_are_shown_by_name() {
        assert_eq!(
            describe(CSUM | MRG_RXBUF | 1 << 17 | 1 << 32 | 1 << 41),
            ["CSUM", "MRG_RXBUF", "CTRL_VQ", "VERSION_1", "bit41"]
        );
    }
}
