//! Facts about devices, and settings of devices.

use std::os::fd::AsFd;

use lasthop_netdev::{OpenError, TapOptions};
use rustix::io::Errno;

use crate::lab::Namespace;

#[test]
#[ignore = "needs root"]
fn a_tap_that_was_moved_is_found_where_it_is() {
    let (home, away) = (Namespace::new(), Namespace::new());
    let options = TapOptions { up: false, ..TapOptions::default() };
    let tap = home.within(|| lasthop_netdev::tap("br0", options)).expect("a tap");
    let queue = tap.descriptors[0].as_fd();
    let told = || home.within(|| lasthop_netdev::tap_namespace_id(queue));
    assert_eq!(told(), Ok(None), "at home");
    home.run(&format!("ip link set br0 netns {}", away.name));
    let id = told().expect("it is there").expect("and not at home");
    assert_eq!(told(), Ok(Some(id)), "it keeps its number");
    let listed = home.run(&format!("ip netns list-id nsid {id}"));
    assert!(listed.contains(&away.name), "{listed}");
    away.run("ip link del br0");
    assert_eq!(told(), Err(Errno::BADFD));
}

#[test]
#[ignore = "needs root"]
fn a_tap_has_the_carrier_that_it_is_told() {
    let host = Namespace::new();
    let tap = host.within(|| lasthop_netdev::tap("vm1", TapOptions::default())).expect("a tap");
    for (is_there, word) in [(false, "0"), (true, "1"), (false, "0")] {
        lasthop_netdev::set_carrier(tap.descriptors[0].as_fd(), is_there).expect("a tap");
        assert_eq!(host.run("cat /sys/class/net/vm1/carrier").trim(), word);
    }
    host.run("ip link del vm1");
    assert_eq!(lasthop_netdev::set_carrier(tap.descriptors[0].as_fd(), true), Err(Errno::BADFD));
}

#[test]
#[ignore = "needs root"]
fn ethernet_devices_are_known_from_others() {
    let host = Namespace::new();
    host.run("ip link add wire0 type veth peer name wire1");
    let index = host.within(|| lasthop_netdev::ethernet_device("wire0")).expect("it is there, though down");
    assert_eq!(host.run("cat /sys/class/net/wire0/ifindex").trim(), index.to_string());
    let errno = |name: &str| {
        let error: OpenError = host.within(|| lasthop_netdev::ethernet_device(name)).expect_err("refused");
        error.errno()
    };
    assert_eq!((errno("lo"), errno("wire9")), (Errno::INVAL, Errno::NODEV));
}
