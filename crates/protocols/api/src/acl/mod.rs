//! Rules about connections (access control lists): in the configuration file, on the command line, in a request.
//!
//! Rules are ordered; the first one that applies to a connection decides, and without one the connection is allowed. A
//! rule applies to connections, not packets: packets of an allowed connection pass in both directions.

mod port_range;

pub use port_range::{PortRange, PortRanges};

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use lasthop_module_api::{Mac, Vid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device_patterns::is_like;
use crate::groups::GroupNames;
use crate::names;
use crate::port::PortSpec;
use crate::port::{mac_text, vid_number};
use crate::schema;
use crate::switches::SwitchSpec;
use lasthop_runtime::fault::{Fault, Kind};

/// Largest number of rules of all switches together.
pub const ACL_RULES_MAX: usize = 1024;
/// Largest number of port patterns in one rule.
const PATTERNS_MAX: usize = 64;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "acl", rename_all = "kebab-case", extend("anyOf" = [{ "required": ["port"] }, { "required": ["group"] }]))]
pub struct AclRule {
    /// Unique name for deletion and the log; rule-N by position if left out.
    #[serde(default = "RuleName::none")]
    #[schemars(!default, extend("examples" = ["https"]))]
    pub name: RuleName,
    /// The ports that the rule protects: a name, or a list of names. * stands for any part of a name. May be left out with group.
    #[serde(default, skip_serializing_if = "PortPatterns::is_empty")]
    #[schemars(!default, extend("examples" = ["web1", "web*", ["web1", "db*"]]))]
    pub port: PortPatterns,
    /// Groups whose ports the rule protects, too: a name, or a list of names.
    #[serde(default, skip_serializing_if = "GroupNames::is_empty")]
    #[schemars(!default, extend("examples" = ["web", ["web", "db"]]))]
    pub group: GroupNames,
    /// The direction in which the connection begins, as the guest sees it.
    pub direction: AclDirection,
    /// The action on such connections.
    pub action: AclAction,
    /// tcp, udp, icmp, icmp6, sctp, arp, or an IP protocol by number; all but ARP, neighbour discovery and answers of DHCP servers if left out.
    #[schemars(extend("examples" = ["tcp", 47]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<AclProtocol>,
    /// Addresses of the other side.
    #[schemars(schema_with = "schema::network", extend("examples" = ["10.0.0.0/8", "fd00::/64"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpNet>,
    /// Groups of the other side: the addresses of the ports in them.
    #[serde(default, alias = "remote-group", skip_serializing_if = "GroupNames::is_empty")]
    #[schemars(!default, extend("examples" = ["lb", ["lb", "admin"]]))]
    pub remote_group: GroupNames,
    /// Addresses of the port itself.
    #[schemars(schema_with = "schema::network", extend("examples" = ["10.0.0.1/32"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpNet>,
    /// Source ports: a number, a range, or a list of these. Needs protocol tcp, udp or sctp.
    #[schemars(extend("examples" = ["1024-65535"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<PortRanges>,
    /// Destination ports: a number, a range, or a list of these. Needs protocol tcp, udp or sctp.
    #[schemars(extend("examples" = [443, "8000-8080", [80, "8000-8080"]]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dport: Option<PortRanges>,
    /// Type of ICMP or ICMPv6. Needs protocol icmp or icmp6.
    #[serde(default, alias = "icmp-type", skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// Code of ICMP or ICMPv6. Needs icmp-type.
    #[serde(default, alias = "icmp-code", skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<u8>,
    /// The Ethernet address of the other side.
    #[schemars(schema_with = "schema::mac", extend("examples" = ["52:54:00:00:00:07"]))]
    #[serde(default, alias = "remote-mac", with = "mac_text", skip_serializing_if = "Option::is_none")]
    pub remote_mac: Option<Mac>,
    /// Only in this VLAN.
    #[schemars(schema_with = "schema::vlan")]
    #[serde(default, with = "vid_number", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vid>,
    /// The log names connections that the rule denies, at most ten in a second.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log: bool,
}

/// The direction in which a connection begins, as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum AclDirection {
    /// To the port.
    Ingress,
    /// From the port.
    Egress,
}

