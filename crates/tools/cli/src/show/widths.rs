//! Every table in a terminal of 80 columns, with names of 15 letters and counters of nine digits.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use lasthop_api::acl::AclRule;
use lasthop_api::placement::{CachesReport, MeasuredCaches, MeasuredDistance, PlacedThreadReport};
use lasthop_api::port;
use lasthop_api::report::{
    AclLine, AclReport, DeviceStatus, PortReport, PortStatus, PortStatusList, StatsReport, SwitchList,
    SwitchReport, VlanReport, VlansReport, VnicVlans, WorkerReport,
};
use lasthop_api::sched::{
    DecisionLine, GuestReport, GuestThreadCounts, PolicyCounts, QueueHome, SchedReport, SchedTrace,
    ShareReport, ThreadReport, WorkerPolicies,
};
use lasthop_api::sched_table::{SchedTable, TableRow};
use lasthop_api::switches::ControllerKind;
use lasthop_sched::Modes;

use super::tests::guest;
use crate::output::tests::on_screen;
use crate::rates::Rates;
use crate::usage::{ProcessUsage, ProfileAnswer};

const NAME: &str = "tenant-42-web-1";
const COUNT: u64 = 123_456_789;
const COLUMNS: usize = 80;

/// A report with `COUNT` for each number of the default one, and then these keys.
fn filled<T: Default + Serialize + DeserializeOwned>(keys: Value) -> T {
    let mut report = json!(T::default());
    let all = report.as_object_mut().expect("an object");
    all.values_mut().filter(|value| value.is_number()).for_each(|value| *value = json!(COUNT));
    all.extend(keys.as_object().expect("an object").clone());
    serde_json::from_value(report).expect("a report")
}

fn fits(text: &str) {
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > COLUMNS).collect();
    assert!(wide.is_empty() && text.lines().count() > 1, "{text}");
}

fn counters() -> StatsReport {
    let port = |name: &str| {
        let drops =
            json!({"rx_timeout": COUNT, "same_port": COUNT, "no_destination": COUNT, "link_down": COUNT});
        let keys = json!({"name": name, "state": "waiting for guest", "rx_drops": drops});
        filled::<PortReport>(keys)
    };
    let worker = |index: usize, cpu_ns: u64| {
        filled::<WorkerReport>(json!({"index": index, "thread": 63, "cpu_ns": cpu_ns, "age_ms": null}))
    };
    StatsReport {
        ports: vec![port(NAME), port("vm1")],
        workers: vec![worker(0, COUNT), worker(63, 2 * COUNT)],
        ..StatsReport::default()
    }
}

#[test]
fn counters_and_rates_fit() {
    let before = counters();
    let mut now = before.clone();
    now.time_ms += 100;
    now.workers.iter_mut().for_each(|worker| worker.cpu_ns = Some(3 * COUNT));
    now.ports.iter_mut().for_each(|port| {
        port.rx_bytes += COUNT;
        port.rx_packets += COUNT;
        port.rx_drops.values_mut().for_each(|count| *count += COUNT);
    });
    let workers = on_screen(COLUMNS, || super::workers(&before, &now));
    assert!(workers.contains("100%") && workers.contains("123M"), "{workers}");
    fits(&workers);
    fits(&on_screen(COLUMNS, || super::stats(&now)));
    let rates = Rates::between(&before, &now, std::time::Duration::from_secs(1));
    let view = super::View { sort: super::Sort::Rate, rows: Some(24) };
    fits(&on_screen(COLUMNS, || super::rates(&rates, view)));
}

#[test]
fn the_load_of_workers_fits_a_file_with_counters_of_four_digits() {
    let worker = WorkerReport {
        index: 63,
        thread: 63,
        sleeps: 9999,
        polls: 9999,
        crowded: 9999,
        scarce: 9999,
        visits: 9999,
        batches: 9999,
        contended: 9999,
        left: 9999,
        leased: 9999,
        returned: 9999,
        wakes: 9999,
        ..WorkerReport::default()
    };
    let now = StatsReport { workers: vec![worker], ..StatsReport::default() };
    fits(&super::workers(&now, &now));
}

