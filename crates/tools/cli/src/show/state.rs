//! The state of a port in tables, and its words as a filter.

use std::str::FromStr;

use lasthop_api::report::PortStatus;
use lasthop_runtime::fault::Fault;

/// The state of a port without a guest, in reports and in tables.
pub(super) const NO_GUEST: (&str, &str) = ("waiting for guest", "no guest");
/// The state of a link that is not up, behind that of the guest.
const LINK_DOWN: &str = "link down";
/// The words by which states of tables begin: first those of vnics.
const WORDS: [&str; 14] = [
    NO_GUEST.1,
    "connected",
    "running",
    "stopped",
    LINK_DOWN,
    "no answer",
    "up",
    "no carrier",
    "down",
    "no device",
    "not open",
    "joining",
    "driver restarting",
    "switch restarting",
];

/// The state of a port, and of its link if that is down.
pub(super) fn state_text(port: &PortStatus) -> String {
    match link_text(port) {
        Some(link) => format!("{}, {link}", port.state),
        None => port.state.clone(),
    }
}

fn link_text(port: &PortStatus) -> Option<String> {
    let uplinks_down = port.guest.as_ref().is_some_and(|guest| guest.uplinks_down);
    match (port.settings.common.link.is_up(), uplinks_down) {
        (true, false) => None,
        (true, true) => Some(format!("{LINK_DOWN} with its uplinks")),
        (false, _) => Some(LINK_DOWN.to_owned()),
    }
}

/// A word for states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateWord(&'static str);

impl FromStr for StateWord {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (long, short) = NO_GUEST;
        let word = if text == long { short } else { text };
        WORDS.into_iter().find(|known| *known == word).map(Self).ok_or_else(|| {
            Fault::params(format!("\"{text}\" is no state of a port; there are: {}", WORDS.join(", ")))
        })
    }
}

impl StateWord {
    /// Whether a port is in that state.
    pub(crate) fn is_of(self, port: &PortStatus) -> bool {
        let (long, short) = NO_GUEST;
        let begins = |state: &str| {
            let behind = state.strip_prefix(self.0);
            behind.is_some_and(|behind| behind.is_empty() || behind.starts_with([' ', ':']))
        };
        begins(&port.state.replacen(long, short, 1)) || link_text(port).is_some_and(|link| begins(&link))
    }
}

#[cfg(test)]
mod tests {
    use lasthop_engine::PortState;

    use super::*;
    use crate::show::tests::guest;

    fn words(port: &PortStatus) -> Vec<&'static str> {
        WORDS.into_iter().filter(|word| StateWord(word).is_of(port)).collect()
    }

    fn in_state(text: &str, state: &str) -> PortStatus {
        PortStatus { state: state.to_owned(), ..guest(text, "/s") }
    }

    #[test]
    fn each_state_of_a_vnic_has_its_word() {
        for (state, word) in [
            (PortState::Waiting, "no guest"),
            (PortState::Connected, "connected"),
            (PortState::Running, "running"),
            (PortState::Stopped("up, link down".to_owned()), "stopped"),
        ] {
            assert_eq!(words(&in_state("a", &state.to_string())), [word]);
        }
        assert_eq!(words(&in_state("a,link=down", "running")), ["running", "link down"]);
        let mut port = in_state("a", "no answer from the switch process");
        assert_eq!(words(&port), ["no answer"]);
        port.guest.as_mut().expect("a vnic").uplinks_down = true;
        assert_eq!(words(&port), ["link down", "no answer"]);
        for state in ["up", "down", "no device"] {
            assert_eq!(words(&in_state("a", state)), [state]);
        }
    }

    #[test]
    fn an_unknown_word_is_refused_with_the_list() {
        assert_eq!("waiting for guest".parse::<StateWord>(), "no guest".parse());
        let fault = "runing".parse::<StateWord>().expect_err("no state");
        assert!(
            fault.message.starts_with("\"runing\" is no state of a port; there are: no guest, "),
            "{fault}"
        );
    }
}
