//! Traffic between simulated guests, in batches. The measurement can exclude making and clearing batches.
//!
//! ```text
//!   queue()  the sender's guest     chains that were laid out once are made available
//!   visit()  the switch             what is to be measured
//!   clear()  all guests             completed chains and received buffers are taken back; everything is checked
//! ```
#![allow(dead_code, unreachable_pub)] // each program uses its own part of this module

use std::sync::Arc;

use frames::Frame;
use lasthop_fabric::{Capabilities, Fabric, RingId};
use lasthop_module_api::{Batch, Hashes, Header, Module, PortId, PortSettings, Verdicts};
use lasthop_modules::{Bridge, BridgeSettings, Dummy, Switches};
use lasthop_ring::write_table;
use lasthop_wire::Offload;
use support::{RX_BUFFERS, TestGuest, assert_conserved};

mod flows;
pub mod frames;
pub mod scenarios;
#[path = "../../tests/support/mod.rs"]
mod support;

pub use support::everything;

/// Entries of every ring: QEMU's default.
const RING_ENTRIES: u32 = 256;
/// The sender's guest.
const SENDER: PortId = PortId(1);
/// Address of the sender's frames in bytes; each begins at its own stride.
const FRAMES_AT: u64 = 2 << 20;
const FRAME_ROOM_BYTES: u64 = 68 << 10;
/// Address of the frames' indirect tables, in bytes.
const TABLES_AT: u64 = 5 << 20;
const TABLE_BYTES: u32 = 4096;
/// Offset of the source port behind the headers of virtio-net, Ethernet and IPv4, in bytes.
const SOURCE_PORT_AT: u64 = 12 + 14 + 20;
/// The first source port of frames that begin connections.
const NEW_PORTS_FROM: u16 = 2000;
/// Time between two visits.
const VISIT_NS: u64 = 2_000;

/// The module of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The learning bridge, which has learned every receiver's address.
    Bridge,
    /// Port pairs; with other than one receiver the sender has no partner.
    Dummy,
    /// A flow table.
    Flows {
        /// Masks of flows that match none of the packets, installed before those that do.
        other_masks: u16,
        /// Whether the packets are in the first-level cache.
        is_cached: bool,
    },
    /// A flow table with connection tracking (`ct`, then a second pass). All connections are established.
    Tracked {
        /// Whether sources are translated.
        is_translated: bool,
    },
    /// Sends each packet to one of several ports, or to all; none exists.
    Nowhere {
        /// Ports.
        destinations: u16,
        /// Whether each packet goes to all of them.
        flood: bool,
    },
}

/// How a chain of the sender is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Descriptors in the ring's own table.
    Direct,
    /// One descriptor in the ring; the others are in an indirect table.
    Indirect,
}

/// Senders, receivers and frames of a scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The module.
    pub decider: Decider,
    /// Guests besides the sender, on ports 2 and up.
    pub receivers: u16,
    /// Features of the receivers. The sender negotiated all features.
    pub capabilities: Capabilities,
    /// Whether the sender gets its chains back in order.
    pub in_order: bool,
    /// Whether all rings are packed.
    pub is_packed: bool,
    /// Bytes of each receive buffer.
    pub rx_buffer_bytes: u32,
    /// The frames of one visit.
    pub frames: Vec<Frame>,
    /// Offsets at which each chain is cut, in bytes; the virtio-net header counts.
    pub cuts: Vec<usize>,
    /// Layout of each chain.
    pub layout: Layout,
    /// Receive buffers that one visit's frames take at all receivers together.
    pub buffers_expected: usize,
    /// Whether each frame has a source port that was not used before, so that it begins a connection.
    pub is_new: bool,
}

impl Plan {
    /// Sends `frames` through the bridge to one receiver that accepts all offloads, with one buffer for each.
    pub fn bridged(frames: Vec<Frame>) -> Self {
        Self {
            decider: Decider::Bridge,
            receivers: 1,
            capabilities: everything(),
            in_order: false,
            is_packed: false,
            rx_buffer_bytes: 2048,
            buffers_expected: frames.len(),
            frames,
            cuts: Vec::new(),
            layout: Layout::Direct,
            is_new: false,
        }
    }
}

