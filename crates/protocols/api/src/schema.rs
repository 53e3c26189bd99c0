//! JSON Schema forms of values whose types belong to crates without schema support.

use lasthop_module_api::Vid;
use schemars::{Schema, SchemaGenerator, json_schema};

/// A unicast Ethernet address.
pub(crate) fn mac(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5}$" })
}

/// The number of a VLAN.
pub(crate) fn vlan(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "minimum": Vid::RANGE.start(), "maximum": Vid::RANGE.end() })
}

/// VLANs and ranges of them.
pub(crate) fn vlan_list(generator: &mut SchemaGenerator) -> Schema {
    let range = json_schema!({ "type": "string", "pattern": "^[0-9]{1,4}(-[0-9]{1,4})?$" });
    json_schema!({ "type": "array", "minItems": 1, "items": { "oneOf": [vlan(generator), range] } })
}

/// A network: an address and the length of its prefix.
pub(crate) fn network(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": NETWORK_PATTERN })
}

/// An address and the length of a prefix, as a regular expression.
pub(crate) const NETWORK_PATTERN: &str = "^[0-9A-Fa-f.:]+/[0-9]{1,3}$";
