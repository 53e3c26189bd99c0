//! Counters in Prometheus' format (exposition format 0.0.4), for node_exporter's textfile collector.

use lasthop_api::report::{DeviceCounters, DropCounts, PortReport, StatsReport, WorkerReport};

/// A family of samples: name, type, help.
type Family = (&'static str, &'static str, &'static str);
/// A family with a number of each port.
type OfPort = (Family, fn(&PortReport) -> u64);
/// A family with a number for each drop reason of each port.
type DropsOfPort = (Family, fn(&PortReport) -> &DropCounts);
/// Same as [`OfPort`], for device ports.
type OfDevice = (Family, fn(&DeviceCounters) -> u64);
/// Same as [`OfPort`], for workers.
type OfWorker = (Family, fn(&WorkerReport) -> u64);

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const STATE_RUNNING: &str = "running";

const PORTS: &[OfPort] = &[
    (
        ("lasthop_port_receive_packets_total", COUNTER, "Packets that the switch took from the port."),
        |port| port.rx_packets,
    ),
    (("lasthop_port_receive_bytes_total", COUNTER, "Their bytes."), |port| port.rx_bytes),
    (("lasthop_port_transmit_packets_total", COUNTER, "Packets that the switch gave to the port."), |port| {
        port.tx_packets
    }),
    (("lasthop_port_transmit_bytes_total", COUNTER, "Their bytes."), |port| port.tx_bytes),
    (
        ("lasthop_port_receive_dropped_total", COUNTER, "Packets from the port that were lost."),
        PortReport::dropped,
    ),
    (("lasthop_port_transmit_dropped_total", COUNTER, "Packets for the port that were lost."), |port| {
        port.tx_drops.values().sum()
    }),
    (
        (
            "lasthop_port_flooded_to_none_total",
            COUNTER,
            "Flooded packets from the port that no port with a running guest was there for; not lost.",
        ),
        |port| port.flooded_to_none,
    ),
    (
        ("lasthop_port_upcalls_total", COUNTER, "Packets from the port that the controller was handed."),
        |port| port.upcalls,
    ),
    (
        ("lasthop_port_waiting_packets", GAUGE, "Packets from the port that wait for receive buffers."),
        |port| port.waiting,
    ),
    (
        (
            "lasthop_port_detached_total",
            COUNTER,
            "Packets from the port that were copied out of its guest's memory while they waited.",
        ),
        |port| port.detached,
    ),
    (("lasthop_port_running", GAUGE, "1 if the port has a guest or a device whose rings run."), |port| {
        u64::from(port.state == STATE_RUNNING)
    }),
    (("lasthop_port_conserved", GAUGE, "1 if every packet from the port is accounted for."), |port| {
        u64::from(port.conserved)
    }),
];

const DROPS: &[DropsOfPort] = &[
    (
        (
            "lasthop_port_receive_drop_reasons_total",
            COUNTER,
            "Packets from the port that were lost, by reason; reasons that did not occur are left out.",
        ),
        |port| &port.rx_drops,
    ),
    (
        (
            "lasthop_port_transmit_drop_reasons_total",
            COUNTER,
            "Packets for the port that were lost, by reason; reasons that did not occur are left out.",
        ),
        |port| &port.tx_drops,
    ),
];

const SINCE: Family = (
    "lasthop_port_counting_since_timestamp_seconds",
    GAUGE,
    "When the port's counters began, in seconds since 1970.",
);
const CPU: Family = (
    "lasthop_worker_cpu_seconds_total",
    COUNTER,
    "Processor time of the worker's thread; its rate is how busy the thread is, of 1.",
);

const WORKERS: &[OfWorker] = &[
    (("lasthop_worker_sleeps_total", COUNTER, "Times that the worker went to sleep."), |worker| {
        worker.sleeps
    }),
    (("lasthop_worker_visits_total", COUNTER, "Visits of the worker to transmit rings."), |worker| {
        worker.visits
    }),
    (("lasthop_worker_batches_total", COUNTER, "Visits that found packets."), |worker| worker.batches),
    (
        (
            "lasthop_worker_scarce_total",
            COUNTER,
            "Times that others had the CPU of the worker's thread for so long that it polled little for a while.",
        ),
        |worker| worker.scarce,
    ),
];

const DEVICES: &[OfDevice] = &[
    (
        (
            "lasthop_device_receive_packets_total",
            COUNTER,
            "Frames that the driver took from the port's device.",
        ),
        |device| device.from_device.frames,
    ),
    (("lasthop_device_receive_bytes_total", COUNTER, "Their bytes."), |device| device.from_device.bytes),
    (
        (
            "lasthop_device_transmit_packets_total",
            COUNTER,
            "Frames that the driver gave to the port's device.",
        ),
        |device| device.to_device.frames,
    ),
    (("lasthop_device_transmit_bytes_total", COUNTER, "Their bytes."), |device| device.to_device.bytes),
];

const DEVICE_DROPS: Family = (
    "lasthop_device_drops_total",
    COUNTER,
    "Frames between the port's device and the switch that were lost, by reason; reasons that did not occur are left out.",
);
/// The reason of frames that the kernel dropped.
const MISSED: &str = "missed";
const RESTARTS: Family =
    ("lasthop_process_restarts_total", COUNTER, "Times that the process was started again.");
const BUILD: Family = ("lasthop_build_info", GAUGE, "1; the label has the version of the switch.");

/// All counters, by family.
pub(crate) fn prometheus(stats: &StatsReport) -> String {
    let mut text = String::new();
    for (family, value) in PORTS {
        let samples = stats.ports.iter().map(|port| (label("port", &port.name), value(port).to_string()));
        write(&mut text, *family, samples);
    }
    for (family, drops) in DROPS {
        let of_port = |port| drops(port).iter().map(move |(reason, count)| (port, reason, count));
        let samples =
            stats.ports.iter().flat_map(of_port).map(|(port, reason, count): (&PortReport, _, _)| {
                (format!("{},{}", label("port", &port.name), label("reason", reason)), count.to_string())
            });
        write(&mut text, *family, samples);
    }
    let since = stats
        .ports
        .iter()
        .filter_map(|port| Some((label("port", &port.name), seconds(port.since_ms? * 1_000_000))));
    write(&mut text, SINCE, since);
    let of_worker = |worker: &WorkerReport| label("worker", &worker.index.to_string());
    let cpu = stats.workers.iter().filter_map(|worker| Some((of_worker(worker), seconds(worker.cpu_ns?))));
    write(&mut text, CPU, cpu);
    for (family, value) in WORKERS {
        let samples = stats.workers.iter().map(|worker| (of_worker(worker), value(worker).to_string()));
        write(&mut text, *family, samples);
    }
    write_devices(&mut text, stats);
    let restarts =
        stats.restarts.iter().map(|(process, count)| (label("process", process), count.to_string()));
    write(&mut text, RESTARTS, restarts);
    // A program of before does not say it.
    let version = Some(&stats.version).filter(|version| !version.is_empty());
    write(&mut text, BUILD, version.into_iter().map(|version| (label("version", version), "1".to_owned())));
    text
}

fn write_devices(text: &mut String, stats: &StatsReport) {
    for (family, value) in DEVICES {
        let samples = stats.devices.iter();
        let samples = samples.map(|port| (label("port", &port.name), value(&port.counters).to_string()));
        write(text, *family, samples);
    }
    let drops = stats.devices.iter().flat_map(|port| {
        let missed = Some((MISSED, port.counters.missed)).filter(|(_, count)| *count > 0);
        let others = port.counters.drops.iter().map(|(reason, count)| (reason.as_str(), *count));
        let sample = |(reason, count): (&str, u64)| {
            (format!("{},{}", label("port", &port.name), label("reason", reason)), count.to_string())
        };
        missed.into_iter().chain(others).map(sample).collect::<Vec<_>>()
    });
    write(text, DEVICE_DROPS, drops);
}

/// One family; nothing without samples.
fn write(text: &mut String, (name, kind, help): Family, samples: impl Iterator<Item = (String, String)>) {
    let mut samples = samples.peekable();
    if samples.peek().is_none() {
        return;
    }
    text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    samples.for_each(|(labels, value)| text.push_str(&format!("{name}{{{labels}}} {value}\n")));
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use lasthop_api::report::DevicePortReport;

    use super::*;

    #[test]
    fn losses_of_devices_are_told_by_reason() {
        let mut counters = DeviceCounters { missed: 7, ..DeviceCounters::default() };
        counters.to_device.frames = 5;
        counters.drops.insert("no_tunnel".to_owned(), 3);
        let quiet = DevicePortReport { name: "tap0".to_owned(), counters: DeviceCounters::default() };
        let devices = vec![DevicePortReport { name: "genev".to_owned(), counters }, quiet];
        let text = prometheus(&StatsReport { devices, ..StatsReport::default() });
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "{line}: {text}");
        has("lasthop_device_transmit_packets_total{port=\"genev\"} 5");
        has("lasthop_device_receive_bytes_total{port=\"tap0\"} 0");
        has("lasthop_device_drops_total{port=\"genev\",reason=\"missed\"} 7");
        has("lasthop_device_drops_total{port=\"genev\",reason=\"no_tunnel\"} 3");
        assert_eq!(text.matches("lasthop_device_drops_total{").count(), 2, "{text}");
        assert!(!text.contains("lasthop_build_info"), "{text}");
    }
}