/// A frame that the sender made available.
struct Chain {
    buffers: Vec<(u64, u32)>,
    /// Guest address and bytes of the indirect table.
    table: Option<(u64, u32)>,
}

/// A switch, its guests, and the frames that are sent repeatedly.
pub struct Traffic {
    fabric: Fabric,
    sender: TestGuest,
    receivers: Vec<TestGuest>,
    chains: Vec<Chain>,
    buffers_expected: usize,
    /// The source port of the next frame, if each has a new one.
    new_port: Option<u16>,
    now_ns: u64,
}

impl Traffic {
    /// Attaches guests, posts buffers and lays out frames.
    pub fn new(plan: &Plan) -> Self {
        let mut fabric = Fabric::new(module(plan)).unwrap();
        let sender = match plan.in_order {
            true => TestGuest::attach_in_order(&mut fabric, SENDER.0, RING_ENTRIES, 2048),
            false => TestGuest::attach(&mut fabric, SENDER.0, everything(), RING_ENTRIES, 2048),
        };
        let sender = if plan.is_packed { sender.packed(&mut fabric) } else { sender };
        let receivers = (0..plan.receivers).map(|number| {
            let port = SENDER.0 + 1 + number;
            let (capabilities, bytes) = (plan.capabilities, plan.rx_buffer_bytes);
            let guest = TestGuest::attach(&mut fabric, port, capabilities, RING_ENTRIES, bytes);
            let mut guest = if plan.is_packed { guest.packed(&mut fabric) } else { guest };
            guest.post(RING_ENTRIES);
            guest
        });
        let receivers = receivers.collect();
        let chains = (0..).zip(&plan.frames).map(|(number, frame)| lay_out(&sender, number, frame, plan));
        let chains = chains.collect();
        let (buffers_expected, now_ns) = (plan.buffers_expected, 1 << 40);
        let new_port = plan.is_new.then_some(NEW_PORTS_FROM);
        Self { fabric, sender, receivers, chains, buffers_expected, new_port, now_ns }
    }

    /// Frames of one visit.
    pub fn packets(&self) -> usize {
        self.chains.len()
    }

    /// The sender makes a batch available.
    pub fn queue(&mut self) {
        for (number, chain) in (0..).zip(&self.chains) {
            if let Some(port) = &mut self.new_port {
                let at = frame_at(number) + SOURCE_PORT_AT;
                let place = self.sender.map.translate(at, 2, &mut 0).unwrap();
                self.sender.map.write(place, 0, &port.to_be_bytes()).unwrap();
                *port += 1;
            }
            let added = match chain.table {
                Some((addr, len)) => self.sender.tx.add_indirect(addr, len, 0),
                None => self.sender.tx.add(&chain.buffers, &[], 0),
            };
            assert!(added.is_some(), "the ring has room for a batch");
        }
        self.sender.tx.publish();
        self.now_ns += VISIT_NS;
    }

    /// The switch takes and delivers the batch.
    pub fn visit(&mut self) -> usize {
        let packets = self.fabric.visit(RingId { port: SENDER, queue: 0 }, self.now_ns);
        self.fabric.finish_rest();
        packets
    }

    /// The guests take back their buffers. Asserts that every frame went to its receiver.
    pub fn clear(&mut self) {
        let mut completed = 0;
        while self.sender.tx.take_used().unwrap().is_some() {
            completed += 1;
        }
        assert_eq!(completed, self.chains.len(), "all chains are completed");
        let buffers: usize = self.receivers.iter_mut().map(take_back).sum();
        assert_eq!(buffers, self.buffers_expected, "all copies are delivered");
        self.fabric.signals().clear();
    }

    /// Asserts that no loss went uncounted.
    pub fn check(&self) {
        let ports: Vec<_> =
            std::iter::once(&self.sender).chain(&self.receivers).map(|guest| guest.port).collect();
        assert_conserved(&self.fabric, &ports);
    }
}

