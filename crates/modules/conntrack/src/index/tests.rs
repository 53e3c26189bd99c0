//! Kills a process at any store of a split.

use std::cell::Cell;
use std::sync::Arc;

use lasthop_ct_packet::{CtTuple, IpBytes};
use lasthop_guestmem::Mapping;

use super::*;
use crate::connection::{Connection, Progress};
use crate::memory::TableMemory;

const PLACES: u32 = 2048;

/// Memory of a table of which one shard's index is used.
struct World {
    mapping: Arc<Mapping>,
    memory: TableMemory,
}

impl World {
    fn of(mapping: &Arc<Mapping>) -> Self {
        let memory = TableMemory::of(mapping, PLACES).expect("memory");
        Self { mapping: Arc::clone(mapping), memory }
    }

    fn index(&self) -> &Index {
        &self.memory.indices[0]
    }

    fn enter(&self, number: u32, tuples: u32) {
        let connection = connection(number);
        let hashes = connection.tuples.map(|tuple| self.memory.key.of_tuple(&tuple));
        self.memory.places.get(number).expect("a place").enter(&connection, hashes);
        self.index().insert(&self.memory.places, number, tuples);
    }

    fn finds(&self, number: u32) -> bool {
        let is_found = |tuple: &CtTuple| {
            let hash = self.memory.key.of_tuple(tuple);
            let search = self.index().find(&self.memory.places, hash, &tuple.words());
            matches!(search, Search::Found(found) if found.index == number)
        };
        connection(number).tuples.iter().all(is_found)
    }

    fn words(&self) -> Words {
        Words::new(&self.mapping, 0, self.mapping.len() / 8).expect("words")
    }
}

fn connection(number: u32) -> Connection {
    let [.., a, b] = number.to_be_bytes();
    let at = |bytes: [u8; 4]| IpBytes::from(std::net::IpAddr::from(bytes));
    let (src, dst) = (at([10, 0, a, b]), at([10, 9, 0, 1]));
    let tuple = CtTuple { src, dst, src_port: 1, dst_port: 80, zone: 0, proto: 17, is_ipv6: false };
    Connection::new([tuple, tuple.inverse().expect("UDP has replies")], Progress::Other, 1000)
}

