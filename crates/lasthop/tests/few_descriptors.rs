//! The supervisor has no room for copies of guests' descriptors when a switch process has to continue with them.

use lasthop_frontend::GuestOptions;
use lasthop_rig::guests::{ONE, TWO, guest_with};
use lasthop_rig::talkers::Talker;
use lasthop_rig::{Switch, eventually};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Descriptors that the supervisor may still open: enough to start a process, and too few for a session with several regions and queues.
const LEFT: usize = 16;

#[test]
fn guests_wait_until_an_upgrade_has_room_for_their_descriptors() {
    let switch = Switch::start(&["--vnic", "one,queues=2", "--vnic", "two,queues=2"]);
    let options = |mac| GuestOptions { mac, queue_pairs: 2, regions: 8, ..GuestOptions::default() };
    let (one, two) = (guest_with(&switch, "one", options(ONE)), guest_with(&switch, "two", options(TWO)));
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    talkers.iter().for_each(|talker| talker.hear(20));
    std::thread::scope(|scope| {
        let few = Few::new(switch.pid());
        let upgraded = scope.spawn(|| switch.ask(&["upgrade"]));
        let said = "a guest waits to be continued";
        eventually("that guests wait", || switch.log().contains(said).then_some(()));
        drop(few);
        upgraded.join().expect("an answer").ok();
    });
    talkers.iter().for_each(|talker| talker.hear(200));
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
    switch.ask(&["stats", "--check"]).ok();
}

/// Leaves a process few descriptors to open, until this is dropped.
struct Few(Option<Pid>, Rlimit);

impl Few {
    fn new(pid: u32) -> Self {
        let used = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").flatten();
        let used: Vec<u64> = used.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let free = (0..).filter(|number| !used.contains(number));
        let last = free.take(LEFT).last().expect("a number");
        let pid = Pid::from_raw(pid.try_into().expect("a process"));
        // Its hard limit equals ours.
        let few = Rlimit { current: Some(last + 1), ..getrlimit(Resource::Nofile) };
        Self(pid, prlimit(pid, Resource::Nofile, few).expect("limited"))
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        let _ = prlimit(self.0, Resource::Nofile, self.1);
    }
}
