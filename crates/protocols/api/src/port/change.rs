//! Changes of a port, key by key: from one specification to another, and when they take effect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::names;
use crate::options::{Setting, settings};
use lasthop_runtime::fault::Fault;

use super::{Name, PortBackend, PortKeys, PortSpec, TapBackend};

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// At once, also for an attached guest.
    Now,
    /// When a guest attaches; the present guest keeps the old value.
    Attach,
    /// Only for a new port: its guest has to attach again.
    Anew,
}

/// Keys of every backend that take effect at once.
const NOW: &[&str] = &[
    "vlan",
    "trunk",
    "native",
    "isolated",
    "guard",
    "addresses",
    "groups",
    "made_by",
    "storm_broadcast",
    "storm_multicast",
    "storm_unknown",
];
/// Same for keys of vhost-user ports.
const NOW_VHOST_USER: &[&str] =
    &["mac", "link", "memory_max", "socket_mode", "socket_owner", "socket_group", "vcpus"];
/// Keys of vhost-user ports that take effect when a guest attaches.
const AT_ATTACH: &[&str] = &["mtu", "features_off"];

/// A changed key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key as in JSON, with `_`.
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
pub fn changes(from: &PortSpec, to: &PortSpec) -> Vec<Change> {
    let is_vhost_user = from.is_vhost_user() && to.is_vhost_user();
    let (from, to) = (object(from), object(to));
    let keys: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let value = |object: &Map<String, Value>, key: &str| object.get(key).cloned().unwrap_or_default();
    let pairs = keys.into_iter().map(|key| (key, value(&from, key), value(&to, key)));
    let differing = pairs.filter(|(_, from, to)| from != to);
    let change = |(key, from, to): (&String, _, _)| {
        let when = when(key, is_vhost_user);
        Change { key: key.clone(), from, to, when }
    };
    differing.map(change).collect()
}

/// When a key takes effect; other keys need a new port.
fn when(key: &str, is_vhost_user: bool) -> When {
    match is_vhost_user {
        _ if NOW.contains(&key) => When::Now,
        true if NOW_VHOST_USER.contains(&key) => When::Now,
        true if AT_ATTACH.contains(&key) => When::Attach,
        _ => When::Anew,
    }
}

fn object<T: Serialize>(spec: &T) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// The specification with `keys` changed; a null resets a key to its default.
pub fn with_keys(spec: &PortSpec, keys: Map<String, Value>) -> Result<PortSpec, Fault> {
    let mut object = object(spec);
    for (key, value) in keys {
        let key = key.replace('-', "_");
        check_key(&key)?;
        match value {
            Value::Null => drop(object.remove(&key)),
            value => drop(object.insert(key, value)),
        }
    }
    serde_json::from_value(Value::Object(object)).map_err(|error| Fault::params(error.to_string()))
}

fn check_key(key: &str) -> Result<(), Fault> {
    let key = user_key(key);
    if PortSpec::KEYS.contains(&key.as_str()) {
        return Ok(());
    }
    let (hint, known) = (names::hint(&key, PortSpec::KEYS.iter().copied()), PortSpec::KEYS.join(", "));
    Err(Fault::params(format!("a port has no key \"{key}\"{hint} (there are {known})")))
}

/// Parses `KEY=VALUE[,KEY=VALUE]...` for [`with_keys`]; the value `none` resets a key to its default.
pub fn parse_keys(name: &Name, text: &str) -> Result<Map<String, Value>, Fault> {
    let (defaults, rest): (Vec<Setting<'_>>, Vec<Setting<'_>>) =
        settings(text)?.into_iter().partition(|(_, value)| *value == "none");
    // The syntax of values is that of a new port.
    let mut keys = object(&PortKeys::parse(name.clone(), &rest)?);
    keys.remove("name");
    for (key, _) in defaults {
        let key = key.replace('-', "_");
        check_key(&key)?;
        keys.insert(key, Value::Null);
    }
    Ok(keys)
}

/// A specification as on the command line: `NAME[,KEY=VALUE]...`, without keys with default values.
pub fn command_text(spec: &PortSpec) -> String {
    text_of_keys(spec, &given_keys(spec))
}

/// The commands that make the port again with another value of a key, for a message.
pub fn anew_with(spec: &PortSpec, key: &str, value: &str) -> String {
    let (name, mut keys) = (spec.name(), given_keys(spec));
    keys.insert(key.to_owned(), value.into());
    format!("lasthop port del {name} && lasthop port add {}", text_of_keys(spec, &keys))
}

