//! Names on the command line, and patterns of names.

use std::str::FromStr;

use serde_json::{Value, json};

use lasthop_api::port::Name;
use lasthop_api::report::{PortStatusList, StatsReport};
use lasthop_doctor::remedy::quote;
use lasthop_runtime::fault::{Fault, Kind};

use super::ask::ApiRequest;
use super::client::ask;

/// A name, or a pattern with `*` (any letters) and `?` (one letter).
#[derive(Clone, Debug)]
pub(super) struct Pattern(String);

impl FromStr for Pattern {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let pattern = Self(text.to_owned());
        // The switch's own port has counters.
        let is_counted = text == INTERNAL;
        if !pattern.is_of_many() && !is_counted {
            text.parse::<Name>()?;
        }
        Ok(pattern)
    }
}

/// The method that lists ports of every backend.
pub(super) const PORT_LIST: &str = "port.list";
/// Name of the port that the switch itself sends from.
const INTERNAL: &str = "internal";

impl Pattern {
    pub(super) fn is_of_many(&self) -> bool {
        self.0.contains(['*', '?'])
    }

    /// Like [`str::parse()`], without the switch's own port: for commands that do not know it.
    pub(super) fn of_ports(text: &str) -> Result<Self, Fault> {
        let pattern: Self = text.parse()?;
        if !pattern.is_of_many() {
            text.parse::<Name>()?;
        }
        Ok(pattern)
    }

    /// For a shell.
    pub(super) fn quoted(&self) -> String {
        quote(&self.0)
    }

    fn matches(&self, name: &str) -> bool {
        matches(self.0.as_bytes(), name.as_bytes())
    }

    /// The names that it matches, at least one.
    fn choose(&self, names: &[String]) -> Result<Vec<String>, Fault> {
        if !self.is_of_many() {
            return Ok(vec![self.0.clone()]);
        }
        let chosen: Vec<String> = names.iter().filter(|name| self.matches(name)).cloned().collect();
        if chosen.is_empty() {
            let why = format!("no name is like \"{}\"; see the list: lasthop port list", self.0);
            return Err(Fault::new(Kind::NoSuchVnic, why));
        }
        Ok(chosen)
    }

    /// The names that the patterns match, in the patterns' order without duplicates; looks up `names` only if
    /// necessary.
    pub(super) fn choose_all(
        patterns: &[Self],
        names: impl FnOnce() -> Result<Vec<String>, Fault>,
    ) -> Result<Vec<String>, Fault> {
        let names = if patterns.iter().any(Self::is_of_many) { names()? } else { Vec::new() };
        let mut chosen: Vec<String> = Vec::new();
        for pattern in patterns {
            for name in pattern.choose(&names)? {
                if !chosen.contains(&name) {
                    chosen.push(name);
                }
            }
        }
        Ok(chosen)
    }
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (Some((b'?', rest)), Some((_, behind))) => matches(rest, behind),
        (Some((letter, rest)), Some((own, behind))) => letter == own && matches(rest, behind),
        _ => false,
    }
}

impl ApiRequest {
    /// The names of the selected ports. One that is named and not there is refused by the request about it.
    pub(super) fn names_of(&self, list: &str, patterns: &[Pattern]) -> Result<Vec<String>, Fault> {
        Pattern::choose_all(patterns, || self.all_names(list))
    }

    fn all_names(&self, list: &str) -> Result<Vec<String>, Fault> {
        let list: PortStatusList = ask(&self.dir, list, &json!({}))?;
        Ok(list.ports.into_iter().map(|port| port.name).collect())
    }

    /// The names of the selected ports, all of which are there; without patterns none.
    pub(super) fn present(&self, patterns: &[Pattern]) -> Result<Vec<String>, Fault> {
        if patterns.is_empty() {
            return Ok(Vec::new());
        }
        let names = self.all_names(PORT_LIST)?;
        let chosen = Pattern::choose_all(patterns, || Ok(names.clone()))?;
        if let Some(missing) = chosen.iter().find(|name| !names.contains(name)) {
            ask::<Value>(&self.dir, "port.show", &json!({"name": missing}))?; // The error names the existing ports.
        }
        Ok(chosen)
    }

    /// Counters of the selected ports, or of all.
    pub(super) fn counters(&self, patterns: &[Pattern]) -> Result<StatsReport, Fault> {
        let of = |params| ask::<StatsReport>(&self.dir, "stats", &params);
        if let [only] = patterns
            && !only.is_of_many()
        {
            return of(json!({"name": only.0}));
        }
        let mut stats = of(json!({}))?;
        if patterns.is_empty() {
            return Ok(stats);
        }
        let names: Vec<String> = stats.ports.iter().map(|port| port.name.clone()).collect();
        let chosen = Pattern::choose_all(patterns, || Ok(names.clone()))?;
        if let Some(missing) = chosen.iter().find(|name| !names.contains(name)) {
            return of(json!({"name": missing})); // The error names the existing ports.
        }
        stats.ports.retain(|port| chosen.contains(&port.name));
        stats.devices.retain(|device| chosen.contains(&device.name));
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_chosen_as_shells_do() {
        let names: Vec<String> = ["vm01", "vm02", "vm10", "web"].map(str::to_owned).into();
        let choose = |patterns: &[&str]| {
            let patterns: Vec<Pattern> = patterns.iter().map(|text| text.parse().expect(text)).collect();
            Pattern::choose_all(&patterns, || Ok(names.clone()))
        };
        assert_eq!(choose(&["vm0*"]).expect("some"), ["vm01", "vm02"]);
        assert_eq!(choose(&["web", "vm?0", "*"]).expect("all"), ["web", "vm10", "vm01", "vm02"]);
        assert_eq!(choose(&["new"]).expect("a name is a name"), ["new"]);
        assert!(choose(&["x*"]).expect_err("none").message.contains("no name is like"));
        assert!("a b".parse::<Pattern>().is_err());
        assert!("internal".parse::<Pattern>().is_ok() && Pattern::of_ports("internal").is_err());
        assert!(Pattern::of_ports("*").is_ok() && Pattern::of_ports("a b").is_err());
    }
}
