//! Rules about connections.

use lasthop_api::acl::AclRule;
use lasthop_api::report::{AclLine, AclReport};

use super::table::Table;

/// A line for each rule, in their order.
pub(crate) fn acl(report: &AclReport) -> String {
    if report.rules.is_empty() {
        return "no rules: every connection is allowed; see: lasthop acl add --help".to_owned();
    }
    let mut table = Table::new(&["NAME", "PORT", "DIRECTION", "ACTION", "CONNECTIONS"]);
    for line in &report.rules {
        let AclRule { name, direction, action, .. } = &line.rule;
        let unused = if line.ports.is_empty() { " (there is no such port)" } else { "" };
        table.row([
            name.to_string(),
            format!("{}{unused}", line.rule.ports_text()),
            direction.to_string(),
            action.to_string(),
            line.rule.connections_text(),
        ]);
    }
    table.text()
}

/// The effect of a new rule.
pub(crate) fn acl_added(line: &AclLine) -> String {
    let AclLine { rule, ports } = line;
    match ports.len() {
        0 => format!("added {}; there is no port {} yet", rule.name, rule.ports_text()),
        1 => format!("added {}, for port {}", rule.name, ports[0]),
        count => format!("added {}, for {count} ports", rule.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_listed_in_their_order() {
        let line = |json: &str, ports: &[&str]| AclLine {
            rule: serde_json::from_str(json).expect("a rule"),
            ports: ports.iter().map(|name| (*name).to_owned()).collect(),
        };
        let rules = vec![
            line(
                r#"{"name":"https","port":"web1","direction":"ingress","action":"allow","protocol":"tcp","dport":443}"#,
                &["web1"],
            ),
            line(r#"{"name":"rest","port":"web*","direction":"ingress","action":"deny","log":true}"#, &[]),
        ];
        let text = acl(&AclReport { rules: rules.clone() });
        let expected = "NAME   PORT                            DIRECTION  ACTION  CONNECTIONS\n\
                        https  web1                            ingress    allow   protocol tcp dport 443\n\
                        rest   web* (there is no such port)    ingress    deny    all, log\n";
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            expected.split_whitespace().collect::<Vec<_>>()
        );
        assert_eq!(acl_added(&rules[0]), "added https, for port web1");
        assert_eq!(acl_added(&rules[1]), "added rest; there is no port web* yet");
    }
}