/// The fate of connections that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum AclAction {
    /// They pass, in both directions.
    Allow,
    /// Their packets are dropped as `acl_denied`.
    Deny,
}

impl fmt::Display for AclDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

impl fmt::Display for AclAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

/// A protocol by name, or an IP protocol by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "NameOrNumber", into = "String")]
#[schemars(inline)]
pub enum AclProtocol {
    /// ARP, which is no IP.
    Arp,
    /// An IP protocol (IANA's number).
    Ip(u8),
}

/// Names of IP protocols.
const PROTOCOLS: [(&str, u8); 5] = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmp6", 58), ("sctp", 132)];

#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(untagged, expecting = "the name of a protocol or a number from 0 to 255 was expected")]
enum NameOrNumber {
    Number(u8),
    Name(String),
}

impl TryFrom<NameOrNumber> for AclProtocol {
    type Error = Fault;

    fn try_from(given: NameOrNumber) -> Result<Self, Fault> {
        match given {
            NameOrNumber::Number(number) => Ok(Self::Ip(number)),
            NameOrNumber::Name(name) => name.parse(),
        }
    }
}

impl FromStr for AclProtocol {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        if text == "arp" {
            return Ok(Self::Arp);
        }
        let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        named.or_else(|| text.parse().ok()).map(Self::Ip).ok_or_else(|| {
            Fault::params(format!(
                "\"{text}\" is no protocol; use tcp, udp, icmp, icmp6, sctp, arp, or an IP protocol from 0 to 255"
            ))
        })
    }
}

impl fmt::Display for AclProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arp => f.pad("arp"),
            Self::Ip(number) => match PROTOCOLS.iter().find(|(_, known)| known == number) {
                Some((name, _)) => f.pad(name),
                None => write!(f, "{number}"),
            },
        }
    }
}

impl From<AclProtocol> for String {
    fn from(protocol: AclProtocol) -> Self {
        protocol.to_string()
    }
}

/// The name of a rule: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = names::NAME_PATTERN))]
pub struct RuleName(String);

impl RuleName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn none() -> Self {
        Self(String::new())
    }
}

/// Names rules without a name: `rule-3` is the third one, unless another rule has that name.
pub fn name_all(rules: &mut [AclRule]) {
    let mut taken: HashSet<RuleName> = rules.iter().map(|rule| rule.name.clone()).collect();
    for (index, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| rule.name.0.is_empty()) {
        let numbers = index + 1..;
        let free =
            numbers.map(|number| RuleName(format!("rule-{number}"))).find(|name| !taken.contains(name));
        rule.name = free.unwrap_or_else(RuleName::none);
        taken.insert(rule.name.clone());
    }
}

impl FromStr for RuleName {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        names::check(text, "rule").map(|()| Self(text.to_owned()))
    }
}

impl TryFrom<String> for RuleName {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<RuleName> for String {
    fn from(name: RuleName) -> Self {
        name.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Names of ports, with `*` for any part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OneOrMany", into = "OneOrMany")]
#[schemars(inline)]
pub struct PortPatterns(Vec<String>);

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(untagged, expecting = "the name of a port or a list of names was expected")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl PortPatterns {
    /// Whether there are none, as in a rule for groups.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list has a port.
    pub fn have(&self, port: &str) -> bool {
        self.0.iter().any(|pattern| is_like(port, pattern))
    }

    /// Checks names and patterns.
    pub fn new(patterns: Vec<String>) -> Result<Self, Fault> {
        if !(1..=PATTERNS_MAX).contains(&patterns.len()) {
            return Err(Fault::params(format!(
                "a rule is about 1 to {PATTERNS_MAX} names of ports, and not {}; \"*\" is all ports",
                patterns.len()
            )));
        }
        for pattern in &patterns {
            // The star may stand for any letters.
            names::check(&pattern.replace('*', "x"), "port")?;
        }
        Ok(Self(patterns))
    }
}

impl TryFrom<OneOrMany> for PortPatterns {
    type Error = Fault;

    fn try_from(given: OneOrMany) -> Result<Self, Fault> {
        match given {
            OneOrMany::One(pattern) => Self::new(vec![pattern]),
            OneOrMany::Many(patterns) => Self::new(patterns),
        }
    }
}

impl From<PortPatterns> for OneOrMany {
    fn from(PortPatterns(mut patterns): PortPatterns) -> Self {
        match patterns.len() {
            1 => Self::One(patterns.remove(0)),
            _ => Self::Many(patterns),
        }
    }
}

impl fmt::Display for PortPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.join(","))
    }
}

