//! Faults of devices, and their effects: one clear message each, and nothing is left on the device.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use lasthop_device::Host;
use lasthop_device::{Backend, DeviceDropReason};
use lasthop_driver::DriverEvent;
use lasthop_netdev::{OpenError, TapOptions, Uplink, UplinkOptions, XdpDevice, XdpError};
use rustix::thread::CapabilitySet;

use crate::bench::{Bench, with_only};
use crate::frames::{self, payload};
use crate::lab::{Lab, UPLINK};
use crate::support::eventually;
use crate::talk;

/// The namespace in which [`holder`] holds a device, or [`without_room`] opens one.
const NAMESPACE: &str = "LASTHOP_TEST_NAMESPACE";

fn options(host: Host) -> UplinkOptions {
    UplinkOptions { backend: Some(Backend::AfXdp), host, ..UplinkOptions::default() }
}

/// Whether the uplink has an XDP program, or programs of the stack.
fn has_programs(lab: &Lab) -> bool {
    has_xdp(lab) || lab.has_stack_programs()
}

#[test]
#[ignore = "needs root"]
fn a_device_vanishes_under_load_and_comes_back() {
    let lab = Lab::new();
    let mut bench = Bench::new();
    let mut uplink = lab.on_host(|| Uplink::open(UPLINK, options(Host::Off))).unwrap();
    bench.attach(1, lab.on_host(|| uplink.sockets()).unwrap());
    talk(&mut bench, &lab, 2);
    lab.unplug();
    let dropped = |bench: &Bench| bench.counters(1).dropped(DeviceDropReason::DeviceDown);
    eventually("frames are dropped because the device is gone", || {
        bench.send(&frames::to_far_end(&payload(1, 100)));
        dropped(&bench) > 0
    });
    assert!(matches!(bench.event(), DriverEvent::DeviceGone { .. }));
    assert!(!bench.port(1).has_device);
    bench.assert_conserved();
    drop(uplink);
    lab.plug(1);
    let mut uplink = lab.on_host(|| Uplink::open(UPLINK, options(Host::Off))).unwrap();
    bench.replace(1, lab.on_host(|| uplink.sockets()).unwrap());
    talk(&mut bench, &lab, 2);
    bench.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn a_switch_goes_away_and_another_one_finds_the_same_memory() {
    let lab = Lab::new();
    let mut bench = Bench::new();
    let mut uplink = lab.on_host(|| Uplink::open(UPLINK, options(Host::Off))).unwrap();
    bench.attach(1, lab.on_host(|| uplink.sockets()).unwrap());
    for _ in 0..3 {
        talk(&mut bench, &lab, 2);
        bench.reconnect(1);
    }
    talk(&mut bench, &lab, 2);
    bench.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn another_driver_takes_over_while_the_device_stays_shut() {
    let lab = Lab::new();
    let mut uplink = lab.on_host(|| Uplink::open(UPLINK, options(Host::Off))).unwrap();
    for _ in 0..2 {
        let mut bench = Bench::new();
        bench.attach(1, lab.on_host(|| uplink.sockets()).unwrap());
        talk(&mut bench, &lab, 2);
        assert!(has_programs(&lab));
    }
}

#[test]
#[ignore = "needs root"]
fn a_device_in_use_is_refused_by_name_and_number() {
    let lab = Lab::new();
    let first = lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Off)).unwrap();
    let error = lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Off)).unwrap_err();
    assert!(matches!(error, XdpError::Taken { program, .. } if program > 0), "{error}");
    assert!(error.to_string().contains("ip link set dev up0 xdp off"), "{error}");
    drop(first);
    // A process that another test is starting has copies of all descriptors for a moment.
    eventually("it is free again", || lab.on_host(|| XdpDevice::attach(UPLINK, 1, Host::Off)).is_ok());
}

#[test]
#[ignore = "needs root"]
fn queues_without_sockets_are_refused() {
    let lab = Lab::with_queues(2);
    let error = lab.on_host(|| Uplink::open(UPLINK, options(Host::Off))).unwrap_err();
    assert!(matches!(error, OpenError::Xdp(XdpError::Queues { channels: 2, queues: 1, .. })), "{error}");
    assert!(error.to_string().contains("set queues = 2"), "{error}");
    assert!(!has_programs(&lab));
}

#[test]
#[ignore = "needs root"]
fn frames_that_do_not_fit_are_refused() {
    let lab = Lab::new();
    lab.host_command(&format!("ip link set {UPLINK} mtu 9000"));
    let error = lab.on_host(|| Uplink::open(UPLINK, options(Host::Off))).unwrap_err();
    assert!(matches!(error, OpenError::Xdp(XdpError::Mtu { mtu_bytes: 9000, .. })), "{error}");
    assert!(error.to_string().contains("backend = \"af_packet\""), "{error}");
}

