//! Requests on a netfilter socket: connections of the host are none of a datapath's business, and the switch has none of
//! its own. So there is nothing to list, and nothing left after flushing.

use super::request::DumpCursor;
use super::request::Outcome;
use crate::message::NetlinkHeader;
use crate::refusal::{Errno, Refusal};
use crate::uapi::nlm;

/// linux/netfilter/nfnetlink.h: subsystems in the high byte of a type.
const CTNETLINK: u8 = 1;
const CTNETLINK_TIMEOUT: u8 = 8;
/// linux/netfilter/nfnetlink_conntrack.h, and for timeouts.
const CT_DELETE: u8 = 2;

pub(super) fn serve(request: NetlinkHeader) -> Result<Outcome, Refusal> {
    let [subsystem, kind] = request.kind.to_be_bytes();
    match (subsystem, kind) {
        (CTNETLINK | CTNETLINK_TIMEOUT, _) if request.has(nlm::DUMP) => {
            Ok(Outcome::Dump(DumpCursor::Nothing))
        }
        (CTNETLINK, CT_DELETE) => Ok(Outcome::Done),
        _ => Err(Refusal::new(Errno::EOPNOTSUPP, "the switch does not track connections")),
    }
}
