//! A small control plane at a running engine: it gets misses and installs flows; guests see neither loss nor
//! reordering.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use lasthop_engine::{InjectedPacket, Injections, UpcallLimits, Upcalls};
use lasthop_flow::{Action, Ethernet, FlowKey, Match};
use lasthop_flowtable::{Execution, FlowModule, FlowSelector, FlowSpec};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::{DropReason, Mac, PortId};
use lasthop_wire::Offload;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{PATIENCE, TestSwitch, config, eventually, frame, send};

const WORKERS: usize = 2;
/// Frames of a sender that its receiver has not taken yet. This number always finds receive buffers, or room among the
/// control plane's frames. Beyond it a slow receiver costs its sender packets, which are dropped as `rx_share`.
const WINDOW: usize = 48;
const LIMITS: UpcallLimits = UpcallLimits { packets: 4096, bytes: 4 << 20, rate: 0 };

/// The control plane's part in a packet, as two closures.
struct Packet<A, D> {
    announce: A,
    done: D,
}

impl<A, D> InjectedPacket for Packet<A, D>
where
    A: FnMut() -> Result<(), DropReason> + Send + 'static,
    D: FnOnce() + Send + 'static,
{
    fn announce(&mut self) -> Result<(), DropReason> {
        (self.announce)()
    }

    fn done(self) {
        (self.done)();
    }
}

/// Forwards packets to the port of their destination address, and installs a flow for that.
struct ControlPlane {
    module: Arc<FlowModule>,
    upcalls: Upcalls,
}

fn key(to: u8, in_port: u16) -> Match {
    let ethernet =
        |bits: u8, to| Ethernet { src: Mac([0; 6]), dst: Mac([bits & 2, bits, bits, bits, bits, to]) };
    let key = FlowKey {
        in_port: Some(u32::from(in_port)),
        ethernet: Some(Ethernet { dst: Mac([2, 0, 0, 0, 0, to]), ..ethernet(0, 0) }),
        ..FlowKey::default()
    };
    let mask = FlowKey {
        in_port: Some(u32::MAX),
        ethernet: Some(Ethernet { dst: Mac([0xff; 6]), ..ethernet(0, 0) }),
        ..FlowKey::default()
    };
    Match { key, mask: Some(mask) }
}

impl ControlPlane {
    fn serve(&mut self, switch: &TestSwitch) {
        self.upcalls.hear();
        let mut bytes = Vec::new();
        while let Some(record) = self.upcalls.pop(&mut bytes) {
            let (to, actions) = (bytes[5], vec![Action::Output(u32::from(bytes[5]))]);
            let (announcer, settler) = (Arc::clone(&self.module), Arc::clone(&self.module));
            let (metadata, todo) = (record.metadata, actions.clone());
            let announce = move || {
                let execution = Execution::new(announcer.table(), metadata, &todo, 0).unwrap();
                announcer.execute_next(execution).map_err(|_| DropReason::NoFlow)
            };
            let packet = Packet { announce, done: move || settler.settle(record.ticket) };
            let mut injections = Injections::default();
            injections.push(record.port, &bytes, Offload::default(), packet);
            switch.engine.inject(injections);
            let matching = key(to, record.metadata.in_port);
            // The flow may exist already, since several packets caused upcalls.
            let _ = self.module.table().install(FlowSpec { ufid: None, matching, actions, is_probe: false });
        }
    }

    fn wait(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::new(&self.upcalls, PollFlags::IN)], Some(&timeout));
    }
}

/// The number of the next frame that arrives; `None` once `is_lost` and no frame arrives any more.
fn number_of(guest: &mut Guest, is_lost: impl Fn() -> bool) -> Option<u32> {
    let mut bytes = Vec::new();
    let until = Instant::now() + PATIENCE;
    while guest.recv(0, &mut bytes).unwrap().is_none() {
        let has_come = guest.wait(Some(Duration::from_millis(50))).unwrap();
        if !has_come && (is_lost() || Instant::now() > until) {
            return None;
        }
    }
    Some(u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]]))
}

