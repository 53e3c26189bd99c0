//! Network devices by name (netdevice(7)): index, address, MTU and flags.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::OpenError;
use crate::sys::{DeviceCall, DeviceRequest};

const CAPABILITY: &str = "CAP_NET_ADMIN";

/// A device by its name, in this network namespace (netdevice(7)).
#[derive(Debug)]
pub(crate) struct NetDevice {
    socket: OwnedFd,
    name: String,
}

impl NetDevice {
    /// # Errors
    /// [`OpenError::BadName`], [`OpenError::System`].
    pub(crate) fn new(name: &str) -> Result<Self, OpenError> {
        DeviceRequest::new(name).ok_or_else(|| OpenError::BadName(name.to_owned()))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(OpenError::of(name, CAPABILITY, "make a socket to ask for facts"))?;
        Ok(Self { socket, name: name.to_owned() })
    }

    fn ask(&self, call: DeviceCall, value: &[u8], what: &'static str) -> Result<[u8; 24], OpenError> {
        let mut request =
            DeviceRequest::new(&self.name).ok_or_else(|| OpenError::BadName(self.name.clone()))?;
        request.value[..value.len()].copy_from_slice(value);
        let asked = request.ask(self.socket.as_fd(), call);
        asked.map_err(OpenError::of(&self.name, CAPABILITY, what)).map(|()| request.value)
    }

    fn number(&self, call: DeviceCall, what: &'static str) -> Result<i32, OpenError> {
        let value = self.ask(call, &[], what)?;
        Ok(i32::from_ne_bytes([value[0], value[1], value[2], value[3]]))
    }

    /// The interface index.
    pub(crate) fn index(&self) -> Result<u32, OpenError> {
        Ok(self.number(DeviceCall::Index, "read the index")?.cast_unsigned())
    }

    /// Its MTU in bytes.
    pub(crate) fn mtu_bytes(&self) -> Result<u32, OpenError> {
        Ok(self.number(DeviceCall::Mtu, "read the MTU")?.cast_unsigned())
    }

    pub(crate) fn set_mtu(&self, mtu_bytes: u32) -> Result<(), OpenError> {
        self.ask(DeviceCall::SetMtu, &mtu_bytes.to_ne_bytes(), "set the MTU").map(drop)
    }

    /// The Ethernet address.
    pub(crate) fn mac(&self) -> Result<[u8; 6], OpenError> {
        let [low, high, a, b, c, d, e, f, ..] = self.ask(DeviceCall::Address, &[], "read the address")?;
        if u16::from_ne_bytes([low, high]) != libc::ARPHRD_ETHER {
            return Err(OpenError::NotEthernet(self.name.clone()));
        }
        Ok([a, b, c, d, e, f])
    }

    pub(crate) fn set_mac(&self, mac: [u8; 6]) -> Result<(), OpenError> {
        let [low, high] = libc::ARPHRD_ETHER.to_ne_bytes();
        let [a, b, c, d, e, f] = mac;
        let value = [low, high, a, b, c, d, e, f];
        self.ask(DeviceCall::SetAddress, &value, "set the address").map(drop)
    }

    pub(crate) fn set_up(&self) -> Result<(), OpenError> {
        let value = self.ask(DeviceCall::Flags, &[], "read the flags")?;
        let flags = u16::from_ne_bytes([value[0], value[1]]) | libc::IFF_UP as u16;
        self.ask(DeviceCall::SetFlags, &flags.to_ne_bytes(), "set the link up").map(drop)
    }
}

/// The interface index of the Ethernet device with this name, whether it is up or not.
///
/// # Errors
/// [`OpenError::NoDevice`], [`OpenError::NotEthernet`], [`OpenError::BadName`].
pub fn ethernet_device(name: &str) -> Result<u32, OpenError> {
    let link = NetDevice::new(name)?;
    link.mac()?;
    link.index()
}

/// Sets a device's Ethernet address.
///
/// # Errors
/// [`OpenError::NoDevice`], [`OpenError::NotPermitted`], and other errors of the kernel.
pub fn set_address(name: &str, mac: [u8; 6]) -> Result<(), OpenError> {
    NetDevice::new(name)?.set_mac(mac)
}

/// The present MTU of a device in bytes; `None` if that name does not belong to the device with this interface index
/// (any more).
#[must_use]
pub fn mtu_bytes(name: &str, index: u32) -> Option<u32> {
    let link = NetDevice::new(name).ok()?;
    link.index().ok().filter(|found| *found == index)?;
    link.mtu_bytes().ok()
}

/// Sets a device's MTU in bytes.
///
/// # Errors
/// [`OpenError::NoDevice`], [`OpenError::NotPermitted`], and other errors of the kernel.
pub fn set_mtu(name: &str, mtu_bytes: u32) -> Result<(), OpenError> {
    NetDevice::new(name)?.set_mtu(mtu_bytes)
}

/// Whether this error means that the kernel does not know the request.
pub(crate) fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::NOPROTOOPT | Errno::INVAL | Errno::OPNOTSUPP)
}
