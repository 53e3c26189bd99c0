//! Changes of a vnic, key by key: from one specification to another, and when they take effect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::names;
use crate::options::{Setting, settings};
use lasthop_runtime::fault::Fault;

use super::{Name, VnicSpec};

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// At once, for an attached guest too.
    Now,
    /// A guest is told when it attaches; the present one goes on as before.
    Attach,
    /// By making the vnic anew: its guest has to attach again.
    Anew,
}

/// When each key takes effect; those that are not here need the vnic to be made anew.
const WHEN: &[(&str, When)] = &[
    ("mac", When::Now),
    ("link", When::Now),
    ("vlan", When::Now),
    ("trunk", When::Now),
    ("native", When::Now),
    ("isolated", When::Now),
    ("memory_max", When::Now),
    ("storm_broadcast", When::Now),
    ("storm_multicast", When::Now),
    ("storm_unknown", When::Now),
    ("socket_mode", When::Now),
    ("socket_owner", When::Now),
    ("socket_group", When::Now),
    ("vcpus", When::Now),
    ("mtu", When::Attach),
    ("features_off", When::Attach),
];

/// One key that is to be another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// As in JSON, with `_`.
    pub key: String,
    pub from: Value,
    pub to: Value,
    pub when: When,
}

impl Change {
    /// The key as users write it.
    pub(crate) fn user_key(&self) -> String {
        user_key(&self.key)
    }

    /// `mac: 02:00:00:00:00:01 -> -`
    pub fn text(&self) -> String {
        format!("{}: {} -> {}", self.user_key(), value_text(&self.from), value_text(&self.to))
    }
}

fn user_key(key: &str) -> String {
    key.replace('_', "-")
}

/// A value as on the command line; `-` for none.
pub fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(value_text).collect::<Vec<_>>().join("+"),
        other => other.to_string(),
    }
}

/// The changes from one specification to the other, by key.
pub fn changes<T: Serialize>(from: &T, to: &T) -> Vec<Change> {
    let (from, to) = (object(from), object(to));
    let keys: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let value = |object: &Map<String, Value>, key: &str| object.get(key).cloned().unwrap_or_default();
    let pairs = keys.into_iter().map(|key| (key, value(&from, key), value(&to, key)));
    let differing = pairs.filter(|(_, from, to)| from != to);
    differing.map(|(key, from, to)| Change { key: key.clone(), from, to, when: when(key) }).collect()
}

fn when(key: &str) -> When {
    WHEN.iter().find(|(known, _)| *known == key).map_or(When::Anew, |(_, when)| *when)
}

fn object<T: Serialize>(spec: &T) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// The specification with `keys` in place of its own; a null takes a key back to its default.
pub fn with_keys(spec: &VnicSpec, keys: Map<String, Value>) -> Result<VnicSpec, Fault> {
    let mut object = object(spec);
    for (key, value) in keys {
        let key = key.replace('-', "_");
        check_key(&key)?;
        match value {
            Value::Null => drop(object.remove(&key)),
            value => drop(object.insert(key, value)),
        }
    }
    let spec: VnicSpec =
        serde_json::from_value(Value::Object(object)).map_err(|error| Fault::params(error.to_string()))?;
    spec.check()?;
    Ok(spec)
}

fn check_key(key: &str) -> Result<(), Fault> {
    let key = user_key(key);
    if VnicSpec::KEYS.contains(&key.as_str()) {
        return Ok(());
    }
    let (hint, known) = (names::hint(&key, VnicSpec::KEYS.iter().copied()), VnicSpec::KEYS.join(", "));
    Err(Fault::params(format!("a vnic has no key \"{key}\"{hint} (there are {known})")))
}

/// `KEY=VALUE[,KEY=VALUE]...` as keys for [`with_keys`]; the value `none` takes a key back to its default.
pub fn parse_keys(name: &Name, text: &str) -> Result<Map<String, Value>, Fault> {
    let (defaults, rest): (Vec<Setting<'_>>, Vec<Setting<'_>>) =
        settings(text)?.into_iter().partition(|(_, value)| *value == "none");
    // The values' syntax is that of a new vnic.
    let as_new =
        rest.iter().fold(name.to_string(), |options, (key, value)| options + &format!(",{key}={value}"));
    let values = object(&as_new.parse::<VnicSpec>()?);
    let mut keys = Map::new();
    for (key, _) in defaults {
        let key = key.replace('-', "_");
        check_key(&key)?;
        keys.insert(key, Value::Null);
    }
    for (key, _) in rest {
        let key = key.replace('-', "_");
        let value = values.get(&key).cloned().unwrap_or_default();
        keys.insert(key, value);
    }
    Ok(keys)
}

