use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::SocketRole;

/// A back end as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendSpec {
    /// Lasthop itself, with a module.
    Lasthop {
        /// `bridge`, `dummy`, or `flow` without a controller, with flows between pairs of ports.
        module: String,
    },
    /// Moves ring entries but no packets: the upper limit of the generator.
    Null,
    /// The bare algorithm of a single-copy switch, without a switch around it.
    Limit,
    /// The same, which sleeps in epoll_wait(2) while no packet comes.
    SleepingLimit,
    /// A command that starts a back end and reports when it is ready (bench/peers/README.md).
    Command {
        /// Its name in reports.
        name: String,
        /// The shell command.
        command: String,
    },
    /// A running back end.
    Outside {
        /// One for each port.
        sockets: Vec<PathBuf>,
        /// The side that listens.
        role: SocketRole,
        /// The leader of its process group, for its CPU time.
        pid: Option<u32>,
    },
}

impl BackendSpec {
    /// Whether the back end can only join ports in pairs.
    pub(crate) fn is_for_pairs(&self) -> bool {
        match self {
            Self::Null | Self::Limit | Self::SleepingLimit => true,
            Self::Lasthop { module } => module == "dummy" || module == "flow",
            Self::Command { .. } | Self::Outside { .. } => false,
        }
    }
}

impl fmt::Display for BackendSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lasthop { module } if module == "bridge" => f.write_str("lasthop"),
            Self::Lasthop { module } => write!(f, "lasthop-{module}"),
            Self::Null => f.write_str("null"),
            Self::Limit => f.write_str("limit"),
            Self::SleepingLimit => f.write_str("limit-sleeping"),
            Self::Command { name, .. } => f.write_str(name),
            Self::Outside { .. } => f.write_str("sockets"),
        }
    }
}

impl FromStr for BackendSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, command)) = text.split_once('=') {
            return command_of(name, command);
        }
        match text {
            "lasthop" => Ok(Self::Lasthop { module: "bridge".to_owned() }),
            "lasthop-dummy" => Ok(Self::Lasthop { module: "dummy".to_owned() }),
            "lasthop-flow" => Ok(Self::Lasthop { module: "flow".to_owned() }),
            "null" => Ok(Self::Null),
            "limit" => Ok(Self::Limit),
            "limit-sleeping" => Ok(Self::SleepingLimit),
            _ => Err(format!(
                "there is no back end \"{text}\"; there are lasthop, lasthop-dummy, lasthop-flow, limit, limit-sleeping and null, and \
                 NAME=COMMAND starts another one"
            )),
        }
    }
}

fn command_of(name: &str, command: &str) -> Result<BackendSpec, String> {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("\"{name}\" is no name for a back end; use letters, digits, and - _ ."));
    }
    if command.trim().is_empty() {
        return Err(format!("{name}= wants a command behind it"));
    }
    Ok(BackendSpec::Command { name: name.to_owned(), command: command.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for text in ["lasthop", "lasthop-dummy", "lasthop-flow", "null", "limit", "limit-sleeping"] {
            assert_eq!(text.parse::<BackendSpec>().expect(text).to_string(), text);
        }
        let command: BackendSpec = "ovs-1=A=1 run me".parse().expect("a command");
        assert_eq!(
            command,
            BackendSpec::Command { name: "ovs-1".to_owned(), command: "A=1 run me".to_owned() }
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in
            [("lastho", "no back end"), ("a b=c", "no name"), ("=c", "no name"), ("a= ", "wants a command")]
        {
            assert!(text.parse::<BackendSpec>().expect_err(text).contains(words), "{text}");
        }
    }
}
