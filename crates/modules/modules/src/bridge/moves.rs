//! Addresses that changed ports recently: two guests with one address keep moving it between their ports.

use lasthop_module_api::{FdbMove, Mac, PortId};

/// Addresses that are tracked at a time. One is enough for an operator, and guests that forge addresses must not cost
/// memory.
const MOVES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Move {
    /// 0 if the entry is empty.
    key: u64,
    from: u16,
    to: u16,
    count: u32,
    last_ns: u64,
}

/// The addresses that moved last. A new one replaces the one that moved longest ago.
#[derive(Debug, Default)]
pub(super) struct Moves([Move; MOVES_MAX]);

impl Moves {
    pub(super) fn note(&mut self, key: u64, (from, to): (PortId, PortId), now_ns: u64) {
        let known = self.0.iter().position(|entry| entry.key == key);
        let oldest = || (0..MOVES_MAX).min_by_key(|at| self.0[*at].last_ns).unwrap_or(0);
        let entry = &mut self.0[known.unwrap_or_else(oldest)];
        let before = if known.is_some() { entry.count } else { 0 };
        *entry = Move { key, from: from.0, to: to.0, count: before.saturating_add(1), last_ns: now_ns };
    }

    /// Removes the moves of a port that is removed: another port may get its number.
    pub(super) fn forget(&mut self, port: PortId) {
        let of_port = |entry: &&mut Move| entry.from == port.0 || entry.to == port.0;
        self.0.iter_mut().filter(of_port).for_each(|entry| *entry = Move::default());
    }

    pub(super) fn list(&self, now_ns: u64) -> Vec<FdbMove> {
        let told = |entry: &Move| FdbMove {
            mac: Mac::from_bits(entry.key),
            from: PortId(entry.from),
            to: PortId(entry.to),
            count: entry.count,
            age_ns: now_ns.saturating_sub(entry.last_ns),
        };
        let mut moves: Vec<FdbMove> = self.0.iter().filter(|entry| entry.key != 0).map(told).collect();
        moves.sort_by_key(|moved| std::cmp::Reverse(moved.count));
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_of_an_address_are_counted_and_old_ones_make_room() {
        let mut moves = Moves::default();
        let (a, b) = (PortId(1), PortId(2));
        moves.note(7, (a, b), 10);
        moves.note(7, (b, a), 20);
        let list = moves.list(30);
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].count, list[0].from, list[0].to, list[0].age_ns), (2, b, a, 10));
        for key in 100..100 + MOVES_MAX as u64 {
            moves.note(key, (a, b), key);
        }
        let list = moves.list(200);
        assert_eq!(list.len(), MOVES_MAX);
        assert!(list.iter().all(|moved| moved.count == 1), "the oldest made room");
    }
}
