//! vCPU threads of a real QEMU with KVM, whose guest does nothing but HLT. It needs qemu-system-x86_64 and a usable
//! /dev/kvm; stock kernels need not run there.
//!
//! No test asserts a duration. One that waits in vain fails, unless KVM lets the guest spin, which does not count as usable.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lasthop_sched_view::guest_threads::{Evidence, GuestThreads, ProcessSnapshot, ThreadChoice};
use lasthop_sched_view::{KvmThreads, ThreadId};

const QEMU: &str = "qemu-system-x86_64";
const VCPUS: usize = 2;
/// Length of the image, and where the processor begins in it (Intel SDM, volume 3, 10.1.4).
const IMAGE_BYTES: usize = 64 << 10;
const RESET_VECTOR: usize = IMAGE_BYTES - 16;
/// cli; hlt; jmp to the hlt. The second vCPU waits for the first one to start it.
const GUEST: [u8; 4] = [0xfa, 0xf4, 0xeb, 0xfd];
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than a busy machine takes for QEMU's start.
const PATIENCE: Duration = Duration::from_secs(60);

/// QEMU with names of threads: these say which ones have to be found.
struct Qemu {
    child: Child,
    image: PathBuf,
}

impl Qemu {
    fn start() -> Option<Self> {
        let image = std::env::temp_dir().join(format!("lasthop-hlt-{}.bin", std::process::id()));
        let mut bytes = vec![0xf4; IMAGE_BYTES];
        bytes[RESET_VECTOR..][..GUEST.len()].copy_from_slice(&GUEST);
        std::fs::write(&image, bytes).unwrap();
        let child = Command::new(QEMU)
            .args("-name hlt,debug-threads=on -accel kvm -machine microvm -m 16 -nodefaults".split(' '))
            .args("-no-user-config -display none".split(' '))
            .arg("-smp")
            .arg(VCPUS.to_string())
            .arg("-bios")
            .arg(&image)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, image }),
            Err(_) => {
                let _ = std::fs::remove_file(image);
                None
            }
        }
    }

    /// Its last words, if it has ended: KVM cannot be used.
    fn end(&mut self) -> Option<String> {
        self.child.try_wait().unwrap()?;
        let mut words = String::new();
        let _ = self.child.stderr.take()?.read_to_string(&mut words);
        Some(words.trim().replace('\n', "; "))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.image);
    }
}

#[expect(clippy::print_stdout, reason = "tools/crate-tests counts skipped tests")]
fn skipped(why: &str) {
    println!("skipped: {why}");
}

fn usable_kvm() -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/kvm")
}

/// The guest's threads by their names, and by KVM if they had none.
fn both_ways(kvm: &mut KvmThreads, pid: u32) -> Option<(GuestThreads, GuestThreads)> {
    let mut process = ProcessSnapshot::read(pid).ok()?;
    let named = process.guest_threads(&ThreadChoice::Auto).ok()?;
    process.threads.iter_mut().for_each(|thread| QEMU[..15].clone_into(&mut thread.name));
    let seen = kvm.guest_threads(pid, &process, &ThreadChoice::Auto).ok()?;
    Some((named, seen))
}

/// Whether a thread uses a CPU, as one whose HLT does not sleep.
fn runs(pid: u32, thread: &ThreadId) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{}/stat", thread.tid)).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('R'))
}

#[test]
fn vcpus_of_qemu_that_never_ran_for_long_are_found_without_names() {
    if let Err(error) = usable_kvm() {
        return skipped(&format!("/dev/kvm cannot be used: {error}"));
    }
    let Some(mut qemu) = Qemu::start() else {
        return skipped("qemu-system-x86_64 is not installed (tools/deps demo-qemu)");
    };
    let (mut kvm, began) = (KvmThreads::default(), Instant::now());
    loop {
        if let Some(words) = qemu.end() {
            return skipped(&format!("QEMU cannot use KVM: {words}"));
        }
        let found = both_ways(&mut kvm, qemu.child.id());
        if began.elapsed() > PATIENCE {
            let named =
                ProcessSnapshot::read(qemu.child.id()).map(|all| all.guest_threads(&ThreadChoice::Auto));
            let spins = named.as_ref().is_ok_and(|all| {
                all.as_ref().is_ok_and(|all| all.threads.iter().any(|thread| runs(qemu.child.id(), thread)))
            });
            assert!(spins, "by names {named:?}, by KVM {found:?}");
            return skipped("this KVM does not let a halted guest sleep");
        }
        if let Some((named, seen)) = found {
            // A thread has its name shortly after it began.
            if seen.threads.len() >= VCPUS && named.threads.len() == VCPUS {
                assert_eq!((seen.threads, named.evidence), (named.threads, Evidence::Names));
                assert_eq!(seen.evidence, Evidence::Kvm { vcpus: Some(VCPUS) });
                return;
            }
        }
        std::thread::sleep(PAUSE);
    }
}
