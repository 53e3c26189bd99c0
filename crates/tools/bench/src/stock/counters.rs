//! The answers of testpmd to `show port stats all`.

/// The counters of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortCounters {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Frames received per second since the previous answer, by testpmd's own clock.
    pub(super) received_pps: u64,
}

/// The counters of each port in order, if the text contains a complete answer for `ports` ports.
pub(super) fn parse(text: &str, ports: usize) -> Option<Vec<PortCounters>> {
    let answers = text.split("NIC statistics for port ").skip(1);
    let counters: Vec<PortCounters> = answers.map(port).collect::<Option<_>>()?;
    (counters.len() == ports).then_some(counters)
}

fn port(text: &str) -> Option<PortCounters> {
    // The last field of an answer: without it, the answer is incomplete.
    number(text, "Tx-bps:")?;
    Some(PortCounters {
        sent: number(text, "TX-packets:")?,
        received: number(text, "RX-packets:")?,
        received_pps: number(text, "Rx-pps:")?,
    })
}

/// The number after a name. A blank or a line end has to follow, as digits may be missing otherwise.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.split_once(name)?.1.trim_start();
    let end = rest.find(|sign: char| !sign.is_ascii_digit())?;
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "\
testpmd> show port stats all

  ######################## NIC statistics for port 0  ########################
  RX-packets: 4507       RX-missed: 0          RX-bytes:  284352
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 4508       TX-errors: 0          TX-bytes:  284416

  Throughput (since last show)
  Rx-pps:         4058          Rx-bps:      2047776
  Tx-pps:         3110          Tx-bps:      1592664
  ############################################################################

  ######################## NIC statistics for port 1  ########################
  RX-packets: 4508       RX-missed: 0          RX-bytes:  284416
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 4541       TX-errors: 0          TX-bytes:  286400

  Throughput (since last show)
  Rx-pps:         4030          Rx-bps:      2034000
  Tx-pps:         3111          Tx-bps:      1593128
  ############################################################################
";

    #[test]
    fn an_answer_is_read_when_it_is_whole() {
        let counters = parse(ANSWER, 2).expect("an answer");
        assert_eq!(counters[0], PortCounters { sent: 4508, received: 4507, received_pps: 4058 });
        assert_eq!(counters[1].sent, 4541);
        let last = ANSWER.rfind("1593128").expect("the last field");
        for end in 0..last + "1593128".len() {
            assert_eq!(parse(&ANSWER[..end], 2), None, "{end}");
        }
        assert!(parse(&ANSWER[..=last + "1593128".len()], 2).is_some());
    }
}
