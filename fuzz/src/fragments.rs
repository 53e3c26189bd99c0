//! Any fragments in any order: each is queued, lost for a reason or part of a packet, bounds hold, and a packet that was put together can be
//! cut again.

use lasthop_reassembly::{FragmentBounds, FragmentPlace, FragmentPool, FragmentShare};
use lasthop_wire::{Fragment, Fragmentation, Layers};

use crate::headers::checksum_of;
use crate::input::{Input, Seed};

/// Frames of an input.
const STEPS_MAX: usize = 128;
const BOUNDS: FragmentBounds = FragmentBounds {
    all: FragmentShare { fragments: 24, bytes: 12_000 },
    zone: FragmentShare { fragments: 16, bytes: 8000 },
    source: FragmentShare { fragments: 8, bytes: 4000 },
    time_ms: 30_000,
};
/// Bytes of a frame that are looked at for its headers.
const HEAD_BYTES: usize = 128;

/// Panics when something does not hold for a sequence of frames.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut pool, mut lost, mut now_ms) = (FragmentPool::new(BOUNDS), Vec::new(), 0);
    let (mut taken, mut parts) = (0_u32, 0);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let (where_, pause) = (input.u8(), input.u8());
        let len = usize::from(input.u16());
        let frame = input.bytes(len).to_vec();
        now_ms += u64::from(pause) << 7;
        pool.expire(now_ms, &mut lost);
        let (zone, source) = (u16::from(where_ & 1), u16::from(where_ >> 1 & 3));
        taken += 1;
        if let Some(whole) = pool.take(FragmentPlace { datapath: 0, zone, source }, frame, now_ms, &mut lost)
        {
            parts += whole.fragments;
            check(&whole.frame, (whole.mtu_bytes, whole.identification));
        }
        assert!(pool.queued().fragments <= BOUNDS.all.fragments && pool.queued().bytes <= BOUNDS.all.bytes);
    }
    let gone: u32 = lost.iter().map(|lost| lost.fragments).sum();
    assert_eq!(taken, gone + parts + pool.queued().fragments, "each fragment is accounted for");
    pool.expire(u64::MAX, &mut lost);
    assert!(pool.queued() == FragmentShare::default() && pool.due_ms().is_none());
}

/// A packet that was put together.
fn check(frame: &[u8], cut: (u16, u32)) {
    let head = &frame[..frame.len().min(HEAD_BYTES)];
    let Ok(layers) = Layers::parse(head) else { return };
    if layers.is_fragment || layers.has_fragment_header {
        // A fragment within fragments.
        return;
    }
    let l3 = usize::from(layers.l3_offset);
    assert_eq!(l3 + layers.l3_len_bytes as usize, frame.len(), "it is as long as it says");
    if frame[l3] >> 4 == 4 {
        let options = l3 + usize::from(frame[l3] & 0xf) * 4;
        assert_eq!(checksum_of(&frame[l3..options]), 0);
    }
    let Ok(offload) = Fragmentation::offload(head, frame.len() as u32, cut) else { return };
    let Ok(plan) = Fragmentation::plan(head, &offload, frame.len() as u32) else { return };
    let mut end = plan.payload(0).start;
    for index in 0..plan.count() {
        let mut out = vec![0; plan.header_len() as usize];
        plan.write_header(index, head, &mut out);
        let payload = plan.payload(index);
        assert!(payload.start == end && payload.end > payload.start, "nothing is missing");
        end = payload.end;
        out.extend(&frame[payload.start as usize..payload.end as usize]);
        if plan.count() > 1 {
            let again = Fragment::parse(&out).map(|again| (again.has_more, again.payload.len() as u32));
            let is_last = index + 1 == plan.count();
            assert!(again.is_err() || again == Ok((!is_last, payload.end - payload.start)));
        }
    }
    assert_eq!(end as usize, frame.len());
}

/// A packet of this many bytes behind its IP header.
fn packet(is_ipv6: bool, len: u16) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([17, 64]);
        frame.extend([0xfc; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + len).to_be_bytes());
        frame.extend([0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend((0..len).map(|at| at as u8));
    frame
}

/// Two packets in fragments: in order, and the other way round.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |is_ipv6, is_reversed| {
        let frame = packet(is_ipv6, 700);
        let (head, len) = (&frame[..HEAD_BYTES], frame.len() as u32);
        let offload = Fragmentation::offload(head, len, (300, 9)).expect("it can be cut");
        let plan = Fragmentation::plan(head, &offload, len).expect("it is planned");
        let mut order: Vec<u32> = (0..plan.count()).collect();
        if is_reversed {
            order.reverse();
        }
        let mut seed = Seed::default();
        for index in order {
            let payload = plan.payload(index);
            let mut out = vec![0; plan.header_len() as usize];
            plan.write_header(index, head, &mut out);
            out.extend(&frame[payload.start as usize..payload.end as usize]);
            seed.u8(0).u8(0).u16(out.len() as u16).bytes(&out);
        }
        seed.into_bytes()
    };
    vec![("ipv4".into(), seed(false, false)), ("ipv6-reversed".into(), seed(true, true))]
}
