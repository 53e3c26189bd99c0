//! The report of a sandbox: its layers, and why one is missing.

use serde::{Deserialize, Serialize};

/// Suffix of the names of namespace layers.
const NAMESPACE: &str = " namespace";

/// The result of adding a layer: its details, or why it is missing.
pub(super) type Made = Result<String, String>;

/// One layer of a process's sandbox, as JSON has it (docs/user/control-api.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its name in reports and the log.
    pub name: String,
    /// Whether it is in effect.
    pub on: bool,
    /// Its details, or why it is missing.
    pub(crate) detail: String,
}

impl Layer {
    pub(super) fn new(name: &str, made: Made) -> Self {
        let on = made.is_ok();
        let (Ok(detail) | Err(detail)) = made;
        Self { name: name.to_owned(), on, detail }
    }
}

/// One line with the layers in effect, and the missing ones with reasons.
pub fn summary(layers: &[Layer]) -> String {
    if layers.is_empty() {
        return "off".to_owned();
    }
    let on = names(layers.iter().filter(|layer| layer.on).map(|layer| layer.name.as_str()));
    let reason = |layer: &Layer| format!("{} ({})", layer.name, layer.detail);
    let off: Vec<String> = layers.iter().filter(|layer| !layer.on).map(reason).collect();
    match (on, off.join(", ")) {
        (on, off) if off.is_empty() => on,
        (on, off) if on.is_empty() => format!("nothing; not {off}"),
        (on, off) => format!("{on}; not {off}"),
    }
}

/// For example "landlock, namespaces (user, mount)".
fn names<'a>(layers: impl Iterator<Item = &'a str>) -> String {
    let (spaces, mut others): (Vec<&str>, Vec<&str>) = layers.partition(|name| name.ends_with(NAMESPACE));
    let spaces: Vec<&str> = spaces.iter().map(|name| name.trim_end_matches(NAMESPACE)).collect();
    let spaces = (!spaces.is_empty()).then(|| format!("namespaces ({})", spaces.join(", ")));
    others.extend(spaces.as_deref());
    others.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_its_reason() {
        let on = Layer::new("landlock", Ok("version 6".to_owned()));
        let off = Layer::new("user namespace", Err("not permitted".to_owned()));
        assert_eq!(summary(&[]), "off");
        assert_eq!(summary(std::slice::from_ref(&on)), "landlock");
        assert_eq!(summary(&[on, off.clone()]), "landlock; not user namespace (not permitted)");
        assert_eq!(summary(&[off]), "nothing; not user namespace (not permitted)");
        let spaces =
            ["user namespace", "limits", "mount namespace"].map(|name| Layer::new(name, Ok(String::new())));
        assert_eq!(summary(&spaces), "limits, namespaces (user, mount)");
    }
}
