//! Huge pages of the switch's own memory, on kernels that make them.
#![cfg(not(miri))]

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_guestmem::{Mapping, Words, memfd};

const HUGE: usize = 2 << 20;
/// Three huge pages, and parts of two others.
const BYTES: usize = 4 * HUGE;
const PAGE: usize = 4096;
const WORDS: usize = (BYTES - PAGE) / 8;

/// Kilobytes of the mapping of this memory that are mapped by huge pages, and that are mapped at all.
fn mapped_kib(mapping: &Mapping) -> (usize, usize) {
    let start = format!("{:x}-", mapping.start().as_ptr() as usize);
    let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let lines: Vec<&str> = smaps.lines().skip_while(|line| !line.starts_with(&start)).collect();
    let number = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    };
    (number("ShmemPmdMapped:"), number("Rss:"))
}

/// Maps the file from its second page on, and all words of that.
fn mapped(file: &OwnedFd, is_huge: bool) -> (Arc<Mapping>, Words) {
    let map = if is_huge { Mapping::of_file_with_huge_pages } else { Mapping::of_file };
    let mapping = Arc::new(map(file.as_fd(), PAGE as u64, (BYTES - PAGE) as u64).expect("mapped"));
    let words = Words::new(&mapping, 0, WORDS).expect("words");
    (mapping, words)
}

/// Whether the kernel makes huge pages of a memfd: asked for without the code under test.
fn is_known() -> bool {
    let settings = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let is_denied = fs::read_to_string(settings).is_ok_and(|text| text.contains("[deny]"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse::<u32>);
    let mut number = || numbers.next().and_then(Result::ok).unwrap_or_default();
    let is_known =
        fs::exists(settings).is_ok_and(|is_there| is_there) && !is_denied && (number(), number()) >= (6, 1);
    if !is_known {
        let _ = std::io::stderr()
            .write_all(b"skip: this kernel makes no huge pages of shared memory (MADV_COLLAPSE)\n");
    }
    is_known
}

#[test]
fn touched_memory_is_in_huge_pages_and_the_next_mapping_uses_them() {
    if !is_known() {
        return;
    }
    let file = memfd("huge", BYTES as u64).expect("a memfd");
    let (mapping, words) = mapped(&file, true);
    assert_eq!(mapping.start().as_ptr() as usize % HUGE, PAGE, "as the offset in the file");
    words.write_at(0, &[7; WORDS]);
    let each = 64;
    // Not as far as the first huge page begins.
    words.touch(0..((HUGE - PAGE) / 8 / each) as u32, each);
    assert_eq!(mapped_kib(&mapping).0, 0, "it stays small");
    for begin in (0..WORDS / each).step_by(100) {
        words.touch(begin as u32..begin as u32 + 100, each);
    }
    assert_eq!(mapped_kib(&mapping), (3 * HUGE / 1024, (BYTES - PAGE) / 1024));
    assert!(words.atomics().iter().all(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 7));
    drop((mapping, words));
    let (mapping, words) = mapped(&file, true);
    assert_eq!(mapped_kib(&mapping), (0, 0));
    assert_eq!(words.read(WORDS / 2), 7);
    words.publish(WORDS / 4, 8);
    let (huge, all) = mapped_kib(&mapping);
    assert_eq!((huge, all), (2 * HUGE / 1024, 2 * HUGE / 1024), "by the accesses alone");
}

#[test]
fn small_pages_stay_small_unless_asked() {
    let file = memfd("small", BYTES as u64).expect("a memfd");
    let (mapping, words) = mapped(&file, false);
    words.touch(0..u32::MAX, 1);
    let (huge, all) = mapped_kib(&mapping);
    let is_forced =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").is_ok_and(|text| {
            !text.contains("[never]") && !text.contains("[deny]") && !text.contains("[advise]")
        });
    assert!(is_forced || huge == 0, "{huge} KiB");
    assert_eq!(all, (BYTES - PAGE) / 1024);
}
