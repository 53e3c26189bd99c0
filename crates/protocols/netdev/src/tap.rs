//! Makes and opens taps, and sets limits on a tap that passes no packets, as Open vSwitch does for
//! `ingress_policing_rate` and `qos` of a guest's port. They have no effect, and the user gets a warning.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_device::{Backend, DeviceFacts, OpenedDevice};
use lasthop_wire::vnet::HEADER_BYTES;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::OpenError;
use crate::features::{FEATURES, UDP_FEATURES};
use crate::link::NetDevice;
use crate::links::TrafficLimit;
use crate::sys::{DeviceCall, DeviceRequest, set_tap_carrier, set_tap_headers, set_tap_offloads};

const CAPABILITY: &str = "CAP_NET_ADMIN";

/// Queues of one tap (the kernel's `MAX_TAP_QUEUES`).
const QUEUES_MAX: u16 = 256;

const TCP_OFFLOADS: u32 = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
const UDP_OFFLOADS: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// How to make or open a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Number of queues: the kernel spreads frames over them by flow. With more than one, the tap is a multi-queue tap.
    pub queues: u16,
    /// Its MTU in bytes; `None` to leave it.
    pub mtu_bytes: Option<u32>,
    /// The address of the host's end; `None` to leave it.
    pub mac: Option<[u8; 6]>,
    /// Whether to set the link up.
    pub up: bool,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self { queues: 1, mtu_bytes: None, mac: None, up: true }
    }
}

/// Makes a tap, or opens a persistent one. A new one is removed when its last descriptor is closed.
///
/// # Errors
/// [`OpenError`].
pub fn tap(name: &str, options: TapOptions) -> Result<OpenedDevice, OpenError> {
    if !(1..=QUEUES_MAX).contains(&options.queues) {
        let (name, queues) = (name.to_owned(), options.queues);
        return Err(OpenError::BadQueues { name, queues, max: QUEUES_MAX });
    }
    let link = NetDevice::new(name)?;
    let (mut queues, mut features) = (Vec::new(), 0);
    for _ in 0..options.queues {
        let queue = open_queue(name, options.queues > 1)?;
        features = set_offloads(&queue).map_err(OpenError::of(name, CAPABILITY, "set offloads"))?;
        queues.push(queue);
    }
    options.mac.map_or(Ok(()), |mac| link.set_mac(mac))?;
    options.mtu_bytes.map_or(Ok(()), |mtu| link.set_mtu(mtu))?;
    if options.up {
        link.set_up()?;
    }
    let facts = DeviceFacts {
        backend: Backend::Tap,
        name: name.to_owned(),
        index: link.index()?,
        queues: options.queues,
        mtu_bytes: link.mtu_bytes()?,
        mac: link.mac()?,
        features,
        header_bytes: HEADER_BYTES as u8,
        ring: None,
        xdp: None,
        tunnel: None,
    };
    Ok(OpenedDevice { facts, descriptors: queues })
}

/// Sets the carrier that the other side of a tap sees; `queue` is one of its queues.
///
/// # Errors
/// Errors of ioctl(2); `BADFD` if the tap is gone.
pub fn set_carrier(queue: BorrowedFd<'_>, is_there: bool) -> Result<(), Errno> {
    set_tap_carrier(queue, is_there)
}

fn open_queue(name: &str, is_one_of_several: bool) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => OpenError::NoTaps,
        error => OpenError::of(name, CAPABILITY, "open /dev/net/tun for a queue")(error),
    })?;
    let mut request = DeviceRequest::new(name).ok_or_else(|| OpenError::BadName(name.to_owned()))?;
    let several = if is_one_of_several { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as u16; // a short in the kernel
    request.value[..2].copy_from_slice(&flags.to_ne_bytes());
    request.ask(fd.as_fd(), DeviceCall::MakeTap).map_err(|error| match error {
        Errno::BUSY | Errno::INVAL | Errno::TOOBIG => OpenError::Busy(name.to_owned()),
        error => OpenError::of(name, CAPABILITY, "make a queue")(error),
    })?;
    if request.name() != name {
        return Err(OpenError::BadName(name.to_owned())); // a % in it: the kernel made a name of its own
    }
    let headers = set_tap_headers(fd.as_fd(), HEADER_BYTES as i32);
    headers.map_err(OpenError::of(name, CAPABILITY, "set virtio-net headers"))?;
    Ok(fd)
}

/// Makes a tap leave those offloads to its reader that guests accept. Returns the features for it. Kernels before 6.2
/// do not have UDP segmentation.
fn set_offloads(queue: &OwnedFd) -> Result<u64, Errno> {
    match set_tap_offloads(queue.as_fd(), TCP_OFFLOADS | UDP_OFFLOADS) {
        Ok(()) => Ok(FEATURES | UDP_FEATURES),
        Err(Errno::INVAL) => set_tap_offloads(queue.as_fd(), TCP_OFFLOADS).map(|()| FEATURES),
        Err(error) => Err(error),
    }
}

/// The limits that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficLimits {
    is_policed: bool,
    is_shaped: bool,
}

impl TrafficLimits {
    /// Notes that one was set or removed.
    pub fn take(&mut self, limit: TrafficLimit, is_set: bool) {
        match limit {
            TrafficLimit::Policing => self.is_policed = is_set,
            TrafficLimit::Qos => self.is_shaped = is_set,
        }
    }

    /// The warning about them.
    pub fn warning(self) -> Option<String> {
        let what = match (self.is_policed, self.is_shaped) {
            (true, true) => "policing and QoS are",
            (true, false) => "policing is",
            (false, true) => "QoS is",
            (false, false) => return None,
        };
        Some(format!(
            "{what} set on its tap on the host, which no packet of its guest passes, so nothing is limited; use OpenFlow meters"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_until_it_is_gone() {
        let mut limits = TrafficLimits::default();
        let mut after = |limit, is_set| {
            limits.take(limit, is_set);
            let warning = limits.warning();
            warning.map(|text| text.split_once(" set ").expect("what it is").0.to_owned())
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(after(TrafficLimit::Policing, true), told("policing is"));
        assert_eq!(after(TrafficLimit::Qos, true), told("policing and QoS are"));
        assert_eq!(after(TrafficLimit::Policing, false), told("QoS is"));
        assert_eq!(after(TrafficLimit::Qos, false), None);
    }
}