thread_local! {
    /// Stores until this thread is killed.
    static STORES_LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Called before each store into shared memory.
pub(super) fn may_be_killed() {
    STORES_LEFT.with(|left| {
        assert!(left.get() > 0, "killed");
        left.set(left.get() - 1);
    });
}

/// Whether `work` was killed before it was done.
fn is_killed_after(stores: u32, work: impl FnOnce()) -> bool {
    STORES_LEFT.set(stores);
    let is_killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
    STORES_LEFT.set(u32::MAX);
    is_killed
}

#[test]
fn a_process_that_is_killed_at_any_store_of_a_split_leaves_all_to_the_next_one() {
    const CONNECTIONS: u32 = 1200;
    let memory = || Arc::new(Mapping::anonymous(TableMemory::bytes_for(PLACES)).expect("memory"));
    let first = World::of(&memory());
    // Includes long chains, and a doubling among the splits.
    (0..CONNECTIONS).for_each(|number| first.enter(number, 0));
    (0..126).for_each(|_| first.index().grow(&first.memory.places, u32::MAX));
    for _ in 0..4 {
        let kept: Vec<u64> =
            first.words().atomics().iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let mut stores = 0;
        loop {
            let killed = World::of(&memory());
            killed.words().write(&kept);
            let killed = World::of(&killed.mapping);
            let is_killed = is_killed_after(stores, || killed.index().grow(&killed.memory.places, u32::MAX));
            let next = World::of(&killed.mapping);
            // The second process is killed as well; the third one is not.
            is_killed_after(stores / 2, || next.index().resume_split(&next.memory.places));
            let third = World::of(&killed.mapping);
            third.index().resume_split(&third.memory.places);
            let lost = (0..CONNECTIONS).filter(|number| !third.finds(*number)).count();
            assert_eq!(lost, 0, "killed behind {stores} stores");
            if !is_killed {
                break;
            }
            stores += 1;
        }
        assert!(stores > 20, "{stores} stores");
        first.index().grow(&first.memory.places, u32::MAX);
    }
}

/// The marks of each link, and those of the connections behind it.
fn marks(world: &World) -> Vec<(u32, u32)> {
    let mut marks = Vec::new();
    for bucket in 0..world.index().shape().buckets() {
        let mut next = world.index().head(bucket);
        let from = marks.len();
        while let Some((place, direction)) = place_of(&world.memory.places, next) {
            marks.push((next & MARKS_MASK, 0));
            let own = 1 << mark_of(place.hash(direction));
            marks[from..].iter_mut().for_each(|(_, behind)| *behind |= own);
            next = place.chain(direction);
        }
    }
    marks
}

#[test]
fn links_have_the_marks_of_the_connections_behind_them() {
    const CONNECTIONS: u32 = 1200;
    let mapping = Mapping::anonymous(TableMemory::bytes_for(PLACES)).expect("memory");
    let world = World::of(&Arc::new(mapping));
    (0..CONNECTIONS).for_each(|number| world.enter(number, number));
    for removed in [1..400, 600..700, 0..1, 500..599] {
        removed.for_each(|number| world.index().remove(&world.memory.places, number));
        let marks = marks(&world);
        assert!(!marks.is_empty() && marks.iter().all(|(told, behind)| told == behind), "{marks:?}");
        world.index().grow(&world.memory.places, u32::MAX);
    }
    assert!(world.finds(599) && !world.finds(500));
}

#[test]
fn a_process_that_is_killed_at_any_store_of_a_removal_loses_no_other_connection() {
    const CONNECTIONS: u32 = 800;
    let mapping = Arc::new(Mapping::anonymous(TableMemory::bytes_for(PLACES)).expect("memory"));
    let first = World::of(&mapping);
    (0..CONNECTIONS).for_each(|number| first.enter(number, 0));
    let (mut gone, mut most) = (0, 0);
    for stores in (1..9).cycle().take(400) {
        // The oldest one is the last one of its chains.
        let is_killed = is_killed_after(stores, || first.index().remove(&first.memory.places, gone));
        most = most.max(if is_killed { stores } else { 0 });
        gone += 1;
        let next = World::of(&mapping);
        assert!((gone..CONNECTIONS).all(|number| next.finds(number)), "killed behind {stores} stores");
        first.index().remove(&first.memory.places, gone - 1);
    }
    assert_eq!(most, 8, "chains are long enough");
}

#[test]
fn the_marks_of_a_broken_chain_are_mended() {
    let mapping = Mapping::anonymous(TableMemory::bytes_for(PLACES)).expect("memory");
    let world = World::of(&Arc::new(mapping));
    (0..1200).for_each(|number| world.enter(number, 0));
    let hash = world.memory.places.get(7).expect("a place").hash(Direction::Original);
    let bucket = world.index().shape().bucket_of(hash);
    let head = world.index().head(bucket);
    let other = 1 << ((mark_of(hash) + 1) % MARKS);
    world.index().set_head(bucket, head & !MARKS_MASK | other);
    assert!(!world.finds(7));
    world.index().mend(&world.memory.places, hash, |_| true);
    assert!(world.finds(7) && marks(&world).iter().all(|(told, behind)| told == behind));
}

#[test]
fn long_chains_are_searched_for_words_of_ipv4() {
    const CONNECTIONS: u32 = 1200;
    let mapping = Mapping::anonymous(TableMemory::bytes_for(PLACES)).expect("memory");
    let world = World::of(&Arc::new(mapping));
    (0..CONNECTIONS).for_each(|number| world.enter(number, 0));
    let find = |number: u32, direction: Direction| {
        let tuple = connection(number).tuples[direction.index()];
        let [src, dst, .., last] = tuple.words();
        let (places, hash) = (world.memory.places.rows(), world.memory.key.of_tuple(&tuple));
        let has_tuple = |place: Place<'_>, direction| place.has_tuple4(direction, [src, dst, last]);
        let found = world.index().buckets().find_by(places, hash, has_tuple);
        found.map(|(place, direction, version)| {
            (places.index_of(place), direction, version == place.version())
        })
    };
    for direction in [Direction::Original, Direction::Reply] {
        assert!((0..CONNECTIONS).all(|number| find(number, direction) == Some((number, direction, true))));
        assert!((CONNECTIONS..2 * CONNECTIONS).all(|number| find(number, direction).is_none()));
    }
    let place = world.memory.places.get(7).expect("a place");
    assert!(place.take(place.version()));
    assert_eq!(
        find(7, Direction::Reply),
        Some((7, Direction::Reply, false)),
        "taken: the version from before"
    );
    place.vacate(place.version());
    assert_eq!(find(7, Direction::Reply), None);
}
