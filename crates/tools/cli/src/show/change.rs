//! The changes of a port, and when they take effect.

use lasthop_api::port::change::{Change, When};
use lasthop_api::report::SetReport;

/// A line for each key.
pub(crate) fn port_set(set: &SetReport) -> String {
    if set.changes.is_empty() {
        return format!("{} is like that already", set.name);
    }
    let line = |change: &Change| format!("{} {}{}\n", set.name, change.text(), effect(change, set));
    set.changes.iter().map(line).collect()
}

fn effect(change: &Change, set: &SetReport) -> String {
    match (change.when, change.key.as_str(), set.guest_told) {
        (When::Attach, ..) => " (for the next guest that attaches)".to_owned(),
        (_, "link", Some(true)) => " (its guest was told)".to_owned(),
        (_, "link", Some(false)) => format!(
            " (its guest cannot be told: its VMM takes no link state from a switch; QEMU: set_link net-{} {}; \
             libvirt: virsh domif-setlink)",
            set.name,
            if change.to == "up" { "on" } else { "off" }
        ),
        (_, "mac", _) if !change.to.is_null() => " (the only one that its guest may send from)".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(key: &str, to: Value, when: When, guest_told: Option<bool>) -> String {
        let change = Change { key: key.to_owned(), from: Value::Null, to, when };
        port_set(&SetReport { name: "vm1".to_owned(), changes: vec![change], guest_told })
    }

    #[test]
    fn each_change_is_shown_with_its_effect() {
        assert_eq!(
            text("mtu", json!(1400), When::Attach, None),
            "vm1 mtu: - -> 1400 (for the next guest that attaches)\n"
        );
        assert_eq!(text("link", json!("down"), When::Now, None), "vm1 link: - -> down\n");
        assert!(text("link", json!("down"), When::Now, Some(true)).ends_with("down (its guest was told)\n"));
        assert!(text("link", json!("down"), When::Now, Some(false)).contains("set_link net-vm1 off"));
        let nothing = SetReport { name: "vm1".to_owned(), changes: vec![], guest_told: None };
        assert_eq!(port_set(&nothing), "vm1 is like that already");
    }
}
