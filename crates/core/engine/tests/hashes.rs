//! Packet hashes from a driver to a module. No other guest can report any.

mod support;

use std::sync::{Arc, Mutex};

use lasthop_engine::PortConfig;
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::{Batch, Module, PortId, PortKind, PortSettings, Verdicts};
use lasthop_vhost::features::protocol;
use lasthop_wire::{Offload, PacketHash};
use support::{TestSwitch, config, frame, receive};

/// Forwards everything from one port to the other, and records the hashes that it gets.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<Option<PacketHash>>>);

impl Module for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for packet in 0..batch.headers.len() {
            self.0.lock().unwrap().push(batch.hashes.get(packet));
            verdicts.output(packet, PortId(3 - batch.port.0));
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

const HASHES: u64 = protocol::OFFERED | protocol::PACKET_HASH;

/// TCP over IPv4, and Toeplitz's function (virtio 1.2, 5.1.6.4.3).
const TCPV4: u16 = 2;
const TOEPLITZ: u8 = 1;

fn hash(value: u32) -> PacketHash {
    PacketHash { value, covers: TCPV4, function: TOEPLITZ, key: 7 }
}

/// A switch whose first port is of `kind`, with guests that try to report hashes on both ports.
fn lab(kind: PortKind) -> (TestSwitch, Arc<Noting>, Guest, Guest) {
    let module = Arc::new(Noting::default());
    let mut switch = TestSwitch::with(module.clone(), 1);
    let options = || GuestOptions { protocol_features: HASHES, ..GuestOptions::default() };
    let (_, first) = switch.attach(PortConfig { kind, ..config("first") }, options());
    let (_, second) = switch.attach(config("second"), options());
    (switch, module, first, second)
}

fn send(guest: &mut Guest, frame: &[u8], hash: PacketHash) {
    assert!(guest.send_hashed(0, frame, Offload::default(), hash).unwrap());
    guest.flush(0).unwrap();
}

#[test]
fn a_module_sees_the_hashes_that_an_uplink_s_driver_tells() {
    let (switch, module, mut uplink, mut guest) = lab(PortKind::Uplink);
    assert_eq!((uplink.tells_hashes(), guest.tells_hashes()), (true, false));
    for number in 0..100 {
        let sent = frame(2, 1, number, 18 + 15 * number as usize);
        send(&mut uplink, &sent, hash(number));
        assert_eq!(receive(&mut guest), sent, "the frame starts behind the hash");
    }
    // In several descriptors, and without a hash.
    let sent = frame(2, 1, 100, 900);
    assert!(uplink.send_parts(0, &sent, Offload::default(), &[5, 9, 3, 40]).unwrap());
    uplink.flush(0).unwrap();
    assert_eq!(receive(&mut guest), sent);
    send(&mut guest, &frame(1, 2, 0, 60), hash(5));
    assert_eq!(receive(&mut uplink), frame(1, 2, 0, 60), "what it receives has no hash");
    let seen: Vec<_> = (0..100).map(|number| Some(hash(number))).chain([None, None]).collect();
    assert_eq!(*module.0.lock().unwrap(), seen);
    switch.assert_conserved();
}

#[test]
fn an_ordinary_guest_is_not_offered_to_tell_any() {
    let (switch, module, mut first, mut second) = lab(PortKind::Inside);
    assert!(!first.tells_hashes());
    send(&mut first, &frame(2, 1, 1, 60), hash(1));
    assert_eq!(receive(&mut second), frame(2, 1, 1, 60));
    assert_eq!(*module.0.lock().unwrap(), [None]);
    let refused = first.front().set_protocol_features(HASHES);
    assert!(refused.is_err(), "it was not offered");
    switch.assert_conserved();
}
