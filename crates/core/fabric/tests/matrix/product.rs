//! All features with all others. Receivers with one header length share a switch, so that each frame is sent once to
//! all of them.

use std::collections::HashMap;

use lasthop_fabric::Fabric;
use lasthop_module_api::{DropReason, PortId};

use crate::header::VnetHeader;
use crate::model::{Offloads, Received, Sent, sent};
use crate::packet::Checksum;
use crate::peer::{Layout, Peer};
use crate::samples::{Sample, not_to_be_segmented, samples};
use crate::support::{assert_conserved, flooding_fabric};

/// The buffers that a receiver posts.
#[derive(Clone, Copy, Debug)]
struct Framing {
    mergeable: bool,
    header_bytes: usize,
    indirect: bool,
}

/// Receivers with all combinations of offloads, and one sender for each length of the header.
struct Switch {
    fabric: Fabric,
    receivers: Vec<(Offloads, Peer)>,
    senders: [Peer; 2],
}

impl Switch {
    fn new(framing: Framing) -> Self {
        let receivers = Offloads::all().into_iter().zip(1..).collect::<Vec<_>>();
        let count = receivers.len() as u16;
        let mut fabric = flooding_fabric(count);
        let attach =
            |(offloads, port): (Offloads, u16)| (offloads, receiver(&mut fabric, port, framing, offloads));
        let receivers = receivers.into_iter().map(attach).collect();
        let senders = [(count + 1, 12), (count + 2, 10)].map(|(port, header_bytes)| {
            Peer::attach(&mut fabric, port, Offloads::all()[0].capabilities(false, header_bytes))
        });
        Self { fabric, receivers, senders }
    }

    /// Sends `item` from `sender`, and checks the frames of every receiver.
    fn exchange(&mut self, item: &Prepared<'_>, sender: usize, layout: &Layout) {
        self.senders[sender].send(&mut self.fabric, item.header, &item.frame, layout);
        for (takes, receiver) in &mut self.receivers {
            let pair = || format!("{}, {:?} to {takes:?}, {layout:?}", item.name, item.header);
            let expected = &item.expected[&Outcome::of(&item.sent, *takes)];
            assert!(!expected.is_empty(), "{}", pair());
            expected.iter().for_each(|expected| compare(receiver.receive(), expected, pair));
            assert!(receiver.receive().is_none(), "{}", pair());
        }
        assert!(self.senders[sender].is_done());
    }

    fn ports(&self) -> Vec<PortId> {
        let peers = self.receivers.iter().map(|(_, receiver)| receiver).chain(&self.senders);
        peers.map(|peer| peer.port).collect()
    }

    fn check_counters(&self) {
        assert_conserved(&self.fabric, &self.ports());
        for port in self.ports() {
            let counters = self.fabric.counters(port).unwrap();
            assert_eq!((counters.rx_drops.total(), counters.tx_drops.total()), (0, 0), "{counters:?}");
        }
    }
}

/// The effect of a receiver's features on one frame: whether it is segmented, and whether its checksum is completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Outcome(bool, bool);

impl Outcome {
    fn of(sent: &Sent, receiver: Offloads) -> Self {
        Self(sent.gso_size.is_some() && !receiver.segments(&sent.packet), receiver.csum)
    }
}

/// A frame to send, and the expected frames. They are made once, since etherparse is slow in debug builds.
struct Prepared<'a> {
    name: &'a str,
    sent: Sent,
    header: VnetHeader,
    frame: Vec<u8>,
    expected: HashMap<Outcome, Vec<Received>>,
}

impl<'a> Prepared<'a> {
    fn of(name: &'a str, sent: Sent) -> Self {
        let mut expected = HashMap::new();
        for receiver in Offloads::all() {
            expected.entry(Outcome::of(&sent, receiver)).or_insert_with(|| sent.received(receiver));
        }
        Self { name, header: sent.header(), frame: sent.frame(), sent, expected }
    }

    /// The frames of all senders. Senders with different features may send equal frames, which are sent once.
    fn all(sample: &'a Sample) -> impl Iterator<Item = Self> {
        let mut different = Vec::new();
        let of_all = Offloads::all().into_iter().map(|sender| sent(&sample.packet, sample.size, sender));
        let key = |items: &[Sent]| (items[0].checksum, items[0].gso_size);
        let new = of_all.filter(move |items| {
            let is_new = !different.contains(&key(items));
            different.push(key(items));
            is_new
        });
        // If the sender segmented the packet itself, the segments in the middle are all alike.
        let some = |items: Vec<Sent>| {
            let last = items.len() - 1;
            let chosen = move |(at, item)| (at < 2 || at == last).then_some(item);
            items.into_iter().enumerate().filter_map(chosen)
        };
        new.flat_map(some).map(|item| Self::of(sample.name, item))
    }
}

