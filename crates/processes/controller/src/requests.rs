//! The purpose of each request, and the switch's epoch for which its reply is valid.

use lasthop_dpif::family::{Band, FlowMessage, MeterMessage};
use lasthop_dpif::talk::DpifRequest;
use lasthop_flow::{Match, Ufid};

use crate::open_packets::InputPort;
use crate::switch::DatapathChange;

/// The purpose of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    Make(String),
    Find(String),
    Features,
    Ports(String),
    Port(String, String),
    PortGone,
    /// Subscribe to a port's misses.
    Subscribe(String),
    Adopt(String),
    Count(String),
    Flow(String, Ufid),
    FlowGone,
    Meter(String),
    /// End the subscription to a port's misses.
    Leave,
    /// Execute a packet from this port.
    Execute(InputPort),
}

impl Purpose {
    /// The switch that it concerns, if its reply is valid for one epoch only.
    pub(crate) fn switch(&self) -> Option<&str> {
        match self {
            Self::Make(switch) | Self::Find(switch) | Self::Ports(switch) | Self::Port(switch, _) => {
                Some(switch)
            }
            Self::Subscribe(switch) | Self::Adopt(switch) | Self::Count(switch) => Some(switch),
            Self::Flow(switch, _) | Self::Meter(switch) => Some(switch),
            Self::Features | Self::PortGone | Self::FlowGone | Self::Leave | Self::Execute(_) => None,
        }
    }
}

/// A request and its switch's epoch: replies for another epoch are ignored. A switch of this name, or its datapath, may
/// have been removed and made again meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) purpose: Purpose,
    pub(crate) epoch: u64,
}

impl Sent {
    /// A request that is valid for any epoch.
    pub(crate) fn for_all(purpose: Purpose) -> Self {
        Self { purpose, epoch: 0 }
    }
}

/// `OVS_METER_BAND_TYPE_DROP`.
const BAND_DROP: u32 = 1;

/// The request that makes a change.
pub(crate) fn request(switch: &str, datapath: i32, change: DatapathChange) -> (DpifRequest, Purpose) {
    let flow = |ufid| FlowMessage { datapath, ufid: Some(ufid), ..FlowMessage::default() };
    let meter = |id| MeterMessage { datapath, id: Some(id), ..MeterMessage::default() };
    let name = switch.to_owned();
    match change {
        DatapathChange::Install { ufid, matches, actions } => {
            let Match { key, mask } = *matches;
            let wanted = FlowMessage { key: Some(key), mask, actions: Some(actions), ..flow(ufid) };
            (DpifRequest::FlowNew(wanted), Purpose::Flow(name, ufid))
        }
        DatapathChange::Modify { ufid, actions } => (
            DpifRequest::FlowSet(FlowMessage { actions: Some(actions), ..flow(ufid) }),
            Purpose::Flow(name, ufid),
        ),
        DatapathChange::Remove { ufid } => (DpifRequest::FlowDel(flow(ufid)), Purpose::FlowGone),
        DatapathChange::Meter { meter: id, rate } => {
            let band = Band { kind: BAND_DROP, rate, burst: 0, stats: None };
            (
                DpifRequest::MeterSet(MeterMessage { bands: Some(vec![band]), ..meter(id) }),
                Purpose::Meter(name),
            )
        }
        DatapathChange::MeterGone { meter: id } => (DpifRequest::MeterDel(meter(id)), Purpose::FlowGone),
    }
}
