//! A datapath that forwards nothing, for tests of programs that control one: `memory_datapath SOCKET`.
//!
//! The tests of the library for Open vSwitch's programs use it. It also shows the messages of these programs:
//!
//!     cargo run -p lasthop-dpif --example memory_datapath /tmp/datapath.sock &
//!     LASTHOP_DATAPATH=/tmp/datapath.sock LD_PRELOAD=target/debug/liblasthop_ovs_glue.so ovs-dpctl add-dp dp0

use std::error::Error;
use std::os::fd::AsFd;

use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::server::Server;
use lasthop_dpif::socket::{Access, Closed, Connections};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which socket? memory_datapath SOCKET")?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&listener, 128)?;
    let mut datapath = MemoryDatapath::new();
    let mut connections = Connections::new(Server::new(), Access::default())?;
    loop {
        let (listener_fd, set) = (listener.as_fd(), connections.fd());
        poll(&mut [PollFd::new(&listener_fd, PollFlags::IN), PollFd::new(&set, PollFlags::IN)], None)?;
        while let Ok(socket) = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
            if let Err(why) = connections.add(socket.into()) {
                tell(&why);
            }
        }
        for (_, why) in connections.turn(&mut datapath)? {
            if !matches!(why, Closed::HungUp) {
                tell(&why);
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "it has no other way to say it")]
fn tell(why: &Closed) {
    eprintln!("memory_datapath: {why}");
}
