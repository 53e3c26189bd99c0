//! Switches, ports and connections come and go, and the two processes learn of it in any order. In the end each switch
//! has one datapath with its ports, and gets their misses.

mod world;

use proptest::prelude::*;

use world::{Event, SWITCHES, World};

fn event() -> impl Strategy<Value = Event> {
    let number = 0..SWITCHES;
    prop_oneof![
        2 => number.clone().prop_map(Event::AddSwitch),
        2 => number.clone().prop_map(Event::RemoveSwitch),
        1 => number.clone().prop_map(Event::LoseDatapath),
        3 => (number, 0..2_usize).prop_map(|(switch, port)| Event::AddPort(switch, port)),
        3 => (0..4_usize).prop_map(Event::RemovePort),
        6 => Just(Event::Serve),
        6 => Just(Event::Tell),
        6 => (0..2_usize).prop_map(Event::Send),
        6 => (0..2_usize).prop_map(Event::Answer),
        3 => Just(Event::Turn),
        1 => (1..1_500_u64).prop_map(Event::Wait),
        1 => Just(Event::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn in_the_end_all_switches_are_served(events in proptest::collection::vec(event(), 0..150)) {
        let mut world = World::new();
        events.into_iter().for_each(|event| world.step(event));
        world.settle();
        world.check();
    }
}

/// Another switch's datapath has this one's former number.
#[test]
fn the_end_of_a_switch_whose_datapath_is_gone_is_not_that_of_another_one() {
    let mut world = World::new();
    world.step(Event::AddSwitch(0));
    world.settle();
    world.step(Event::LoseDatapath(0));
    world.step(Event::AddSwitch(1));
    world.step(Event::AddPort(1, 0));
    world.settle_soon();
    world.step(Event::RemoveSwitch(0));
    world.settle();
    world.check();
}

/// Replies to requests for a removed switch arrive when there is another one of its name.
#[test]
fn a_switch_that_is_made_again_does_not_take_answers_for_the_one_before() {
    let mut world = World::new();
    world.step(Event::AddSwitch(0));
    world.step(Event::Serve);
    world.step(Event::Tell);
    world.step(Event::Turn);
    for _ in 0..2 {
        world.step(Event::RemoveSwitch(0));
        world.step(Event::Serve);
        world.step(Event::Tell);
        world.step(Event::AddSwitch(0));
        world.step(Event::AddPort(0, 0));
        (0..2).for_each(|_| world.step(Event::Serve));
        (0..2).for_each(|_| world.step(Event::Tell));
        world.step(Event::Turn);
        world.step(Event::Send(0));
    }
    world.settle();
    world.check();
}
