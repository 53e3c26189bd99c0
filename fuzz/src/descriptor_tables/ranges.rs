//! Parts of memory.

use std::ops::Range;

/// Parts of memory; in order and apart from each other once they are merged.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<(usize, usize)>);

impl Ranges {
    pub(super) fn add(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.0.push((range.start, range.end));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    pub(super) fn merged(mut self) -> Self {
        self.0.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (start, end) in self.0 {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }

    /// Whether a byte is in both; both are merged.
    pub(super) fn overlap(&self, other: &Self) -> bool {
        self.0.iter().any(|(start, end)| {
            let next = other.0.partition_point(|(_, other_end)| other_end <= start);
            other.0.get(next).is_some_and(|(other_start, _)| other_start < end)
        })
    }

    /// Bytes that are in more than one part.
    pub(super) fn overlap_themselves(&self) -> bool {
        let bytes = |ranges: &Self| ranges.iter().map(|range| range.len()).sum::<usize>();
        bytes(&self.clone().merged()) < bytes(self)
    }
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    fn ranges(list: &[(usize, usize)]) -> Ranges {
        let mut ranges = Ranges::default();
        list.iter().for_each(|(start, end)| ranges.add(*start..*end));
        ranges
    }

    pub fn parts_are_merged_and_compared() {
        let merged = ranges(&[(5, 9), (0, 2), (8, 12), (2, 3), (7, 7)]).merged();
        assert_eq!(merged.0, [(0, 3), (5, 12)]);
        assert!(merged.overlap(&ranges(&[(11, 20)])) && merged.overlap(&ranges(&[(1, 2)])));
        assert!(!merged.overlap(&ranges(&[(3, 5), (12, 13)])));
        assert!(
            ranges(&[(0, 5), (4, 6)]).overlap_themselves() && !ranges(&[(4, 6), (0, 4)]).overlap_themselves()
        );
    }
}
