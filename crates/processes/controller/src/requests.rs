//! The purpose of each request, and the switch's epoch for which its reply is valid.

use std::rc::Rc;

use lasthop_dpif::family::{Band, FlowMessage, FlowParts, MeterMessage};
use lasthop_dpif::talk::{self, DpifRequest};
use lasthop_flow::Ufid;

use crate::link::DatapathLink;
use crate::open_packets::InputPort;
use crate::switch::{DatapathChange, Switch};

/// A switch's name, which each request about it has.
pub(crate) type SharedName = Rc<str>;

/// The purpose of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    Make(SharedName),
    Find(SharedName),
    Features,
    Ports(SharedName),
    Port(SharedName, String),
    PortGone,
    /// Subscribe to a port's misses.
    Subscribe(SharedName),
    Adopt(SharedName),
    Count(SharedName),
    Flow(SharedName, Ufid),
    FlowGone,
    Meter(SharedName),
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

/// Appends the request that makes a change of a switch to a link; returns whether it was.
pub(crate) fn ask_for(
    link: &mut DatapathLink<Sent>,
    (name, epoch): (&SharedName, u64),
    (datapath, switch): (i32, &Switch),
    change: DatapathChange,
) -> bool {
    let flow = |ufid| FlowMessage { datapath, ufid: Some(ufid), ..FlowMessage::default() };
    let meter = |id| MeterMessage { datapath, id: Some(id), ..MeterMessage::default() };
    let sent = |purpose| Sent { purpose, epoch };
    match change {
        DatapathChange::Install { ufid } => {
            let Some((matches, actions)) = switch.parts(ufid) else { return false };
            let parts = FlowParts::of(Some(ufid), &matches, actions);
            let append = |datagram: &mut Vec<u8>, seq, port_id| {
                talk::append_flow_new(datagram, seq, port_id, datapath, &parts)
            };
            link.ask_by(append, sent(Purpose::Flow(Rc::clone(name), ufid)))
        }
        DatapathChange::Modify { ufid, actions } => link.ask(
            &DpifRequest::FlowSet(FlowMessage { actions: Some(actions), ..flow(ufid) }),
            sent(Purpose::Flow(Rc::clone(name), ufid)),
        ),
        DatapathChange::Remove { ufid } => {
            link.ask(&DpifRequest::FlowDel(flow(ufid)), sent(Purpose::FlowGone))
        }
        DatapathChange::Meter { meter: id, rate } => {
            let band = Band { kind: BAND_DROP, rate, burst: 0, stats: None };
            let wanted = MeterMessage { bands: Some(vec![band]), ..meter(id) };
            link.ask(&DpifRequest::MeterSet(wanted), sent(Purpose::Meter(Rc::clone(name))))
        }
        DatapathChange::MeterGone { meter: id } => {
            link.ask(&DpifRequest::MeterDel(meter(id)), sent(Purpose::FlowGone))
        }
    }
}
