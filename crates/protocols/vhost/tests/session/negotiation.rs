//! Features, configuration space, status, acknowledgements.

use lasthop_vhost::message::{ConfigMessage, FLAG_NEED_REPLY, request};
use lasthop_vhost::{SessionEnd, features};

use crate::host::{Call, Host, OFFERED, Recorder};

const BIT_30: u64 = features::PROTOCOL_FEATURES;

#[test]
fn offers_the_devices_features_and_protocol_features() {
    let mut host = Host::plain();
    for _ in 0..3 {
        assert_eq!(host.ask(request::GET_FEATURES), Some(OFFERED | BIT_30));
    }
    let protocol_features = [0, 3, 4, 5, 9, 12, 13, 15, 16].iter().map(|bit| 1_u64 << bit).sum();
    assert_eq!(host.ask(request::GET_PROTOCOL_FEATURES), Some(protocol_features));
    assert_eq!(host.ask(request::GET_MAX_MEM_SLOTS), Some(509));
    assert_eq!(host.ask(request::GET_QUEUE_NUM), Some(2));
    assert!(host.device.calls().is_empty());
}

#[test]
fn the_device_learns_features_without_the_sessions_own() {
    let mut host = Host::plain();
    assert_eq!(host.tell_u64(request::SET_FEATURES, features::CSUM | BIT_30), None);
    assert_eq!(host.device.calls(), [Call::Features(features::CSUM)]);
}

#[test]
fn features_that_were_not_offered_are_named() {
    let mut host = Host::plain();
    let acked = features::CSUM | features::GUEST_UFO | features::RING_PACKED;
    host.send(request::SET_FEATURES, acked.to_ne_bytes().to_vec(), &[]);
    let end = host.ready().unwrap_err();
    assert!(matches!(end, SessionEnd::Refused(_)));
    assert!(end.to_string().ends_with("not offered: GUEST_UFO RING_PACKED"), "{end}");

    let mut host = Host::acknowledged();
    assert_eq!(host.tell_u64(request::SET_FEATURES, acked), Some(1));
    assert_eq!(host.tell_u64(request::SET_FEATURES, OFFERED), Some(0));
    assert_eq!(host.tell_u64(request::SET_PROTOCOL_FEATURES, 1 << 3 | 1 << 8), Some(1));
    assert!(host.last_refusal().ends_with("PAGEFAULT"));
    assert_eq!(host.device.calls(), [Call::Features(OFFERED)]);
}

#[test]
fn acknowledges_only_when_negotiated_and_asked() {
    let mut host = Host::plain();
    assert_eq!(host.ask(request::SET_OWNER), None);
    host.flags |= FLAG_NEED_REPLY;
    assert_eq!(host.ask(request::SET_OWNER), None, "not negotiated");
    assert_eq!(host.tell_u64(request::SET_PROTOCOL_FEATURES, 1 << 3), Some(0), "counts at once");
    assert_eq!(host.ask(request::SET_OWNER), Some(0));
    assert_eq!(host.ask(request::GET_FEATURES), Some(OFFERED | BIT_30), "one reply, its own");
    host.flags = 1;
    assert_eq!(host.ask(request::SET_OWNER), None, "not asked");
}

#[test]
fn requests_of_features_not_offered_are_passed_over_and_counted() {
    let mut host = Host::plain();
    for number in [request::SEND_RARP, request::SET_CONFIG, request::IOTLB_MSG, 0, 41, u32::MAX] {
        assert_eq!(host.tell_u64(number, 0), None);
    }
    assert_eq!(host.session().refusals().ignored, 6);
    host.negotiate_acks();
    assert_eq!(host.tell_u64(request::SEND_RARP, 0), Some(1));
    assert_eq!(host.session().refusals().ignored, 7);
    assert_eq!(host.session().refusals().refused, 0);
}

#[test]
fn logging_is_refused_and_not_passed_over() {
    let mut host = Host::acknowledged();
    assert_eq!(host.tell_u64(request::SET_LOG_BASE, 0), Some(1));
    assert_eq!(host.tell_u64(request::SET_LOG_FD, 0), Some(1));
    assert!(host.last_refusal().contains("live migration"));
    host.flags = 1;
    host.send(request::SET_LOG_BASE, vec![0; 16], &[]);
    assert!(matches!(host.ready(), Err(SessionEnd::Refused(_))));
}

fn config(host: &mut Host, offset: u32, size: u32) -> Vec<u8> {
    let asked = ConfigMessage { offset, size, flags: 0 };
    let reply = host.try_tell(request::GET_CONFIG, asked.encode(&[]), &[]).unwrap().unwrap();
    if !reply.body.is_empty() {
        assert_eq!(reply.config().unwrap(), asked);
    }
    reply.body
}

