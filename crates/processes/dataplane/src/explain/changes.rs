//! The difference between two keys in words: which fields of a packet its actions have changed.

use std::collections::BTreeMap;

use lasthop_dpif::format::{self, Style};
use lasthop_flow::FlowKey;

use super::exact::exact;

/// Fields that say where a packet is on its way, and not how it looks.
const METADATA: [&str; 8] =
    ["recirc_id", "dp_hash", "in_port", "ct_state", "ct_zone", "ct_mark", "ct_label", "tunnel"];

/// Each changed field, as `ipv4.ttl 64 -> 63`.
pub(super) fn changes(from: &FlowKey, to: &FlowKey) -> Vec<String> {
    let (from, to) = (fields(from), fields(to));
    let all: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let changed = all.into_iter().filter(|name| from.get(*name) != to.get(*name));
    let value = |fields: &BTreeMap<String, String>, name: &String| {
        fields.get(name).cloned().unwrap_or_else(|| "none".to_owned())
    };
    changed.map(|name| format!("{name} {} -> {}", value(&from, name), value(&to, name))).collect()
}

/// The fields of a packet, by name.
fn fields(key: &FlowKey) -> BTreeMap<String, String> {
    let text = format::key(key, Some(&exact(key)), Style::default());
    let mut all = BTreeMap::new();
    read(&text, "", &mut all);
    all
}

/// Reads `name(field=value,...),name(value)`, one within the other.
fn read(text: &str, within: &str, all: &mut BTreeMap<String, String>) {
    for item in items(text) {
        if let Some((name, inner)) = item.split_once('(').filter(|_| item.ends_with(')')) {
            let inner = &inner[..inner.len() - 1];
            match name {
                "encap" => read(inner, "", all),
                _ if METADATA.contains(&name) || name.starts_with("ct_tuple") => {}
                // The EtherType in front of a tag comes before the one behind it.
                _ if inner.contains('=') => read(inner, name, all),
                _ => drop(all.insert(name.to_owned(), inner.to_owned())),
            }
        } else if let Some((name, value)) = item.split_once('=') {
            all.insert(format!("{within}.{name}"), value.to_owned());
        }
    }
}

/// The parts between commas that are in no parentheses.
fn items(text: &str) -> Vec<&str> {
    let (mut items, mut begin, mut depth) = (Vec::new(), 0, 0_u32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[begin..]);
    items
}

#[cfg(test)]
mod tests {
    use lasthop_flowtable::describe;
    use lasthop_wire::Metadata;

    use super::*;

    #[test]
    fn fields_that_differ_are_told_and_no_others() {
        let udp = [
            &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0][..],
            &[10, 0, 0, 1, 10, 0, 0, 2, 3, 232, 0, 53, 0, 8, 0, 0],
        ]
        .concat();
        let mut other = udp.clone();
        (other[5], other[22]) = (9, 63);
        let tagged = [&other[..12], &[0x81, 0, 0, 5], &other[12..]].concat();
        let key = |frame: &[u8], recirc_id| describe(frame, &Metadata { recirc_id, ..Metadata::default() });
        assert_eq!(changes(&key(&udp, 0), &key(&udp, 7)), Vec::<String>::new());
        let changed = changes(&key(&udp, 0), &key(&other, 0));
        assert_eq!(changed, ["eth.dst 02:00:00:00:00:02 -> 02:00:00:00:00:09", "ipv4.ttl 64 -> 63"]);
        let changed = changes(&key(&other, 0), &key(&tagged, 0));
        assert_eq!(changed, ["vlan.pcp none -> 0", "vlan.vid none -> 5"]);
    }
}
