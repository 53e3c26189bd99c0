//! The events that the supervisor waits for, as the numbers of the poller.

/// The kind is in the upper half, the number in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Signals,
    Switch,
    Control,
    Listener(u32),
    Client(u32),
    Driver,
    Links,
    /// A switch process that is about to take over.
    Successor,
    /// A client of the datapath socket.
    DatapathListener,
    /// The controller process.
    ControllerProcess,
    /// A connection of a client of the switch process.
    LentConnections(u32),
    /// Ends of inner processes, or their output on standard error.
    Ends,
    /// The switch process that stands by.
    Standby,
}

impl From<Source> for u64 {
    fn from(source: Source) -> Self {
        let (kind, number) = match source {
            Source::Signals => (0, 0),
            Source::Switch => (1, 0),
            Source::Control => return Source::CONTROL,
            Source::Listener(port) => (3, port),
            Source::Client(client) => (4, client),
            Source::Driver => (5, 0),
            Source::Links => (6, 0),
            Source::Successor => (7, 0),
            Source::DatapathListener => (8, 0),
            Source::ControllerProcess => (9, 0),
            Source::Ends => (10, 0),
            Source::LentConnections(number) => (11, number),
            Source::Standby => (12, 0),
        };
        kind << 32 | u64::from(number)
    }
}

impl Source {
    /// The name of the work, for the hang watch.
    pub(super) fn work(self) -> &'static str {
        match self {
            Self::Signals => "signals",
            Self::Switch => "messages of the switch process",
            Self::Control | Self::Client(_) => "clients",
            Self::Listener(_) => "guests that attach",
            Self::Driver => "messages of the driver process",
            Self::Links => "news of network devices",
            Self::Successor | Self::Standby => "messages of another switch process",
            Self::DatapathListener | Self::LentConnections(_) => "clients of the datapath socket",
            Self::ControllerProcess => "messages of the controller process",
            Self::Ends => "ends and output of processes",
        }
    }

    /// The number of [`Self::Control`].
    pub(super) const CONTROL: u64 = 2 << 32;

    /// The source behind a number from the poller.
    pub(super) fn of(number: u64) -> Option<Self> {
        let low = number as u32;
        match number >> 32 {
            0 => Some(Self::Signals),
            1 => Some(Self::Switch),
            2 => Some(Self::Control),
            3 => Some(Self::Listener(low)),
            4 => Some(Self::Client(low)),
            5 => Some(Self::Driver),
            6 => Some(Self::Links),
            7 => Some(Self::Successor),
            8 => Some(Self::DatapathListener),
            9 => Some(Self::ControllerProcess),
            10 => Some(Self::Ends),
            11 => Some(Self::LentConnections(low)),
            12 => Some(Self::Standby),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        let all = [
            Source::Signals,
            Source::Switch,
            Source::Control,
            Source::Driver,
            Source::Links,
            Source::Successor,
            Source::Standby,
        ];
        let all = all.into_iter().chain([Source::DatapathListener, Source::ControllerProcess, Source::Ends]);
        for source in all.chain([Source::Listener(7), Source::LentConnections(8), Source::Client(u32::MAX)]) {
            assert_eq!(Source::of(source.into()), Some(source));
        }
        assert_eq!(Source::of(13 << 32), None);
    }
}
