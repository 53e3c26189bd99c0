//! The policies and their modes.

/// A use of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// How long to poll for packets: [`look`](crate::look()).
    Look,
    /// When to offer the CPU: [`occupy`](crate::occupy()).
    Yield,
    /// When to signal again: [`remind`](crate::remind()).
    SecondSignal,
    /// When to signal: [`notify`](crate::notify()).
    Notify,
    /// When to let a sender kick: [`transmit`](crate::transmit()).
    TransmitTimer,
    /// Which copies a helper shares: [`offload`](crate::offload()) and [`place`](crate::place()).
    Offload,
    /// Near which CPU copies for a receive queue are made: [`QueueRow`](crate::QueueRow).
    Movement,
    /// Whether a worker gets a thread of its own: [`separate`](crate::separate()).
    Gathering,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Look,
        Self::Yield,
        Self::SecondSignal,
        Self::Notify,
        Self::TransmitTimer,
        Self::Offload,
        Self::Movement,
        Self::Gathering,
    ];

    /// The name that users write.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Yield => "yield",
            Self::SecondSignal => "second-signal",
            Self::Notify => "notify",
            Self::TransmitTimer => "transmit-timer",
            Self::Offload => "offload",
            Self::Movement => "movement",
            Self::Gathering => "gathering",
        }
    }
}

/// Whether a policy is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Where there is a view.
    On,
    /// Never.
    Off,
    /// The policy's default: not used until a measurement shows a gain, which none has yet.
    #[default]
    Auto,
}

/// The mode of each policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes([Mode; Policy::ALL.len()]);

impl Modes {
    /// Sets the mode of a policy.
    pub fn set(&mut self, policy: Policy, mode: Mode) {
        self.0[policy as usize] = mode;
    }

    /// The mode of a policy.
    #[must_use]
    pub fn get(&self, policy: Policy) -> Mode {
        self.0[policy as usize]
    }

    /// Whether a policy is used where there is a view.
    #[must_use]
    pub fn is_used(&self, policy: Policy) -> bool {
        match self.get(policy) {
            Mode::On => true,
            Mode::Off | Mode::Auto => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names_and_are_set_one_by_one() {
        let mut modes = Modes::default();
        for policy in Policy::ALL {
            modes.set(policy, Mode::On);
            assert!(modes.is_used(policy));
            modes.set(policy, Mode::Off);
            assert!(!modes.is_used(policy) && modes.get(policy) == Mode::Off);
            modes.set(policy, Mode::Auto);
        }
        assert_eq!(modes, Modes::default());
        let used = Policy::ALL.map(|policy| modes.is_used(policy));
        assert_eq!(used, [false; Policy::ALL.len()]);
        let names: std::collections::BTreeSet<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        assert_eq!(names.len(), Policy::ALL.len());
    }
}
