//! Guests that lie, flood and leave, one attack at a time, next to two guests that exchange frames and lose none.
//! docs/design/hostile-guests.md lists the attacks.

#[path = "../support/mod.rs"]
mod support;

mod costs;
mod frames;
mod lifecycle;
mod rings;
mod stalls;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lasthop_engine::{PortState, PortStats};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use support::{Hog, PATIENCE, TestSwitch, config, eventually, frame, receive, send};

/// One worker, so that an attack that blocks it would block all guests.
const WORKERS: usize = 1;
/// Frames in each direction after each attack.
const ROUNDS: u32 = 20;
/// Numbers of guests, as in their addresses.
const ONE: u8 = 1;
const OTHER: u8 = 2;
const BAD: u8 = 3;
const THIRD: u8 = 4;

/// Lock for all scenes of this process; a scene that must run alone takes it as the writer.
static STAGE: RwLock<()> = RwLock::new(());

/// A scene's hold of that lock.
enum Turn {
    Beside(#[expect(dead_code)] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code)] RwLockWriteGuard<'static, ()>),
}

/// A switch with two guests that exchange frames.
struct Scene {
    switch: TestSwitch,
    ports: [PortId; 2],
    one: Guest,
    other: Guest,
    sent: u32,
    /// Number of extra frames of `one`.
    sent_alone: u32,
    /// Frames of the bad guest that `other` received and that are not checked yet.
    held: std::collections::VecDeque<Vec<u8>>,
    /// Last field: the switch has ended when the next scene begins.
    _turn: Turn,
}

impl Scene {
    fn new() -> Self {
        Self::set(Turn::Beside(STAGE.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// A scene during which no other scene of this process unmaps memory, or uses the CPU.
    fn alone() -> Self {
        Self::set(Turn::Alone(STAGE.write().unwrap_or_else(PoisonError::into_inner)))
    }

    fn set(turn: Turn) -> Self {
        let mut switch = TestSwitch::start("bridge", WORKERS);
        let (first, one) = switch.attach(config("one"), GuestOptions::default());
        let (second, other) = switch.attach(config("other"), GuestOptions::default());
        let mut scene = Self {
            switch,
            ports: [first, second],
            one,
            other,
            sent: 0,
            sent_alone: 0,
            held: Default::default(),
            _turn: turn,
        };
        scene.talk();
        scene
    }

    /// Exchanges frames; each arrives, in order.
    fn talk(&mut self) {
        for number in self.sent..self.sent + ROUNDS {
            let (there, back) = (frame(OTHER, ONE, number, 200), frame(ONE, OTHER, number, 1000));
            send(&mut self.one, &there);
            assert_eq!(receive_mine(&mut self.other, OTHER), there);
            send(&mut self.other, &back);
            assert_eq!(receive_mine(&mut self.one, ONE), back);
            self.one.reclaim(0).unwrap();
            self.other.reclaim(0).unwrap();
        }
        self.sent += ROUNDS;
    }

    /// Checks that both lost nothing, by their own counters, and that every packet of every guest is accounted for.
    fn assert_unharmed(&mut self) {
        self.assert_nothing_lost();
        self.switch.assert_conserved();
    }

    /// Checks the ports that still exist.
    fn assert_nothing_lost(&mut self) {
        self.talk();
        for (port, sent) in self.ports.into_iter().zip([self.sent + self.sent_alone, self.sent]) {
            let PortStats { state, counters, .. } = self.switch.port(port);
            assert_eq!(state, PortState::Running);
            let lost: Vec<_> = counters.rx_drops.nonzero().chain(counters.tx_drops.nonzero()).collect();
            assert_eq!((counters.rx_packets, lost), (u64::from(sent), vec![]));
            assert!(counters.is_conserved());
        }
    }

    fn attach(&mut self, name: &str, options: GuestOptions) -> (PortId, Guest) {
        self.switch.attach(config(name), options)
    }

    /// Waits until a port is stopped for a reason with these `words`.
    fn await_stop(&self, port: PortId, words: &str) {
        eventually(words, || match self.switch.port(port).state {
            PortState::Stopped(why) => {
                assert!(why.contains(words), "stopped for \"{why}\" instead of \"{words}\"");
                true
            }
            _ => false,
        });
    }

    /// Resets a stopped guest, and checks that it can exchange frames.
    fn assert_healed(&mut self, port: PortId, bad: &mut Guest) {
        bad.reset().unwrap();
        eventually("a reset heals it", || self.switch.port(port).state == PortState::Running);
        let greeting = frame(OTHER, BAD, 0, 64);
        send(bad, &greeting);
        assert_eq!(receive_mine(&mut self.other, OTHER), greeting);
    }
}

/// The next frame for guest `me` that was not flooded.
fn receive_mine(guest: &mut Guest, me: u8) -> Vec<u8> {
    loop {
        let bytes = receive(guest);
        if bytes[5] == me {
            return bytes;
        }
    }
}
