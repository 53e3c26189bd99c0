//! Words with a version, and the stack of changes, in every order of two or three threads.

use lasthop_sync_model::{Marked, MarkedStack, Version, bounded};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Two words that are always changed together.
struct Place {
    version: AtomicU64,
    words: [AtomicU64; 2],
}

fn live(words: u64) -> Arc<Place> {
    let place = Place { version: AtomicU64::new(0), words: [AtomicU64::new(words), AtomicU64::new(words)] };
    Version::of(&place.version).end(&place.version);
    Arc::new(place)
}

fn read(place: &Place) -> [u64; 2] {
    [0, 1].map(|word| place.words[word].load(Ordering::Relaxed))
}

fn write(place: &Place, value: u64) {
    place.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

/// Adds one to both words, unless another writer interferes. Returns whether it did.
fn add(place: &Place) -> bool {
    let version = Version::of(&place.version);
    !version.is_busy() && add_from(place, version)
}

/// The same without a look at whether another writer is at work: then the version cannot be taken.
fn add_at_once(place: &Place) -> bool {
    add_from(place, Version::of(&place.version).published())
}

fn add_from(place: &Place, version: Version) -> bool {
    let [one, other] = read(place);
    if !version.is_live() || !version.take(&place.version) {
        return false;
    }
    assert_eq!(one, other, "the words of one version");
    write(place, one + 1);
    version.give_back(&place.version);
    true
}

#[test]
fn changes_are_made_from_what_was_read() {
    bounded().check(|| {
        let place = live(0);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let place = Arc::clone(&place);
                thread::spawn(move || u64::from(add(&place)))
            })
            .collect();
        let done: u64 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert!(done >= 1);
        assert_eq!(read(&place), [done; 2]);
    });
}

#[test]
fn a_version_that_is_busy_cannot_be_taken() {
    bounded().check(|| {
        let place = live(0);
        let other = Arc::clone(&place);
        let thread = thread::spawn(move || u64::from(add(&other)) + u64::from(add_at_once(&other)));
        let done = u64::from(add_at_once(&place)) + thread.join().unwrap();
        assert!(done >= 1);
        assert_eq!(read(&place), [done; 2]);
    });
}

#[test]
fn a_reader_knows_whether_it_has_read_one_version() {
    bounded().check(|| {
        let place = live(0);
        let other = Arc::clone(&place);
        let thread = thread::spawn(move || add(&other) && add(&other));
        let version = Version::of(&place.version);
        let [one, other] = read(&place);
        if !version.is_busy() && version.is_still(&place.version) {
            assert_eq!(one, other);
        }
        assert!(thread.join().unwrap());
    });
}

/// A place is reused for other content while a worker is about to change it.
#[test]
fn a_change_meets_the_generation_that_it_was_meant_for() {
    bounded().check(|| {
        let place = live(100);
        let other = Arc::clone(&place);
        let thread = thread::spawn(move || {
            let version = Version::of(&other.version);
            if version.is_busy() || !version.take(&other.version) {
                return false;
            }
            version.end(&other.version);
            write(&other, 200);
            Version::of(&other.version).end(&other.version);
            true
        });
        let version = Version::of(&place.version);
        let [one, other] = read(&place);
        if version.is_live() && !version.is_busy() {
            if version.is_still_generation(&place.version) {
                assert_eq!((one, other), if version.generation() == 1 { (100, 100) } else { (200, 200) });
            }
            if version.take(&place.version) {
                assert_eq!((one, other), if version.generation() == 1 { (100, 100) } else { (200, 200) });
                version.give_back(&place.version);
            }
        }
        thread.join().unwrap();
    });
}

/// No change is lost: when the consumer takes the number for the last time, it sees the last change.
#[test]
fn the_consumer_sees_the_last_change() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let words = || [0, 1].map(|_| AtomicU64::new(0));
        let shared = Arc::new((MarkedStack::default(), words(), words()));
        let threads: Vec<_> = [0, 1]
            .into_iter()
            .map(|number: u32| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (stack, words, changes) = &*shared;
                    // Both change the entry of number 0; one of them changes another entry first.
                    if number == 1 {
                        stack.push(1, &words[1]);
                    }
                    changes[number as usize].store(1, Ordering::Relaxed);
                    stack.push(0, &words[0]);
                })
            })
            .collect();
        let (stack, words, changes) = &*shared;
        let (mut marked, mut seen, mut taken) = (Marked::default(), 0, [0; 2]);
        let mut serve = || {
            while let Some(number) = stack.take(&mut marked, |number| words.get(number as usize)) {
                taken[number as usize] += 1;
                if number == 0 {
                    seen = changes.iter().map(|change| change.load(Ordering::Relaxed)).sum::<u64>();
                }
            }
        };
        serve();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        serve();
        assert_eq!((seen, taken[1]), (2, 1));
        assert!((1..=2).contains(&taken[0]));
    });
}
