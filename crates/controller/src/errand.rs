//! What requests are for, and for whom what comes of them is.

use lasthop_flow::Ufid;

/// What a request is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Errand {
    Make(String),
    Find(String),
    Features,
    Ports(String),
    Port(String, String),
    PortGone,
    /// Where a port's misses go.
    Subscribe(String),
    Adopt(String),
    Count(String),
    Flow(String, Ufid),
    FlowGone,
    Meter(String),
    Execute,
}

impl Errand {
    /// The switch that it is about, if it makes a difference whether that is another one by now.
    pub(crate) fn switch(&self) -> Option<&str> {
        match self {
            Self::Make(switch) | Self::Find(switch) | Self::Ports(switch) | Self::Port(switch, _) => {
                Some(switch)
            }
            Self::Subscribe(switch) | Self::Adopt(switch) | Self::Count(switch) => Some(switch),
            Self::Flow(switch, _) | Self::Meter(switch) => Some(switch),
            Self::Features | Self::PortGone | Self::FlowGone | Self::Execute => None,
        }
    }
}

/// A request, and which life of its switch it is for: what comes of it is for no other one. A switch of this name may have been
/// taken away and made again meanwhile, or its datapath.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) errand: Errand,
    pub(crate) life: u64,
}

impl Sent {
    /// For whatever switch there is then.
    pub(crate) fn for_all(errand: Errand) -> Self {
        Self { errand, life: 0 }
    }
}
