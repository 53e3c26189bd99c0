//! Members of structures by name.

use thiserror::Error;

use super::{Btf, TypeId, TypeKind};
use crate::bounds::{DEPTH_MAX, LOOKS_MAX};
use crate::instruction::Width;

/// The position of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// From the start of the outermost structure.
    pub offset_bits: u64,
    /// The width of a bit field, in bits; 0 for other members.
    pub bit_field: u8,
    /// Its type.
    pub of: TypeId,
}

/// Why the offset of a member is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemberError {
    /// There is none of that name.
    #[error("this kernel has no member {path} in its struct {structure}")]
    Missing {
        /// The outermost structure.
        structure: String,
        /// The member and its outer members.
        path: String,
    },
    /// It has another size, is a bit field, or has too large an offset.
    #[error("the member {path} of this kernel's struct {structure} has not the form that is known here")]
    Form {
        /// The outermost structure.
        structure: String,
        /// The member and its outer members.
        path: String,
    },
}

/// A search for one name.
struct Search<'a> {
    btf: &'a Btf,
    name: &'a str,
    looks: usize,
}

impl Search<'_> {
    /// Finds the member of that name, also in unnamed structures.
    fn find(&mut self, structure: TypeId, depth: usize) -> Option<Member> {
        let structure = self.btf.resolve(structure)?;
        let raw = self.btf.raw(structure)?;
        if depth == 0 || !matches!(raw.kind()?, TypeKind::Structure | TypeKind::Union) {
            return None;
        }
        for index in 0..raw.entries() {
            self.looks = self.looks.checked_sub(1)?;
            let [name_at, of, offset] = self.btf.words(structure, index)?;
            let (offset_bits, bit_field) =
                if raw.has_bit_fields() { (offset & 0xff_ffff, (offset >> 24) as u8) } else { (offset, 0) };
            let member = Member { offset_bits: offset_bits.into(), bit_field, of: TypeId(of) };
            match self.btf.name(name_at) {
                name if name == self.name => return Some(member),
                "" => {
                    if let Some(inner) = self.find(member.of, depth - 1) {
                        let offset_bits = member.offset_bits + inner.offset_bits;
                        return Some(Member { offset_bits, ..inner });
                    }
                }
                _ => {}
            }
        }
        None
    }
}

impl Btf {
    /// A member of a structure or union; `path` names it and its outer members, with dots: `se.sched_delayed`. Members
    /// of unnamed structures are found as if they were the outer one's, as in C.
    #[must_use]
    pub fn member(&self, structure: TypeId, path: &str) -> Option<Member> {
        let mut found = Member { offset_bits: 0, bit_field: 0, of: structure };
        for name in path.split('.').filter(|name| !name.is_empty()) {
            let mut search = Search { btf: self, name, looks: LOOKS_MAX };
            let inner = search.find(found.of, DEPTH_MAX)?;
            found = Member { offset_bits: found.offset_bits + inner.offset_bits, ..inner };
        }
        (found.of != structure).then_some(found)
    }

    /// The offset in bytes at which a load of `width` reads the member `path` of `struct structure`.
    ///
    /// # Errors
    /// [`MemberError`].
    pub fn offset(&self, structure: &str, path: &str, width: Width) -> Result<i16, MemberError> {
        let (name, path_too) = (structure.to_owned(), path.to_owned());
        let member =
            self.find(TypeKind::Structure, structure).and_then(|structure| self.member(structure, path));
        let member =
            member.ok_or(MemberError::Missing { structure: name.clone(), path: path_too.clone() })?;
        let is_plain = member.bit_field == 0
            && member.offset_bits % 8 == 0
            && self.size_bytes(member.of) == Some(width.bytes());
        let offset = i16::try_from(member.offset_bits / 8).ok().filter(|_| is_plain);
        offset.ok_or(MemberError::Form { structure: name, path: path_too })
    }
}