/// A receiver with room for the largest packet that it accepts.
fn receiver(fabric: &mut Fabric, port: u16, framing: Framing, offloads: Offloads) -> Peer {
    let Framing { mergeable, header_bytes, indirect } = framing;
    let mut peer = Peer::attach(fabric, port, offloads.capabilities(mergeable, header_bytes));
    let (len, count) = match (mergeable, offloads.takes_large()) {
        (true, _) => (1536, 200),
        (false, true) => (65_562 + 12, 200),
        (false, false) => (1600, 200),
    };
    // Linux uses a separate descriptor for the header if buffers are large and not merged.
    let cuts = if offloads.takes_large() && !mergeable { vec![header_bytes] } else { Vec::new() };
    let count = if cuts.is_empty() || indirect { count } else { 128 };
    (0..count).for_each(|_| peer.post(len, &Layout { cuts: cuts.clone(), indirect }));
    peer
}

/// Replaces `assert_eq`, which would print 64 KiB.
fn compare(received: Option<Received>, expected: &Received, pair: impl Fn() -> String) {
    let (header, frame) = received.unwrap_or_else(|| panic!("nothing received: {}", pair()));
    assert_eq!(header, expected.0, "{}", pair());
    assert_eq!(frame.len(), expected.1.len(), "{}", pair());
    if frame != expected.1 {
        let differs = frame.iter().zip(&expected.1).position(|(received, expected)| received != expected);
        panic!("byte {differs:?} is wrong: {}", pair());
    }
}

fn all_send(framing: Framing) {
    let mut switch = Switch::new(framing);
    for sample in samples() {
        for item in Prepared::all(&sample) {
            for (sender, header_bytes) in [(0, 12), (1, 10)] {
                let cuts = vec![header_bytes, header_bytes + 54];
                for (cuts, indirect) in [(vec![], false), (cuts.clone(), false), (cuts, true)] {
                    switch.exchange(&item, sender, &Layout { cuts, indirect });
                }
            }
        }
    }
    switch.check_counters();
}

macro_rules! framings {
    ($($name:ident: $mergeable:literal, $header_bytes:literal, $indirect:literal;)*) => {
        $(#[test]
        fn $name() {
            let (mergeable, header_bytes, indirect) = ($mergeable, $header_bytes, $indirect);
            all_send(Framing { mergeable, header_bytes, indirect });
        })*
    };
}

framings! {
    to_receivers_that_merge: true, 12, false;
    to_receivers_that_merge_indirect_buffers: true, 12, true;
    to_receivers_that_do_not_merge: false, 12, false;
    to_receivers_that_do_not_merge_indirect_buffers: false, 12, true;
    to_legacy_receivers: false, 10, false;
    to_legacy_receivers_with_indirect_buffers: false, 10, true;
}

/// An invalid request gets the same drop, whether or not a receiver would take the frame whole.
#[test]
fn unsegmentable_frames_are_dropped_for_all() {
    let framing = Framing { mergeable: true, header_bytes: 12, indirect: false };
    for sample in not_to_be_segmented() {
        let mut switch = Switch::new(framing);
        let whole = sample.packet.bytes(Checksum::Partial);
        let request =
            Sent { packet: sample.packet.clone(), checksum: Checksum::Partial, gso_size: Some(sample.size) };
        switch.senders[0].send(&mut switch.fabric, request.header(), &whole, &Layout::default());
        assert!(
            switch.receivers.iter_mut().all(|(_, receiver)| receiver.receive().is_none()),
            "{}",
            sample.name
        );
        let counters = switch.fabric.counters(switch.senders[0].port).unwrap();
        assert_eq!(counters.rx_drops.of(DropReason::BadGso), 1, "{}", sample.name);
        assert!(counters.is_conserved() && switch.senders[0].is_done());
        // The same packet arrives without a request.
        let plain = Sent { gso_size: None, checksum: Checksum::Complete, ..request };
        switch.senders[0].send(&mut switch.fabric, plain.header(), &plain.frame(), &Layout::default());
        for (takes, receiver) in &mut switch.receivers {
            compare(receiver.receive(), &plain.received(*takes)[0], || sample.name.to_owned());
        }
        assert_conserved(&switch.fabric, &switch.ports());
    }
}
