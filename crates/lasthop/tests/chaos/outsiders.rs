//! Guests of other programs, on a separate switch within the same process: `tests/real/chaos-crew` manages them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lasthop_rig::Switch;

/// Their own switch, as the storm's guests would reject their frames.
const SWITCH: &str = "outside";
const VNICS: [&str; 4] = ["dpdk0", "dpdk1", "linux1", "linux2"];
/// The crew's exit status if no such guest is installed.
const NOBODY: i32 = 77;

/// The arguments of their switch and vnics.
pub(crate) fn words() -> Vec<String> {
    let vnics = VNICS.iter().flat_map(|vnic| ["--vnic".to_owned(), format!("{vnic},switch={SWITCH}")]);
    ["--switch".to_owned(), SWITCH.to_owned()].into_iter().chain(vnics).collect()
}

/// The crew of guests.
pub(crate) struct Outsiders {
    child: Child,
    complaints: PathBuf,
}

impl Outsiders {
    pub(crate) fn start(switch: &Switch, seed: u64) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/real/chaos-crew");
        let complaints = switch.base.path().join("outsiders");
        let child = Command::new(script)
            .arg(env!("CARGO_BIN_EXE_lasthop"))
            .args([switch.dir(), switch.base.path().join("outside")])
            .arg(seed.to_string())
            .env("CHAOS_CREW_VNIC", format!(",switch={SWITCH}"))
            .env("CHAOS_CREW_LOG", switch.base.path().join("log"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&complaints).expect("a file"))
            .spawn()
            .expect("python3 runs tests/real/chaos-crew");
        Self { child, complaints }
    }

    fn complaints(&self) -> String {
        std::fs::read_to_string(&self.complaints).expect("the file")
    }

    /// Checks that it has found no error so far.
    pub(crate) fn check(&mut self) {
        let ended = self.child.try_wait().expect("our child").filter(|status| status.code() != Some(NOBODY));
        assert!(ended.is_none(), "outsiders: {ended:?} {}", self.complaints());
    }

    /// Ends them; returns a description of their work.
    pub(crate) fn end(&mut self) -> String {
        drop(self.child.stdin.take());
        let mut summary = String::new();
        let mut out = self.child.stdout.take().expect("piped");
        out.read_to_string(&mut summary).expect("text");
        let status = self.child.wait().expect("our child");
        if status.code() == Some(NOBODY) {
            return "no other guests (dpdk-testpmd, linux.uml) are installed".to_owned();
        }
        assert!(status.success(), "outsiders: {status:?} {}", self.complaints());
        summary.trim().to_owned()
    }
}

impl Drop for Outsiders {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // the crew then ends its guests, and itself
        let _ = self.child.wait();
    }
}
