//! The strictness of a sandbox, and the report of its layers: which are on, and why one is missing.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

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

/// The reaction to a layer that is not available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", rename_all = "lowercase")]
pub enum SandboxMode {
    /// The other layers are used, and the missing one is reported.
    #[default]
    Auto,
    /// The process does not start.
    Strict,
    /// There is no sandbox.
    Off,
}

impl SandboxMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Strict, Self::Off];

    /// Its word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Strict => "strict",
            Self::Off => "off",
        }
    }
}

impl FromStr for SandboxMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let bad = || Fault::params(format!("sandbox=\"{text}\" is none of auto, strict, off"));
        Self::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or_else(bad)
    }
}

impl TryFrom<String> for SandboxMode {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
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

    #[test]
    fn three_words_are_understood() {
        for mode in [SandboxMode::Auto, SandboxMode::Strict, SandboxMode::Off] {
            assert_eq!(mode.as_str().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).expect("JSON"), mode.as_str());
        }
        let fault = "on".parse::<SandboxMode>().expect_err("no mode");
        assert!(fault.message.contains("auto, strict, off"), "{fault}");
    }
}
