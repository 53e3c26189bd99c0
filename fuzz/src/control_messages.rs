//! Clients of the control interface that send anything. Each request datagram is answered to its end, answers can be read, kept
//! flows are reported unchanged, and each miss is delivered or counted as lost.

use std::time::Instant;

use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::datapath::DatapathId;
use lasthop_dpif::family::{FlowMessage, PacketMessage};
use lasthop_dpif::format::{self, Style};
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::message::Messages;
use lasthop_dpif::private::{END, Hello};
use lasthop_dpif::server::{DatapathRecord, DatapathUpcall, Family, PeerId, Server, UpcallKind, Upcalled};
use lasthop_dpif::talk;
use lasthop_flow::{FlowKey, Match};

use crate::input::{Input, Seed};

/// Steps of one input.
const STEPS_MAX: usize = 64;
const CLIENTS: u64 = 2;
/// Datapath 1, where all of it happens.
const FIRST: DatapathId = DatapathId(1);
/// Bytes of the largest datagram that is made here: a part of a dump, or one answer beyond it.
const DATAGRAM_BYTES_MAX: usize = 128 * 1024;

#[derive(Default)]
struct World {
    server: Server,
    datapath: MemoryDatapath,
    /// Datagrams of each client that have not ended.
    open: [usize; CLIENTS as usize],
    misses: u64,
    told: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        let record =
            DatapathRecord { user_features: 8, per_cpu_port_ids: vec![1, 2], ..DatapathRecord::named("dp0") };
        assert!(world.server.restore([(FIRST, record)].into(), &mut world.datapath).is_empty());
        (0..CLIENTS).for_each(|client| world.connect(client));
        world
    }

    fn connect(&mut self, client: u64) {
        let hello = Hello { protocol: 16, port_id: client as u32 + 1, process: 1 };
        self.server
            .received(PeerId(client), hello.encode(), &mut self.datapath)
            .expect("there are few clients");
        self.open[client as usize] = 0;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let (what, client) = (input.u8(), u64::from(input.u8()) % CLIENTS);
        match what % 8 {
            0 => {
                self.server.disconnected(PeerId(client));
                self.connect(client);
            }
            1 => self.miss(client),
            2 => self.read(client, usize::from(input.u8())),
            3 => {
                self.datapath.is_counting = client == 0;
                self.datapath.is_making = what & 0x80 != 0;
                self.server.settle(Instant::now(), &mut self.datapath);
            }
            _ => {
                let len = usize::from(input.u16());
                self.send(client, input.bytes(len));
            }
        }
    }

    fn send(&mut self, client: u64, datagram: &[u8]) {
        if !self.server.wants_input(PeerId(client)) {
            return;
        }
        look(datagram);
        self.server.received(PeerId(client), datagram.to_vec(), &mut self.datapath).expect("it is its turn");
        self.open[client as usize] += 1;
    }

    fn miss(&mut self, client: u64) {
        let key = FlowKey { in_port: Some(1), ..FlowKey::default() };
        let message = PacketMessage { datapath: 1, packet: vec![0; 1500], key, ..PacketMessage::default() };
        let upcall = DatapathUpcall { kind: UpcallKind::Miss, port: 1, worker: client as usize, message };
        self.misses += 1;
        self.told += u64::from(self.server.upcall(upcall) != Upcalled::Lost);
    }

    fn read(&mut self, client: u64, count: usize) {
        for _ in 0..count {
            let Some(datagram) = self.server.output(PeerId(client)).map(<[u8]>::to_vec) else { break };
            self.server.sent(PeerId(client), &mut self.datapath);
            assert!(datagram.len() <= DATAGRAM_BYTES_MAX, "{} bytes in one datagram", datagram.len());
            let length: usize =
                Messages::new(&datagram).map(|message| (16 + message.body.len()).next_multiple_of(4)).sum();
            assert_eq!(length, datagram.len(), "what is told can be read to its end");
            let ends = Messages::new(&datagram).filter(|message| message.header.kind == END).count();
            self.open[client as usize] -= ends;
        }
    }

    fn check(&mut self) {
        (self.datapath.is_counting, self.datapath.is_making) = (false, false);
        self.server.settle(Instant::now(), &mut self.datapath);
        assert!(!self.server.is_settling() && self.datapath.removed_count() == 0, "a removal is not told");
        let records = self.server.records();
        if let Some(record) = records.get(&FIRST).filter(|record| record.name == "dp0") {
            assert!(self.told + record.lost <= self.misses, "a miss is told or lost");
        }
        for client in 0..CLIENTS {
            self.read(client, usize::MAX);
            assert_eq!(self.open[client as usize], 0, "a datagram did not end");
            assert!(self.server.wants_input(PeerId(client)), "nothing is left to be read");
        }
    }
}

