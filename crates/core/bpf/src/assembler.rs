//! Assembles code with labels.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use thiserror::Error;

use crate::bounds::INSTRUCTIONS_MAX;
use crate::instruction::{self, Condition, Operand, Operation, Register, Wide, Width};
use crate::map::Map;

/// A position in the code, to be placed once.
#[derive(Clone, Copy, Debug)]
pub struct Label(usize);

/// Why code is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CodeError {
    /// A label is not placed exactly once.
    #[error("a label of a BPF program was not placed exactly once")]
    Label,
    /// There are too many instructions.
    #[error("a BPF program has more than {INSTRUCTIONS_MAX} instructions")]
    TooLong,
}

/// A program under construction. The maps that it uses outlive it.
#[derive(Debug, Default)]
pub struct Assembler<'maps> {
    words: Vec<u64>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Whether a label was placed twice.
    is_ambiguous: bool,
    /// Instructions whose offset has to lead to a label.
    jumps: Vec<(usize, Label)>,
    maps: PhantomData<&'maps Map>,
}

/// Instructions for [`Program::load`](crate::Program::load).
#[derive(Clone, Debug)]
pub struct Code<'maps> {
    words: Vec<u64>,
    maps: PhantomData<&'maps Map>,
}

impl Code<'_> {
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

impl<'maps> Assembler<'maps> {
    /// An assembler without instructions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new label, to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places `label` here. A label of another assembler makes [`Self::finish`] fail.
    pub fn place(&mut self, label: Label) -> &mut Self {
        let here = self.words.len();
        match self.labels.get_mut(label.0) {
            Some(at @ None) => *at = Some(here),
            _ => self.is_ambiguous = true,
        }
        self
    }

