use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use lasthop_guestmem::memfd;

use super::*;

fn file() -> OwnedFd {
    memfd("flows", FLOW_MEMORY_BYTES).expect("memory")
}

fn stats(packets: u64) -> FlowStats {
    FlowStats { packets, bytes: packets * 60, used_ms: packets, tcp_flags: 2 }
}

/// The flows that the next process finds: messages by datapath, with their packets.
fn found(file: &OwnedFd) -> BTreeMap<(i32, Vec<u8>), u64> {
    let (memory, found) = FlowMemory::of(file).expect("it can be mapped");
    let read = |one: Found| {
        let (message, stats) = memory.read(one.place);
        assert_eq!(one.used_ms, stats.used_ms);
        ((one.datapath, message), stats.packets)
    };
    found.into_iter().map(read).collect()
}

#[test]
fn the_next_process_finds_what_is_there() {
    let file = file();
    let (mut memory, before) = FlowMemory::of(&file).expect("it can be mapped");
    assert!(before.is_empty());
    let lengths: [usize; 10] = [1, 7, 8, 216, 217, 256, 257, 500, 4000, 60_000];
    let message = |len: usize| (0..len).map(|at| (7 * at + at / 256 + len) as u8).collect();
    let messages: Vec<Vec<u8>> = lengths.map(message).into();
    let places: Vec<RecordPlace> =
        messages.iter().map(|message| memory.put(7, message, &stats(3)).expect("room")).collect();
    memory.note(places[0], &stats(5));
    memory.remove(places[1]);
    let other = memory.replace(places[2], 7, &[9; 300], &stats(8)).expect("room");
    assert!(memory.put(7, &[0; 70_000], &stats(1)).is_none(), "longer than any block");
    assert!(memory.put(-1, &[1], &stats(1)).is_some());
    let mut wanted: BTreeMap<(i32, Vec<u8>), u64> =
        messages.iter().skip(3).map(|message| ((7, message.clone()), 3)).collect();
    wanted.extend([((7, vec![1]), 5), ((7, vec![9; 300]), 8), ((-1, vec![1]), 1)]);
    assert_eq!(found(&file), wanted);
    let (mut memory, _) = FlowMemory::of(&file).expect("it can be mapped");
    memory.remove(other);
    (0..5000).for_each(|number: u32| {
        memory.put(2, &number.to_ne_bytes(), &stats(1)).expect("room behind what another process took");
    });
    assert_eq!(found(&file).len(), wanted.len() - 1 + 5000);
}

#[test]
fn one_of_two_counts_whenever_a_process_dies_amid_a_replacement() {
    let file = file();
    let (mut memory, _) = FlowMemory::of(&file).expect("it can be mapped");
    let old = memory.put(1, &[1], &stats(1)).expect("room");
    let new = memory.write(&[2], &stats(2)).expect("room");
    let is = |file: &OwnedFd, message: u8| found(file).into_keys().eq([(1, vec![message])]);
    assert!(is(&file, 1), "nothing but the new one's words");
    let moved = u64::from(new.0) << 32 | u64::from(old.0);
    memory.words.publish(MOVED_AT, moved);
    assert!(is(&file, 1), "the new one does not count yet");
    memory.words.publish(MOVED_AT, moved);
    memory.publish(new, 1, 1);
    assert!(is(&file, 2), "the old one does not any more");
    memory.words.publish(MOVED_AT, moved);
    memory.words.publish(old.0 as usize, 0);
    assert!(is(&file, 2));
}

#[test]
fn whatever_a_process_left_is_read_without_harm() {
    let file = file();
    let (mut memory, _) = FlowMemory::of(&file).expect("it can be mapped");
    let sound = memory.put(1, &[1], &stats(1)).expect("room");
    let next = sound.0 as usize + block_words(0);
    memory.words.publish(next, 1 << 32 | u64::from(u32::MAX));
    memory.words.publish(next + block_words(0), 1 << 32 | 217);
    let junk: Vec<u64> =
        (0..CHUNKS as u64 - 2).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    memory.words.write_at(CLASSES_AT + 2, &junk);
    memory.words.publish(CLASSES_AT + 3, 2);
    memory.words.publish(MOVED_AT, u64::from(sound.0 + 1) << 32 | u64::from(sound.0));
    assert!(found(&file).into_keys().eq([(1, vec![1])]), "the sound one alone");
    memory.words.publish(MOVED_AT, u64::MAX);
    memory.words.publish(MAGIC_AT, 1);
    assert!(found(&file).is_empty(), "another layout");
}
