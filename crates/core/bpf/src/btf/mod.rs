//! BTF: the kernel's own description of its types (Documentation/bpf/btf.rst), as far as needed for offsets of members
//! and arguments of tracepoints.
//!
//! ```text
//!   header │ type 1 │ type 2 │ ...            │ names, each ended by a zero byte
//!          ^ types_at                         ^ names
//! ```
//!
//! The bytes are checked when they are read: any bytes give a [`BtfError`], or types whose references are checked at
//! each look-up. Types may refer to each other in cycles; every walk has a limit.

mod layout;
mod members;
mod tracepoint;

use std::fs::File;
use std::io::{self, Read};

use thiserror::Error;

use crate::bounds::{ALIASES_MAX, BTF_BYTES_MAX, TYPES_MAX};

pub use layout::TypeKind;
use layout::{Header, RawType};
pub use members::{Member, MemberError};
pub use tracepoint::{Tracepoint, TracepointError};

const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// A type, by its number. An invalid number has no properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeId(u32);

impl TypeId {
    /// The number, as the kernel takes it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// An argument of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'btf> {
    /// Its name, which may be empty.
    pub name: &'btf str,
    /// Its type.
    pub of: TypeId,
}

/// Why bytes are not valid BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BtfError {
    /// The magic number is wrong, or has the other byte order.
    #[error("these are no BTF bytes of this machine")]
    Magic,
    /// A part is outside the bytes.
    #[error("BTF bytes end too early")]
    Truncated,
    /// A type of a later format.
    #[error("BTF has a type of kind {0}, which is not known here")]
    UnknownKind(u32),
    /// There are too many types or bytes.
    #[error("BTF has more than {TYPES_MAX} types, or more than {BTF_BYTES_MAX} bytes")]
    TooLarge,
}

/// Types of a kernel or of a module.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// The position of each type; the first one has number 1.
    types_at: Vec<usize>,
    names: std::ops::Range<usize>,
}

impl Btf {
    /// The types of the running kernel.
    ///
    /// # Errors
    /// NotFound if the kernel was built without BTF; InvalidData with the [`BtfError`] inside.
    pub fn kernel() -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::open(KERNEL)?.take(BTF_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Self::parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Parses and checks bytes.
    ///
    /// # Errors
    /// [`BtfError`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        if bytes.len() as u64 > BTF_BYTES_MAX {
            return Err(BtfError::TooLarge);
        }
        let header = Header::parse(&bytes)?;
        let mut types_at = Vec::new();
        let mut at = header.types.start;
        while at < header.types.end {
            if types_at.len() == TYPES_MAX {
                return Err(BtfError::TooLarge);
            }
            let raw = RawType::parse(&bytes[..header.types.end], at).ok_or(BtfError::Truncated)?;
            types_at.push(at);
            at += raw.bytes()?;
        }
        if at == header.types.end {
            Ok(Self { bytes, types_at, names: header.names })
        } else {
            Err(BtfError::Truncated)
        }
    }

    /// The first type of this kind and name.
    #[must_use]
    pub fn find(&self, kind: TypeKind, name: &str) -> Option<TypeId> {
        let is_it = |id: &TypeId| {
            self.raw(*id).is_some_and(|raw| raw.kind() == Some(kind) && self.name(raw.name_at) == name)
        };
        (1..=self.types_at.len() as u32).map(TypeId).find(is_it)
    }

    /// The type to which a pointer, a typedef or a qualified type refers.
    #[must_use]
    pub fn target(&self, id: TypeId) -> Option<TypeId> {
        let raw = self.raw(id)?;
        let refers = matches!(raw.kind()?, TypeKind::Pointer | TypeKind::Typedef | TypeKind::Qualifier);
        refers.then_some(TypeId(raw.size_or_type))
    }

    /// The type without typedefs and qualifiers.
    #[must_use]
    pub fn resolve(&self, id: TypeId) -> Option<TypeId> {
        let mut at = id;
        for _ in 0..ALIASES_MAX {
            match self.raw(at)?.kind()? {
                TypeKind::Typedef | TypeKind::Qualifier => at = self.target(at)?,
                _ => return Some(at),
            }
        }
        None
    }

    /// The kind of a type.
    #[must_use]
    pub fn kind(&self, id: TypeId) -> Option<TypeKind> {
        self.raw(id)?.kind()
    }

    /// The size of a type of fixed size, in bytes; `None` for arrays and functions.
    #[must_use]
    pub fn size_bytes(&self, id: TypeId) -> Option<u32> {
        let raw = self.raw(self.resolve(id)?)?;
        match raw.kind()? {
            TypeKind::Integer
            | TypeKind::Structure
            | TypeKind::Union
            | TypeKind::Enumeration
            | TypeKind::Float => Some(raw.size_or_type),
            TypeKind::Pointer => Some(size_of::<usize>() as u32),
            _ => None,
        }
    }

    /// The arguments of a function's type; none for other types.
    pub fn parameters(&self, prototype: TypeId) -> impl Iterator<Item = Parameter<'_>> {
        let raw = self.raw(prototype).filter(|raw| raw.kind() == Some(TypeKind::Prototype));
        let entries = raw.into_iter().flat_map(|raw| 0..raw.entries());
        entries.filter_map(move |index| {
            let [name_at, of] = self.words(prototype, index)?;
            Some(Parameter { name: self.name(name_at), of: TypeId(of) })
        })
    }

    fn raw(&self, id: TypeId) -> Option<RawType> {
        let at = *self.types_at.get((id.0 as usize).checked_sub(1)?)?;
        RawType::parse(&self.bytes, at)
    }

    /// Entry `index` of a type whose entries have `N` words. `parse` has checked that all its entries exist.
    fn words<const N: usize>(&self, id: TypeId, index: usize) -> Option<[u32; N]> {
        let at = *self.types_at.get((id.0 as usize).checked_sub(1)?)?;
        layout::words(&self.bytes, at + layout::TYPE_BYTES + index * N * 4)
    }

    /// The name at an offset; empty if the offset is invalid or the name is not UTF-8.
    fn name(&self, name_at: u32) -> &str {
        let names = &self.bytes[self.names.clone()];
        let rest = names.get(name_at as usize..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
