//! The file's JSON Schema (draft 2020-12), for editors, made of the types that read the file.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::Value;

use crate::File;

/// The schema as a text of several lines.
pub fn json_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<File>();
    RecursiveTransform(as_in_toml).transform(&mut schema);
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

/// TOML has no null: a key may be left out instead. Widths of integers say less than their bounds.
fn as_in_toml(schema: &mut Schema) {
    schema.remove("format");
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = &types[..] {
            let one = one.clone();
            schema.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(all)) = schema.get_mut("anyOf") {
        all.retain(|one| one["type"] != "null");
        if let [Value::Object(one)] = &mut all[..] {
            let one = std::mem::take(one);
            schema.remove("anyOf");
            // Its own words come first.
            for (key, value) in one {
                schema.ensure_object().entry(key).or_insert(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::json_schema;
    use crate::parse;
    use lasthop_api::port::PortSpec;

    fn schema() -> Value {
        serde_json::from_str(&json_schema()).expect("JSON")
    }

    /// Where a property stands: a file with it, given its value as TOML.
    type Place = fn(&str, &str) -> String;

    fn at_top(key: &str, value: &str) -> String {
        format!("{key} = {value}\n")
    }

    fn in_vnic(key: &str, value: &str) -> String {
        let name = match key {
            "name" => "",
            // Two of its checks are for addresses that the port says are its own.
            "guard" => "name = \"a\"\nmac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.5\"]\n",
            _ => "name = \"a\"\n",
        };
        format!("[[vnic]]\n{name}{key} = {value}\n")
    }

    /// Of module flow for keys that are of that.
    fn in_switch(key: &str, value: &str) -> String {
        let is_of_flow = matches!(key, "controller" | "fail-mode");
        let module = if is_of_flow { "module = \"flow\"\n" } else { "" };
        in_vnic(key, value).replace("[[vnic]]\n", &format!("[[switch]]\n{module}"))
    }

    /// The keys that ports of a backend may not have.
    fn unfit(backend: &str) -> Vec<String> {
        let rules = &schema()["$defs"]["port"]["allOf"];
        let number =
            ["vhost-user", "tap", "device"].iter().position(|known| *known == backend).expect("one of three");
        let keys = rules[number]["then"]["properties"].as_object().expect("keys").iter();
        keys.inspect(|(key, value)| assert!(value.is_boolean(), "{key}"))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// A port with the backend that has the key.
    fn in_port(key: &str, value: &str) -> String {
        let has = |backend| !unfit(backend).contains(&key.to_owned());
        let backend = match key {
            "backend" => "",
            _ if has("vhost-user") => "backend = \"vhost-user\"\n",
            _ if has("device") => "backend = \"af_packet\"\n",
            _ => "backend = \"tap\"\n",
        };
        in_vnic(key, value).replace("[[vnic]]\n", &format!("[[port]]\n{backend}"))
    }

    fn in_fdb(key: &str, value: &str) -> String {
        let mac = if key == "mac" { "" } else { "mac = \"02:00:00:00:00:01\"\n" };
        let port = if key == "port" { "" } else { "port = \"a\"\n" };
        format!("[[fdb]]\n{mac}{port}{key} = {value}\n")
    }

    /// Of TCP or ICMP for keys that are of these.
    fn in_acl(key: &str, value: &str) -> String {
        let protocol = match key {
            "sport" | "dport" => "protocol = \"tcp\"\n",
            "icmp-type" => "protocol = \"icmp\"\n",
            "icmp-code" => "protocol = \"icmp\"\nicmp-type = 3\n",
            _ => "",
        };
        let required = [("port", "a"), ("direction", "egress"), ("action", "deny")];
        let others = required.iter().filter(|(other, _)| *other != key);
        let others: String = others.map(|(other, value)| format!("{other} = \"{value}\"\n")).collect();
        format!("[[acl]]\n{others}{protocol}{key} = {value}\n")
    }

    fn properties(object: &Value) -> &Map<String, Value> {
        assert_eq!(object["additionalProperties"], false, "unknown keys are errors");
        object["properties"].as_object().expect("properties")
    }

    /// The words that a property may be, each with its description where the type has one.
    fn words_of(property: &Value) -> Vec<Value> {
        let described = property["oneOf"].as_array().into_iter().flatten().map(|one| &one["const"]);
        property["enum"].as_array().into_iter().flatten().chain(described).cloned().collect()
    }

    fn is_fine(place: Place, key: &str, value: &str) -> bool {
        parse(&place(key, value)).is_ok()
    }

    /// Values at the edges of a property are parsed, values beyond are not.
    fn check(place: Place, key: &str, property: &Value) {
        let allowed = |value: &str| assert!(is_fine(place, key, value), "{key} = {value} is in the schema");
        let refused =
            |value: &str| assert!(!is_fine(place, key, value), "{key} = {value} is not in the schema");
        if let Some(minimum) = property["minimum"].as_i64() {
            let maximum = property["maximum"].as_i64().expect("both or none");
            for number in [minimum, maximum] {
                allowed(&number.to_string());
            }
            for number in [minimum - 1, maximum + 1] {
                refused(&number.to_string());
            }
            refused(&format!("\"{minimum}\""));
        }
        for word in words_of(property) {
            allowed(&word.to_string());
        }
        for word in property["items"]["enum"].as_array().into_iter().flatten() {
            allowed(&format!("[{word}]"));
        }
        for value in property["examples"].as_array().into_iter().flatten().chain(property.get("default")) {
            allowed(&value.to_string());
        }
        if property["type"] != "string" || property.get("pattern").is_some() {
            refused("\"#\"");
        }
        refused("1.5");
    }

    #[test]
    fn schema_and_parser_agree() {
        let schema = schema();
        for (key, property) in properties(&schema)
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "switch" | "vnic" | "port" | "fdb" | "acl"))
        {
            check(at_top, key, property);
        }
        for (key, property) in properties(&schema["$defs"]["switch"]) {
            check(in_switch, key, property);
        }
        for (key, property) in properties(&schema["$defs"]["vnic"]) {
            assert_eq!(*property, schema["$defs"]["port"]["properties"][key]);
            check(in_vnic, key, property);
        }
        for (key, property) in properties(&schema["$defs"]["port"]) {
            check(in_port, key, property);
        }
        for (key, property) in properties(&schema["$defs"]["fdb"]) {
            check(in_fdb, key, property);
        }
        for (key, property) in properties(&schema["$defs"]["acl"]) {
            check(in_acl, key, property);
        }
    }

    /// Whether a class of characters, `[a-z.-]` without its brackets, has one.
    fn has(class: &str, character: char) -> bool {
        let mut left: Vec<char> = class.chars().collect();
        while let [first, rest @ ..] = &left[..] {
            let (last, taken) = match rest {
                ['-', last, ..] => (*last, 3),
                _ => (*first, 1),
            };
            if (*first..=last).contains(&character) {
                return true;
            }
            left.drain(..taken);
        }
        false
    }

    #[test]
    fn names_of_devices_have_the_characters_that_the_schema_says() {
        let schema = schema();
        let pattern =
            schema["properties"]["datapath-devices"]["items"]["pattern"].as_str().expect("a pattern");
        let class = pattern.strip_prefix("^[").and_then(|rest| rest.strip_suffix("]{1,32}$")).expect(pattern);
        for character in ' '..='\u{7f}' {
            let quote = if character == '\'' { '"' } else { '\'' };
            let value = format!("[{quote}a{character}{quote}]");
            assert_eq!(is_fine(at_top, "datapath-devices", &value), has(class, character), "{value}");
        }
    }

    /// Keys in the parser's own words: "(there are a, b, c)".
    fn known_keys(text: &str) -> Vec<String> {
        let message = parse(text).expect_err("unknown key").message;
        let list = message.split("(there are ").nth(1).expect("a list").trim_end_matches(')');
        list.split(", ").map(str::to_owned).collect()
    }

    fn sorted<'a>(keys: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        let mut keys: Vec<String> = keys.into_iter().cloned().collect();
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn every_key_of_the_parser_is_in_the_schema() {
        let schema = schema();
        assert_eq!(sorted(properties(&schema).keys()), sorted(&known_keys("zzzzzz = 1")));
        let switch = properties(&schema["$defs"]["switch"]);
        assert_eq!(sorted(switch.keys()), sorted(&known_keys("[[switch]]\nname = \"a\"\nzzzzzz = 1")));
        let rule = known_keys(&in_acl("zzzzzz", "1"));
        assert_eq!(sorted(properties(&schema["$defs"]["acl"]).keys()), sorted(&rule));
        let with_name = || PortSpec::KEYS.iter().chain(&["name"]).map(|key| (*key).to_owned());
        let keys: Vec<String> = with_name().collect();
        // A file that has it is refused with the reason.
        let of_file = keys.iter().filter(|key| *key != "made-by");
        assert_eq!(sorted(properties(&schema["$defs"]["port"]).keys()), sorted(of_file));
        for kind in ["vnic", "port"] {
            let known = known_keys(&format!("[[{kind}]]\nname = \"a\"\nzzzzzz = 1"));
            assert_eq!(sorted(&keys), sorted(&known), "{kind}");
        }
    }

    #[test]
    fn a_setting_of_the_whole_is_known_as_such_at_a_port() {
        let schema = schema();
        let top = properties(&schema).iter().filter(|(_, value)| value["items"].get("$ref").is_none());
        let switch = properties(&schema["$defs"]["switch"]);
        let of_the_whole: Vec<&String> =
            top.map(|(key, _)| key).filter(|key| !switch.contains_key(*key)).collect();
        assert!(of_the_whole.len() > 5, "{of_the_whole:?}");
        for key in of_the_whole {
            let mistake = format!("vm1,{key}=1").parse::<PortSpec>().expect_err(key).message;
            assert!(mistake.contains(&format!("{key} is a setting of the whole program")), "{mistake}");
        }
    }

    /// Keys, and values that are right by themselves, but for a backend.
    #[test]
    fn keys_that_do_not_fit_a_backend_are_in_neither() {
        let schema = schema();
        let value_of = |key: &str| {
            let property = &schema["$defs"]["port"]["properties"][key];
            // Defaults of before are forgiven, so other words come first.
            let given = property["examples"].get(0).or(property.get("minimum")).cloned();
            let given = given
                .or(words_of(property).pop())
                .or(property["default"].as_bool().map(|flag| (!flag).into()));
            given.or(property.get("default").cloned()).expect(key).to_string()
        };
        for (backend, word) in [("vhost-user", "vhost-user"), ("tap", "tap"), ("device", "auto")] {
            for key in unfit(backend) {
                let file =
                    format!("[[port]]\nname = \"a\"\nbackend = \"{word}\"\n{key} = {}\n", value_of(&key));
                let tap_key = format!("[[port]]\nname = \"a\"\ntap = \"t\"\n{key} = {}\n", value_of(&key));
                let files =
                    if backend == "tap" && key != "device" { vec![file, tap_key] } else { vec![file] };
                // A device's tap makes it one.
                for file in files.iter().filter(|_| (backend, &*key) != ("device", "tap")) {
                    let mistake = parse(file).expect_err(file);
                    assert!(mistake.message.contains(" is for "), "{mistake}");
                }
            }
        }
        let vnic: Vec<&String> = properties(&schema["$defs"]["vnic"]).keys().collect();
        let refused = unfit("vhost-user");
        let all = properties(&schema["$defs"]["port"]).keys();
        let expected = all.filter(|key| *key != "backend" && !refused.contains(key)).collect::<Vec<_>>();
        assert_eq!(vnic, expected, "a vnic has the keys of a vhost-user port");
    }

    /// Every key is explained, and every word of one that stands for a choice.
    #[test]
    fn editors_have_words_for_every_key() {
        let schema = schema();
        let tables = schema["$defs"].as_object().expect("tables").values().chain([&schema]);
        for (key, property) in tables.flat_map(properties) {
            let text = property["description"].as_str().unwrap_or_default();
            assert!(text.ends_with('.') && text.len() > 10, "{key}: {text}");
            for one in property["oneOf"].as_array().into_iter().flatten() {
                assert!(one["description"].as_str().is_some_and(|text| text.ends_with('.')), "{key}: {one}");
            }
        }
    }
}
