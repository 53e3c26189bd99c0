//! The production fabric with a production module, and the guests' cards: what a visit takes, and who is signalled.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use lasthop_fabric::bounds::VISIT_BYTES_MAX;
use lasthop_fabric::{Drops, Fabric, PortCounters, RingId, Signal};
use lasthop_module_api::{BATCH_PACKETS_MAX, Batch, Hashes, Header, Module, PortSettings, Verdicts};
use lasthop_modules::{BridgeSettings, by_name};

use crate::flow::FrameCounts;
use crate::frame::{ETHERTYPE, FrameHead, mac_of, port_of};
use crate::nic::Nic;

/// Slots of the bridge's table: several for each card.
const ADDRESSES_MAX: usize = 8192;
/// Rounds after which no frame waits: each delivers a ring of segments, and 256 frames at most wait for a card.
const REST_ROUNDS_MAX: usize = 64;

/// A switch and the cards at its ports. Card number n has port n + 1, and its home is fabric n modulo their number.
pub(crate) struct Switch {
    pub(crate) fabrics: Vec<Fabric>,
    pub(crate) nics: Vec<Nic>,
    /// Fabrics that are home to rings; those behind them are helpers'.
    workers: usize,
    /// The cards have no receive offloads.
    plain: bool,
}

impl Switch {
    /// A switch of module `bridge` with fabrics for `workers` and `helpers`, and `nics` cards, whose addresses are known.
    /// `plain` cards have no receive offloads.
    pub(crate) fn new(nics: u16, workers: usize, helpers: usize, plain: bool) -> Result<Self> {
        // The secret only places addresses in the table; a fixed one keeps runs the same.
        let settings = BridgeSettings { hash_key: [1, 2], ..BridgeSettings::with_entries(ADDRESSES_MAX) };
        let bridge = by_name("bridge", &settings).context("there is no module bridge")?;
        let module: Arc<dyn Module> = Arc::from(bridge);
        let mut fabrics = Fabric::for_workers(&module, workers + helpers).map_err(|error| anyhow!(error))?;
        let cards = (0..nics).map(|nic| {
            let settings = PortSettings { name: format!("vm{nic}"), ..PortSettings::default() };
            module.port_added(port_of(nic), &settings).map_err(|error| anyhow!(error))?;
            announce(&*module, nic);
            Nic::attach(&mut fabrics, usize::from(nic) % workers, port_of(nic), plain)
        });
        let nics = cards.collect::<Result<Vec<Nic>>>()?;
        Ok(Self { fabrics, nics, workers, plain })
    }

    /// The fabric that a card's rings are at home in.
    pub(crate) fn home(&self, nic: u16) -> usize {
        usize::from(nic) % self.workers
    }

    /// The frames that a visit to a card's transmit ring would take.
    pub(crate) fn next_batch(&self, nic: u16) -> impl Iterator<Item = &FrameHead> {
        let mut bytes = 0;
        self.nics[usize::from(nic)].published.iter().take(BATCH_PACKETS_MAX).take_while(move |head| {
            let has_room = bytes < VISIT_BYTES_MAX;
            bytes += head.frame_bytes();
            has_room
        })
    }

    /// Visits a card's transmit ring. Appends the frames that were taken to `taken`.
    pub(crate) fn visit(&mut self, nic: u16, now_ns: u64, taken: &mut Vec<FrameHead>) {
        let home = self.home(nic);
        let count = self.fabrics[home].visit(ring_of(nic), now_ns);
        taken.extend(self.nics[usize::from(nic)].published.drain(..count));
    }

    /// The first part of a visit: large frames wait for their home and a helper, all others are copied.
    pub(crate) fn begin_visit(&mut self, nic: u16, now_ns: u64, taken: &mut Vec<FrameHead>) {
        let home = self.home(nic);
        let count = self.fabrics[home].begin_visit(ring_of(nic), now_ns);
        taken.extend(self.nics[usize::from(nic)].published.drain(..count));
    }

