//! The reasons of a decision, for people.

use crate::PortId;

/// A reason of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Its subject, one word: `vlan`, `source`, `destination`, `flood`.
    pub about: &'static str,
    /// A sentence without a full stop.
    pub text: String,
}

/// Takes the reasons of one decision, in the order in which they were found.
pub struct Reasons<'a> {
    names: &'a dyn Fn(PortId) -> String,
    told: Vec<Reason>,
}

impl std::fmt::Debug for Reasons<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reasons").field("told", &self.told).finish_non_exhaustive()
    }
}

impl<'a> Reasons<'a> {
    /// None yet; `names` names ports.
    #[must_use]
    pub fn new(names: &'a dyn Fn(PortId) -> String) -> Self {
        Self { names, told: Vec::new() }
    }

    /// The name of a port.
    #[must_use]
    pub fn name(&self, port: PortId) -> String {
        (self.names)(port)
    }

    /// Adds one.
    pub fn tell(&mut self, about: &'static str, text: impl Into<String>) {
        self.told.push(Reason { about, text: text.into() });
    }

    /// All of them.
    #[must_use]
    pub fn told(self) -> Vec<Reason> {
        self.told
    }
}