impl AclRule {
    /// Whether the rule protects the port of this name in these groups.
    pub fn protects(&self, port: &str, groups: &[String]) -> bool {
        self.port.have(port) || self.group.have_any(groups)
    }

    /// The ports that it protects: `web*,db1 group web`.
    pub fn ports_text(&self) -> String {
        let groups = if self.group.is_empty() { String::new() } else { format!("group {}", self.group) };
        let both = [self.port.to_string(), groups];
        both.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Refuses keys that contradict each other.
    pub fn check(&self) -> Result<(), Fault> {
        let name = &self.name;
        let protocol = match self.protocol {
            Some(AclProtocol::Ip(number)) => number,
            Some(AclProtocol::Arp) | None => u8::MAX,
        };
        let has_ports = self.sport.is_some() || self.dport.is_some();
        let has_icmp = self.icmp_type.is_some() || self.icmp_code.is_some();
        let has_remote = self.remote.is_some() || !self.remote_group.is_empty();
        let families = [self.remote, self.local].map(|prefix| prefix.map(|prefix| prefix.addr().is_ipv4()));
        let why = if self.port.is_empty() && self.group.is_empty() {
            "it is about no port; give it a port or a group"
        } else if has_ports && ![6, 17, 132].contains(&protocol) {
            "sport and dport need protocol tcp, udp or sctp"
        } else if has_icmp && ![1, 58].contains(&protocol) {
            "icmp-type and icmp-code need protocol icmp or icmp6"
        } else if self.icmp_code.is_some() && self.icmp_type.is_none() {
            "icmp-code needs an icmp-type"
        } else if self.protocol == Some(AclProtocol::Arp) && (has_remote || self.local.is_some()) {
            "ARP has no IP header: leave remote, remote-group and local out"
        } else if matches!(families, [Some(one), Some(other)] if one != other) {
            "remote and local are of two IP versions"
        } else {
            return Ok(());
        };
        Err(Fault::params(format!("rule \"{name}\": {why}")))
    }

    /// The rule as one line.
    pub fn text(&self) -> String {
        format!("{} {} {} {}", self.ports_text(), self.direction, self.action, self.connections_text())
    }

    /// The connections of the rule: its keys, as on the command line.
    pub fn connections_text(&self) -> String {
        let mut words = Vec::new();
        let mut say = |key: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{key} {value}")));
        };
        say("protocol", self.protocol.map(|protocol| protocol.to_string()));
        say("remote", self.remote.map(|prefix| prefix.to_string()));
        say("remote-group", Some(self.remote_group.to_string()).filter(|groups| !groups.is_empty()));
        say("local", self.local.map(|prefix| prefix.to_string()));
        say("sport", self.sport.as_ref().map(ToString::to_string));
        say("dport", self.dport.as_ref().map(ToString::to_string));
        say("icmp-type", self.icmp_type.map(|number| number.to_string()));
        say("icmp-code", self.icmp_code.map(|number| number.to_string()));
        say("remote-mac", self.remote_mac.map(|mac| mac.to_string()));
        say("vlan", self.vlan.map(|vid| vid.to_string()));
        let all = if words.is_empty() { "all".to_owned() } else { words.join(" ") };
        if self.log { all + ", log" } else { all }
    }
}

/// Refuses a list with an invalid rule, a name twice, or too many rules.
pub fn check_rules(rules: &[AclRule]) -> Result<(), Fault> {
    if rules.len() > ACL_RULES_MAX {
        let why = format!(
            "there are {} rules, and the limit is {ACL_RULES_MAX}; use patterns of ports",
            rules.len()
        );
        return Err(Fault::new(Kind::Limit, why));
    }
    let mut names = HashSet::new();
    for rule in rules {
        rule.check()?;
        if !names.insert(&rule.name) {
            return Err(Fault::params(format!(
                "two rules have the name \"{}\"; choose another one",
                rule.name
            )));
        }
    }
    Ok(())
}

