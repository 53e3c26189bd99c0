//! The lists of system calls as filters that the kernel runs before each call (seccomp(2)).
//!
//! There are two filters, since each has one answer for its list: the first ends the process at a call that is in
//! neither list, the second lets calls fail that are listed as refused. From 5.11 on the kernel has a bitmap of calls
//! that both allow with any arguments, and runs neither for those: all calls of the packet path are among them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, BorrowedFd};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde::{Deserialize, Serialize};

use crate::ipc::frame;
use crate::sandbox::calls::{Call, Refusal, Term, Value};
use crate::sandbox::layer::Made;
use crate::sandbox::{ProcessRole, name_of, sys};

/// Values that are only known at run time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) process: u32,
    /// `None` forbids the calls that need it.
    pub(super) names: Option<u32>,
}

/// Restricts this thread, and those that it starts, to the calls of `role`'s list.
pub(super) fn restrict(role: ProcessRole, names: Option<BorrowedFd<'_>>) -> Made {
    let names = names.and_then(|names| names.as_raw_fd().try_into().ok());
    let own = Own { process: std::process::id(), names };
    let programs = programs(role, own).map_err(|error| error.to_string())?;
    for program in &programs {
        sys::filter(program).map_err(|error| error.to_string())?;
    }
    let allowed: BTreeSet<i64> = role.calls().map(|call| call.number).collect();
    Ok(format!("{} allowed", allowed.len()))
}

/// The filters in the order of installation: after the one that ends the process, none can be installed.
pub(super) fn programs(role: ProcessRole, own: Own) -> Result<[BpfProgram; 2], BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let (mut failing, mut passing) = (BTreeMap::new(), BTreeMap::new());
    for Refusal(call) in role.refusals() {
        add(&mut failing, call, own)?;
        add(&mut passing, call, own)?;
    }
    for call in role.calls() {
        add(&mut passing, call, own)?;
    }
    let errno = SeccompAction::Errno(libc::ENOSYS as u32);
    let program = |rules, otherwise, listed| SeccompFilter::new(rules, otherwise, listed, arch)?.try_into();
    Ok([
        program(failing, SeccompAction::Allow, errno)?,
        program(passing, SeccompAction::Trap, SeccompAction::Allow)?,
    ])
}

/// The filter against those of `role`'s calls that are needed once. It is installed after the others, which allow that.
pub(super) fn spent(role: ProcessRole, own: Own) -> Result<BpfProgram, BackendError> {
    let mut rules = BTreeMap::new();
    for call in role.calls().filter(|call| call.is_once) {
        add(&mut rules, call, own)?;
    }
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Trap, arch)?.try_into()
}

/// Adds a call's rules to those of its number. No rule means any arguments.
fn add(rules: &mut BTreeMap<i64, Vec<SeccompRule>>, call: &Call, own: Own) -> Result<(), BackendError> {
    let has_any = rules.get(&call.number).is_some_and(Vec::is_empty);
    if call.terms.is_empty() || has_any {
        rules.insert(call.number, Vec::new());
        return Ok(());
    }
    for terms in call.terms {
        let conditions =
            terms.iter().map(|term| condition(term, own)).collect::<Result<Option<Vec<_>>, _>>()?;
        if let Some(conditions) = conditions {
            rules.entry(call.number).or_default().push(SeccompRule::new(conditions)?);
        }
    }
    Ok(())
}

/// `None` if no value fulfils it.
fn condition(term: &Term, own: Own) -> Result<Option<SeccompCondition>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let (len, operator, value) = match term.is {
        Value::Int(value) => (Dword, Eq, value.into()),
        Value::NotInt(value) => (Dword, Ne, value.into()),
        Value::Long(value) => (Qword, Eq, value),
        Value::Bits { mask, value } => (Qword, MaskedEq(mask), value),
        Value::OwnProcess => (Dword, Eq, own.process.into()),
        Value::DescriptorNames => match own.names {
            Some(names) => (Dword, Eq, names.into()),
            None => return Ok(None),
        },
    };
    SeccompCondition::new(term.argument, len, operator, value).map(Some)
}

/// A placeholder with as many digits as the largest number.
const PLACEHOLDER: u32 = 4_111_111_111;

/// A forbidden system call, by its number on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForbiddenCall {
    /// The number in the kernel's table of system calls.
    pub number: u32,
}

impl std::fmt::Display for ForbiddenCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it made system call {}", self.number)?;
        if let Some(name) = name_of(self.number.into()) {
            write!(f, " ({name})")?;
        }
        f.write_str(", which its sandbox does not allow")
    }
}

/// Has a forbidden call reported over `channel` before it ends the process. The message is made now, with room for the
/// number: a process that makes such a call is not trusted to make messages.
pub(super) fn tell<M: Serialize>(
    channel: BorrowedFd<'_>,
    message: impl Fn(ForbiddenCall) -> M,
) -> Result<(), String> {
    let payload = serde_json::to_vec(&message(ForbiddenCall { number: PLACEHOLDER }));
    let bytes = frame(&payload.map_err(|error| error.to_string())?, 0).map_err(|error| error.to_string())?;
    let digits = PLACEHOLDER.to_string();
    let place = bytes.windows(digits.len()).position(|window| window == digits.as_bytes());
    let start = place.ok_or("the message about a forbidden call has no place for its number")?;
    sys::on_forbidden_call(channel.as_raw_fd(), bytes, start..start + digits.len())
        .map_err(|error| format!("cannot handle SIGSYS: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_by_name_if_it_has_one() {
        let number = u32::try_from(libc::SYS_socket).expect("small");
        let text = ForbiddenCall { number }.to_string();
        assert_eq!(text, format!("it made system call {number} (socket), which its sandbox does not allow"));
        let text = ForbiddenCall { number: 99_999 }.to_string();
        assert_eq!(text, "it made system call 99999, which its sandbox does not allow");
    }
}
