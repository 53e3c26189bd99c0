//! A guest process: it exchanges random frames with all others, checks every received frame, and executes orders.
//!
//! Orders come as lines on standard input; answers go as lines to standard output. Each violation ends the process by a
//! panic, which fails the test.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use lasthop_frontend::{ALL_FEATURES, Guest, GuestError, GuestOptions};
use lasthop_ring::{DESC_NEXT, DESC_WRITE, Descriptor};

use crate::action::may_die;
use crate::frame::{ALL, PLAIN_BYTES_MAX, TSO_BYTES_MAX, TSO_BYTES_MIN, Tale, is_tcp, mac};
use lasthop_rig::random::Random;
use lasthop_vhost::front::FrontError;

/// The longest wait for a port to serve again.
const PATIENCE: Duration = Duration::from_secs(120);
/// TCP segmentation: only guests with an even number have it.
const TSO: u64 = {
    use lasthop_vhost::features as f;
    f::HOST_TSO4 | f::HOST_TSO6 | f::GUEST_TSO4 | f::GUEST_TSO6 | f::HOST_ECN | f::GUEST_ECN
};
/// The most frames of a queue that are checked before orders: as many as a ring holds.
const FRAMES_PER_TURN: usize = 256;
const GUARD: u8 = 0xa5;

/// Whether a guest sends and receives unsegmented frames.
fn does_tso(number: u8) -> bool {
    number.is_multiple_of(2)
}

/// The position of a sender's last frame: its life and number.
type Position = (u32, u32);

struct Talker {
    me: u8,
    guests: u8,
    life: u32,
    socket: PathBuf,
    random: Random,
    guest: Guest,
    /// The byte in fresh receive buffers, by which writes after a frame are visible.
    guard: Option<u8>,
    quiet: bool,
    number: u32,
    /// By sender, its queue pair, and our queue pair.
    last: HashMap<(u8, u8, u16, u8, bool), Position>,
    sent: u64,
    received: u64,
    /// Frames for another guest, which were flooded because the switch did not know its address.
    strayed: u64,
}

fn answer(line: &str) {
    let mut out = std::io::stdout().lock();
    // The end of the parent closes standard input.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A kind of guest with which all bytes can be checked.
fn options(me: u8, random: &mut Random, queue_pairs: u16, guard: Option<u8>) -> GuestOptions {
    use lasthop_vhost::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, RING_PACKED};
    let packed = if random.once_in(2) { RING_PACKED } else { 0 };
    let in_order = if random.once_in(2) { IN_ORDER } else { 0 };
    let without = [0, EVENT_IDX, INDIRECT_DESC, MRG_RXBUF, MRG_RXBUF | EVENT_IDX][random.below(5) as usize];
    let offloads = if does_tso(me) { 0 } else { TSO };
    let longest = if does_tso(me) { TSO_BYTES_MAX } else { PLAIN_BYTES_MAX } as u32 + 12;
    let merges = without & MRG_RXBUF == 0;
    GuestOptions {
        features: packed | in_order | ALL_FEATURES & !without & !offloads,
        queue_pairs,
        ring_entries: [64, 128, 256][random.below(3) as usize],
        tx_slot_bytes: longest,
        rx_buffer_bytes: if merges { [1536, 2048, 4096][random.below(3) as usize] } else { longest },
        rx_cuts: if random.once_in(3) { vec![12] } else { Vec::new() },
        rx_guard: guard,
        indirect: random.once_in(2),
        regions: 1 + random.below(8) as u16,
        start_position: if random.once_in(2) { 65_500 } else { 0 },
        mac: mac(me),
        ..GuestOptions::default()
    }
}