#[test]
fn the_configuration_space_has_mac_link_pairs_and_mtu() {
    let mut host = Host::new(Recorder::new(OFFERED, 4));
    let bytes = [0x52, 0x54, 0, 1, 2, 3, 1, 0, 4, 0, 0x28, 0x23]; // 9000 = 0x2328
    assert_eq!(config(&mut host, 0, 12)[12..], bytes);
    assert_eq!(config(&mut host, 8, 2)[12..], bytes[8..10]);
    let whole = config(&mut host, 0, 256);
    assert_eq!((whole.len(), &whole[12..24]), (268, &bytes[..]));
    assert!(whole[24..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_range_outside_the_configuration_space_has_an_empty_reply() {
    let mut host = Host::plain();
    for (offset, size) in [(0, 257), (256, 1), (u32::MAX, 2), (1, u32::MAX)] {
        assert_eq!(config(&mut host, offset, size), [], "{offset} {size}");
    }
    assert_eq!(config(&mut host, 255, 1)[12..], [0]);
}

#[test]
fn the_mtu_reaches_the_device_if_it_is_one() {
    let mut host = Host::acknowledged();
    assert_eq!(host.tell_u64(request::NET_SET_MTU, 1500), Some(0));
    for mtu in [0, 67, 65536, u64::MAX] {
        assert_eq!(host.tell_u64(request::NET_SET_MTU, mtu), Some(1), "{mtu}");
    }
    assert_eq!(host.device.calls(), [Call::Mtu(1500)]);
}

#[test]
fn the_status_is_kept_and_zero_resets() {
    let mut host = Host::plain();
    assert_eq!(host.ask(request::GET_STATUS), Some(0));
    host.tell_u64(request::SET_STATUS, 0xf);
    assert_eq!(host.ask(request::GET_STATUS), Some(0xf));
    host.tell_u64(request::SET_FEATURES, OFFERED | BIT_30);
    host.device.calls();
    host.tell_u64(request::SET_STATUS, 0);
    assert_eq!(host.ask(request::GET_STATUS), Some(0));
    assert_eq!(host.device.calls(), [Call::Features(0)]);
}

#[test]
fn the_channel_for_requests_of_the_back_end_is_kept_open() {
    // Without one User Mode Linux has no interrupt line for its rings.
    let mut host = Host::plain();
    host.negotiate_acks();
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    assert_eq!(
        host.tell(request::SET_BACKEND_REQ_FD, Vec::new(), &[std::os::fd::AsFd::as_fd(&theirs)]),
        Some(0)
    );
    drop(theirs);
    let read = rustix::io::read(&ours, &mut [0_u8; 1][..]);
    assert_eq!(read, Err(rustix::io::Errno::AGAIN), "open and silent");
}

/// The back end's requests that arrived on its channel: number, flags, bytes of the body.
fn requests(channel: &mut std::os::unix::net::UnixStream) -> Vec<[u32; 3]> {
    use std::io::Read;
    channel.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    let _ = channel.read_to_end(&mut bytes); // ends with "would block"
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    (0..bytes.len() / 12).map(|index| [0, 4, 8].map(|at| word(12 * index + at))).collect()
}

#[test]
fn a_link_that_changes_is_told_to_who_asks_for_the_configuration_space() {
    use std::os::fd::AsFd;
    let mut host = Host::new(Recorder::new(OFFERED | features::STATUS, 1));
    assert!(!host.session().set_link(false), "nothing negotiated, no channel");
    assert_eq!(config(&mut host, 6, 2)[12..], [0, 0]);
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let wanted = features::protocol::CONFIG | features::protocol::BACKEND_REQ;
    host.tell_u64(request::SET_PROTOCOL_FEATURES, wanted);
    host.send(request::SET_BACKEND_REQ_FD, Vec::new(), &[theirs.as_fd()]);
    host.ready().unwrap();
    assert!(!host.session().set_link(true), "told, but a driver without STATUS does not look");
    host.tell_u64(request::SET_FEATURES, OFFERED | features::STATUS);
    assert!(host.session().set_link(false));
    assert_eq!(requests(&mut ours), [[2, 1, 0], [2, 1, 0]], "CONFIG_CHANGE_MSG, version 1, no body");
    assert_eq!(config(&mut host, 6, 2)[12..], [0, 0]);
    assert!(host.session().set_link(true));
    assert_eq!(config(&mut host, 6, 2)[12..], [1, 0]);
    drop((ours, theirs));
    assert!(!host.session().set_link(false), "nobody at the other end");
}
