//! Landlock: a rule set that allows nothing, neither files nor TCP, nor signals to other processes (landlock(7)).

use ::landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset, RulesetAttr,
    RulesetError, RulesetStatus, Scope,
};

use super::layer::Made;

/// The newest version of which all rights are known here; an older kernel has fewer.
const NEWEST: ABI = ABI::V6;

/// Denies whatever this kernel's version knows how to deny.
pub(super) fn restrict() -> Made {
    let status = deny_all().map_err(|error| error.to_string())?;
    let covers = match status.landlock {
        LandlockStatus::NotImplemented => return Err("this kernel is built without it".to_owned()),
        LandlockStatus::NotEnabled => return Err("this kernel was booted without it (lsm=)".to_owned()),
        LandlockStatus::Available { effective_abi, .. } => covers(effective_abi),
    };
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("the kernel did not take the rules".to_owned()),
        _ => Ok(format!("denies {covers}")),
    }
}

fn covers(abi: ABI) -> &'static str {
    match abi {
        abi if abi >= ABI::V6 => "files, TCP, signals, abstract sockets",
        abi if abi >= ABI::V4 => "files, TCP",
        _ => "files",
    }
}

fn deny_all() -> Result<::landlock::RestrictionStatus, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .restrict_self()
}
