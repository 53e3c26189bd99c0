//! A module with a clock and frames, for tests.

use lasthop_module_api::{
    BATCH_PACKETS_MAX, Batch, DropReason, Hashes, Header, Mac, Module, PORTS_MAX, PortId, PortSettings,
    Reasons, Verdicts,
};
use lasthop_wire::Offload;

/// One second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// The unicast address with number `n`.
pub(crate) fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// A frame between two numbered addresses: `frame(source, destination)`.
pub(crate) fn frame(source: u8, destination: u8) -> Vec<u8> {
    frame_of(mac(source), mac(destination))
}

/// A frame between two addresses.
pub(crate) fn frame_of(source: Mac, destination: Mac) -> Vec<u8> {
    [&destination.0[..], &source.0[..], &[0x08, 0x00], &[0; 46]].concat()
}

/// Returns the frame with a tag inserted.
pub(crate) fn tagged(tci: u16, frame: &[u8]) -> Vec<u8> {
    let [high, low] = tci.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// A module, the time that it is given, and its verdicts.
pub(crate) struct Lab<M> {
    pub(crate) module: M,
    pub(crate) now_ns: u64,
    verdicts: Verdicts,
    predicted: u32,
}

/// The forwarding table is compared before and after one explanation in this number: for a large table that takes long.
const COMPARED_ONE_IN: u32 = 64;

impl<M: Module> Lab<M> {
    pub(crate) fn new(module: M) -> Self {
        Self { module, now_ns: 1_000 * SECOND_NS, verdicts: Verdicts::default(), predicted: 0 }
    }

    pub(crate) fn add(&mut self, port: u16) -> Result<(), String> {
        self.module
            .port_added(PortId(port), &PortSettings { name: format!("vm{port}"), ..PortSettings::default() })
    }

    /// The result of one frame: the ports that receive it, or its drop reason.
    pub(crate) fn send(&mut self, port: u16, frame: Vec<u8>) -> Result<Vec<u16>, DropReason> {
        self.send_batch(port, &[frame]).remove(0)
    }

    /// The results of a batch's frames. Asserts that each has outputs or exactly one drop.
    pub(crate) fn send_batch(&mut self, port: u16, frames: &[Vec<u8>]) -> Vec<Result<Vec<u16>, DropReason>> {
        let header = |frame: &Vec<u8>| Header::new(frame, frame.len() as u32, Offload::default());
        let headers: Vec<_> = frames.iter().map(header).collect();
        let predicted = self.foretell(PortId(port), &headers);
        self.verdicts.clear();
        let batch = Batch { port: PortId(port), headers: &headers, hashes: &Hashes::NONE };
        self.module.decide(&batch, self.now_ns, &mut self.verdicts);
        if let Some(predicted) = predicted {
            assert_eq!(predicted, decided(&mut self.verdicts), "as it was explained");
        }
        (0..frames.len()).map(|packet| self.fate(packet as u16)).collect()
    }

    /// The explained decision about a single frame, which changes nothing.
    fn foretell(&mut self, port: PortId, headers: &[Header]) -> Option<String> {
        let [header] = headers else { return None };
        self.predicted += 1;
        let fdb = || self.predicted.is_multiple_of(COMPARED_ONE_IN).then(|| self.module.fdb(self.now_ns));
        let state = || (self.module.counters(), fdb(), self.module.moves(self.now_ns));
        let (before, mut verdicts) = (state(), Verdicts::default());
        let name = |port: PortId| format!("vm{port}");
        let mut reasons = Reasons::new(&name);
        let is_told = self.module.explain((port, header), self.now_ns, &mut verdicts, &mut reasons);
        assert_eq!(before, state(), "nothing changes");
        is_told.then(|| {
            assert!(!reasons.told().is_empty(), "each decision has a reason");
            decided(&mut verdicts)
        })
    }

    /// The result of one short frame, byte by byte: its receivers, and the form that each gets.
    pub(crate) fn deliver(&mut self, port: u16, frame: Vec<u8>) -> Result<Vec<(u16, Vec<u8>)>, DropReason> {
        let ports = self.send(port, frame.clone())?;
        let outputs = self.verdicts.outputs().to_vec();
        let bytes = |image: u16| match usize::from(image).checked_sub(BATCH_PACKETS_MAX) {
            Some(made) => self.verdicts.images()[made].bytes().to_vec(),
            None => frame.clone(),
        };
        Ok(ports.into_iter().zip(outputs.iter().map(|output| bytes(output.image))).collect())
    }

    fn fate(&mut self, packet: u16) -> Result<Vec<u16>, DropReason> {
        let outputs = self.verdicts.outputs().iter().filter(|output| output.packet == packet);
        let ports: Vec<_> = outputs.map(|output| output.port.0).collect();
        let drops: Vec<_> = self.verdicts.drops().iter().filter(|(dropped, _)| *dropped == packet).collect();
        assert_eq!(drops.len(), usize::from(ports.is_empty()), "packet {packet}: {ports:?} {drops:?}");
        assert!(ports.iter().all(|port| usize::from(*port) < PORTS_MAX));
        drops.first().map_or(Ok(ports), |(_, reason)| Err(*reason))
    }
}

/// Outputs, made images and drops.
fn decided(verdicts: &mut Verdicts) -> String {
    let outputs = verdicts.outputs().to_vec();
    let images: Vec<&[u8]> = verdicts.images().iter().map(Header::bytes).collect();
    format!("{outputs:?} {:?} {images:?}", verdicts.drops())
}
