//! Workers learn, move and look up while a control thread removes and adds ports.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Addresses in use: more than the table has slots, so that slots are reused all the time.
const MACS: u64 = 48;
const PORTS: [u16; 4] = [1, 2, 3, 4];
const ROUNDS: u64 = 60_000;
/// Number of times that one slot is reused: enough to interrupt readers between any two of its stores.
const SLOT_ROUNDS: u64 = 5_000_000;

/// A small pseudo-random number generator (xorshift) without shared state.
struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Address `n`, which encodes the only two ports on which it is seen.
fn roaming(n: u64) -> Mac {
    let first = n % 4;
    Mac([2, 0, 0, n as u8, PORTS[first as usize] as u8, PORTS[((first + 1 + n / 4 % 3) % 4) as usize] as u8])
}

fn may_be_at(mac: Mac, port: PortId) -> bool {
    mac.0[4..].iter().any(|legal| u16::from(*legal) == port.0)
}

fn bridge() -> Bridge {
    let settings = BridgeSettings {
        entries_max: 16,
        ageing_ns: SECOND_NS,
        hash_key: [5, 6],
        ..BridgeSettings::default()
    };
    let bridge = Bridge::new(&settings);
    PORTS.iter().for_each(|port| add(&bridge, *port));
    bridge
}

fn add(bridge: &Bridge, port: u16) {
    let settings = PortSettings { name: format!("vm{port}"), macs_max: Some(8), ..PortSettings::default() };
    bridge.port_added(PortId(port), &settings).expect("the number is free");
}

/// Checks that every look-up finds a port where the address may be. Returns how many found one.
fn look_up(bridge: &Bridge, rng: &mut Rng, now: Stamp) -> u64 {
    let mac = roaming(rng.roll(MACS));
    let Some(place) = bridge.table.look_up(mac.to_bits(), now) else { return 0 };
    assert!(may_be_at(mac, place.port()), "{mac} at port {}", place.port());
    1
}

/// One worker: learns addresses of its port, and looks up any address. Its time runs fast, so that entries age out.
fn work(bridge: &Bridge, port: u16) -> u64 {
    let mut rng = Rng(0x9e37_79b9 + u64::from(port));
    let mut found = 0;
    for round in 0..ROUNDS {
        let now = Stamp::at(SECOND_NS * 10 + round * SECOND_NS / 16);
        let mac = roaming(rng.roll(MACS));
        if may_be_at(mac, PortId(port)) {
            bridge.learn(mac.to_bits(), PortId(port), now);
        }
        found += (0..4).map(|_| look_up(bridge, &mut rng, now)).sum::<u64>();
    }
    found
}

fn replace_ports(bridge: &Bridge, is_over: &AtomicBool) {
    let mut rng = Rng(77);
    while !is_over.load(Ordering::Relaxed) {
        let port = PORTS[rng.roll(4) as usize];
        bridge.port_removed(PortId(port));
        add(bridge, port);
        assert!(bridge.fdb(0).iter().all(|entry| may_be_at(entry.mac, entry.port)));
        std::thread::yield_now();
    }
}

#[test]
fn no_look_up_ever_finds_anothers_port() {
    let (bridge, is_over) = (bridge(), AtomicBool::new(false));
    let found = std::thread::scope(|scope| {
        let control = scope.spawn(|| replace_ports(&bridge, &is_over));
        let workers = PORTS.map(|port| {
            scope.spawn({
                let bridge = &bridge;
                move || work(bridge, port)
            })
        });
        let found = workers.map(|worker| worker.join());
        is_over.store(true, Ordering::Relaxed);
        control.join().expect("the control thread found nothing wrong");
        found.into_iter().map(|found| found.expect("no worker found anything wrong")).sum::<u64>()
    });
    assert!(found > 0 && bridge.stats().moved > 0 && bridge.stats().aged_out > 0, "{:?}", bridge.stats());
    assert_counts(&bridge, &PORTS);
}

/// Two addresses alternate in one slot while readers read it: this tests the eras.
#[test]
fn a_slot_is_never_read_half_old_half_new() {
    let (slot, is_over) = (slot::Slot::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watch = || {
            while !is_over.load(Ordering::Relaxed) {
                for key in 1..=3 {
                    let Some(place) = slot.place_of(key) else { continue };
                    assert_eq!(u64::from(place.port().0), key);
                    slot.refresh(place, Stamp::at(1 << 40));
                }
            }
        };
        let watchers = [scope.spawn(watch), scope.spawn(watch)];
        for round in 0..SLOT_ROUNDS {
            let key = round % 3 + 1;
            slot.occupy(key, FdbValue::learned(PortId(key as u16), Stamp::at(0)));
        }
        is_over.store(true, Ordering::Relaxed);
        watchers.into_iter().for_each(|watcher| watcher.join().expect("no reader saw a mixture"));
    });
}

#[test]
fn nothing_of_a_removed_port_is_left_while_others_learn() {
    let (bridge, is_over) = (bridge(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let teach = || {
            let mut rng = Rng(99);
            while !is_over.load(Ordering::Relaxed) {
                bridge.learn(roaming(rng.roll(MACS)).to_bits(), PortId(1), Stamp::at(SECOND_NS));
            }
        };
        let teacher = scope.spawn(teach);
        for _ in 0..2_000 {
            bridge.port_removed(PortId(1));
            let left = bridge.table.entries().filter(|(_, _, place)| place.port() == PortId(1)).count();
            let counted = bridge.ports.learned(PortId(1));
            if left != 0 || counted != 0 {
                is_over.store(true, Ordering::Relaxed); // otherwise the learning thread would never end
            }
            assert_eq!((left, counted), (0, 0));
            add(&bridge, 1);
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        teacher.join().expect("the teacher met nothing wrong");
    });
    assert!(bridge.stats().learned > 0);
}