    /// `to = *(width *)(from + offset)`, the upper bits zero.
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) -> &mut Self {
        self.add(instruction::load(width, to, from, offset))
    }

    /// `*(width *)(to + offset) = from`.
    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: impl Into<Operand>) -> &mut Self {
        self.add(instruction::store(width, to, offset, from.into()))
    }

    /// `*(u64 *)(to + offset) += from`, atomically.
    pub fn atomic_add(&mut self, to: Register, offset: i16, from: Register) -> &mut Self {
        self.add(instruction::atomic_add(to, offset, from))
    }

    /// If `*(u64 *)(to + offset)` equals r0, it becomes `from`, atomically; r0 becomes the earlier content.
    pub fn atomic_compare_exchange(&mut self, to: Register, offset: i16, from: Register) -> &mut Self {
        self.add(instruction::atomic_compare_exchange(to, offset, from))
    }

    /// `to = operation(to, operand)`.
    pub fn compute(&mut self, operation: Operation, to: Register, operand: impl Into<Operand>) -> &mut Self {
        self.add(instruction::compute(operation, to, operand.into()))
    }

    /// `to = from`.
    pub fn copy(&mut self, to: Register, from: Register) -> &mut Self {
        self.compute(Operation::Copy, to, from)
    }

    /// `to = value`, its upper half zero.
    pub fn set(&mut self, to: Register, value: u32) -> &mut Self {
        self.add(instruction::set(to, value))
    }

    /// `to = map`, as an argument of helper functions.
    pub fn set_map(&mut self, to: Register, map: &'maps Map) -> &mut Self {
        self.set_wide(to, Wide::Map, map)
    }

    /// `to` = the address of the value of a map with a single entry.
    pub fn set_map_value(&mut self, to: Register, map: &'maps Map) -> &mut Self {
        self.set_wide(to, Wide::MapValue, map)
    }

    fn set_wide(&mut self, to: Register, kind: Wide, map: &'maps Map) -> &mut Self {
        let [low, high] = instruction::wide(to, kind, map.as_fd().as_raw_fd());
        self.add(low).add(high)
    }

    /// Jumps to `label` if the condition holds for all 64 bits.
    pub fn jump_if(
        &mut self,
        condition: Condition,
        left: Register,
        right: impl Into<Operand>,
        label: Label,
    ) -> &mut Self {
        self.jumps.push((self.words.len(), label));
        self.add(instruction::jump_if(condition, true, left, right.into(), 0))
    }

    /// Jumps to `label` if the condition holds for the lower 32 bits.
    pub fn jump_if_low(
        &mut self,
        condition: Condition,
        left: Register,
        right: u32,
        label: Label,
    ) -> &mut Self {
        self.jumps.push((self.words.len(), label));
        let right = Operand::Value(right.cast_signed());
        self.add(instruction::jump_if(condition, false, left, right, 0))
    }

    /// Jumps to `label`.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jumps.push((self.words.len(), label));
        self.add(instruction::jump(0))
    }

    /// Calls a [helper function](crate::helper).
    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.add(instruction::call(helper))
    }

    /// Ends the program; the result is r0.
    pub fn exit(&mut self) -> &mut Self {
        self.add(instruction::exit())
    }

    fn add(&mut self, word: u64) -> &mut Self {
        self.words.push(word);
        self
    }

    /// Returns the code with resolved jumps.
    ///
    /// # Errors
    /// [`CodeError`].
    pub fn finish(mut self) -> Result<Code<'maps>, CodeError> {
        if self.words.len() > INSTRUCTIONS_MAX {
            return Err(CodeError::TooLong);
        }
        for (at, label) in std::mem::take(&mut self.jumps) {
            let target = self.labels.get(label.0).copied().flatten().filter(|_| !self.is_ambiguous);
            let words = target.ok_or(CodeError::Label)? as isize - at as isize - 1;
            // In range: both are below INSTRUCTIONS_MAX.
            self.words[at] |= u64::from((words as i16).cast_unsigned()) << 16;
        }
        if self.is_ambiguous {
            Err(CodeError::Label)
        } else {
            Ok(Code { words: self.words, maps: PhantomData })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{R0, R1, R2, R6};

    fn words(build: impl FnOnce(&mut Assembler<'static>)) -> Vec<u64> {
        let mut assembler = Assembler::new();
        build(&mut assembler);
        assembler.finish().unwrap().words().to_vec()
    }

    #[test]
    fn instructions_have_the_bits_of_the_standard() {
        let code = words(|code| {
            code.load(Width::U32, R2, R1, 16).store(Width::U64, R1, -8, R2).store(Width::U8, R1, 0, 7);
            code.compute(Operation::ShiftLeft, R6, 24).copy(R6, R1).set(R0, u32::MAX).call(5).exit();
        });
        let expected = [
            0x0000_0000_0010_1261,
            0x0000_0000_fff8_217b,
            0x0000_0007_0000_0172,
            0x0000_0018_0000_0667,
            0x0000_0000_0000_16bf,
            0xffff_ffff_0000_00b4,
            0x0000_0005_0000_0085,
            0x0000_0000_0000_0095,
        ];
        assert_eq!(code, expected);
    }

    #[test]
    fn jumps_go_forth_and_back_to_their_labels() {
        let code = words(|code| {
            let (start, end) = (code.label(), code.label());
            code.place(start).jump_if(Condition::Equal, R1, 0, end);
            code.jump_if_low(Condition::NotEqual, R1, 1, start).jump(start);
            code.place(end).exit();
        });
        let offsets: Vec<i16> = code.iter().map(|word| (word >> 16) as i16).collect();
        assert_eq!(offsets, [2, -2, -3, 0]);
        assert_eq!(code.iter().map(|word| *word as u8).collect::<Vec<_>>(), [0x15, 0x56, 0x05, 0x95]);
    }

    #[test]
    fn a_label_is_placed_exactly_once() {
        let mut missing = Assembler::new();
        let label = missing.label();
        missing.jump(label);
        assert_eq!(missing.finish().unwrap_err(), CodeError::Label);

        let mut twice = Assembler::new();
        let label = twice.label();
        twice.place(label).place(label).exit();
        assert_eq!(twice.finish().unwrap_err(), CodeError::Label);
    }

    #[test]
    fn code_is_bounded() {
        let mut code = Assembler::new();
        for _ in 0..=INSTRUCTIONS_MAX {
            code.exit();
        }
        assert_eq!(code.finish().unwrap_err(), CodeError::TooLong);
    }
}
