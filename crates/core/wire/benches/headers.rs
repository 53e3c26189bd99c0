//! Finding the headers of a frame, and selecting a queue by them; done at most once per packet.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use etherparse::PacketBuilder;
use lasthop_wire::{Layers, Offload, Sum, flow_hash};

type Image = (&'static str, Vec<u8>);

/// The first bytes of frames that guests send.
fn images() -> Vec<Image> {
    let ethernet = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut images = [("ipv4-tcp", Vec::new()), ("ipv4-udp", Vec::new()), ("ipv6-tcp", Vec::new())];
    let [v4_tcp, v4_udp, v6_tcp] = &mut images;
    let payload = [0; 60];
    let (from, to) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    ethernet().ipv4(from, to, 64).tcp(40_000, 80, 1, 5000).write(&mut v4_tcp.1, &payload).unwrap();
    ethernet().ipv4(from, to, 64).udp(40_000, 80).write(&mut v4_udp.1, &payload).unwrap();
    ethernet().ipv6([1; 16], [2; 16], 64).tcp(40_000, 80, 1, 5000).write(&mut v6_tcp.1, &payload).unwrap();
    let mut tagged = ("vlan-ipv4-tcp", images[0].1.clone());
    tagged.1.splice(12..12, [0x81, 0, 0, 5]);
    images.into_iter().chain([tagged]).collect()
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for (name, image) in images() {
        let mut group = criterion.benchmark_group("wire");
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("parse/{name}"), |bencher| {
            bencher.iter(|| Layers::parse(black_box(&image)));
        });
        group.bench_function(format!("flow-hash/{name}"), |bencher| {
            bencher.iter(|| flow_hash(black_box(&image), black_box(7)));
        });
    }
    criterion.bench_function("wire/offload/parse-and-emit", |bencher| {
        bencher.iter(|| Offload::parse(black_box(&[0; 12])).emit(black_box(1)));
    });
    let mut group = criterion.benchmark_group("wire/sum");
    for len_bytes in [64_usize, 1448, 65_536] {
        let bytes = vec![0x5a; len_bytes];
        group.throughput(Throughput::Bytes(len_bytes as u64));
        group.bench_function(len_bytes.to_string(), |bencher| {
            bencher.iter(|| {
                let mut sum = Sum::default();
                sum.add(black_box(&bytes));
                sum.finish()
            });
        });
    }
    group.finish();
    criterion.final_summary();
}
