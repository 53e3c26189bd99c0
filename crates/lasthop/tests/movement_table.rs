//! The data movement table follows a guest's vCPUs: `lasthop sched show --table`.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, guest_with, send};
use lasthop_rig::{Switch, eventually, may_see_scheduler};
use serde_json::Value;

/// Queue pairs of the receiver, and vCPUs.
const QUEUES: u16 = 2;
/// Threads of a guest that has as many as may be tracked.
const THREADS: usize = 256;

/// A thread that acts as a vCPU: sleeps, or works after `true`.
struct Vcpu {
    works: Sender<bool>,
    tid: i32,
    thread: JoinHandle<()>,
}

impl Vcpu {
    fn new(number: usize) -> Self {
        let (works, orders) = channel();
        let (tell, told) = channel();
        let run = move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
            obey(&orders);
        };
        // Not of KVM, whose vCPUs may halt-poll.
        let thread =
            std::thread::Builder::new().name(format!("CPU {number}/TCG")).stack_size(64 << 10).spawn(run);
        Self { works, tid: told.recv().expect("its number"), thread: thread.expect("a thread") }
    }

    fn work(&self, works: bool) {
        self.works.send(works).expect("it lives");
    }

    fn end(self) {
        drop(self.works);
        self.thread.join().expect("it ended");
    }
}

fn obey(orders: &Receiver<bool>) {
    while let Ok(mut works) = orders.recv() {
        while works {
            std::hint::spin_loop();
            match orders.try_recv() {
                Ok(order) => works = order,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

fn receiver(switch: &Switch) -> Guest {
    guest_with(switch, "two", GuestOptions { mac: TWO, queue_pairs: QUEUES, ..GuestOptions::default() })
}

/// The rows of the receiver.
fn rows(switch: &Switch) -> Vec<Value> {
    let table = switch.json(&["sched", "show", "--table"]);
    let rows = table["rows"].as_array().expect("rows").clone();
    rows.into_iter().filter(|row| row["vnic"] == "two").collect()
}

/// Sends a frame, and takes it at the queue to which it goes. All have the same addresses, so that is always the same one.
fn deliver(one: &mut Guest, two: &mut Guest, number: u32) -> usize {
    send(one, &frame(TWO, ONE, number, 60));
    let mut taken = Vec::new();
    eventually("the frame", || {
        let mut of_queue = |queue: &u16| two.recv(*queue, &mut taken).expect("a sound ring").is_some();
        (0..QUEUES).find(|queue| of_queue(queue)).map(usize::from)
    })
}

/// Delivers frames until the row of their queue is as wanted; returns the row.
fn row_until(
    what: &str,
    (switch, one, two): (&Switch, &mut Guest, &mut Guest),
    is_wanted: impl Fn(&Value) -> bool,
) -> Value {
    let mut number = 0;
    eventually(what, || {
        number += 1;
        let queue = deliver(one, two, number);
        rows(switch).into_iter().nth(queue).filter(&is_wanted)
    })
}

/// Threads of this process act as the vCPUs of both guests, so this is a single test.
#[test]
fn the_table_follows_a_guest_whose_queues_come_and_go() {
    if !may_see_scheduler("movement-table") {
        return;
    }
    let mut vcpus: Vec<Vcpu> = (0..usize::from(QUEUES)).map(Vcpu::new).collect();
    let words = ["--scheduler-view", "auto", "--module", "bridge", "--vnic", "one", "--vnic", "two,queues=2"];
    let switch = Switch::start(&words);
    assert_eq!(rows(&switch).len(), 0, "no guest is attached");
    let (mut one, mut two) = (guest(&switch, "one", ONE), receiver(&switch));
    send(&mut two, &frame(ONE, TWO, 0, 60)); // the bridge learns its address
    let untouched = eventually("rows with the states of vCPUs", || {
        let rows = rows(&switch);
        let is_seen = |row: &Value| row["activity"] == "sleeping";
        (rows.len() == usize::from(QUEUES) && rows.iter().all(is_seen)).then_some(rows)
    });
    for (queue, (row, vcpu)) in untouched.iter().zip(&vcpus).enumerate() {
        assert_eq!((&row["queue"], &row["rule"]), (&queue.into(), &"same-number".into()), "{row}");
        assert_eq!(row["tid"], vcpu.tid, "{row}");
    }
    assert_eq!(switch.json(&["sched", "show", "--table"])["is_used"], false);
    assert!(switch.ask(&["sched", "show", "--table"]).ok().contains("not used"));

    switch.ask(&["sched", "set", "movement=on"]).ok();
    let both = (&switch, &mut one, &mut two);
    let written = row_until("packets for a vCPU that sleeps", both, |row| row["last_touch"] == "switch");
    assert_eq!(written["activity"], "sleeping", "{written}");
    assert!(written["cpu"].is_u64(), "{written}");
    let queue = written["queue"].as_u64().expect("a number") as usize;
    vcpus[queue].work(true);
    let both = (&switch, &mut one, &mut two);
    row_until("packets for a vCPU that is awake", both, |row| {
        row["activity"] != "sleeping" && row["last_touch"] == "scheduler" && row["cpu"].is_u64()
    });
    assert_eq!(rows(&switch)[1 - queue]["activity"], "sleeping", "the other one");
    eventually("a landing", || {
        deliver(&mut one, &mut two, 0);
        let worker = &switch.json(&["sched", "show"])["workers"][0];
        let landed = ["landed_same", "landed_near", "landed_far"].map(|count| worker[count].as_u64());
        (landed.iter().flatten().sum::<u64>() > 0).then_some(())
    });
    vcpus[queue].work(false);
    let both = (&switch, &mut one, &mut two);
    row_until("it sleeps again", both, |row| row["last_touch"] == "switch");
    assert!(switch.ask(&["sched", "show", "--table"]).ok().contains("switch"));

    // A guest with as many threads as may be tracked, and queues that come and go.
    vcpus.extend((vcpus.len()..THREADS).map(Vcpu::new));
    for number in 0..5 {
        drop(two);
        two = receiver(&switch);
        send(&mut two, &frame(ONE, TWO, 0, 60));
        deliver(&mut one, &mut two, number);
        assert!(rows(&switch).len() <= usize::from(QUEUES));
    }
    let both = (&switch, &mut one, &mut two);
    let chosen =
        row_until("one of many threads", both, |row| row["rule"] == "last-ran" && row["tid"].is_u64());
    assert!(vcpus.iter().any(|vcpu| chosen["tid"] == vcpu.tid), "{chosen}");
    check_balance(&switch);

    switch.ask(&["sched", "set", "movement=off"]).ok();
    assert!(rows(&switch).iter().all(|row| row["last_touch"] != "switch"), "it is off");
    drop((one, two));
    eventually("no rows", || rows(&switch).is_empty().then_some(()));
    vcpus.into_iter().for_each(Vcpu::end);
}
