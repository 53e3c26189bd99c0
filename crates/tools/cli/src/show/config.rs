//! The configuration of the switch, as a configuration file.

use serde_json::{Map, Value};

use lasthop_api::port::{Name, change};
use lasthop_api::report::ConfigReport;

/// A file for `lasthop run -c`, without keys that have default values, and without the ports that other programs make.
pub(crate) fn config(config: &ConfigReport) -> String {
    let settings = match serde_json::to_value(&config.settings) {
        Ok(Value::Object(settings)) => lines(&settings),
        _ => String::new(),
    };
    let is_of_other =
        |name: &Name| config.all_ports().any(|port| port.name() == name && port.made_by.is_some());
    let ports = config.all_ports().filter(|port| port.made_by.is_none()).map(|port| {
        format!(
            "\n[[port]]\nname = {}\n{}",
            toml_text(port.name().as_str()),
            lines(&change::given_keys(port))
        )
    });
    let switches = config.switches.iter().map(|switch| match serde_json::to_value(switch) {
        Ok(Value::Object(keys)) => format!("\n[[switch]]\n{}", lines(&keys)),
        _ => String::new(),
    });
    let fdb = config.fdb.iter().filter(|entry| !is_of_other(&entry.port));
    let entries = fdb.map(|entry| match serde_json::to_value(entry) {
        Ok(Value::Object(entry)) => format!("\n[[fdb]]\n{}", lines(&entry)),
        _ => String::new(),
    });
    let rules = config.acl.iter().map(|rule| match serde_json::to_value(rule) {
        Ok(Value::Object(rule)) => format!("\n[[acl]]\n{}", lines(&rule)),
        _ => String::new(),
    });
    settings + &switches.chain(ports).chain(entries).chain(rules).collect::<String>()
}

fn lines(object: &Map<String, Value>) -> String {
    let given = object.iter().filter(|(_, value)| !value.is_null());
    given.map(|(key, value)| format!("{} = {}\n", key.replace('_', "-"), toml_value(value))).collect()
}

fn toml_value(value: &Value) -> String {
    match value {
        Value::String(text) => toml_text(text),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(toml_value).collect::<Vec<_>>().join(", "))
        }
        // Numbers and booleans look the same in TOML.
        other => other.to_string(),
    }
}

fn toml_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
