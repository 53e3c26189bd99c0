//! Tracepoints and their arguments.

use thiserror::Error;

use super::{Btf, TypeId, TypeKind};
use crate::bounds::ARGUMENTS_MAX;
use crate::instruction::Width;

/// Bytes of an argument in a program's context.
const ARGUMENT_BYTES: usize = 8;

/// Why programs cannot be attached to a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TracepointError {
    /// There is no such tracepoint.
    #[error("this kernel has no tracepoint {0}")]
    Missing(String),
    /// Its arguments differ from those that are known here.
    #[error(
        "the tracepoint {tracepoint} of this kernel has no argument {argument} of the type that is known here"
    )]
    Argument {
        /// The tracepoint.
        tracepoint: String,
        /// The argument.
        argument: String,
    },
}

/// A tracepoint of the kernel.
#[derive(Debug)]
pub struct Tracepoint<'btf> {
    btf: &'btf Btf,
    name: String,
    btf_id: u32,
    /// The function that calls programs; its arguments have names, and the first one is not passed on.
    caller: TypeId,
}

impl Btf {
    /// The tracepoint with this name.
    ///
    /// # Errors
    /// [`TracepointError::Missing`].
    pub fn tracepoint(&self, name: &str) -> Result<Tracepoint<'_>, TracepointError> {
        let found = self.find(TypeKind::Typedef, &format!("btf_trace_{name}")).and_then(|typedef| {
            let caller = self.find(TypeKind::Function, &format!("__traceiter_{name}"))?;
            let caller = TypeId(self.raw(caller)?.size_or_type);
            Some(Tracepoint { btf: self, name: name.to_owned(), btf_id: typedef.0, caller })
        });
        found.ok_or_else(|| TracepointError::Missing(name.to_owned()))
    }
}

impl Tracepoint<'_> {
    /// Its type's number, for [`ProgramKind::Tracing`](crate::ProgramKind::Tracing).
    #[must_use]
    pub fn btf_id(&self) -> u32 {
        self.btf_id
    }

    /// The offset in a program's context of the argument `name`, a pointer to `structure`.
    ///
    /// # Errors
    /// [`TracepointError::Argument`] if it is missing or has another type.
    pub fn pointer(&self, name: &str, structure: &str) -> Result<i16, TracepointError> {
        let expected = self.btf.find(TypeKind::Structure, structure);
        self.offset(name, |of| {
            let of = self.btf.resolve(of).filter(|of| self.btf.kind(*of) == Some(TypeKind::Pointer));
            let target = of.and_then(|of| self.btf.target(of)).and_then(|target| self.btf.resolve(target));
            target.is_some() && target == expected
        })
    }

    /// The offset in a program's context of the argument `name`, a number of `width`.
    ///
    /// # Errors
    /// As [`Self::pointer`].
    pub fn number(&self, name: &str, width: Width) -> Result<i16, TracepointError> {
        self.offset(name, |of| {
            let is_number = self.btf.resolve(of).and_then(|of| self.btf.kind(of)) == Some(TypeKind::Integer);
            is_number && self.btf.size_bytes(of) == Some(width.bytes())
        })
    }

    fn offset(&self, name: &str, is_right: impl Fn(TypeId) -> bool) -> Result<i16, TracepointError> {
        let mut arguments = self.btf.parameters(self.caller).skip(1).take(ARGUMENTS_MAX);
        let index = arguments.position(|argument| argument.name == name && is_right(argument.of));
        let offset = index.map(|index| (index * ARGUMENT_BYTES) as i16); // less than ARGUMENTS_MAX of them
        offset.ok_or_else(|| TracepointError::Argument {
            tracepoint: self.name.clone(),
            argument: name.to_owned(),
        })
    }
}
