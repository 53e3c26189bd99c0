//! The process at the other end of a vhost-user connection.

use std::os::unix::fs::MetadataExt;

use crate::thread::ThreadId;

/// The front end of a guest, as its socket names the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontEndProcess {
    /// As SO_PEERCRED tells it, or of a child.
    pub pid: i32,
    /// The connection's user; `None` for a child of ours, which is not reaped before its end is noticed.
    pub user: Option<u32>,
}

impl FrontEndProcess {
    /// The process, if it still belongs to the connection's user.
    ///
    /// # Errors
    /// One sentence: it has ended, or is another user's.
    pub fn process(self) -> Result<ThreadId, String> {
        let Self { pid, user } = self;
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
        match owner {
            Ok(owner) if user.is_none_or(|user| owner == user) => {}
            Ok(owner) => {
                let user = user.unwrap_or_default();
                return Err(format!("process {pid} is of user {owner}, and its front end of user {user}"));
            }
            Err(_) => return Err(format!("its front end, process {pid}, has ended")),
        }
        ThreadId::of(pid.cast_unsigned()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_front_end_of_another_user_or_one_that_is_gone_is_refused() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        assert!(FrontEndProcess { pid, user: Some(own_user()) }.process().is_ok());
        let forged =
            FrontEndProcess { pid, user: Some(own_user() + 1) }.process().expect_err("another user's");
        assert!(forged.contains(&format!("user {}", own_user() + 1)), "{forged}");
        assert!(FrontEndProcess { pid, user: None }.process().is_ok(), "one of our own");
        assert!(
            FrontEndProcess { pid: i32::MAX, user: Some(own_user()) }
                .process()
                .expect_err("none")
                .contains("ended")
        );
    }
}
