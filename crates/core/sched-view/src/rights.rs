//! The rights that are needed to open the view.

/// linux/capability.h.
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Whether this process has the capabilities for the view's programs (bpf(2)). They may still be refused for other
/// reasons.
#[must_use]
pub fn has_rights() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| suffice(&status))
}

fn suffice(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let has = |capability: u32| effective.is_some_and(|effective| effective >> capability & 1 == 1);
    has(SYS_ADMIN) || has(BPF) && has(PERFMON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_capabilities_are_needed_or_that_of_everything() {
        let status = |bits: &[u32]| {
            let effective: u64 = bits.iter().map(|bit| 1 << bit).sum();
            format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective:016x}\n")
        };
        assert!(suffice(&status(&[PERFMON, BPF])) && suffice(&status(&[SYS_ADMIN])));
        assert!(!suffice(&status(&[PERFMON])) && !suffice(&status(&[BPF])) && !suffice(""));
    }
}
