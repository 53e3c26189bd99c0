//! The host's part in the view: the rights that are needed to open it, and whether KVM's vCPUs halt-poll.

/// KVM's longest halt-polling time, in ns. Without KVM the file is missing.
const HALT_POLL_NS: &str = "/sys/module/kvm/parameters/halt_poll_ns";

/// Whether a vCPU of KVM that sleeps may look as if it ran: its thread polls for an interrupt for some time before it
/// goes to sleep. No tracepoint marks the start of that.
#[must_use]
pub fn halt_polls() -> bool {
    std::fs::read_to_string(HALT_POLL_NS).is_ok_and(|text| is_positive(&text))
}

/// A text that is no number counts as one: then a vCPU may halt-poll.
fn is_positive(text: &str) -> bool {
    text.trim().parse::<u64>().map_or(true, |ns| ns > 0)
}

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
    fn it_is_off_at_zero() {
        assert!(is_positive("200000\n") && is_positive("?") && !is_positive("0\n"));
    }

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