fn text_of_keys(spec: &PortSpec, keys: &Map<String, Value>) -> String {
    let options = keys.iter().map(|(key, value)| format!(",{}={}", user_key(key), value_text(value)));
    options.fold(spec.name().to_string(), |text, option| text + &option)
}

/// The keys of a specification with other values than the defaults, without its name.
pub fn given_keys(spec: &PortSpec) -> Map<String, Value> {
    let default = match &spec.backend {
        PortBackend::VhostUser(_) | PortBackend::Device(_) | PortBackend::Tunnel(_) => {
            PortBackend::Device(Default::default())
        }
        // The key `tap` itself says that it is a tap.
        PortBackend::Tap(_) => PortBackend::Tap(TapBackend::default()),
    };
    let mut default = object(&PortSpec::new(spec.name().clone(), default));
    if spec.is_vhost_user() {
        default.extend([("mode".to_owned(), "listen".into()), ("link".to_owned(), "up".into())]);
    }
    object(spec).into_iter().filter(|(key, value)| default.get(key) != Some(value)).collect()
}

/// Refuses changes that need a new port.
pub fn refuse_anew(name: &Name, changes: &[Change], to: &PortSpec) -> Result<(), Fault> {
    let anew: Vec<String> =
        changes.iter().filter(|change| change.when == When::Anew).map(Change::user_key).collect();
    if anew.is_empty() {
        return Ok(());
    }
    let guest = if to.is_vhost_user() { ", and its guest attaches again" } else { "" };
    Err(Fault::refused(format!(
        "{} of port \"{name}\" cannot change while it exists; make it anew{guest}: \
         lasthop port del {name} && lasthop port add {}",
        anew.join(" and "),
        command_text(to)
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(text: &str) -> PortSpec {
        crate::port::vnic(text).expect("a vnic")
    }

    fn set(spec: &PortSpec, text: &str) -> Result<PortSpec, Fault> {
        with_keys(spec, parse_keys(spec.name(), text)?)
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
        let fault = refuse_anew(new.name(), &changes(&old, &new), &new).expect_err("queues");
        assert!(
            fault.message.starts_with("queues of port \"vm1\" cannot change")
                && fault
                    .message
                    .ends_with("lasthop port add vm1,backend=vhost-user,mac=02:00:00:00:00:02,queues=2"),
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
        for key in NOW.iter().chain(NOW_VHOST_USER).chain(AT_ATTACH) {
            assert!(PortSpec::KEYS.contains(&user_key(key).as_str()), "{key}");
        }
    }

    #[test]
    fn rules_of_a_port_over_a_device_change_at_once_and_the_rest_makes_it_anew() {
        let port = |text: &str| text.parse::<PortSpec>().expect("a port");
        let times = |from: &str, to: &str| {
            let changes = changes(&port(from), &port(to));
            changes.into_iter().map(|change| (change.user_key(), change.when)).collect::<Vec<_>>()
        };
        assert_eq!(times("a,vlan=5", "a,vlan=6"), [("vlan".to_owned(), When::Now)]);
        assert_eq!(times("a", "a,storm-unknown=6"), [("storm-unknown".to_owned(), When::Now)]);
        assert_eq!(times("a", "a,features-off=TSO"), [("features-off".to_owned(), When::Anew)]);
        let mac = "b,tap=b,mac=02:00:00:00:00:01";
        assert_eq!(times("b,tap=b", mac), [("mac".to_owned(), When::Anew)], "it is the tap's own");
        let kinds = times("a", "a,backend=vhost-user");
        assert!(kinds.contains(&("backend".to_owned(), When::Anew)), "{kinds:?}");
        let fault = with_keys(&port("a"), parse_keys(port("a").name(), "link=down").expect("a key"));
        assert!(fault.expect_err("no guest").message.contains("link is for vhost-user ports"));
    }

    #[test]
    fn a_specification_is_written_as_it_was_read() {
        let text = "vm1,backend=vhost-user,features-off=TSO+ECN,link=down,mac=02:00:00:00:00:01,memory-max=64G,mode=connect,mtu=1400,queues=2,socket=/a";
        assert_eq!(command_text(&text.parse().expect("a port")), text);
        for text in [
            "vm1,backend=vhost-user",
            "eth1",
            "a,backend=af_xdp,device=b,uplink=false",
            "a,address=10.0.0.1/8,tap=b",
        ] {
            assert_eq!(command_text(&text.parse().expect("a port")), text);
        }
    }
}
