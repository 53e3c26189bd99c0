//! Connections of clients that the switch process serves: to the control interface, and for captures.
//!
//! A killed switch process that is stuck keeps its descriptors open. Its clients would wait for the end of a connection
//! that no process serves. So the supervisor keeps a copy of each connection, and shuts it down when the switch process
//! has ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use lasthop_foreign::ForeignFd;
use rustix::net::{Shutdown, shutdown};

use lasthop_runtime::poller::{Interest, Poller};

/// The most copies: more than the control interface serves. Further connections are not shut down for a stuck process.
const LENT_MAX: usize = 1024;

/// Only the end of a connection, which is always reported.
const END_ALONE: Interest = Interest { read: false, write: false };

/// Copies of connections, by number.
#[derive(Debug)]
pub struct LentConnections {
    connections: BTreeMap<u32, ForeignFd>,
    next_number: u32,
    /// The poller's number for the end of a connection.
    source: fn(u32) -> u64,
}

impl LentConnections {
    /// No connections; `source` returns the poller's number for the end of each.
    pub fn new(source: fn(u32) -> u64) -> Self {
        Self { connections: BTreeMap::new(), next_number: 0, source }
    }

    /// Keeps a copy of a connection that is passed to the switch process.
    pub fn keep(&mut self, connection: &ForeignFd, poller: &Poller) -> io::Result<()> {
        if self.connections.len() >= LENT_MAX {
            return Ok(());
        }
        let copy = connection.try_clone()?;
        self.next_number = self.next_number.wrapping_add(1);
        poller.add(&copy, (self.source)(self.next_number), END_ALONE).map_err(io::Error::other)?;
        self.connections.insert(self.next_number, copy);
        Ok(())
    }

    /// A connection has ended.
    pub fn forget(&mut self, number: u32, poller: &Poller) {
        if let Some(connection) = self.connections.remove(&number) {
            poller.remove(&connection); // it would stay in the set while there is a copy
        }
    }

    /// The switch process is over: ends all of its clients' connections.
    pub fn end_all(&mut self, poller: &Poller) {
        for (_, connection) in std::mem::take(&mut self.connections) {
            poller.remove(&connection);
            let _ = shutdown(connection.as_fd(), Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn connections_end_for_clients_whatever_copies_there_are() {
        let (mut lent, mut poller) = (LentConnections::new(u64::from), Poller::new().expect("a set"));
        let (mut client, connection) = UnixStream::pair().expect("a pair");
        let stuck = ForeignFd::from(connection);
        lent.keep(&stuck, &poller).expect("kept");
        lent.end_all(&poller);
        assert_eq!(client.read(&mut [0]).expect("the end"), 0);
        let now = Some(Instant::now());
        assert!(poller.wait(now).expect("a set").is_empty());
        let (client, connection) = UnixStream::pair().expect("a pair");
        let served = ForeignFd::from(connection);
        lent.keep(&served, &poller).expect("kept");
        assert!(poller.wait(now).expect("a set").is_empty(), "it goes on");
        drop(client);
        let ended = poller.wait(now).expect("a set");
        let number = ended.first().map(|event| event.source);
        assert_eq!(number, Some(2), "{ended:?}");
        lent.forget(2, &poller);
        assert!(lent.connections.is_empty() && poller.wait(now).expect("a set").is_empty());
    }
}