/// Refuses rules and a guard for a port whose switch does not enforce them.
pub fn check_switch_of(rules: &[AclRule], switches: &[SwitchSpec], port: &PortSpec) -> Result<(), Fault> {
    let (name, switch) = (&port.common.name, &port.common.switch);
    let rule = rules.iter().find(|rule| rule.protects(name.as_str(), &port.common.policy.groups));
    let (cause, remedy) = match rule {
        Some(AclRule { name, .. }) => (format!("rule \"{name}\""), "leave the port out of it"),
        None if port.common.policy.guard.is_on() => ("its guard".to_owned(), "leave guard out"),
        None => return Ok(()),
    };
    let Some(spec) = switches.iter().find(|other| other.name == *switch) else { return Ok(()) };
    let why = if !spec.has_embedded_controller() {
        format!("only the embedded controller of module flow knows rules and guards; {remedy}")
    } else if spec.stands_alone() {
        format!(
            "switch \"{switch}\" forwards without rules and guards while its controller is away; first: lasthop switch set {switch} \
             fail-mode=secure"
        )
    } else {
        return Ok(());
    };
    Err(Fault::refused(format!("port \"{name}\" in switch \"{switch}\", {cause}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Result<AclRule, String> {
        let rule: AclRule = serde_json::from_str(json).map_err(|error| error.to_string())?;
        rule.check().map_err(|fault| fault.message).map(|()| rule)
    }

    #[test]
    fn a_rule_is_read_checked_and_written() {
        let json = r#"{"name":"https","port":"web*","direction":"ingress","action":"allow","protocol":"tcp","remote":"10.0.0.0/8","dport":[443,"8000-8080"]}"#;
        let https = rule(json).expect("a rule");
        assert_eq!(serde_json::to_string(&https).expect("JSON"), json);
        assert_eq!(https.text(), "web* ingress allow protocol tcp remote 10.0.0.0/8 dport 443,8000-8080");
        assert!(https.protects("web1", &[]) && !https.protects("db", &["web1".to_owned()]));
        let of_group = r#"{"name":"r","group":["web"],"direction":"ingress","action":"deny","remote_group":["db","lb"]}"#;
        let of_group = rule(of_group).expect("a rule");
        assert_eq!(of_group.text(), "group web ingress deny remote-group db,lb");
        assert!(of_group.protects("a", &["web".to_owned()]) && !of_group.protects("web", &["db".to_owned()]));
        let nothing = rule(r#"{"name":"r","direction":"ingress","action":"deny"}"#).expect_err("no port");
        assert!(nothing.contains("give it a port or a group"), "{nothing}");
        for (more, words) in [
            (r#""dport":443"#, "need protocol tcp"),
            (r#""protocol":"tcp","icmp-type":8"#, "need protocol icmp"),
            (r#""protocol":"icmp","icmp-code":8"#, "needs an icmp-type"),
            (r#""protocol":"arp","remote":"10.0.0.1/32""#, "ARP has no IP header"),
            (r#""protocol":"arp","remote-group":"db""#, "ARP has no IP header"),
            (r#""remote":"10.0.0.0/8","local":"fd00::/8""#, "two IP versions"),
            (r#""protocol":"http""#, "is no protocol"),
            (r#""protocol":"tcp","dport":"9-3""#, "9-3"),
            (r#""protocol":"tcp","dport":70000"#, "70000"),
            (r#""remote":"10.0.0.0/40""#, "invalid IP address"),
            (r#""prot":"tcp""#, "unknown field"),
        ] {
            let json =
                format!(r#"{{"name":"r","port":["a","b"],"direction":"egress","action":"deny",{more}}}"#);
            let refusal = rule(&json).expect_err(more);
            assert!(refusal.contains(words), "{more}: {refusal}");
        }
    }

    #[test]
    fn names_are_unique_and_rules_bounded() {
        let rule = rule(r#"{"name":"r","port":"a","direction":"egress","action":"deny"}"#).expect("a rule");
        assert!(check_rules(std::slice::from_ref(&rule)).is_ok());
        assert!(check_rules(&[rule.clone(), rule.clone()]).expect_err("twice").message.contains("\"r\""));
        assert_eq!(check_rules(&vec![rule; ACL_RULES_MAX + 1]).expect_err("many").kind, Kind::Limit);
    }
}
