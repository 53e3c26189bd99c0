//! `vnic`, the old name of a vhost-user port, which is still read and written for one release.

use std::borrow::Cow;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::keys_unfit_for;
use super::{BackendKind, PortKeys, PortSpec};
use lasthop_runtime::fault::Fault;

/// A vhost-user port without its backend: `[[vnic]]`, `vnic.add`, `--vnic`, and records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PortKeys", into = "PortKeys")]
pub struct VnicForm(pub PortSpec);

impl JsonSchema for VnicForm {
    fn schema_name() -> Cow<'static, str> {
        "vnic".into()
    }

    /// The keys of a vhost-user port without its backend.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = PortKeys::json_schema(generator);
        schema.remove("allOf");
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            keys_unfit_for(BackendKind::VhostUser)
                .chain(["backend"])
                .for_each(|key| drop(properties.remove(key)));
        }
        schema
    }
}

impl TryFrom<PortKeys> for VnicForm {
    type Error = Fault;

    fn try_from(keys: PortKeys) -> Result<Self, Fault> {
        Ok(Self(keys.vnic()?))
    }
}

impl FromStr for VnicForm {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        super::vnic(text).map(Self)
    }
}

impl From<VnicForm> for PortSpec {
    fn from(VnicForm(spec): VnicForm) -> Self {
        spec
    }
}

impl From<VnicForm> for PortKeys {
    fn from(VnicForm(spec): VnicForm) -> Self {
        Self { backend: None, ..spec.into() }
    }
}

/// Keys of a vnic's report that are null without a value.
const NULL_KEYS: [&str; 9] =
    ["mac", "mtu", "memory_max", "vlan", "trunk", "native", "socket_mode", "socket_owner", "socket_group"];

/// A report on ports in the form of the methods `vnic.…`: settings are beside the state, and lists are called `vnics`.
pub fn in_vnic_form(answer: Value) -> Value {
    let Value::Object(mut report) = answer else { return answer };
    if let Some(Value::Array(ports)) = report.remove("ports") {
        let vnics: Vec<Value> = ports.into_iter().map(in_vnic_form).collect();
        report.insert("vnics".to_owned(), Value::Array(vnics));
    }
    let Some(Value::Object(settings)) = report.get("settings").cloned() else { return Value::Object(report) };
    let nulls = NULL_KEYS.map(|key| (key.to_owned(), Value::Null));
    let isolated = ("isolated".to_owned(), Value::Bool(false));
    let mut all: Map<String, Value> = nulls.into_iter().chain([isolated]).collect();
    all.extend(settings);
    all.remove("backend");
    // The report's own keys have precedence: its socket is the path in use.
    all.extend(report);
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vnic_is_a_vhost_user_port() {
        let VnicForm(port) = serde_json::from_str(r#"{"name":"a","mode":"connect"}"#).expect("a vnic");
        assert_eq!(port, "a,backend=vhost-user,mode=connect".parse().expect("a port"));
        let written = serde_json::to_value(VnicForm(port)).expect("JSON");
        assert_eq!((&written["mode"], written.get("backend")), (&json!("connect"), None));
        let error = serde_json::from_str::<VnicForm>(r#"{"name":"a","backend":"tap"}"#).expect_err("a tap");
        assert!(error.to_string().contains("make it a port"), "{error}");
        let error = serde_json::from_str::<VnicForm>(r#"{"name":"a","device":"b"}"#).expect_err("a device");
        assert!(error.to_string().contains("device is for devices"), "{error}");
    }

    #[test]
    fn reports_have_the_keys_of_before() {
        let port = json!({"name": "a", "state": "running", "socket": "/in/use", "settings": {
            "name": "a", "backend": "vhost-user", "socket": "/asked", "vlan": 5}});
        let vnic = in_vnic_form(json!({"ports": [port]}))["vnics"][0].clone();
        assert_eq!(
            (&vnic["socket"], &vnic["vlan"], &vnic["mac"]),
            (&json!("/in/use"), &json!(5), &Value::Null)
        );
        assert_eq!((&vnic["isolated"], vnic.get("backend")), (&json!(false), None));
        assert_eq!(in_vnic_form(json!(true)), json!(true));
    }
}