    /// Packets for a card that a fabric has delivered, and those that it has dropped.
    pub(crate) fn received(&self, fabric: usize, nic: u16) -> (u64, u64) {
        let counters = self.fabrics[fabric].counters(port_of(nic));
        counters.map_or((0, 0), |counters| (counters.tx_packets, counters.tx_drops.total()))
    }

    /// Whether packets wait for buffers of any card.
    pub(crate) fn has_waiting(&self) -> bool {
        self.fabrics.iter().any(|fabric| !fabric.waiting_rings().is_empty())
    }

    /// Delivers packets that wait for buffers of any card, and takes returned ones back.
    pub(crate) fn drain(&mut self) {
        for fabric in &mut self.fabrics {
            fabric.drain_waiting();
        }
        for fabric in &mut self.fabrics {
            fabric.take_returns();
        }
    }

    /// Takes all packets out of the receive rings until no frame waits. A frame of which some segments have found buffers
    /// is counted when it is complete.
    fn take_rest(&mut self) -> u64 {
        let mut packets = 0;
        for _ in 0..REST_ROUNDS_MAX {
            for nic in &mut self.nics {
                packets += std::iter::from_fn(|| nic.take()).count() as u64;
                nic.rx.publish();
            }
            if !self.has_waiting() {
                break;
            }
            self.drain();
        }
        packets
    }

    /// Takes the signals of a fabric to receivers, as numbers of cards.
    pub(crate) fn take_receive_signals(&mut self, fabric: usize, signals: &mut Vec<u16>) {
        let list = self.fabrics[fabric].signals();
        let receives = |signal: &Signal| signal.index.is_multiple_of(2).then(|| signal.port.0 - 1);
        signals.extend(list.iter().filter_map(receives));
        list.clear();
    }

    /// The counters of a card's port, summed over all fabrics.
    pub(crate) fn counters(&self, nic: u16) -> PortCounters {
        let mut sum = PortCounters::default();
        self.fabrics
            .iter()
            .filter_map(|fabric| fabric.counters(port_of(nic)))
            .for_each(|one| sum.merge(&one));
        sum
    }

    /// Checks that each frame is accounted for: by the fabric's own equation at each port, and by the frames that the
    /// guests sent and received. Returns the drops.
    pub(crate) fn check(&mut self, guests: FrameCounts) -> Result<Drops> {
        let mut drops = Drops::default();
        let (mut waiting, mut taken, mut delivered) = (0, 0, 0);
        let late = if self.plain { self.take_rest() } else { 0 };
        for nic in 0..self.nics.len() as u16 {
            let counters = self.counters(nic);
            ensure!(
                counters.is_conserved(),
                "port {} does not account for its packets: {counters:?}",
                port_of(nic)
            );
            drops.merge(&counters.rx_drops);
            waiting += counters.waiting;
            taken += counters.rx_packets + counters.segments_added;
            delivered += counters.tx_packets;
        }
        let in_rings = late + self.nics.iter_mut().map(|nic| nic.delivered() as u64).sum::<u64>();
        ensure!(
            guests.packets + in_rings == delivered && taken == delivered + drops.total() + waiting,
            "of {taken} packets {delivered} were delivered, {waiting} wait, {} were dropped; guests have {}, and {in_rings} in rings",
            drops.total(),
            guests.packets,
        );
        ensure!(
            guests.skipped <= drops.total(),
            "{} frames are missing and {} were dropped",
            guests.skipped,
            drops.total()
        );
        Ok(drops)
    }
}

/// The transmit and the receive ring of a card.
pub(crate) fn ring_of(nic: u16) -> RingId {
    RingId { port: port_of(nic), queue: 0 }
}

/// Lets the module learn the address of a card, so that no first frame is flooded.
fn announce(module: &dyn Module, nic: u16) {
    let frame = [&[0xff; 6][..], &mac_of(nic), &ETHERTYPE, &[0; 46]].concat();
    let headers = [Header::new(&frame, frame.len() as u32, lasthop_wire::Offload::default())];
    let batch = Batch { port: port_of(nic), headers: &headers, hashes: &Hashes::NONE };
    module.decide(&batch, 1, &mut Verdicts::default());
}
