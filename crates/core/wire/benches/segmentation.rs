//! Cuts a 64 KiB TCP frame into segments of 1448 bytes. Only headers: fabric copies the payload.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use etherparse::{PacketBuilder, TcpOptionElement};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6};
use lasthop_wire::{Offload, Segmentation};

const SEGMENTS: usize = 45;
const PAYLOAD_BYTES: u16 = 1448;

/// The first bytes of a frame of `SEGMENTS` segments, its length in bytes, and its offload.
fn frame(v6: bool) -> (Vec<u8>, u32, Offload) {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let builder =
        if v6 { builder.ipv6([1; 16], [2; 16], 64) } else { builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64) };
    let timestamps = [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(1, 2)];
    let builder = builder.tcp(40_000, 80, 1, 5000).ack(77).options(&timestamps).unwrap();
    let mut frame = Vec::new();
    builder.write(&mut frame, &vec![0x5a; SEGMENTS * usize::from(PAYLOAD_BYTES)]).unwrap();
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: if v6 { GSO_TCPV6 } else { GSO_TCPV4 },
        hdr_len: 0,
        gso_size: PAYLOAD_BYTES,
        csum_start: if v6 { 54 } else { 34 },
        csum_offset: 16,
    };
    (frame[..128].to_vec(), frame.len() as u32, offload)
}

/// Plans, and writes every segment's headers. Returns the bytes of all payloads.
fn cut(head: &[u8], len_bytes: u32, offload: &Offload, out: &mut [u8]) -> u32 {
    let plan = Segmentation::plan(head, offload, len_bytes).unwrap();
    (0..plan.count())
        .map(|index| {
            black_box(plan.write_header(index, head, out));
            plan.payload(index).len() as u32
        })
        .sum()
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("wire/segmentation");
    group.throughput(Throughput::Elements(SEGMENTS as u64));
    for (name, v6) in [("ipv4", false), ("ipv6", true)] {
        let (head, len_bytes, offload) = frame(v6);
        let mut out = [0; 160];
        assert_eq!(
            cut(&head, len_bytes, &offload, &mut out),
            SEGMENTS as u32 * u32::from(PAYLOAD_BYTES),
            "all payload is carried"
        );
        group.bench_function(format!("plan/{name}"), |bencher| {
            bencher.iter(|| Segmentation::plan(black_box(&head), &offload, len_bytes));
        });
        group.bench_function(format!("all-headers/{name}"), |bencher| {
            bencher.iter(|| cut(black_box(&head), len_bytes, &offload, &mut out));
        });
    }
    group.finish();
    criterion.final_summary();
}
