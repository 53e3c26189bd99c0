//! Log lines about connections that a rule with `log` denied. Their number is bounded, since guests decide how many
//! there are.

use lasthop_api::acl::RuleName;
use lasthop_flow::FlowKey;

/// Lines in a second.
const PER_SECOND_MAX: u32 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// Lines that wait to be logged.
#[derive(Debug, Default)]
pub(crate) struct DenialLog {
    lines: Vec<String>,
    /// Seconds since the clock began, and lines in this second.
    second: (u64, u32),
    left_out: u64,
}

impl DenialLog {
    /// Notes that a rule denied a packet from this port, the first one without a flow.
    pub(crate) fn note(&mut self, rule: &RuleName, port: &str, key: &FlowKey, now_ns: u64) {
        let second = now_ns / SECOND_NS;
        if self.second.0 != second {
            self.second = (second, 0);
        }
        if self.second.1 >= PER_SECOND_MAX {
            self.left_out += 1;
            return;
        }
        self.second.1 += 1;
        let left_out = std::mem::take(&mut self.left_out);
        let others =
            if left_out == 0 { String::new() } else { format!("; {left_out} others before were not logged") };
        self.lines.push(format!("rule {rule} denies a packet from {port}: {}{others}", addresses(key)));
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

fn addresses(key: &FlowKey) -> String {
    let ports = [key.tcp, key.udp, key.sctp].into_iter().flatten().next();
    let ports = ports.map_or_else(String::new, |ports| format!(" port {} to {}", ports.src, ports.dst));
    let ip = match (key.ipv4, key.ipv6) {
        (Some(ip), _) => format!("{} to {} protocol {}", ip.src, ip.dst, ip.proto),
        (_, Some(ip)) => format!("{} to {} protocol {}", ip.src, ip.dst, ip.proto),
        _ => {
            let ethernet = key.ethernet.unwrap_or_default();
            format!("{} to {} EtherType {:#06x}", ethernet.src, ethernet.dst, key.ether_type.unwrap_or(0))
        }
    };
    ip + &ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_fills_no_log() {
        let mut log = DenialLog::default();
        let rule = "r".parse().expect("a name");
        (0..1000).for_each(|_| log.note(&rule, "vm1", &FlowKey::default(), 1));
        assert_eq!(log.take().len(), PER_SECOND_MAX as usize);
        log.note(&rule, "vm1", &FlowKey::default(), SECOND_NS);
        assert!(log.take()[0].ends_with("; 990 others before were not logged"));
    }
}
