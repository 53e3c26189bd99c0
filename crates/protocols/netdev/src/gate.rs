//! Gates between an uplink and the host's own network stack.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;

use lasthop_bpf::{Hook, Link};
use rustix::io::Errno;

use super::OpenError;
use super::link::NetDevice;
use super::programs::UplinkProgram;
use lasthop_device::{Host, host_tap};

const CAPABILITY: &str = "CAP_NET_ADMIN and CAP_BPF";

/// Separates an uplink from the host's own stack while it exists: programs that are attached by links of this process
/// only. See the picture in `programs`.
///
/// With [`Host::Off`] the stack neither receives from the device nor sends to it. With [`Host::Port`] the stack's
/// packets to the device come out of a tap, and the stack receives frames written to the tap from the device, which
/// keeps its addresses and routes. In both modes either the switch or the stack handles a frame, never both.
///
/// Packet sockets recognize packets that passed a gate by a mark: pass it to [`PacketOptions`](super::PacketOptions).
/// XDP sockets need none: their packets bypass programs of the stack, and frames that they receive never reach these.
#[derive(Debug)]
pub struct Gate {
    mark: u32,
    _links: Vec<Link>,
}

impl Gate {
    /// Separates the host's stack from `device`.
    ///
    /// # Errors
    /// [`OpenError::OldKernel`], [`OpenError::NotPermitted`] and other errors of the kernel; nothing is left
    /// behind.
    pub fn off(device: &str) -> Result<Self, OpenError> {
        let (site, mark) = (Site::new(device)?, new_mark());
        let links = vec![
            site.attach(UplinkProgram::nothing(), Hook::Ingress)?,
            site.attach(UplinkProgram::marked_only(mark), Hook::Egress)?,
        ];
        Ok(Self { mark, _links: links })
    }

    /// Gives the host's stack `tap` instead of `device`, transparently. Frames for the tap itself never reach the
    /// stack, and the stack does not send by it.
    ///
    /// # Errors
    /// As [`Self::off`].
    pub fn port(device: &str, tap: &str) -> Result<Self, OpenError> {
        let (device, tap, mark) = (Site::new(device)?, Site::new(tap)?, new_mark());
        // Starts at the tap's end, so that frames never loop.
        let links = vec![
            tap.attach(UplinkProgram::received_by(device.index, mark), Hook::Ingress)?,
            tap.attach(UplinkProgram::marked_only(mark), Hook::Egress)?,
            device.attach(UplinkProgram::unmarked(mark), Hook::Ingress)?,
            device.attach(UplinkProgram::others_to(tap.index, mark), Hook::Egress)?,
        ];
        Ok(Self { mark, _links: links })
    }

    /// The gate for `host`; `None` for [`Host::Shared`], which needs none.
    ///
    /// # Errors
    /// As [`Self::off`]; [`OpenError::NoHostTap`] with [`Host::Port`].
    pub fn of(host: Host, device: &str) -> Result<Option<Self>, OpenError> {
        match host {
            Host::Off => Self::off(device).map(Some),
            Host::Shared => Ok(None),
            Host::Port => {
                let tap = host_tap(device);
                let there = NetDevice::new(&tap)?.index();
                there.map_err(|_| OpenError::NoHostTap { device: device.to_owned(), tap: tap.clone() })?;
                Self::port(device, &tap).map(Some)
            }
        }
    }

    /// The mark of the switch's packets. Not 0.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark
    }
}

/// A device to attach programs to.
struct Site {
    name: String,
    index: u32,
}

impl Site {
    fn new(name: &str) -> Result<Self, OpenError> {
        Ok(Self { name: name.to_owned(), index: NetDevice::new(name)?.index()? })
    }

    fn attach(&self, program: io::Result<UplinkProgram>, hook: Hook) -> Result<Link, OpenError> {
        let attached = program.and_then(|program| program.attach(self.index, hook));
        attached.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
            match errno {
                Errno::INVAL | Errno::OPNOTSUPP => OpenError::OldKernel(self.name.clone()),
                errno => OpenError::of(
                    &self.name,
                    CAPABILITY,
                    "keep the host's stack off the device, that is attach BPF programs,",
                )(errno),
            }
        })
    }
}

/// A mark that no other process uses, except by chance or with CAP_NET_ADMIN.
fn new_mark() -> u32 {
    (RandomState::new().build_hasher().finish() as u32).max(1)
}
