//! Work that a module leaves until its packets are delivered.

use std::sync::{Arc, Mutex, OnceLock};

use lasthop_fabric::Fabric;
use lasthop_guestmem::MemoryMap;
use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, Verdicts};
use lasthop_wire::Offload;

use super::support::{RX_RINGS, TestGuest, everything, frame};

const ENTRIES: u32 = 64;

/// Sends from port 1 to port 2, and drops frames of 90 bytes. For those of 80 bytes and more it wants a call.
#[derive(Default)]
struct Leaving {
    /// The receiver's memory.
    receiver: OnceLock<Arc<MemoryMap>>,
    /// Calls: port, number, and frames that the receiver had by then.
    calls: Mutex<Vec<(PortId, u16, u16)>>,
}

impl Leaving {
    fn take_calls(&self) -> Vec<(PortId, u16, u16)> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Module for Leaving {
    fn name(&self) -> &'static str {
        "leaving"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for (index, header) in batch.headers.iter().enumerate() {
            match header.frame_len_bytes() {
                90 => verdicts.drop_packet(index, DropReason::NoDestination),
                _ => verdicts.output(index, PortId(2)),
            }
            if header.frame_len_bytes() >= 80 {
                verdicts.leave_rest(batch.port, header.frame_len_bytes() as u16);
            }
        }
    }

    fn delivered(&self, port: PortId, rest: u16) {
        let available = RX_RINGS + 16 * u64::from(ENTRIES);
        let used = (available + 6 + 2 * u64::from(ENTRIES)).next_multiple_of(64);
        let map = self.receiver.get().expect("it is set");
        let mut index = [0; 2];
        map.read(map.translate(used + 2, 2, &mut 0).unwrap(), 0, &mut index).unwrap();
        self.calls.lock().unwrap().push((port, rest, u16::from_le_bytes(index)));
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

#[test]
fn a_module_is_told_once_its_packets_are_delivered() {
    let module = Arc::new(Leaving::default());
    let mut fabric = Fabric::new(module.clone()).unwrap();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), ENTRIES, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), ENTRIES, 2048);
    module.receiver.set(Arc::clone(&receiver.map)).expect("it is set once");
    receiver.post(60);
    let mut visit = |lengths: &[usize]| {
        for len in lengths {
            assert!(sender.queue(&frame(2, 1, *len), Offload::default()));
        }
        assert_eq!(fabric.visit(sender.tx_ring(), 0), lengths.len());
        assert_eq!(module.take_calls(), [], "receivers are signalled first");
        fabric.finish_rest();
        module.take_calls()
    };
    assert_eq!(visit(&[70]), [], "it did not ask");
    assert_eq!(visit(&[80]), [(PortId(1), 80, 2)], "a lone packet");
    assert_eq!(visit(&[81, 70, 82, 70]), [(PortId(1), 82, 6)], "the last number of a batch");
    assert_eq!(visit(&[83, 90]), [(PortId(1), 90, 7)], "beside a dropped one");
    assert_eq!(visit(&[90]), [(PortId(1), 90, 7)], "without a delivery");
    assert_eq!(visit(&[]), [], "it is told once");
}