/// Attaches; repeats that if the port is missing for a moment, or has fewer queue pairs.
fn attach(socket: &PathBuf, me: u8, random: &mut Random, guard: Option<u8>) -> Guest {
    let end = Instant::now() + PATIENCE;
    let mut pairs = 1 + random.below(2) as u16;
    loop {
        match Guest::connect(socket, options(me, random, pairs, guard)) {
            Ok(guest) => return guest,
            Err(error) => assert!(Instant::now() < end, "guest {me} cannot attach: {error}"),
        }
        pairs = 3 - pairs;
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Talker {
    fn new(me: u8, guests: u8, life: u32, seed: u64, socket: PathBuf) -> Self {
        let mut random = Random::new(seed ^ (u64::from(me) << 32) ^ u64::from(life));
        let guard = (!may_die(seed)).then_some(GUARD);
        let guest = attach(&socket, me, &mut random, guard);
        let last = HashMap::new();
        let (quiet, number, sent, received, strayed) = (false, 0, 0, 0, 0);
        Self { me, guests, life, socket, random, guest, guard, quiet, number, last, sent, received, strayed }
    }

    fn tale(&mut self, queue: u16) -> Tale {
        self.number += 1;
        let other = 1 + self.random.below(u64::from(self.guests)) as u8;
        let to = if self.random.once_in(16) || other == self.me { ALL } else { other };
        let tso = to != ALL && does_tso(to) && does_tso(self.me) && self.random.once_in(4);
        let len = if tso {
            TSO_BYTES_MIN as u64 + self.random.below((TSO_BYTES_MAX - TSO_BYTES_MIN) as u64 + 1)
        } else if self.random.once_in(2) {
            60 + self.random.below(200)
        } else {
            60 + self.random.below(PLAIN_BYTES_MAX as u64 - 59)
        };
        let segment_bytes = if tso { 536 + self.random.below(900) as u16 } else { 0 };
        let (from, life, number) = (self.me, self.life, self.number);
        Tale { to, from, queue: queue as u8, segment_bytes, life, number, len_bytes: len as u32 }
    }

    /// Sends one frame, if there is room.
    fn say(&mut self, queue: u16) -> Result<bool, GuestError> {
        let tale = self.tale(queue);
        let cuts: &[u32] = [&[][..], &[12], &[12, 14], &[12, 20, 20]][self.random.below(4) as usize];
        let said = self.guest.send_parts(queue, &tale.frame(), tale.offload(), cuts)?;
        self.sent += u64::from(said);
        Ok(said)
    }

    fn burst(&mut self) -> Result<(), GuestError> {
        let queue = self.random.below(u64::from(self.guest.queue_pairs())) as u16;
        for _ in 0..=self.random.below(32) {
            if !self.say(queue)? {
                break;
            }
        }
        self.guest.flush(queue).map(drop)
    }

    fn hear_some(&mut self) -> Result<(), GuestError> {
        let mut frame = Vec::new();
        for queue in 0..self.guest.queue_pairs() {
            // Others may send faster than this guest can check.
            for _ in 0..FRAMES_PER_TURN {
                if self.guest.recv(queue, &mut frame)?.is_none() {
                    break;
                }
                self.hear(queue, &frame);
            }
            self.guest.reclaim(queue)?;
        }
        Ok(())
    }

    /// Receives all frames while no guest sends.
    fn hear_the_rest(&mut self) -> Result<(), GuestError> {
        let mut before = None;
        while self.quiet && before != Some(self.received) {
            before = Some(self.received);
            self.hear_some()?;
        }
        Ok(())
    }

    fn hear(&mut self, queue: u16, frame: &[u8]) {
        self.received += 1;
        let for_another = frame[..6] != mac(self.me) && frame[..6] != mac(ALL);
        self.strayed += u64::from(for_another);
        if is_tcp(frame) && frame.len() < TSO_BYTES_MIN {
            return; // one segment of many: flooded, or of a flow that went to the control plane
        }
        let tale = Tale::of_whole(frame).unwrap_or_else(|wrong| panic!("guest {}: {wrong}", self.me));
        assert_ne!(tale.from, self.me, "its own frame came back: {tale:?}");
        // Order is preserved within a flow.
        let (is_segmented, now) = (tale.segment_bytes > 0, (tale.life, tale.number));
        let way = (tale.from, tale.queue, queue, tale.to, is_segmented);
        let last = self.last.insert(way, now);
        assert!(last.is_none_or(|last| last < now), "guest {}: {tale:?} came after {last:?}", self.me);
    }

    /// Some traffic, then a pause.
    fn turn(&mut self) -> Result<(), GuestError> {
        self.hear_some()?;
        if !self.quiet {
            self.burst()?;
        }
        let pause = if self.quiet { 5000 } else { self.random.below(3000) };
        self.guest.wait(Some(Duration::from_micros(pause))).map(drop)
    }

    fn in_flight(&mut self) -> u64 {
        let queues = 0..self.guest.queue_pairs();
        queues.map(|queue| u64::from(self.guest.in_flight(queue).expect("its own queue"))).sum()
    }

    fn carry_out(&mut self, order: &str) -> Result<(), GuestError> {
        if std::env::var_os("CHAOS_TRACE").is_some() && !matches!(order, "quiet" | "go" | "count") {
            eprintln!("guest {}: {order} after frame {}", self.me, self.number);
        }
        match order {
            "quiet" => self.quiet = true,
            "go" => self.quiet = false,
            "count" => {
                self.hear_the_rest()?;
                let in_flight = self.in_flight();
                answer(&format!("count {} {} {in_flight} {}", self.sent, self.received, self.strayed));
            }
            "restart" => {
                let bases = self.guest.stop()?;
                self.hear_some()?;
                self.guest.start(&bases)?;
            }
            "memory" => self.guest.share_anew(1 + self.random.below(8) as u16)?,
            "reset" => self.guest.reset()?,
            "reconnect" => self.attach_anew(),
            "hostile" => self.be_hostile(),
            other => panic!("no such order: {other}"),
        }
        Ok(())
    }

    /// Disconnects, and attaches again as another kind of guest.
    fn attach_anew(&mut self) {
        // The old connection ends first: a port has one guest.
        let _ = self.guest.front().get_vring_base(0);
        let spare = std::os::unix::net::UnixStream::pair().expect("a pair").0;
        *self.guest.front() = lasthop_vhost::front::FrontEnd::new(spare).expect("a socket");
        self.guest = attach(&self.socket, self.me, &mut self.random, self.guard);
    }

    /// Writes invalid entries to a transmit ring, lets the switch see them, and attaches again.
    fn be_hostile(&mut self) {
        let kind = self.random.below(5);
        let ring = self.guest.transmit_ring(0).expect("queue 0");
        let at = ring.next_head().unwrap_or(0);
        let bad = |addr, len, flags, next| Descriptor { addr, len, flags, next };
        let descriptor = match kind {
            0 => bad(0xdead_0000_0000, 100, 0, 0),
            1 => bad(0x1_0000_0000, u32::MAX, DESC_NEXT, at),
            2 => bad(0x1_0000_0000, 100, DESC_WRITE, 0),
            _ => bad(0x1_0000_0000, 100, DESC_NEXT, u16::MAX),
        };
        ring.set_raw_descriptor(at, descriptor);
        if kind == 4 {
            ring.set_raw_index(ring.published_position().wrapping_add(30_000));
        } else {
            ring.publish_raw_head(at);
        }
        self.guest.kick(0).expect("its own eventfd");
        std::thread::sleep(Duration::from_millis(20));
        self.attach_anew();
    }

    /// Whether the port hangs up.
    fn is_left(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match self.guest.front().get_features() {
                Ok(_) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return matches!(error, FrontError::HungUp(_)),
            }
        }
        false
    }

    /// Continues if the port hung up; any other failure is an error.
    fn recover(&mut self, error: &GuestError) {
        let gone = match error {
            GuestError::HungUp | GuestError::Front(FrontError::HungUp(_)) => true,
            // A port that is being removed refuses what takes its workers, and hangs up afterwards.
            GuestError::Front(FrontError::Refused(_)) => self.is_left(),
            _ => false,
        };
        assert!(gone, "guest {}: {error}", self.me);
        answer("hungup");
        self.attach_anew();
    }
}

fn orders() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The whole life of a guest process; `words` are its number, how many there are, its life, its seed and its socket.
pub(crate) fn run(words: &[String]) {
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let (me, guests, life) = (number(0) as u8, number(1) as u8, number(2) as u32);
    let mut talker = Talker::new(me, guests, life, number(3), PathBuf::from(&words[4]));
    let orders = orders();
    loop {
        let done = match orders.try_recv() {
            Ok(order) if order == "end" => return,
            Ok(order) => talker.carry_out(&order),
            Err(TryRecvError::Empty) => talker.turn(),
            Err(TryRecvError::Disconnected) => return,
        };
        if let Err(error) = done {
            talker.recover(&error);
        }
    }
}
