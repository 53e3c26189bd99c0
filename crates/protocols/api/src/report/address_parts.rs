//! An answer about forwarding tables that comes in parts.

use std::mem;

use lasthop_module_api::PORTS_MAX;

use super::{FdbLine, FdbReport};
use crate::fdb::STATIC_ENTRIES_MAX;
use crate::names::NAME_BYTES_MAX;
use crate::switches::FDB_ENTRIES_TOTAL_MAX;

/// Most addresses of an answer: the entries of all forwarding tables, static ones, and one of each port.
const ADDRESSES_MAX: usize = FDB_ENTRIES_TOTAL_MAX + STATIC_ENTRIES_MAX + PORTS_MAX;
/// Bytes of an address as text.
const MAC_BYTES: usize = 17;

/// The addresses of an answer so far. A process answers one question after the other, so there is one such answer at a
/// time.
#[derive(Debug, Default)]
pub struct AddressParts {
    question: u64,
    entries: Vec<FdbLine>,
}

/// Why parts are refused: the process is not to be trusted.
const TOO_MANY: &str = "it reported more addresses than all forwarding tables have room for";
const TOO_LONG: &str = "it reported an address or the name of a port that is too long";

impl AddressParts {
    /// Adds a part of the answer to this question. Those of another question are dropped.
    ///
    /// # Errors
    /// A part that no process has: why it is not to be trusted.
    pub fn add(&mut self, question: u64, part: FdbReport) -> Result<(), &'static str> {
        self.add_up_to(ADDRESSES_MAX, question, part)
    }

    fn add_up_to(&mut self, most: usize, question: u64, part: FdbReport) -> Result<(), &'static str> {
        let before = mem::take(&mut self.entries);
        let mut entries = if self.question == question { before } else { Vec::new() };
        self.question = question;
        if entries.len() + part.entries.len() > most {
            return Err(TOO_MANY);
        }
        let is_long = |line: &FdbLine| line.mac.len() > MAC_BYTES || line.port.len() > NAME_BYTES_MAX;
        if part.entries.iter().any(is_long) {
            return Err(TOO_LONG);
        }
        entries.extend(part.entries);
        self.entries = entries;
        Ok(())
    }

    /// Takes the answer to this question.
    pub fn take(&mut self, question: u64) -> Vec<FdbLine> {
        let entries = mem::take(&mut self.entries);
        if self.question == question { entries } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switches::SwitchName;

    fn line(age_ms: u64) -> FdbLine {
        FdbLine {
            switch: SwitchName::default(),
            mac: "02:00:00:00:00:01".to_owned(),
            vlan: None,
            port: "vm1".to_owned(),
            age_ms,
            is_static: false,
        }
    }

    fn part<const N: usize>(ages_ms: [u64; N]) -> FdbReport {
        FdbReport::whole(ages_ms.map(line).into())
    }

    #[test]
    fn addresses_that_came_in_parts_are_one_answer_in_order() {
        let mut parts = AddressParts::default();
        for told in [part([1, 2]), part([3]), part([])] {
            parts.add(7, told).expect("a sound part");
        }
        assert_eq!(parts.take(7), [1, 2, 3].map(line));
        assert_eq!(parts.take(7), [], "it is taken once");
        parts.add(7, part([1])).expect("a sound part");
        parts.add(8, part([2])).expect("a sound part");
        assert_eq!(parts.take(8), [line(2)], "the first answer was given up");
        parts.add(8, part([1])).expect("a sound part");
        assert_eq!(parts.take(9), [], "of another question");
    }

    #[test]
    fn an_answer_without_end_is_refused_and_not_kept() {
        let mut parts = AddressParts::default();
        parts.add_up_to(3, 7, part([1, 2])).expect("a sound part");
        parts.add_up_to(3, 7, part([3])).expect("as many as there may be");
        assert_eq!(parts.add_up_to(3, 7, part([4])), Err(TOO_MANY));
        assert_eq!(parts.take(7), []);
    }

    #[test]
    fn texts_that_no_address_has_are_refused() {
        let mut parts = AddressParts::default();
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let of_port = FdbLine { port: long.clone(), ..line(1) };
        let of_mac = FdbLine { mac: long, ..line(1) };
        for line in [of_port, of_mac] {
            assert_eq!(parts.add(7, FdbReport::whole(vec![line])), Err(TOO_LONG));
        }
    }
}
