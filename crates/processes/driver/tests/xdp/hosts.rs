//! Counts the receivers of an uplink's frames: each frame is handled once, with every option.

use std::net::UdpSocket;
use std::sync::Mutex;

use lasthop_device::Backend;
use lasthop_device::{Host, host_tap};
use lasthop_netdev::{Gate, TapOptions, Uplink, UplinkOptions, XdpDevice, XdpError};

use crate::attached;
use crate::bench::Bench;
use crate::frames::{self, number, payload};
use crate::lab::{FAR_ADDRESS, GUEST_ADDRESS, HOST_ADDRESS, HOST_IP, HOST_MAC, Lab, UPLINK};

/// Datagrams of each kind.
const COUNT: u32 = 100;
const UPLINK_PORT: u32 = 1;
const HOST_PORT: u32 = 2;

fn uplink(lab: &Lab, bench: &mut Bench, backend: Backend, host: Host) -> Uplink {
    let options = UplinkOptions { backend: Some(backend), host, ..UplinkOptions::default() };
    if host == Host::Port {
        let error = lab.on_host(|| Uplink::open(UPLINK, options)).unwrap_err();
        assert!(error.to_string().contains("lasthop port add up0-host,tap=up0-host"), "{error}");
        bench.attach(
            HOST_PORT,
            lab.on_host(|| lasthop_netdev::tap(&host_tap(UPLINK), TapOptions::default())).unwrap(),
        );
    }
    let mut uplink = lab.on_host(|| Uplink::open(UPLINK, options)).unwrap();
    bench.attach(UPLINK_PORT, lab.on_host(|| uplink.sockets()).unwrap());
    uplink
}

fn send(socket: &UdpSocket, to: (std::net::Ipv4Addr, u16)) {
    for number in 0..COUNT {
        socket.send_to(&payload(number, 100), to).unwrap();
    }
}

/// The numbers that arrive until none does for a while.
fn arrivals(socket: &UdpSocket) -> Vec<u32> {
    let (mut bytes, mut numbers) = ([0; 2048], Vec::new());
    while let Ok(len) = socket.recv(&mut bytes) {
        numbers.push(number(&bytes[..len]));
    }
    numbers
}

fn all() -> Vec<u32> {
    (0..COUNT).collect()
}

/// Tests run one after another, since they count packets of a machine's stacks.
static ALONE: Mutex<()> = Mutex::new(());

/// Counts packets from the far end to the host, from the host to the far end, from the guest to both, and those that
/// the driver saw.
fn count(lab: &Lab, bench: &mut Bench, host: Host) {
    let (far, stack) = (lab.far_socket(), lab.host_socket());
    let before = bench.counters(UPLINK_PORT);

    send(&far, HOST_ADDRESS);
    let wanted = if host == Host::Off { Vec::new() } else { all() };
    assert_eq!(arrivals(&stack), wanted, "from the far end to the host's stack");
    let after = bench.counters(UPLINK_PORT);
    assert_eq!(
        after.from_device.frames - before.from_device.frames,
        u64::from(COUNT),
        "the driver received each once"
    );

    send(&stack, FAR_ADDRESS);
    assert_eq!(arrivals(&far), wanted, "from the host's stack to the far end");
    let told = bench.counters(UPLINK_PORT);
    assert_eq!(
        told.from_device.frames, after.from_device.frames,
        "the driver does not receive what the stack sends"
    );
    let through_switch = if host == Host::Port { COUNT } else { 0 };
    assert_eq!(told.to_device.frames - after.to_device.frames, u64::from(through_switch));

    bench.received();
    for number in 0..COUNT {
        bench.send(&frames::to_far_end(&payload(number, 100)));
    }
    assert_eq!(arrivals(&far), all(), "from the guest to the far end");
    for number in 0..COUNT {
        bench.send(&frames::from_guest(HOST_MAC, HOST_IP, &payload(number, 100)));
    }
    let wanted = if host == Host::Port { all() } else { Vec::new() };
    assert_eq!(arrivals(&stack), wanted, "from the guest to the host's stack");
    assert_eq!(arrivals(&far), [0_u32; 0], "what is for the host is not for the far end");

    send(&far, GUEST_ADDRESS);
    assert_eq!(bench.receive(COUNT as usize), all(), "from the far end to the guest");
    assert_eq!(arrivals(&stack), [0_u32; 0], "the host's stack takes none of it");
    bench.assert_conserved();
}

fn check(backend: Backend, host: Host) {
    let _alone = ALONE.lock();
    let lab = Lab::new();
    let mut bench = Bench::new();
    let _uplink = uplink(&lab, &mut bench, backend, host);
    let far = attached(&mut bench, &lab);
    drop(arrivals(&far));
    drop(far);
    count(&lab, &mut bench, host);
}

#[test]
#[ignore = "needs root"]
fn packet_sockets_shared() {
    check(Backend::AfPacket, Host::Shared);
}

#[test]
#[ignore = "needs root"]
fn packet_sockets_off() {
    check(Backend::AfPacket, Host::Off);
}

#[test]
#[ignore = "needs root"]
fn packet_sockets_with_a_port_for_the_host() {
    check(Backend::AfPacket, Host::Port);
}

#[test]
#[ignore = "needs root"]
fn xdp_sockets_off() {
    check(Backend::AfXdp, Host::Off);
}

#[test]
#[ignore = "needs root"]
fn xdp_sockets_with_a_port_for_the_host() {
    check(Backend::AfXdp, Host::Port);
}

#[test]
#[ignore = "needs root"]
fn xdp_sockets_cannot_be_shared() {
    let lab = Lab::new();
    let error = lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Shared)).unwrap_err();
    assert_eq!(error, XdpError::Shared);
}

#[test]
#[ignore = "needs root"]
fn a_gate_leaves_nothing_behind() {
    let lab = Lab::new();
    let gate = lab.on_host(|| Gate::off(UPLINK)).unwrap();
    let (far, stack) = (lab.far_socket(), lab.host_socket());
    send(&far, HOST_ADDRESS);
    send(&stack, FAR_ADDRESS);
    assert_eq!((arrivals(&stack), arrivals(&far)), (Vec::new(), Vec::new()));
    drop(gate);
    send(&far, HOST_ADDRESS);
    send(&stack, FAR_ADDRESS);
    assert_eq!((arrivals(&stack), arrivals(&far)), (all(), all()));
}
