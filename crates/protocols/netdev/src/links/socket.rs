//! The socket of rtnetlink(7).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, send, socket_with, sockopt,
};

use lasthop_runtime::fault::Fault;

use super::message::{self, Limited, LinkDevice, LinkMessage};
use super::table::Table;

/// Changes of devices (linux/rtnetlink.h, `RTMGRP_LINK`).
const GROUP_LINK: u32 = 1;
/// Changes of queueing disciplines (`RTMGRP_TC`).
const GROUP_TC: u32 = 8;
/// Longest datagram of the kernel, in bytes (linux/netlink.h, `NLMSG_GOODSIZE`, and dumps of up to 32 KiB).
const DATAGRAM_BYTES_MAX: usize = 32 << 10;
/// Datagrams that are read at a time; then the caller does other work.
const READS_MAX: usize = 32;
/// Requested size of the receive buffer: enough for some hundred devices that change at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The socket for the kernel's events of devices, and for requests.
#[derive(Debug)]
pub struct Links {
    socket: OwnedFd,
    number: u32,
    buffer: Vec<u8>,
    table: Table,
}

/// Received messages.
#[derive(Debug, Default)]
pub struct LinkNews {
    /// Names of devices that appeared, changed or disappeared, before and after.
    pub names: BTreeSet<String>,
    /// Completed requests by number, with the error number of refused ones.
    pub done: Vec<(u32, Option<i32>)>,
    /// Limits that were set on devices or removed, in order.
    pub limited: Vec<Limited>,
}

impl Links {
    /// Makes the socket, and requests all devices.
    pub fn open() -> Result<Self, Fault> {
        let failed = |error: Errno| Fault::internal("watch network devices", error);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(failed)?;
        // Otherwise less fits, and all devices are requested more often.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK | GROUP_TC)).map_err(failed)?;
        let mut links =
            Self { socket, number: 0, buffer: vec![0; DATAGRAM_BYTES_MAX], table: Table::default() };
        links.ask_for_all();
        Ok(links)
    }

    /// Requests all devices.
    fn ask_for_all(&mut self) {
        self.table.begin_round();
        // This only fails for lack of memory, like the next request.
        let _ = self.request(message::dump);
    }

    /// The device of this name.
    pub fn find(&self, name: &str) -> Option<&LinkDevice> {
        self.table.find(name)
    }

    /// The name of the device with this index.
    pub fn name_of(&self, index: u32) -> Option<&str> {
        self.table.name_of(index)
    }

    /// Whether all devices are known.
    pub fn is_complete(&self) -> bool {
        self.table.is_complete()
    }

    /// Adds an address to a device. Returns the number of the answer.
    pub fn add_address(&mut self, index: u32, address: IpAddr, len_bits: u8) -> Result<u32, Errno> {
        self.request(|number| message::add_address(number, index, address, len_bits))
    }

    /// Removes a virtual device: when this returns it is gone, unless the kernel refuses.
    pub fn remove(&mut self, index: u32) -> Result<u32, Errno> {
        self.request(|number| message::remove(number, index))
    }

    fn request(&mut self, message: impl FnOnce(u32) -> Vec<u8>) -> Result<u32, Errno> {
        self.number = self.number.wrapping_add(1);
        send(&self.socket, &message(self.number), SendFlags::empty())?;
        Ok(self.number)
    }

    /// Reads available messages, up to a bound.
    pub fn receive(&mut self) -> LinkNews {
        let mut heard = LinkNews::default();
        for _ in 0..READS_MAX {
            match recvfrom(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, len, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    // Any process may send to a netlink socket; the kernel's port is 0.
                    if from.is_some_and(|from| from.pid() == 0) {
                        message::read(&self.buffer[..len]).for_each(|news| match news {
                            LinkMessage::Done { number, errno } => heard.done.push((number, errno)),
                            LinkMessage::Limited(limited) => heard.limited.push(limited),
                            news => self.table.take(news, &mut heard.names),
                        });
                    }
                }
                Err(Errno::INTR) => {}
                // Messages were lost: requests all devices again.
                Err(Errno::NOBUFS) => self.ask_for_all(),
                Err(_) => break,
            }
        }
        heard
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_loopback_device_is_told() {
        let mut links = Links::open().expect("anybody may watch");
        let end = Instant::now() + Duration::from_secs(5);
        let mut names = BTreeSet::new();
        while !links.is_complete() && Instant::now() < end {
            names.extend(links.receive().names);
        }
        assert!(names.contains("lo"), "{names:?}");
        assert_eq!(links.find("lo").map(|device| device.index), Some(1));
    }
}
