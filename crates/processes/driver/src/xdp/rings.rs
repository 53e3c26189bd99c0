//! The entries of an AF_XDP socket's four rings, and their index arithmetic.
//!
//! ```text
//!                     released v           v next           v producer (the kernel's store, read with acquire)
//!   Consumer   [ . . . . . . . | t t t t t | p p p p p p p p | . . . ]      t taken, not released    p pending
//!
//!                     consumer v                  published v       v next
//!   Producer   [ . . . . . . . | k k k k k k k k k k k k k | w w w | . . . ]  k the kernel's   w written, not published
//! ```
//!
//! Positions are 32 bits wide and wrap; an entry is at its position modulo the number of entries. One side stores one
//! index, with release, after it has written or read the entries; the other side loads it with acquire. The kernel's
//! index is range-checked before use; a ring with an invalid one is `Broken`.

use thiserror::Error;

use super::sys::RingMemory;

/// Entries of the largest ring here.
pub(super) const RING_ENTRIES_MAX: u32 = 1 << 16;
/// The entries of a ring; any bytes are a valid value.
pub(super) trait Entry: Copy + private::Sealed {}

mod private {
    /// Types for which any bytes are a valid value, and which have no padding.
    pub(in super::super) trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for super::Frame {}
}

/// A frame in the receive or transmit ring: `struct xdp_desc` (linux/if_xdp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Frame {
    /// Offset in the UMEM.
    pub(super) addr: u64,
    pub(super) len_bytes: u32,
    /// XDP_PKT_CONTD: the frame continues in the next entry.
    pub(super) options: u32,
}

impl Entry for u64 {}
impl Entry for Frame {}

/// The kernel wants to be woken for this ring (XDP_RING_NEED_WAKEUP, linux/if_xdp.h).
const NEED_WAKEUP: u32 = 1;

/// An impossible index of the kernel: the ring cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the kernel's index of an AF_XDP ring of {entries} moved by {ahead}")]
pub(super) struct Broken {
    ahead: u32,
    entries: u32,
}

/// A ring to which we add entries: fill and transmit.
#[derive(Debug)]
pub(super) struct Producer<E: Entry> {
    memory: RingMemory<E>,
    next: u32,
    published: u32,
    /// The consumer index as last read.
    consumer: u32,
}

impl<E: Entry> Producer<E> {
    pub(super) fn new(memory: RingMemory<E>) -> Self {
        let (next, consumer) = (memory.producer(), memory.consumer());
        Self { memory, next, published: next, consumer }
    }

    /// Number of entries for which there is room.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn room(&mut self) -> Result<u32, Broken> {
        let consumer = self.memory.consumer();
        let entries = self.memory.entries();
        // The kernel may only consume published entries, and its index never goes back.
        if self.published.wrapping_sub(consumer) > self.published.wrapping_sub(self.consumer) {
            return Err(Broken { ahead: consumer.wrapping_sub(self.consumer), entries });
        }
        self.consumer = consumer;
        Ok(entries - self.next.wrapping_sub(consumer))
    }

    /// Appends an entry; there must be [`Self::room`]. The kernel sees it after [`Self::publish`].
    pub(super) fn put(&mut self, entry: E) {
        debug_assert!(self.room().is_ok_and(|room| room > 0), "a ring has room for all frames");
        self.memory.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes the appended entries to the kernel, by one store. Returns their number.
    pub(super) fn publish(&mut self) -> u32 {
        let count = self.next.wrapping_sub(self.published);
        if count > 0 {
            self.published = self.next;
            self.memory.set_producer(self.next);
        }
        count
    }

    /// Number of published entries that the kernel has not consumed.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn waiting(&mut self) -> Result<u32, Broken> {
        self.room()?;
        Ok(self.published.wrapping_sub(self.consumer))
    }

    /// Whether the kernel has to be woken for this ring.
    pub(super) fn wants_wakeup(&self) -> bool {
        self.memory.flags() & NEED_WAKEUP != 0
    }
}

/// A ring from which we take entries: receive and completion.
#[derive(Debug)]
pub(super) struct Consumer<E: Entry> {
    memory: RingMemory<E>,
    next: u32,
    released: u32,
}

impl<E: Entry> Consumer<E> {
    pub(super) fn new(memory: RingMemory<E>) -> Self {
        let next = memory.consumer();
        Self { memory, next, released: next }
    }

