//! How strict a sandbox the user wants.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

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
    fn three_words_are_understood() {
        for mode in [SandboxMode::Auto, SandboxMode::Strict, SandboxMode::Off] {
            assert_eq!(mode.as_str().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).expect("JSON"), mode.as_str());
        }
        let fault = "on".parse::<SandboxMode>().expect_err("no mode");
        assert!(fault.message.contains("auto, strict, off"), "{fault}");
    }
}