#[test]
fn ports_and_switches_fit() {
    let settings = port::uplink("eth-tenant-42-1,transit=true").expect("a port");
    let device = DeviceStatus {
        device: "eth-tenant-42-1".to_owned(),
        backend: None,
        backend_why: None,
        mtu: Some(65_535),
        mac: None,
        has_link: false,
        is_of_bridge: false,
        driver: Default::default(),
        counters: filled(
            json!({"from_device": {"frames": COUNT, "bytes": COUNT}, "drops": {"device_full": COUNT},
            "to_switch": {"frames": COUNT, "bytes": COUNT}, "from_switch": {"frames": COUNT, "bytes": COUNT},
            "to_device": {"frames": COUNT, "bytes": COUNT}}),
        ),
        inside: None,
    };
    let mut uplink = PortStatus { device: Some(device), guest: None, settings, ..guest(NAME, "/s") };
    uplink.name = NAME.to_owned();
    uplink.state = "driver restarting".to_owned();
    let vnic =
        guest(&format!("{NAME},mac=02:00:00:00:00:01,mtu=9000,switch=tenant-42"), "/run/lasthop/x.sock");
    let ports = PortStatusList { ports: vec![vnic, uplink] };
    fits(&on_screen(COLUMNS, || super::port_list(&ports)));
    let switch = SwitchReport {
        name: NAME.parse().expect("a name"),
        module: "bridge".to_owned(),
        fdb_entries: Some(16_384),
        vnics: vec![NAME.to_owned(); 1023],
        addresses: Some(16_384),
        counters: Default::default(),
        controller: Some(ControllerKind::External),
        clients: Vec::new(),
    };
    fits(&on_screen(COLUMNS, || super::switch_list(&SwitchList { switches: vec![switch] })));
    let vlans = vec![VlanReport { vlan: 1000, vlan_end: Some(4094), flags: vec!["PVID".to_owned()] }];
    let vnics = vec![VnicVlans { name: NAME.to_owned(), passes_all: false, vlans }];
    fits(&on_screen(COLUMNS, || super::vlans(&VlansReport { vnics })));
    let rule: AclRule = serde_json::from_value(json!({"name": NAME, "port": NAME, "direction": "ingress",
        "action": "allow", "protocol": "tcp", "dport": 443, "remote": "2001:db8:1234:5678::/64", "log": true}))
    .expect("a rule");
    fits(&on_screen(COLUMNS, || super::acl(&AclReport { rules: vec![AclLine { rule, ports: Vec::new() }] })));
}

/// All parts of `sched show`.
fn scheduler() -> SchedReport {
    let thread = |tid| ThreadReport { tid, activity: "sleeping".to_owned(), cpu: Some(127) };
    let mut report = SchedReport {
        is_open: true,
        policies: SchedReport::policies(&Modes::default(), true),
        guests: vec![GuestReport {
            vnic: NAME.to_owned(),
            pid: Some(4_194_303),
            kind: Some("user-mode".to_owned()),
            why: None,
            found_by: Some("kvm".to_owned()),
            vcpus: Some(256),
            threads: (4_194_200..4_194_220).map(thread).collect(),
        }],
        workers: vec![WorkerPolicies {
            index: 63,
            helper_cpu: Some(127),
            shared: COUNT,
            counts: filled::<PolicyCounts>(json!({})),
        }],
        queues: vec![QueueHome { port: NAME.to_owned(), queue: 15, worker: 63 }],
        caches: CachesReport { cpus: 128, groups: 64, llcs: 16, nodes: 8, measured: None },
        ..SchedReport::default()
    };
    report.policies.iter_mut().for_each(|policy| policy.is_used = true);
    report.shares.threads = vec![ShareReport {
        name: NAME.to_owned(),
        tid: 4_194_303,
        credit: 262_144,
        weight: 262_144,
        load: "some".to_owned(),
    }];
    report.placement.threads = vec![PlacedThreadReport {
        name: NAME.to_owned(),
        tid: 4_194_303,
        vnic: Some(NAME.to_owned()),
        cpus: "0-15,32-47".to_owned(),
        own_cpus: "0-31,64-95".to_owned(),
    }];
    report
}

#[test]
fn the_view_of_the_scheduler_fits() {
    fits(&on_screen(COLUMNS, || super::sched(&scheduler())));
    let decision = DecisionLine {
        worker: 63,
        ago_us: COUNT,
        for_us: COUNT,
        times: COUNT,
        policy: "transmit-timer".to_owned(),
        decision: "kicks-spared".to_owned(),
        vnic: Some(NAME.to_owned()),
        guest: Some(GuestThreadCounts { running: 16, sleeping: 16, ..GuestThreadCounts::default() }),
        cpu_return: None,
        inputs: None,
        repetitions: None,
    };
    fits(&on_screen(COLUMNS, || super::sched_trace(&SchedTrace { decisions: vec![decision] })));
    let row = TableRow {
        vnic: NAME.to_owned(),
        queue: 15,
        tid: Some(4_194_303),
        rule: "same-number".to_owned(),
        activity: "sleeping".to_owned(),
        last_touch: Some("switch".to_owned()),
        cpu: Some(1023),
        hint: vec![0, 1, 2, 3, 8, 9],
    };
    fits(&on_screen(COLUMNS, || super::sched_table(&SchedTable { is_used: true, rows: vec![row] })));
    let distance =
        MeasuredDistance { distance: "llc".to_owned(), pairs: 8128, line_ns: 1000, copy_mb_per_s: 100_000 };
    let caches =
        MeasuredCaches { places: Vec::new(), measured_s: 0, expires_s: 0, distances: vec![distance] };
    fits(&on_screen(COLUMNS, || super::measured(&caches)));
}

#[test]
fn a_profile_fits() {
    let mut stages = super::profile::tests::report();
    stages.workers[0].rounds = COUNT;
    stages.ports[0].port = NAME.to_owned();
    stages.ports[0].sampled_packets = COUNT;
    let processes = vec![ProcessUsage {
        process: NAME.to_owned(),
        pid: 4_194_303,
        user_s: 5.0,
        kernel_s: 5.0,
        instructions: Some(1000 * COUNT),
        cache_misses: Some(COUNT),
        threads: Vec::new(),
    }];
    let answer = ProfileAnswer { stages, processes, uncounted: None };
    fits(&on_screen(COLUMNS, || super::profile(&answer)));
}
