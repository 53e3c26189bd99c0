//! The layout of BTF.

use std::ops::Range;

use super::BtfError;

const MAGIC: u16 = 0xeb9f;
/// Bytes of the header's fields that are read here.
const HEADER_BYTES: usize = 24;
pub(super) const TYPE_BYTES: usize = 12;

/// The kind of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeKind {
    /// A number, a character or a truth value.
    Integer,
    /// `*`
    Pointer,
    /// `[]`
    Array,
    /// `struct`
    Structure,
    /// `union`
    Union,
    /// `enum`, of any size.
    Enumeration,
    /// A declaration without content.
    Forward,
    /// `typedef`
    Typedef,
    /// `const`, `volatile`, `restrict`, or a tag.
    Qualifier,
    /// A function.
    Function,
    /// A function's arguments and result.
    Prototype,
    /// A variable.
    Variable,
    /// A section of variables.
    Section,
    /// A floating-point number.
    Float,
    /// A tag of a declaration.
    DeclarationTag,
}

/// Where types and names are.
pub(super) struct Header {
    pub(super) types: Range<usize>,
    pub(super) names: Range<usize>,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let magic = bytes.first_chunk().ok_or(BtfError::Truncated)?;
        if u16::from_ne_bytes(*magic) != MAGIC {
            return Err(BtfError::Magic);
        }
        let [header, types_at, types, names_at, names] = words(bytes, 4).ok_or(BtfError::Truncated)?;
        if (header as usize) < HEADER_BYTES {
            return Err(BtfError::Truncated);
        }
        let part = |at: u32, len: u32| {
            let start = header as usize + at as usize;
            let range = start..start + len as usize;
            bytes.get(range.clone()).map(|_| range).ok_or(BtfError::Truncated)
        };
        Ok(Self { types: part(types_at, types)?, names: part(names_at, names)? })
    }
}

/// The fixed part of a type.
#[derive(Clone, Copy)]
pub(super) struct RawType {
    pub(super) name_at: u32,
    info: u32,
    pub(super) size_or_type: u32,
}

impl RawType {
    pub(super) fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let [name_at, info, size_or_type] = words(bytes, at)?;
        Some(Self { name_at, info, size_or_type })
    }

    fn kind_number(self) -> u32 {
        self.info >> 24 & 0x1f
    }

    pub(super) fn kind(self) -> Option<TypeKind> {
        Some(match self.kind_number() {
            1 => TypeKind::Integer,
            2 => TypeKind::Pointer,
            3 => TypeKind::Array,
            4 => TypeKind::Structure,
            5 => TypeKind::Union,
            6 | 19 => TypeKind::Enumeration,
            7 => TypeKind::Forward,
            8 => TypeKind::Typedef,
            9..=11 | 18 => TypeKind::Qualifier,
            12 => TypeKind::Function,
            13 => TypeKind::Prototype,
            14 => TypeKind::Variable,
            15 => TypeKind::Section,
            16 => TypeKind::Float,
            17 => TypeKind::DeclarationTag,
            _ => return None,
        })
    }

    /// The number of members, arguments or values.
    pub(super) fn entries(self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// For a structure or union: whether its members' offsets also contain the width of bit fields.
    pub(super) fn has_bit_fields(self) -> bool {
        self.info >> 31 == 1
    }

    /// The length including the data that follows.
    pub(super) fn bytes(self) -> Result<usize, BtfError> {
        let kind = self.kind().ok_or(BtfError::UnknownKind(self.kind_number()))?;
        let is_wide = self.kind_number() == 19;
        let (each, extra) = match kind {
            TypeKind::Integer | TypeKind::Variable | TypeKind::DeclarationTag => (0, 4),
            TypeKind::Array => (0, 12),
            TypeKind::Structure | TypeKind::Union | TypeKind::Section => (12, 0),
            TypeKind::Enumeration if is_wide => (12, 0),
            TypeKind::Enumeration | TypeKind::Prototype => (8, 0),
            _ => (0, 0),
        };
        Ok(TYPE_BYTES + extra + each * self.entries())
    }
}

/// `N` words from `at` on.
pub(super) fn words<const N: usize>(bytes: &[u8], at: usize) -> Option<[u32; N]> {
    let bytes = bytes.get(at..at.checked_add(4 * N)?)?;
    let (words, _) = bytes.as_chunks::<4>();
    let mut values = [0; N];
    values.iter_mut().zip(words).for_each(|(value, word)| *value = u32::from_ne_bytes(*word));
    Some(values)
}
