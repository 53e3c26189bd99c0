//! Several workers, stepped in random order by one thread: visits are cut between reserving, copying and publishing,
//! and workers lose their core while they serve a ring. For all orders every loss has a name, no packet arrives twice,
//! each sender's order is kept, and every byte is right. The same holds when all workers die and others take their
//! rings over, except for packets under way.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tags.rs"]
mod tags;
#[path = "../support/tcp.rs"]
mod tcp;

mod contention;
mod crew;
mod frames;
mod helping;
mod tagging;

use crew::{ModelSwitch, Setup};
use proptest::collection::vec;
use proptest::prelude::*;

fn setups() -> impl Strategy<Value = Setup> {
    let guest = (1..=2_u16, any::<bool>(), any::<bool>(), any::<bool>(), 0..3_u8);
    (1..=4_usize, any::<bool>(), vec(guest, 2..=4)).prop_map(|(workers, has_helper, guests)| Setup {
        workers,
        has_helper,
        guests,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_workers_conserves_order_bytes_and_counts(
        setup in setups(),
        steps in vec(any::<[u16; 3]>(), 1..400),
    ) {
        let mut crew = ModelSwitch::new(&setup);
        for step in steps {
            crew.step(step);
        }
        crew.settle();
    }
}
