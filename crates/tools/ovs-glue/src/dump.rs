//! Dumps that the death of a switch process interrupts: the next one is asked again.
//!
//! The kernel never loses a dump, so OVS takes a lost one for an error: it warns, and its revalidator learns nothing in that round.
//! Other requests it repeats itself.

use lasthop_dpif::message::Messages;
use lasthop_dpif::server::Family;

/// linux/netlink.h: `NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x300;
/// Requests of OVS have at most a flow's key and options. Longer ones are not repeated.
const REQUEST_BYTES_MAX: usize = 4096;

/// The request of a dump whose end has not come yet.
#[derive(Debug)]
pub(crate) struct DumpRequest {
    datagram: Vec<u8>,
    is_of_flows: bool,
}

impl DumpRequest {
    /// The request of a datagram that has only that.
    pub(crate) fn of(datagram: &[u8]) -> Option<Self> {
        let mut messages = Messages::new(datagram);
        let message = messages.next().filter(|message| message.header.flags & DUMP == DUMP)?;
        let is_alone = messages.next().is_none() && datagram.len() <= REQUEST_BYTES_MAX;
        let is_of_flows = message.header.kind == Family::Flow.id();
        is_alone.then(|| Self { datagram: datagram.to_vec(), is_of_flows })
    }

    /// The datagram, if the program may get the dump from its start; `has_answers`: it has got a part. Of flows it may see
    /// some twice, as the kernel's dumps have them twice while their table is changed.
    pub(crate) fn repeated(&self, has_answers: bool) -> Option<&[u8]> {
        (self.is_of_flows || !has_answers).then_some(self.datagram.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use lasthop_dpif::message::{NetlinkHeader, encode_datapath};

    use super::*;

    fn request(family: Family, flags: u16) -> Vec<u8> {
        let header = NetlinkHeader { kind: family.id(), flags: 1 | flags, seq: 1, port_id: 0 };
        encode_datapath(header, (3, 1), 1, |_| {}).expect("short")
    }

    #[test]
    fn a_dump_without_answers_is_repeated() {
        for family in [Family::Flow, Family::Vport] {
            let datagram = request(family, DUMP);
            let dump = DumpRequest::of(&datagram).expect("a dump");
            assert_eq!(dump.repeated(false), Some(&datagram[..]));
        }
    }

    #[test]
    fn only_flows_may_come_twice() {
        for (family, may_repeat) in [(Family::Flow, true), (Family::Vport, false)] {
            let dump = DumpRequest::of(&request(family, DUMP)).expect("a dump");
            assert_eq!(dump.repeated(true).is_some(), may_repeat);
        }
    }

    #[test]
    fn other_requests_are_not_repeated() {
        assert!(DumpRequest::of(&request(Family::Flow, 0)).is_none(), "one flow");
        assert!(DumpRequest::of(&request(Family::Flow, 0x100)).is_none(), "NLM_F_ROOT alone");
        let two = [request(Family::Flow, DUMP), request(Family::Flow, DUMP)].concat();
        assert!(DumpRequest::of(&two).is_none(), "two");
        let header = NetlinkHeader { kind: Family::Flow.id(), flags: 1 | DUMP, seq: 1, port_id: 0 };
        let long = encode_datapath(header, (3, 1), 1, |writer| writer.put(1, &[0; REQUEST_BYTES_MAX]));
        assert!(DumpRequest::of(&long.expect("it fits a message")).is_none(), "long");
        assert!(DumpRequest::of(&[]).is_none());
    }
}
