//! The stage of the supervisor between its start and its end.

use std::time::Instant;

use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::notify::Phase;

/// The stage of the supervisor.
#[derive(Debug)]
pub(super) enum Stage {
    /// The first switch gets its ports; a fault ends the program with a message.
    Starting,
    /// Failed steps are retried.
    Serving,
    /// The switch was told to end.
    Ending { until: Instant },
    /// The switch comes to rest, since the service manager keeps its guests for the next supervisor. It is asked again
    /// at `retry`.
    Leaving { until: Instant, retry: Option<Instant> },
    /// The event loop ends.
    Over(Result<(), Fault>),
}

impl Stage {
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Ending { until } => Some(*until),
            Self::Leaving { until, retry } => earlier(Some(*until), *retry),
            Self::Starting | Self::Serving | Self::Over(_) => None,
        }
    }

    /// The state for the service manager.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Starting => Phase::Starting,
            Self::Serving => Phase::Serving,
            Self::Ending { .. } | Self::Leaving { .. } | Self::Over(_) => Phase::Ending,
        }
    }

    /// Whether a process that ends now is not restarted.
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Ending { .. } | Self::Leaving { .. } | Self::Over(_))
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving { .. })
    }
}
