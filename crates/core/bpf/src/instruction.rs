//! Instructions as 64-bit words (RFC 9669), and the types of their parts.

/// A register. R0 is the result of a call or of the program; R1 to R5 are arguments, which calls destroy; R6 to R9
/// outlive calls; R10 is the read-only frame pointer.
#[allow(missing_docs, reason = "the names say all")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The size of a load, a store or an atomic operation.
#[allow(missing_docs, reason = "the names say all")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    U8,
    U16,
    U32,
    U64,
}

impl Width {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::U32 => 0x00,
            Self::U16 => 0x08,
            Self::U8 => 0x10,
            Self::U64 => 0x18,
        }
    }
}

/// The second operand: a register, or a value that is sign-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register's content.
    Register(Register),
    /// A number.
    Value(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Value(value)
    }
}

impl Operand {
    /// The bit that distinguishes registers from values, the source register, and the value.
    const fn parts(self) -> (u8, u8, i32) {
        match self {
            Self::Register(register) => (0x08, register as u8, 0),
            Self::Value(value) => (0x00, 0, value),
        }
    }
}

/// Arithmetic on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `a + b`
    Add,
    /// `a - b`
    Subtract,
    /// `a * b`
    Multiply,
    /// `a | b`
    Or,
    /// `a & b`
    And,
    /// `a << b`
    ShiftLeft,
    /// `a >> b`, zeroes from the left.
    ShiftRight,
    /// `a ^ b`
    Xor,
    /// `b`
    Copy,
}

impl Operation {
    const fn bits(self) -> u8 {
        match self {
            Self::Add => 0x00,
            Self::Subtract => 0x10,
            Self::Multiply => 0x20,
            Self::Or => 0x40,
            Self::And => 0x50,
            Self::ShiftLeft => 0x60,
            Self::ShiftRight => 0x70,
            Self::Xor => 0xa0,
            Self::Copy => 0xb0,
        }
    }
}

/// A comparison of unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `a == b`
    Equal,
    /// `a != b`
    NotEqual,
    /// `a > b`
    Above,
    /// `a >= b`
    AtLeast,
    /// `a < b`
    Below,
    /// `a <= b`
    AtMost,
    /// `a & b != 0`
    AnySet,
    /// `a > b`, as signed numbers.
    SignedAbove,
}

impl Condition {
    const fn bits(self) -> u8 {
        match self {
            Self::Equal => 0x10,
            Self::Above => 0x20,
            Self::AtLeast => 0x30,
            Self::AnySet => 0x40,
            Self::NotEqual => 0x50,
            Self::SignedAbove => 0x60,
            Self::Below => 0xa0,
            Self::AtMost => 0xb0,
        }
    }
}

/// Bits of an instruction: opcode 8, destination 4, source 4, offset 16, immediate 32.
const fn word(opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    opcode as u64
        | (destination as u64) << 8
        | (source as u64) << 12
        | (offset.cast_unsigned() as u64) << 16
        | (immediate.cast_unsigned() as u64) << 32
}

/// `to = *(width *)(from + offset)`, the upper bits zero.
pub(crate) const fn load(width: Width, to: Register, from: Register, offset: i16) -> u64 {
    word(0x61 | width.bits(), to as u8, from as u8, offset, 0)
}

/// `*(width *)(to + offset) = from`.
pub(crate) const fn store(width: Width, to: Register, offset: i16, from: Operand) -> u64 {
    let (is_register, source, value) = from.parts();
    let opcode = if is_register == 0 { 0x62 } else { 0x63 };
    word(opcode | width.bits(), to as u8, source, offset, value)
}

/// `*(u64 *)(to + offset) += from`, atomically.
pub(crate) const fn atomic_add(to: Register, offset: i16, from: Register) -> u64 {
    word(0xdb, to as u8, from as u8, offset, 0)
}

/// If `*(u64 *)(to + offset)` is r0, it becomes `from`, atomically; r0 becomes the earlier content.
pub(crate) const fn atomic_compare_exchange(to: Register, offset: i16, from: Register) -> u64 {
    word(0xdb, to as u8, from as u8, offset, 0xf1)
}

/// `to = operation(to, operand)`.
pub(crate) const fn compute(operation: Operation, to: Register, operand: Operand) -> u64 {
    let (is_register, source, value) = operand.parts();
    word(0x07 | operation.bits() | is_register, to as u8, source, 0, value)
}

/// `to = value`, its upper half zero.
pub(crate) const fn set(to: Register, value: u32) -> u64 {
    word(0xb4, to as u8, 0, 0, value.cast_signed())
}

/// The kind of address in the two words of [`wide`].
#[derive(Clone, Copy)]
pub(crate) enum Wide {
    /// The map itself.
    Map = 1,
    /// The value of its only entry.
    MapValue = 2,
}

/// `to = address`, of a map by its descriptor.
pub(crate) const fn wide(to: Register, kind: Wide, descriptor: i32) -> [u64; 2] {
    [word(0x18, to as u8, kind as u8, 0, descriptor), 0]
}

/// Skips `offset` words. All 64 bits are compared, or the lower 32.
pub(crate) const fn jump_if(
    condition: Condition,
    is_wide: bool,
    left: Register,
    right: Operand,
    offset: i16,
) -> u64 {
    let (is_register, source, value) = right.parts();
    let class = if is_wide { 0x05 } else { 0x06 };
    word(class | condition.bits() | is_register, left as u8, source, offset, value)
}

/// Skips `offset` words.
pub(crate) const fn jump(offset: i16) -> u64 {
    word(0x05, 0, 0, offset, 0)
}

/// Calls a helper function by number.
pub(crate) const fn call(helper: i32) -> u64 {
    word(0x85, 0, 0, 0, helper)
}

/// Returns r0.
pub(crate) const fn exit() -> u64 {
    word(0x95, 0, 0, 0, 0)
}