/// A datagram's flows read the same after they were written, and can be printed.
fn look(datagram: &[u8]) {
    let flows =
        Messages::new(datagram).filter(|message| Family::of(message.header.kind) == Some(Family::Flow));
    for message in flows {
        let Some((datapath, attrs)) = message.generic().ok().and_then(|generic| generic.datapath().ok())
        else {
            continue;
        };
        if let Ok(flow) = FlowMessage::decode(datapath, attrs) {
            look_at_flow(&flow);
        }
    }
}

fn look_at_flow(flow: &FlowMessage) {
    let mut writer = Writer::default();
    flow.encode(&mut writer);
    let bytes = writer.finish().expect("as long as what it was read from, nearly");
    assert_eq!(FlowMessage::decode(flow.datapath, Attrs::new(&bytes)).as_ref(), Ok(flow));
    for is_verbose in [false, true] {
        let line = format::flow(flow, 1, Style { is_verbose, ..Style::default() });
        assert!(line.contains("actions:"));
    }
    if let Some(key) = flow.key.clone() {
        let matches = Match { key, mask: flow.mask.clone() };
        if matches.check().is_ok() {
            let masked = Match { key: matches.masked_key(), mask: matches.mask.clone() };
            assert_eq!(masked.masked_key(), masked.key, "masked once is masked");
        }
    }
}

/// Panics if a property does not hold for the messages of clients.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.check();
}

fn datagram(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().as_chunks::<2>().0;
    let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).unwrap_or("0"), 16).unwrap_or(0);
    digits.iter().map(byte).collect()
}

fn seed(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut seed = Seed::default();
    for datagram in datagrams {
        seed.u8(7).u8(0).u16(datagram.len() as u16).bytes(datagram);
        seed.u8(1).u8(1).u8(2).u8(0).u8(9);
    }
    seed.into_bytes()
}

/// Messages of the stock programs of Open vSwitch.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    const DAEMON: &str = include_str!("../../crates/protocols/dpif/tests/codec/golden/vswitchd.txt");
    const TOOL: &str = include_str!("../../crates/protocols/dpif/tests/codec/golden/dpctl.txt");
    let daemon: Vec<_> = DAEMON.lines().map(datagram).collect();
    let tool: Vec<_> = TOOL.lines().filter_map(|line| line.rsplit('\t').next()).map(datagram).collect();
    let pieces = |name: &'static str, datagrams: Vec<Vec<u8>>, count| {
        let pieces = datagrams.chunks(count).map(seed).collect::<Vec<_>>();
        pieces.into_iter().enumerate().map(move |(at, bytes)| (format!("{name}-{at:02}"), bytes))
    };
    let ovs = pieces("vswitchd", daemon, 16).chain(pieces("dpctl", tool, 2));
    ovs.chain([("batches".to_owned(), batches())]).collect()
}

/// A client that takes batches sends requests and gets misses; it reads them together.
fn batches() -> Vec<u8> {
    let mut seed = Seed::default();
    let ask = talk::batch();
    seed.u8(7).u8(1).u16(ask.len() as u16).bytes(&ask);
    for _ in 0..6 {
        seed.u8(7).u8(1).u16(0);
        seed.u8(1).u8(1);
    }
    seed.u8(2).u8(1).u8(9);
    seed.into_bytes()
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn the_tools_seeds_install_flows() {
        let (_, bytes) = seeds().into_iter().find(|(name, _)| name == "dpctl-00").expect("it is there");
        let mut input = Input::new(&bytes);
        let mut world = World::new();
        while !input.is_empty() {
            world.step(&mut input);
        }
        assert_eq!(world.datapath.flow_count(FIRST), 2);
        assert_eq!((world.misses, world.told), (2, 2));
        world.check();
    }

    pub fn a_client_that_takes_batches_reads_each_end() {
        let bytes = batches();
        let mut input = Input::new(&bytes);
        let mut world = World::new();
        while !input.is_empty() {
            world.step(&mut input);
        }
        assert_eq!((world.misses, world.told, world.open[1]), (6, 6, 0));
        assert_eq!(world.server.output(PeerId(1)), None);
        world.check();
    }
}
