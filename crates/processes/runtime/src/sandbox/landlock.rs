//! Landlock: a set of rules that allows no access to files or TCP, and no signals to other processes (landlock(7)).

use rustix::io::Errno;

use super::layer::Made;
use super::sys::{self, LandlockRules};

/// The versions of the interface with new rules, and these rules (linux/landlock.h). A version has all rules of older
/// ones.
const VERSIONS: &[(u32, LandlockRules)] = &[
    // Executing, reading, writing, creating and removing files of all kinds; linking to another directory; truncating.
    (1, LandlockRules { files: (1 << 13) - 1, ..LandlockRules::NONE }),
    (2, LandlockRules { files: 1 << 13, ..LandlockRules::NONE }),
    (3, LandlockRules { files: 1 << 14, ..LandlockRules::NONE }),
    // TCP: binding and connecting.
    (4, LandlockRules { network: 0b11, ..LandlockRules::NONE }),
    // ioctl(2) of devices that are opened afterwards.
    (5, LandlockRules { files: 1 << 15, ..LandlockRules::NONE }),
    // Abstract UNIX sockets and signals to processes outside.
    (6, LandlockRules { scopes: 0b11, ..LandlockRules::NONE }),
];

/// Denies everything that this kernel's version can deny. Requires that new privileges are forbidden.
pub(super) fn restrict() -> Made {
    let version = sys::landlock_version().map_err(|error| match error {
        Errno::NOSYS => "this kernel is built without it".to_owned(),
        Errno::OPNOTSUPP => "this kernel was booted without it (lsm=)".to_owned(),
        error => error.to_string(),
    })?;
    sys::landlock_deny(&rules(version)).map_err(|error| error.to_string())?;
    Ok(format!("denies {}", covers(version)))
}

fn rules(version: u32) -> LandlockRules {
    let known = VERSIONS.iter().filter(|(since, _)| *since <= version);
    known.fold(LandlockRules::NONE, |all, (_, more)| LandlockRules {
        files: all.files | more.files,
        network: all.network | more.network,
        scopes: all.scopes | more.scopes,
    })
}

fn covers(version: u32) -> &'static str {
    match version {
        0..=3 => "files",
        4..=5 => "files, TCP",
        _ => "files, TCP, signals, abstract sockets",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_what_older_ones_have() {
        assert_eq!(rules(1), LandlockRules { files: 0x1fff, network: 0, scopes: 0 });
        assert_eq!(rules(3), LandlockRules { files: 0x7fff, network: 0, scopes: 0 });
        assert_eq!(rules(6), LandlockRules { files: 0xffff, network: 3, scopes: 3 });
        assert_eq!(rules(99), rules(6), "what newer ones have is not known here");
    }
}
