//! A control plane of a few lines at a running engine: misses go up, flows come down, guests see neither loss nor disorder.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_engine::{UpcallLimits, Upcalls};
use lasthop_flow::{Action, Ethernet, FlowKey, Match};
use lasthop_flowtable::{Execution, FlowModule, FlowSelector, FlowSpec};
use lasthop_guest::{Guest, GuestOptions};
use lasthop_verdict::{DropReason, Mac, PortId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{TestSwitch, config, eventually, frame, send};

const WORKERS: usize = 2;
const LIMITS: UpcallLimits = UpcallLimits { packets: 4096, bytes: 4 << 20, rate: 0 };

/// Sends packets on to the port that their address names, and has a flow do so from then on.
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
            switch.engine.inject(
                record.port,
                bytes.clone(),
                move || {
                    let execution = Execution::new(metadata, &todo, 0).unwrap();
                    announcer.execute_next(execution).map_err(|_| DropReason::NoFlow)
                },
                move || settler.settle(record.ticket),
            );
            let matching = key(to, record.metadata.in_port);
            // It may be there already: several packets asked.
            let _ = self.module.table().install(FlowSpec { ufid: None, matching, actions, is_probe: false });
        }
    }

    fn wait(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::new(&self.upcalls, PollFlags::IN)], Some(&timeout));
    }
}

/// The number of the next frame that arrives; none if none does for long.
fn number_of(guest: &mut Guest) -> Option<u32> {
    let mut bytes = Vec::new();
    for _ in 0..40 {
        if guest.recv(0, &mut bytes).unwrap().is_some() {
            return Some(u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]]));
        }
        guest.wait(Some(Duration::from_millis(50))).unwrap();
    }
    None
}

#[test]
fn a_stream_begins_with_misses_and_goes_on_by_its_flow() {
    let module = Arc::new(FlowModule::default());
    let mut switch = TestSwitch::with(Arc::clone(&module) as Arc<_>, WORKERS);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let (two, mut other) = switch.attach(config("two"), GuestOptions::default());
    module.table().set_clock_origin(switch.engine.clock_origin_ns());
    /// As many as one port may have under way from the control plane; then the others.
    const BURSTS: [u32; 2] = [48, 1500];
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
        for (burst, count) in BURSTS.into_iter().enumerate() {
            let mut numbers: Vec<u32> = std::thread::scope(|scope| {
                scope.spawn(|| (0..count).for_each(|number| send(&mut one, &frame(to, 1, number, 100))));
                (0..count).map_while(|_| number_of(&mut other)).collect()
            });
            done.store(burst + 1 == BURSTS.len() || numbers.len() < count as usize, Ordering::Relaxed);
            // Order is kept for a time that is none on a slow machine.
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
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
        let announce = || Err(DropReason::FlowDrop);
        switch.engine.inject(port, frame(2, 1, 0, 100), announce, || {});
        let counters = switch.port(port).counters;
        [DropReason::Recalled, DropReason::FlowDrop].map(|reason| counters.rx_drops.of(reason))
    };
    switch.engine.quiesce(Duration::from_secs(1)).unwrap();
    assert_eq!(inject(&switch), [1, 0], "nobody is asked what is done with it");
    switch.engine.resume().unwrap();
    assert_eq!(inject(&switch), [1, 1]);
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