#[test]
#[ignore = "needs root"]
fn a_device_that_is_not_there_is_named() {
    let lab = Lab::new();
    let error = lab.on_host(|| Uplink::open("nowhere", options(Host::Off))).unwrap_err();
    assert!(error.to_string().contains("no network device nowhere"), "{error}");
}

#[test]
#[ignore = "needs root"]
fn a_device_whose_driver_has_no_xdp_works_by_the_stack_s_but_gives_the_host_no_port() {
    let lab = Lab::new();
    lab.host_command(&format!("ip link add link {UPLINK} name plain0 type macvlan mode passthru"));
    lab.host_command("ip link set plain0 up");
    let error = lab.on_host(|| XdpDevice::attach("plain0", 1, Host::Port)).unwrap_err();
    assert!(matches!(error, XdpError::GenericPort(_)), "{error}");
    let mut uplink = lab.on_host(|| Uplink::open("plain0", options(Host::Off))).unwrap();
    assert!(!uplink.facts().xdp.unwrap().native);
    let mut bench = Bench::new();
    bench.attach(1, lab.on_host(|| uplink.sockets()).unwrap());
    talk(&mut bench, &lab, 5);
    bench.assert_conserved();
}

#[test]
#[ignore = "needs root"]
fn without_capabilities_the_remedy_is_told() {
    let lab = Lab::new();
    let error = lab.on_host_without_capabilities(|| XdpDevice::attach(UPLINK, 1, Host::Off)).unwrap_err();
    assert_eq!(error, XdpError::Permission);
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
}

/// Opens a device without CAP_IPC_LOCK and the right to raise limits; only used by the next test.
#[test]
#[ignore = "run by the_limit_of_locked_memory_is_named"]
fn without_room() {
    let Ok(namespace) = std::env::var(NAMESPACE) else { return };
    let missing = CapabilitySet::IPC_LOCK | CapabilitySet::SYS_RESOURCE;
    let open = || XdpDevice::attach(UPLINK, 1, Host::Off).and_then(|device| device.sockets());
    let opened = crate::support::within(&namespace, || with_only(CapabilitySet::all() - missing, open));
    writeln!(std::io::stderr(), "opened: {}", opened.unwrap_err()).unwrap();
}

#[test]
#[ignore = "needs root"]
fn the_limit_of_locked_memory_is_named() {
    let lab = Lab::new();
    let told = Command::new("prlimit")
        .arg("--memlock=1048576")
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "faults::without_room", "--nocapture"])
        .env(NAMESPACE, lab.host_name())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&told.stderr);
    assert!(told.contains("opened: RLIMIT_MEMLOCK leaves no room for the 4096 KiB of queue 0"), "{told}");
    assert!(told.contains("CAP_IPC_LOCK"), "{told}");
    assert!(!has_programs(&lab));
}

#[test]
#[ignore = "needs root"]
fn auto_says_why() {
    let lab = Lab::new();
    let auto = UplinkOptions { host: Host::Off, ..UplinkOptions::default() };
    let uplink = lab.on_host(|| Uplink::open(UPLINK, auto)).unwrap();
    assert_eq!(uplink.facts().backend, Backend::AfPacket);
    assert!(uplink.reason().contains("no zero copy"), "{}", uplink.reason());
    assert!(!has_xdp(&lab), "a probe leaves nothing");
}

fn has_xdp(lab: &Lab) -> bool {
    lab.host_command(&format!("ip -d link show {UPLINK}")).contains("prog/xdp")
}

/// A process that holds a device until it is killed; only used by the next test.
#[test]
#[ignore = "run by nothing_is_left_of_a_process_that_was_killed"]
fn holder() {
    let Ok(namespace) = std::env::var(NAMESPACE) else { return };
    let open = || {
        let tap = lasthop_netdev::tap(&lasthop_device::host_tap(UPLINK), TapOptions::default()).unwrap();
        (tap, Uplink::open(UPLINK, options(Host::Port)).unwrap())
    };
    let (_tap, uplink) = crate::support::within(&namespace, open);
    writeln!(std::io::stderr(), "holding {}", uplink.facts().name).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "needs root"]
fn nothing_is_left_of_a_process_that_was_killed() {
    let lab = Lab::new();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "faults::holder", "--nocapture"])
        .env(NAMESPACE, lab.host_name())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stderr.take().unwrap()).lines();
    let said: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.contains("holding up0")).collect();
    let held = has_programs(&lab);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(held, "{said:?}");
    assert!(!has_programs(&lab));
    assert!(!lab.host_command("ip link").contains("up0-host"), "the tap stays");
}
