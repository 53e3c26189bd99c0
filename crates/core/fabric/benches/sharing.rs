//! Large frames that a home copies alone, and in turns with a helper on another CPU.
//!
//! ```text
//!   home:    64 frames of 64 KiB are available: visit, visit, ...   until the receiver has all and all chains are back
//!   helper:  orders: take a frame, copy it, publish it, ...
//! ```
//! The time is that of the home, from the first visit to the last completed chain. Guests work outside of it, so nothing
//! wants the helper's CPU. Two CPUs without other work are needed.

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/support/tcp.rs"]
mod tcp;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use lasthop_fabric::{Capabilities, Fabric, HelpShare, HelpStep, HelperFinder, LargeCopies, RingId};
use lasthop_module_api::{Module, PortId};
use lasthop_sync::CombiningLock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::{Everywhere, TestGuest, everything, memory};

/// Frames of a round: the sender has as many buffers.
const FRAMES: u32 = 64;
/// Payload of a frame, and of a segment of it, in bytes.
const PAYLOAD_BYTES: usize = 64_000;
const SEGMENT_BYTES: u16 = 1448;
const RECEIVER: PortId = PortId(1);

/// Finds worker 1, which never sleeps.
struct Awake;

impl HelperFinder for Awake {
    fn find(&mut self, _: RingId, copies: LargeCopies) -> Option<HelpShare> {
        Some(HelpShare { helper: 1, packets: copies.packets })
    }

    fn wake(&mut self, _: usize) {}
}

/// A home, and the guests of both sides.
struct Stream {
    home: Fabric,
    sender: TestGuest,
    receiver: TestGuest,
    frame: Vec<u8>,
    csum_start: usize,
}

impl Stream {
    /// The receiver has `entries` buffers of `buffer_bytes`. Returns the helper, too.
    fn new(of_receiver: Capabilities, entries: u32, buffer_bytes: u32) -> (Self, Fabric) {
        let module: Arc<dyn Module> = Arc::new(Everywhere(vec![RECEIVER]));
        let mut crew = Fabric::for_workers(&module, 2).unwrap();
        let mut guest = |port: u16, capabilities, entries, bytes| {
            let map = memory(1);
            let guest = TestGuest::pair(PortId(port), 0, Arc::clone(&map), capabilities, entries, bytes);
            for fabric in &mut crew {
                fabric.add_port(guest.port, 1);
                fabric.set_capabilities(guest.port, capabilities);
                fabric.set_memory(guest.port, &map);
            }
            for index in 0..2 {
                let part = crew[0].prepare_ring(guest.port, index, guest.device_ring(index, 0)).unwrap();
                crew.iter_mut().for_each(|fabric| fabric.join_ring(guest.port, index, &part));
                assert!(crew[0].set_ring_enabled(guest.port, index, true));
            }
            guest
        };
        let mut receiver = guest(1, of_receiver, entries, buffer_bytes);
        receiver.post(entries);
        let sender = guest(2, everything(), 256, 2048);
        let payload: Vec<u8> = (0..PAYLOAD_BYTES).map(|at| (at * 7) as u8).collect();
        let (frame, csum_start) = tcp::tcp_frame(false, &payload);
        let helper = crew.remove(1);
        (Self { home: crew.remove(0), sender, receiver, frame, csum_start }, helper)
    }

    /// Sends a round of frames; returns the home's time.
    fn round(&mut self) -> Duration {
        let offload = tcp::tso4(self.csum_start, SEGMENT_BYTES);
        for _ in 0..FRAMES {
            assert!(self.sender.queue(&self.frame, offload), "the sender has a buffer");
        }
        let (start, ring) = (Instant::now(), self.sender.tx_ring());
        let mut left = FRAMES;
        while left > 0 {
            self.home.visit(ring, 0);
            self.home.drain_waiting();
            self.home.take_returns();
            left -= self.sender.reclaim() as u32;
        }
        let spent = start.elapsed();
        self.home.signals().clear();
        self.take_back();
        spent
    }

    /// The receiver takes its buffers and posts them again.
    fn take_back(&mut self) {
        let Self { receiver: TestGuest { rx, rx_buffer_bytes, .. }, .. } = self;
        while let Some(used) = rx.take_used().unwrap() {
            let addr = support::RX_BUFFERS + u64::from(used.token) * u64::from(*rx_buffer_bytes);
            rx.add(&[], &[(addr, *rx_buffer_bytes)], used.token).unwrap();
        }
        rx.publish();
    }
}

/// Keeps this thread on CPU `number` of those that it may use.
fn stay_on_cpu(number: usize) {
    let allowed = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(number);
    let mut one = CpuSet::new();
    one.set(cpu.expect("two CPUs"));
    sched_setaffinity(None, &one).unwrap();
}

/// Copies by the orders of the home until `stop`.
fn help(mut helper: Fabric, stop: &AtomicBool) -> u64 {
    stay_on_cpu(0);
    while !stop.load(Ordering::Relaxed) {
        if !helper.has_orders() {
            std::hint::spin_loop();
        } else if helper.begin_help(true) == HelpStep::Reserved {
            helper.copy_help();
        }
    }
    helper.handoff_counters().shared
}

#[expect(clippy::print_stdout, reason = "how the frames were shared out says what the times mean")]
fn streams(criterion: &mut Criterion, name: &str, capabilities: Capabilities, (entries, bytes): (u32, u32)) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(u64::from(FRAMES) * PAYLOAD_BYTES as u64));
    for has_helper in [false, true] {
        let everywhere = sched_getaffinity(None).unwrap();
        let (mut stream, helper) = Stream::new(capabilities, entries, bytes);
        if has_helper {
            stream.home.begin_offload(32_768, Box::new(Awake));
        }
        let stop = AtomicBool::new(!has_helper);
        let shared = std::thread::scope(|scope| {
            let helping = scope.spawn(|| help(helper, &stop));
            stay_on_cpu(1);
            let what = if has_helper { "with a helper" } else { "alone" };
            group.bench_function(what, |bencher| {
                bencher.iter_custom(|rounds| (0..rounds).map(|_| stream.round()).sum());
            });
            stop.store(true, Ordering::Relaxed);
            sched_setaffinity(None, &everywhere).unwrap();
            helping.join().unwrap()
        });
        println!("frames of the helper and the home: {shared}, {}", stream.home.handoff_counters().shared);
    }
}

/// The cost of a claim on a ring that no other worker wants.
fn claims(criterion: &mut Criterion) {
    let lock = CombiningLock::<u64, u64>::new(0, 64);
    criterion.bench_function("claim, taken and released", |bencher| {
        bencher.iter(|| {
            let mut claim = black_box(&lock).try_lock().unwrap();
            *claim += 1;
            claim.release()
        });
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let plain = Capabilities { csum: false, tso4: false, tso6: false, ..everything() };
    let checked = Capabilities { csum: true, ..plain };
    streams(&mut criterion, "whole", everything(), (256, 68 << 10));
    streams(&mut criterion, "merged", everything(), (4096, 2048));
    streams(&mut criterion, "cut", checked, (4096, 2048));
    streams(&mut criterion, "cut and summed", plain, (4096, 2048));
    claims(&mut criterion);
    criterion.final_summary();
}
