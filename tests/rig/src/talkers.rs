//! Guests that talk to each other as fast as they can, and check everything.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lasthop_frontend::Guest;
use lasthop_wire::Offload;

use super::eventually;
use super::guests::frame;

/// Frames of a burst.
const BURST: usize = 16;

/// A guest that sends numbered frames to another, as fast as it can, and checks those of the other.
pub struct Talker {
    heard: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Guest>,
}

impl Talker {
    pub fn start(guest: Guest, from: [u8; 6], to: [u8; 6]) -> Self {
        let (heard, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, end) = (Arc::clone(&heard), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || talk(guest, (from, to), &counter, &end));
        Self { heard, is_over, thread }
    }

    /// Number of frames received.
    pub fn heard(&self) -> u32 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Waits until it has received this many more frames.
    pub fn hear(&self, more: u32) {
        let until = self.heard() + more;
        eventually("frames", || (self.heard() >= until).then_some(()));
    }

    pub fn end(self) -> Guest {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("everything that it heard was right")
    }
}

fn len_of(number: u32) -> usize {
    60 + (number as usize * 37) % 1400
}

fn talk(mut guest: Guest, (from, to): ([u8; 6], [u8; 6]), heard: &AtomicU32, is_over: &AtomicBool) -> Guest {
    let mut number = 0;
    let mut listener = Listener { from, to, seen: HashSet::new(), last: [0; 2] };
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            let frame = frame(to, from, number + 1, len_of(number + 1));
            if !guest.send(0, &frame, Offload::default()).expect("connected") {
                break;
            }
            number += 1;
        }
        guest.flush(0).expect("connected");
        for queue in 0..guest.queue_pairs() {
            guest.reclaim(queue).expect("each chain comes back once");
            heard.fetch_add(listener.listen(&mut guest, queue), Ordering::Relaxed);
        }
        guest.wait(Some(Duration::from_micros(200))).expect("connected");
    }
    guest
}

/// The frames that a guest received from the other one.
struct Listener {
    from: [u8; 6],
    to: [u8; 6],
    seen: HashSet<u32>,
    /// By queue pair: another switch process may choose another one for a flow.
    last: [u32; 2],
}

impl Listener {
    fn listen(&mut self, guest: &mut Guest, queue: u16) -> u32 {
        let (mut heard, mut bytes) = (0, Vec::new());
        while guest.recv(queue, &mut bytes).expect("a sound ring").is_some() {
            let number = u32::from_be_bytes(bytes[14..18].try_into().expect("a number"));
            assert_eq!(bytes, frame(self.from, self.to, number, len_of(number)), "damaged");
            let last = std::mem::replace(&mut self.last[usize::from(queue)], number);
            assert!(number > last, "{number} came after {last}");
            assert!(self.seen.insert(number), "{number} came twice");
            heard += 1;
        }
        heard
    }
}
