//! Reports the system call that ended a process because it is not in its list.

use std::os::fd::{AsRawFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use crate::ipc::frame;

use super::name_of;
use super::sys;

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
