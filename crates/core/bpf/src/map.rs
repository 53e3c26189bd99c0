//! Maps: memory shared by programs and processes, here as words of 64 bits; and the reading end of a ring buffer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{KEY_BYTES, MapFd, MapShape, Mapping};

/// Numbers of linux/bpf.h.
mod number {
    pub(super) const HASH: u32 = 1;
    pub(super) const ARRAY: u32 = 2;
    pub(super) const ARRAY_OF_MAPS: u32 = 12;
    pub(super) const XSKMAP: u32 = 17;
    pub(super) const RING_BUFFER: u32 = 27;
    pub(super) const MMAPABLE: u32 = 1 << 10;
}

/// A map, which exists until its last descriptor is closed and the last program that uses it is gone.
#[derive(Debug)]
pub struct Map(MapFd);

impl Map {
    fn new(name: &str, shape: MapShape<'_>) -> io::Result<Self> {
        MapFd::create(name, shape).map(Self)
    }

    /// Values of `value_bytes` by number, 0 to `entries` - 1, all zero.
    ///
    /// # Errors
    /// Errors of bpf(2); EPERM without CAP_BPF.
    pub fn array(name: &str, value_bytes: u32, entries: u32) -> io::Result<Self> {
        Self::new(name, array(value_bytes, entries))
    }

    /// An array of one value, which processes can map: [`WritableWords`](crate::WritableWords).
    ///
    /// # Errors
    /// As [`Self::array`].
    pub fn shared(name: &str, value_bytes: u32) -> io::Result<Self> {
        Self::new(name, MapShape { flags: number::MMAPABLE, ..array(value_bytes, 1) })
    }

    /// The same for programs to write and for processes to read: no process can change it through its descriptor,
    /// including the one that created it. See [`ReadWords`](crate::ReadWords).
    ///
    /// # Errors
    /// As [`Self::array`].
    pub fn shared_read_only(name: &str, value_bytes: u32) -> io::Result<Self> {
        let map = Self::shared(name, value_bytes)?;
        map.0.freeze()?;
        Ok(map)
    }

    /// Values of `value_bytes` by any number of 32 bits; memory for all `entries` is allocated at the start.
    ///
    /// # Errors
    /// As [`Self::array`].
    pub fn hash(name: &str, value_bytes: u32, entries: u32) -> io::Result<Self> {
        Self::new(name, MapShape { map_type: number::HASH, ..array(value_bytes, entries) })
    }

    /// A queue of events from programs to one process: [`EventQueue`](crate::EventQueue). `data_bytes` is a power of two and
    /// a multiple of the page size.
    ///
    /// # Errors
    /// As [`Self::array`].
    pub fn ring_buffer(name: &str, data_bytes: u32) -> io::Result<Self> {
        let map_type = number::RING_BUFFER;
        Self::new(name, MapShape { map_type, entries_max: data_bytes, ..Default::default() })
    }

    /// These maps by number; all have the same shape, and there is at least one.
    ///
    /// # Errors
    /// As [`Self::array`]; EINVAL for maps of different shapes.
    pub fn array_of_maps(name: &str, maps: &[Self]) -> io::Result<Self> {
        let first = maps.first().ok_or(io::ErrorKind::InvalidInput)?;
        let shape = MapShape {
            map_type: number::ARRAY_OF_MAPS,
            inner: Some(first.as_fd()),
            ..array(KEY_BYTES, maps.len() as u32) // the kernel refuses more than it can have
        };
        let outer = Self::new(name, shape)?;
        for (number, map) in (0..).zip(maps) {
            outer.set(number, &map.as_fd().as_raw_fd().to_ne_bytes())?;
        }
        Ok(outer)
    }

    /// XDP sockets by receive queue, 0 to `queues` - 1.
    ///
    /// # Errors
    /// As [`Self::array`].
    pub fn xdp_sockets(name: &str, queues: u32) -> io::Result<Self> {
        let (map_type, key_bytes, value_bytes) = (number::XSKMAP, KEY_BYTES, 4);
        Self::new(
            name,
            MapShape { map_type, key_bytes, value_bytes, entries_max: queues, ..Default::default() },
        )
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// Errors of bpf(2); EINVAL for a value of another size, E2BIG for a full map.
    pub fn set(&self, key: u32, value: &[u8]) -> io::Result<()> {
        self.0.update(key, value)
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    /// Errors of bpf(2), except for a missing key.
    pub fn get(&self, key: u32) -> io::Result<Option<Vec<u8>>> {
        match self.0.look_up(key) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes `key` from a hash; returns whether it existed.
    ///
    /// # Errors
    /// Errors of bpf(2), except for a missing key.
    pub fn remove(&self, key: u32) -> io::Result<bool> {
        match self.0.delete(key) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn array(value_bytes: u32, entries_max: u32) -> MapShape<'static> {
    MapShape { map_type: number::ARRAY, key_bytes: KEY_BYTES, value_bytes, entries_max, ..Default::default() }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Map> for OwnedFd {
    fn from(map: Map) -> Self {
        map.0.into_descriptor()
    }
}

/// Words that this process can only read. Each is read atomically: the earlier or the later state of a change. Two
/// reads may see two states.
#[derive(Debug)]
pub struct ReadWords(Mapping);

impl ReadWords {
    /// Maps the first `words` words of a shared map, by a descriptor that may come from another process.
    ///
    /// # Errors
    /// Errors of mmap(2): the map is shorter, or cannot be mapped.
    pub fn map(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        Mapping::new(map, words, false).map(Self)
    }

    /// The word of the given number; `None` if there is none.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> Option<u64> {
        self.0.load(index)
    }
}

/// Words that this process reads and writes. Other writers' changes to a word are lost if they come between a load and a store of it.
#[derive(Debug)]
pub struct WritableWords(Mapping);

impl WritableWords {
    /// Maps the first `words` words of a shared map.
    ///
    /// # Errors
    /// Errors of mmap(2); EACCES for a map that is read-only.
    pub fn map(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        Mapping::new(map, words, true).map(Self)
    }

    /// The word of the given number; `None` if there is none.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> Option<u64> {
        self.0.load(index)
    }

    /// Sets the word of the given number; returns false if there is none.
    pub fn store(&self, index: usize, value: u64) -> bool {
        self.0.store(index, value)
    }

    /// The number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

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