/// A specification as on the command line: `NAME[,KEY=VALUE]...`, without keys that have their default.
pub(crate) fn command_text(spec: &VnicSpec) -> String {
    let options = not_default(spec, &VnicSpec::named(spec.name.clone()))
        .into_iter()
        .map(|(key, value)| format!(",{}={}", user_key(&key), value_text(&value)));
    options.fold(spec.name.to_string(), |text, option| text + &option)
}

/// The keys of a specification that are not as in `default`, the one of the same name.
pub fn not_default<T: Serialize>(spec: &T, default: &T) -> Map<String, Value> {
    let of_default = object(default);
    object(spec).into_iter().filter(|(key, value)| of_default.get(key) != Some(value)).collect()
}

/// Refuses changes for which the vnic has to be made anew.
pub fn refuse_anew(name: &Name, changes: &[Change], to: &VnicSpec) -> Result<(), Fault> {
    let anew: Vec<String> =
        changes.iter().filter(|change| change.when == When::Anew).map(Change::user_key).collect();
    if anew.is_empty() {
        return Ok(());
    }
    Err(Fault::refused(format!(
        "{} of vnic \"{name}\" cannot change while it exists; make it anew, and its guest attaches again: \
         lasthop vnic del {name} && lasthop vnic add {}",
        anew.join(" and "),
        command_text(to)
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(text: &str) -> VnicSpec {
        text.parse().expect("a vnic")
    }

    fn set(spec: &VnicSpec, text: &str) -> Result<VnicSpec, Fault> {
        with_keys(spec, parse_keys(&spec.name, text)?)
    }

    #[test]
    fn keys_replace_and_none_takes_back() {
        let old = spec("vm1,mac=02:00:00:00:00:01,mtu=1400,features-off=TSO+ECN");
        let new = set(&old, "mac=none,link=down,features-off=CSUM").expect("valid");
        assert_eq!(new, spec("vm1,mtu=1400,link=down,features-off=CSUM"));
        assert_eq!(set(&new, "features-off=none,mtu=none,link=none").expect("valid"), spec("vm1"));
    }

    #[test]
    fn changes_are_listed_by_key_with_their_time() {
        let (old, new) = (spec("vm1,mtu=1400"), spec("vm1,mac=02:00:00:00:00:02,queues=2"));
        let listed: Vec<_> = changes(&old, &new).iter().map(|change| (change.text(), change.when)).collect();
        let expected = [
            ("mac: - -> 02:00:00:00:00:02".to_owned(), When::Now),
            ("mtu: 1400 -> -".to_owned(), When::Attach),
            ("queues: 1 -> 2".to_owned(), When::Anew),
        ];
        assert_eq!(listed, expected);
        assert_eq!(changes(&old, &old), []);
        let fault = refuse_anew(&new.name, &changes(&old, &new), &new).expect_err("queues");
        assert!(
            fault.message.starts_with("queues of vnic \"vm1\" cannot change")
                && fault.message.ends_with("lasthop vnic add vm1,mac=02:00:00:00:00:02,queues=2"),
            "{fault}"
        );
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        for (text, words) in [
            ("mak=02:00:00:00:00:01", "did you mean \"mac\""),
            ("mak=none", "did you mean \"mac\""),
            ("link=dwn", "did you mean \"down\""),
            ("mtu=67", "68 to 65535"),
            ("mtu", "KEY=VALUE"),
            ("mode=connect,socket-mode=0600", "mode=listen"),
        ] {
            let fault = set(&spec("vm1"), text).expect_err(text);
            assert!(fault.message.contains(words), "{text}: {fault}");
        }
        let fault =
            with_keys(&spec("vm1"), Map::from_iter([("mtu".to_owned(), json!("x"))])).expect_err("text");
        assert!(fault.message.contains("mtu must be a whole number"), "{fault}");
    }

    #[test]
    fn every_key_has_a_time() {
        for (key, _) in WHEN {
            assert!(VnicSpec::KEYS.contains(&user_key(key).as_str()), "{key}");
        }
    }

    #[test]
    fn a_specification_is_written_as_it_was_read() {
        let text = "vm1,features-off=TSO+ECN,link=down,mac=02:00:00:00:00:01,memory-max=64G,mode=connect,mtu=1400,queues=2,socket=/a";
        assert_eq!(command_text(&spec(text)), text);
        assert_eq!(command_text(&spec("vm1")), "vm1");
    }
}