    /// Number of entries that can be taken.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn pending(&self) -> Result<u32, Broken> {
        let entries = self.memory.entries();
        let ahead = self.memory.producer().wrapping_sub(self.next);
        let taken = self.next.wrapping_sub(self.released);
        if ahead > entries - taken { Err(Broken { ahead, entries }) } else { Ok(ahead) }
    }

    /// Takes the next [pending](Self::pending) entry.
    pub(super) fn take(&mut self) -> E {
        let entry = self.memory.read(self.next);
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Releases all taken entries to the kernel.
    pub(super) fn release(&mut self) {
        if self.next != self.released {
            self.released = self.next;
            self.memory.set_consumer(self.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use proptest::prelude::*;

    use super::super::rings::Frame;
    use super::*;

    fn file() -> OwnedFd {
        lasthop_guestmem::memfd("lasthop-xdp-test", 1 << 16).unwrap()
    }

    fn memory<E: Entry>(file: &OwnedFd, entries: u32) -> RingMemory<E> {
        RingMemory::of_file(file.as_fd(), entries).unwrap()
    }

    /// Both ends of one ring, after `position` entries have passed.
    fn pair<E: Entry>(entries: u32, position: u32) -> (Producer<E>, Consumer<E>, RingMemory<E>) {
        let file = file();
        let raw = memory::<E>(&file, entries);
        raw.set_producer(position);
        raw.set_consumer(position);
        (Producer::new(memory::<E>(&file, entries)), Consumer::new(memory::<E>(&file, entries)), raw)
    }

    #[test]
    fn an_empty_ring_has_nothing_and_a_full_one_no_room() {
        let (mut producer, mut consumer, _) = pair::<u64>(8, u32::MAX - 3);
        assert_eq!((producer.room(), consumer.pending()), (Ok(8), Ok(0)));
        (0..8).for_each(|entry| producer.put(entry));
        assert_eq!((producer.room(), consumer.pending()), (Ok(0), Ok(0)), "not published yet");
        assert_eq!((producer.publish(), producer.publish()), (8, 0));
        assert_eq!(consumer.pending(), Ok(8));
        assert_eq!((0..8).map(|_| consumer.take()).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert_eq!((producer.room(), consumer.pending()), (Ok(0), Ok(0)), "not released yet");
        consumer.release();
        assert_eq!((producer.room(), producer.waiting()), (Ok(8), Ok(0)));
    }

    #[test]
    fn frames_keep_their_fields() {
        let (mut producer, mut consumer, _) = pair::<Frame>(2, 7);
        let frame = Frame { addr: 0x1234_5678_9abc, len_bytes: 1514, options: 1 };
        producer.put(frame);
        producer.publish();
        assert_eq!(consumer.take(), frame);
    }

    #[test]
    fn an_index_that_cannot_be_breaks_the_ring() {
        let (mut producer, consumer, raw) = pair::<u64>(4, 100);
        raw.set_producer(105);
        assert_eq!(consumer.pending(), Err(Broken { ahead: 5, entries: 4 }));
        raw.set_producer(99);
        assert!(consumer.pending().is_err(), "backwards");
        raw.set_consumer(101);
        assert_eq!(producer.room(), Err(Broken { ahead: 1, entries: 4 }), "more than it was shown");
        raw.set_consumer(99);
        assert!(producer.room().is_err(), "backwards");
    }

    #[test]
    fn the_kernel_says_when_it_wants_to_be_woken() {
        let (producer, _, raw) = pair::<u64>(4, 0);
        assert!(!producer.wants_wakeup());
        raw.set_flags(NEED_WAKEUP);
        assert!(producer.wants_wakeup());
    }

    proptest! {
        /// For any numbers of entries that are appended, taken and published, from any position on: every entry arrives
        /// once and in order, and both ends' counts agree.
        #[test]
        fn entries_come_out_once_and_in_order(
            position in prop_oneof![any::<u32>(), u32::MAX - 40..],
            log in 0_u32..6,
            steps in prop::collection::vec((0_u8..4, 0_u32..40), 1..200),
        ) {
            let (mut producer, mut consumer, _) = pair::<u64>(1 << log, position);
            let (mut put, mut published, mut taken, mut released) = (0_u64, 0_u64, 0_u64, 0_u64);
            for (kind, count) in steps {
                match kind {
                    0 => for _ in 0..count.min(producer.room().unwrap()) {
                        producer.put(put);
                        put += 1;
                    },
                    1 => {
                        prop_assert_eq!(u64::from(producer.publish()), put - published);
                        published = put;
                    }
                    2 => for _ in 0..count.min(consumer.pending().unwrap()) {
                        prop_assert_eq!(consumer.take(), taken);
                        taken += 1;
                    },
                    _ => {
                        consumer.release();
                        released = taken;
                    }
                }
                prop_assert_eq!(u64::from(producer.room().unwrap()), (1 << log) - (put - released));
                prop_assert_eq!(u64::from(consumer.pending().unwrap()), published - taken);
            }
        }
    }

    #[test]
    fn two_threads_hand_over_every_entry() {
        const COUNT: u64 = 200_000;
        // Each side waits for the other at the earliest after this many entries: on a busy machine a wait takes
        // milliseconds.
        const ENTRIES: u32 = 1024;
        let (mut producer, mut consumer, _) = pair::<u64>(ENTRIES, u32::MAX - 1000);
        let writer = std::thread::spawn(move || {
            let mut put = 0;
            while put < COUNT {
                let some = u64::from(producer.room().unwrap()).min(COUNT - put).min(1 + put % 7);
                for _ in 0..some {
                    producer.put(put);
                    put += 1;
                }
                producer.publish();
                if some == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut taken = 0;
        while taken < COUNT {
            let some = u64::from(consumer.pending().unwrap()).min(1 + taken % 11);
            for _ in 0..some {
                assert_eq!(consumer.take(), taken);
                taken += 1;
            }
            consumer.release();
            if some == 0 {
                std::thread::yield_now();
            }
        }
        writer.join().unwrap();
    }
}