/// Sends `count` frames to `to`, and returns the numbers of those that arrive.
fn burst(
    (one, other): (&mut Guest, &mut Guest),
    (to, count): (u8, u32),
    is_lost: impl Fn() -> bool,
) -> Vec<u32> {
    std::thread::scope(|scope| {
        let (on_the_way, arrived) = sync_channel(WINDOW);
        scope.spawn(move || {
            // The receiver ends this when it gives up.
            let may_send = |_: &u32| on_the_way.send(()).is_ok();
            (0..count).take_while(may_send).for_each(|number| send(one, &frame(to, 1, number, 100)));
        });
        let next = |_| number_of(other, &is_lost).inspect(|_| arrived.recv().unwrap());
        (0..count).map_while(next).collect()
    })
}

#[test]
fn a_stream_begins_with_misses_and_goes_on_by_its_flow() {
    let module = Arc::new(FlowModule::default());
    let mut switch = TestSwitch::with(Arc::clone(&module) as Arc<_>, WORKERS);
    let (one_port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (two, mut other) = switch.attach(config("two"), GuestOptions::default());
    module.table().set_clock_origin(switch.engine.clock_origin_ns());
    /// The frames that begin the flow; then the others.
    const BURSTS: [u32; 2] = [WINDOW as u32, 1500];
    let to = two.0 as u8;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let upcalls = switch.engine.upcalls(LIMITS).unwrap();
        let mut plane = ControlPlane { module: Arc::clone(&module), upcalls };
        let (done, switch) = (&done, &switch);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                plane.serve(switch);
                plane.wait();
            }
        });
        for (index, count) in BURSTS.into_iter().enumerate() {
            let is_lost = || switch.port(one_port).counters.rx_drops.total() > 0;
            let mut numbers = burst((&mut one, &mut other), (to, count), is_lost);
            done.store(index + 1 == BURSTS.len() || numbers.len() < count as usize, Ordering::Relaxed);
            // Order is guaranteed for a limited time, which may be too short on a slow machine.
            numbers.sort_unstable();
            let missing: Vec<u32> =
                (0..count).filter(|number| numbers.binary_search(number).is_err()).collect();
            let ports = || switch.engine.stats().map(|stats| stats.ports);
            assert!(missing.is_empty(), "burst {index}: {missing:?} are missing, {:#?}", ports());
            assert_eq!(numbers.len(), count as usize, "burst {index}: some came twice: {numbers:?}");
        }
    });
    switch.assert_conserved();
    let (_, stats) = module.table().get(FlowSelector::Key(&key(to, 1).key)).unwrap();
    let up = switch.port(PortId::INTERNAL).counters.tx_packets;
    assert_eq!(stats.packets + up, u64::from(BURSTS[0] + BURSTS[1]), "each went up or by its flow");
    assert!(stats.used_ms >= switch.engine.clock_origin_ns() / 1_000_000);
}

#[test]
fn packets_of_the_control_plane_are_lost_by_name_while_workers_stand_still() {
    let mut switch = TestSwitch::with(Arc::new(FlowModule::default()), WORKERS);
    let (port, _one) = switch.attach(config("one"), GuestOptions::default());
    let inject = |switch: &TestSwitch| {
        let packet = || Packet { announce: || Err(DropReason::FlowDrop), done: || {} };
        let (frame, offload) = (frame(2, 1, 0, 100), Offload::default());
        let mut injections = Injections::default();
        (0..2).for_each(|_| injections.push(port, &frame, offload, packet()));
        switch.engine.inject(injections);
        let counters = switch.port(port).counters;
        [DropReason::Recalled, DropReason::FlowDrop].map(|reason| counters.rx_drops.of(reason))
    };
    switch.engine.quiesce(Duration::from_secs(1)).unwrap();
    assert_eq!(inject(&switch), [2, 0], "nobody is asked what is done with it");
    switch.engine.resume().unwrap();
    assert_eq!(inject(&switch), [2, 2], "each packet of a batch counts");
    switch.assert_conserved();
}

#[test]
fn when_the_control_plane_is_gone_packets_of_no_flow_are_lost_by_name() {
    let module = Arc::new(FlowModule::default());
    let mut switch = TestSwitch::with(Arc::clone(&module) as Arc<_>, WORKERS);
    let (port, mut one) = switch.attach(config("one"), GuestOptions::default());
    let upcalls = switch.engine.upcalls(LIMITS).unwrap();
    drop(upcalls);
    eventually("nobody is asked any more", || {
        send(&mut one, &frame(2, 1, 0, 100));
        switch.port(port).counters.rx_drops.of(DropReason::NoFlow) > 0
    });
    switch.assert_conserved();
}
