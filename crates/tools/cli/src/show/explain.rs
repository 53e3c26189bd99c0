//! The way of a packet, in text from its port to its end.

use lasthop_api::explain::{ExplainFlow, ExplainReport, ExplainStep};

/// Lines from top to bottom; the last one is the packet's end.
pub(crate) fn explanation(report: &ExplainReport) -> String {
    let ExplainReport { from, switch, module, frame_bytes, verdict, hint, .. } = report;
    let place = switch.as_ref().map_or_else(|| "no switch".to_owned(), |switch| format!("switch {switch}"));
    let mut lines = vec![format!("{frame_bytes} bytes from {from} ({place}, module {module})")];
    report.steps.iter().for_each(|step| lines.extend(step_lines(step)));
    lines.extend(hint.iter().map(|hint| format!("ask Open vSwitch why: {hint}")));
    lines.push(verdict.clone());
    lines.join("\n")
}

fn step_lines(step: &ExplainStep) -> Vec<String> {
    match step {
        ExplainStep::Reason(reason) => vec![format!("  {}: {}", reason.about, reason.text)],
        ExplainStep::Pass { number, key, flow, answer } => {
            pass_lines(*number, key, flow.as_ref(), answer.as_deref())
        }
        ExplainStep::Connection { zone, state, connection, known, commit } => {
            let is_new = match (connection, known, commit) {
                (Some(connection), true, _) => format!("; {connection}"),
                (Some(connection), false, _) => format!("; would be remembered: {connection}"),
                (None, _, true) => "; is not remembered".to_owned(),
                (None, ..) => "; no connection is known".to_owned(),
            };
            vec![format!("  ct, zone {zone}: {state}{is_new}")]
        }
        ExplainStep::Meter { meter, passes } => {
            vec![format!("  meter {meter}: {}", if *passes { "passes now" } else { "exceeded now" })]
        }
        ExplainStep::Output { port, changes, tunnel, truncated_to } => {
            let mut lines = vec![format!("  output to {port}")];
            lines.extend(changes.iter().map(|change| format!("    changed: {change}")));
            lines.extend(tunnel.iter().map(|tunnel| format!("    in a tunnel: {tunnel}")));
            lines.extend(truncated_to.iter().map(|bytes| format!("    cut to {bytes} bytes")));
            lines
        }
        ExplainStep::Drop { reason, meaning } => vec![format!("  drop: {reason} - {meaning}")],
        ExplainStep::Note { text } => vec![format!("  {text}")],
    }
}

fn pass_lines(number: usize, key: &str, flow: Option<&ExplainFlow>, answer: Option<&str>) -> Vec<String> {
    let mut lines = vec![format!("pass {number}: {key}")];
    match (flow, answer) {
        (Some(flow), _) => {
            let name = flow.ufid.as_ref().map_or_else(String::new, |ufid| format!(" {ufid}"));
            lines.push(format!("  flow{name}: {}", flow.matching));
            lines.push(format!("  actions: {}", flow.actions));
            if flow.others > 0 {
                lines.push(format!(
                    "  beware: {} other flows match it, too, and may decide instead",
                    flow.others
                ));
            }
        }
        (None, Some(answer)) => lines.push(format!("  no flow; the controller would answer: {answer}")),
        (None, None) => lines.push("  no flow".to_owned()),
    }
    lines
}

#[cfg(test)]
mod tests {
    use lasthop_api::explain::{ExplainCopy, ExplainFate, ExplainReason};

    use super::*;

    #[test]
    fn a_story_ends_with_the_packets_end() {
        let flow = ExplainFlow {
            ufid: None,
            matching: "in_port(vm1)".to_owned(),
            actions: "ct(zone=1),recirc(0x1)".to_owned(),
            others: 1,
        };
        let reason =
            ExplainReason { about: "rule".to_owned(), text: "[[acl]] \"ssh\" of vm2 (ingress)".to_owned() };
        let connection = ExplainStep::Connection {
            zone: 1,
            state: "new|trk".to_owned(),
            connection: None,
            known: false,
            commit: false,
        };
        let report = ExplainReport {
            from: "vm1".to_owned(),
            switch: Some("default".to_owned()),
            module: "flow".to_owned(),
            frame_bytes: 54,
            steps: vec![
                ExplainStep::Pass {
                    number: 1,
                    key: "in_port(vm1)".to_owned(),
                    flow: Some(flow),
                    answer: None,
                },
                connection,
                ExplainStep::Pass {
                    number: 2,
                    key: "recirc_id(0x1)".to_owned(),
                    flow: None,
                    answer: Some("drop".to_owned()),
                },
                ExplainStep::Reason(reason),
                ExplainStep::Drop {
                    reason: "acl_denied".to_owned(),
                    meaning: "A rule denies it.".to_owned(),
                },
            ],
            copies: vec![ExplainCopy {
                fate: ExplainFate::Dropped,
                port: None,
                reason: Some("acl_denied".to_owned()),
            }],
            fate: ExplainFate::Dropped,
            verdict: "dropped: acl_denied by [[acl]] \"ssh\" of vm2 (ingress)".to_owned(),
            hint: None,
        };
        let expected = "54 bytes from vm1 (switch default, module flow)\n\
                        pass 1: in_port(vm1)\n\
                        \x20 flow: in_port(vm1)\n\
                        \x20 actions: ct(zone=1),recirc(0x1)\n\
                        \x20 beware: 1 other flows match it, too, and may decide instead\n\
                        \x20 ct, zone 1: new|trk; no connection is known\n\
                        pass 2: recirc_id(0x1)\n\
                        \x20 no flow; the controller would answer: drop\n\
                        \x20 rule: [[acl]] \"ssh\" of vm2 (ingress)\n\
                        \x20 drop: acl_denied - A rule denies it.\n\
                        dropped: acl_denied by [[acl]] \"ssh\" of vm2 (ingress)";
        assert_eq!(explanation(&report), expected);
    }
}