/// Takes the used buffers from a receive ring and posts them again.
fn take_back(guest: &mut TestGuest) -> usize {
    let mut buffers = 0;
    while let Some(used) = guest.rx.take_used().unwrap() {
        let addr = RX_BUFFERS + u64::from(used.token) * u64::from(guest.rx_buffer_bytes);
        guest.rx.add(&[], &[(addr, guest.rx_buffer_bytes)], used.token).unwrap();
        buffers += 1;
    }
    guest.rx.publish();
    buffers
}

/// Address in bytes of the virtio-net header of a frame.
fn frame_at(number: u64) -> u64 {
    FRAMES_AT + number * FRAME_ROOM_BYTES
}

/// Writes a frame and its virtio-net header into the sender's memory, and its table if it has one.
fn lay_out(sender: &TestGuest, number: u64, frame: &Frame, plan: &Plan) -> Chain {
    let addr = frame_at(number);
    let bytes = [&frame.offload.emit(0)[..], &frame.bytes].concat();
    assert!(bytes.len() as u64 <= FRAME_ROOM_BYTES && number < 32, "the frame has room");
    let segment = sender.map.translate(addr, bytes.len() as u32, &mut 0).unwrap();
    sender.map.write(segment, 0, &bytes).unwrap();
    let ends = plan.cuts.iter().copied().chain([bytes.len()]);
    let starts = std::iter::once(0).chain(plan.cuts.iter().copied());
    let buffers: Vec<_> =
        starts.zip(ends).map(|(from, to)| (addr + from as u64, (to - from) as u32)).collect();
    let table = (plan.layout == Layout::Indirect).then(|| {
        let addr = TABLES_AT + number * u64::from(TABLE_BYTES);
        let area = sender.map.translate(addr, TABLE_BYTES, &mut 0).unwrap();
        (addr, write_table(sender.format, &sender.map, area, &buffers, &[]).unwrap())
    });
    Chain { buffers, table }
}

/// The plan's module, with its ports.
fn module(plan: &Plan) -> Arc<dyn Module> {
    let receivers = || (SENDER.0 + 1..).take(usize::from(plan.receivers)).map(PortId);
    let module: Arc<dyn Module> = match plan.decider {
        Decider::Bridge => Arc::new(Bridge::new(&BridgeSettings {
            hash_key: [1, 2], // the same hash in every run
            ..BridgeSettings::default()
        })),
        Decider::Dummy => Arc::new(Dummy::default()),
        Decider::Flows { other_masks, is_cached } => {
            let module = flows::module(plan, other_masks);
            if !is_cached {
                module.bypass_caches(0);
            }
            Arc::new(module)
        }
        Decider::Tracked { is_translated } => Arc::new(flows::tracked_module(plan, is_translated)),
        Decider::Nowhere { destinations, flood } => Arc::new(Nowhere { destinations, flood }),
    };
    // As in the product, which has no special case for one switch.
    let module: Arc<dyn Module> = Arc::new(Switches::new(module));
    for port in std::iter::once(SENDER).chain(receivers()) {
        module.port_added(port, &PortSettings { name: format!("p{port}"), ..Default::default() }).unwrap();
    }
    for port in receivers().filter(|_| plan.decider == Decider::Bridge) {
        let hello = support::frame(SENDER.0 as u8, port.0 as u8, 64);
        let headers = [Header::new(&hello, 64, Offload::default())];
        module.decide(
            &Batch { port, headers: &headers, hashes: &Hashes::NONE },
            1 << 40,
            &mut Verdicts::default(),
        );
    }
    module
}

/// The first of these ports.
const NOWHERE_FIRST: u16 = 500;

/// Sends each packet to one of `destinations` ports in turn, or to all of them.
struct Nowhere {
    pub destinations: u16,
    pub flood: bool,
}

impl Module for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for packet in 0..batch.headers.len() {
            if self.flood {
                (0..self.destinations)
                    .for_each(|number| verdicts.output(packet, PortId(NOWHERE_FIRST + number)));
            } else {
                verdicts.output(packet, PortId(NOWHERE_FIRST + packet as u16 % self.destinations));
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}
