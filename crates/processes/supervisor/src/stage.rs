//! How far the supervisor is between its start and its end.

use std::time::Instant;

use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::notify::Phase;

/// How far the supervisor is.
#[derive(Debug)]
pub(super) enum Stage {
    /// The first switch gets its ports; a fault ends the program with a message, at once.
    Starting,
    /// A failed step is tried again.
    Serving,
    /// The switch was told to end.
    Ending { until: Instant },
    /// The switch comes to rest, since the service manager keeps its guests for the next supervisor. It is asked again at `retry`.
    Leaving { until: Instant, retry: Option<Instant> },
    /// The loop is to be left.
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

    /// As the service manager is told.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Starting => Phase::Starting,
            Self::Serving => Phase::Serving,
            Self::Ending { .. } | Self::Leaving { .. } | Self::Over(_) => Phase::Ending,
        }
    }

    /// Whether a process that ends now is not started again.
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Ending { .. } | Self::Leaving { .. } | Self::Over(_))
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving { .. })
    }
}
