//! The reading end of a ring buffer that programs write.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::Mapping;

/// A ring buffer of which only the number of events counts. Its descriptor is readable while it has events; in an
/// edge-triggered epoll instance, each event is an edge.
///
/// The kernel's layout: one page with the reader's position, which the reader writes, then one with the writers'.
#[derive(Debug)]
pub struct EventQueue<Fd> {
    descriptor: Fd,
    read: Mapping,
    written: Mapping,
}

impl<Fd: AsFd> EventQueue<Fd> {
    /// Maps a [`Map::ring_buffer`](crate::Map::ring_buffer), by a descriptor that may come from another process.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn map(descriptor: Fd) -> io::Result<Self> {
        let written = Mapping::at(descriptor.as_fd(), rustix::param::page_size() as u64, 1, false)?;
        let read = Mapping::new(descriptor.as_fd(), 1, true)?;
        Ok(Self { descriptor, read, written })
    }

    /// Makes room for further events; returns whether there were any. A program that finds no room makes no event.
    pub fn clear(&self) -> bool {
        let (Some(written), Some(read)) = (self.written.load(0), self.read.load(0)) else { return false };
        if read == written {
            return false;
        }
        self.read.store(0, written)
    }
}

impl<Fd: AsFd> AsFd for EventQueue<Fd> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
