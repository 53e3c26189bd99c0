//! Whether KVM's vCPUs halt-poll on this host.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_at_zero() {
        assert!(is_positive("200000\n") && is_positive("?") && !is_positive("0\n"));
    }
}
