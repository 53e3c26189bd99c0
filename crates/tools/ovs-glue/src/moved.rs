//! Answers about a port whose device has just moved to another network namespace, or back.
//!
//! OVS asks once for a port's namespace: when the kernel reports that the device has gone. The supervisor gets the same
//! report at the same time and informs the switch, so the answer may be older than the request. So an answer that
//! contradicts the kernel is not passed on: the request is repeated until switch and kernel agree, for at most
//! [`PATIENCE`]. This applies only to devices that were in this namespace before, so a program in another namespace
//! than the switch never waits.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lasthop_dpif::family::VportMessage;
use lasthop_dpif::message::{Messages, NetlinkMessage};
use lasthop_dpif::server::Family;

use crate::dump::DUMP;

/// How long the switch may take to notice that a device has moved. Usually this takes a millisecond; OVS's main thread
/// waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two requests.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// The most remembered devices: more than a switch can have as ports. Answers about further ones are passed on
/// unchanged.
const DEVICES_MAX: usize = 1024;
/// linux/openvswitch.h: `OVS_VPORT_CMD_NEW` (in answers), `OVS_VPORT_CMD_GET`.
const NEW: u8 = 1;
const GET: u8 = 3;

/// Devices of ports that were in this process's network namespace at the last request.
static HERE: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A request about one port, which may be repeated.
#[derive(Clone, Debug)]
pub(crate) struct PortRequest {
    pub(crate) datagram: Vec<u8>,
    deadline: Instant,
}

impl PortRequest {
    /// The request of a datagram that asks only about one port.
    pub(crate) fn of(datagram: &[u8], now: Instant) -> Option<Self> {
        let mut messages = Messages::new(datagram);
        let message = messages.next().filter(|message| is_about_port(message, GET))?;
        let is_alone = messages.next().is_none() && message.header.flags & DUMP == 0;
        is_alone.then(|| Self { datagram: datagram.to_vec(), deadline: now + PATIENCE })
    }

    /// Whether there is time for another request.
    pub(crate) fn may_repeat(&self, now: Instant) -> bool {
        now < self.deadline
    }
}

fn is_about_port(message: &NetlinkMessage<'_>, command: u8) -> bool {
    message.header.kind == Family::Vport.id()
        && message.generic().is_ok_and(|generic| generic.command == command)
}

/// The device of an answer that contradicts the kernel; `name_of` returns the names of devices in this network
/// namespace.
pub(crate) fn outdated(answer: &[u8], name_of: impl Fn(u32) -> Option<String>) -> Option<u32> {
    let (index, port) = device(answer)?;
    let name = name_of(index);
    // A device here may have been renamed; a device elsewhere may have this index.
    let is_here = if port.netns_id.is_none() { name.is_some() } else { name == port.name };
    let mut here = HERE.lock().ok()?;
    if is_here && here.len() < DEVICES_MAX {
        here.insert(index);
    }
    (is_here == port.netns_id.is_some() && here.contains(&index)).then_some(index)
}

/// The switch's answer did not change in time: this device causes no further waiting.
pub(crate) fn forget(device: u32) {
    if let Ok(mut here) = HERE.lock() {
        here.remove(&device);
    }
}

/// The device in an answer about a port.
fn device(answer: &[u8]) -> Option<(u32, VportMessage)> {
    let message = Messages::new(answer).next().filter(|message| is_about_port(message, NEW))?;
    let (datapath, attrs) = message.generic().ok()?.datapath().ok()?;
    let port = VportMessage::decode(datapath, attrs).ok()?;
    Some((port.ifindex?, port))
}

#[cfg(test)]
pub(crate) mod tests {
    use lasthop_dpif::message::{NetlinkHeader, encode_datapath};

    use super::*;

    pub(crate) fn request(flags: u16) -> Vec<u8> {
        let header = NetlinkHeader { kind: Family::Vport.id(), flags: 1 | flags, seq: 1, port_id: 0 };
        let port = VportMessage { name: Some("in1".to_owned()), ..VportMessage::default() };
        encode_datapath(header, (GET, 1), 0, |writer| port.encode(writer)).expect("short")
    }

    fn answer(index: u32, netns_id: Option<i32>) -> Vec<u8> {
        let header = NetlinkHeader { kind: Family::Vport.id(), flags: 0, seq: 1, port_id: 0 };
        let name = Some("in1".to_owned());
        let port = VportMessage { name, ifindex: Some(index), netns_id, ..VportMessage::default() };
        encode_datapath(header, (NEW, 1), 1, |writer| port.encode(writer)).expect("short")
    }

    fn named(name: &str) -> impl Fn(u32) -> Option<String> {
        move |_| Some(name.to_owned())
    }

    const GONE: fn(u32) -> Option<String> = |_| None;

    #[test]
    fn an_answer_that_contradicts_the_kernel_is_outdated() {
        let (local, remote) = (answer(70_001, None), answer(70_001, Some(3)));
        assert!(outdated(&local, named("in1")).is_none(), "it is here");
        assert!(outdated(&local, GONE).is_some(), "it has gone");
        assert!(outdated(&remote, GONE).is_none(), "the switch has heard of it");
        assert!(outdated(&remote, named("in1")).is_some(), "it has come back");
        assert!(outdated(&remote, named("other")).is_none(), "another device has its number");
        assert!(outdated(&local, named("renamed")).is_none(), "it has another name");
    }

    #[test]
    fn nobody_waits_for_devices_that_were_never_here_or_waited_for_in_vain() {
        let local = answer(70_002, None);
        assert!(outdated(&local, GONE).is_none(), "it was never here");
        assert!(outdated(&local, named("in1")).is_none());
        assert!(outdated(&local, GONE).is_some());
        forget(70_002);
        assert!(outdated(&local, GONE).is_none(), "again in vain");
    }

    #[test]
    fn other_messages_are_passed_on() {
        assert!(outdated(&request(0), GONE).is_none());
        let whole = answer(70_003, None);
        assert!(outdated(&whole, named("in1")).is_none());
        (0..whole.len()).for_each(|len| assert!(outdated(&whole[..len], GONE).is_none(), "{len} bytes"));
    }

    #[test]
    fn only_a_request_about_one_port_is_repeated() {
        let now = Instant::now();
        let one = PortRequest::of(&request(0), now).expect("one port");
        assert!(one.may_repeat(now) && !one.may_repeat(now + PATIENCE));
        assert!(PortRequest::of(&request(DUMP), now).is_none(), "all ports");
        assert!(PortRequest::of(&[request(0), request(0)].concat(), now).is_none(), "two");
        assert!(PortRequest::of(&answer(1, None), now).is_none());
    }
}
